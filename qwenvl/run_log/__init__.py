"""What a run writes, and what can be read from it without torch: its rows, their findings, the report."""
