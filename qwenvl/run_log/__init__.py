"""The files that a run writes, and what is made of them without torch: its rows, their findings, the report."""
