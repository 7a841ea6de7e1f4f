"""``qwenvl evaluate MODEL [MODEL2 ...] DATA``: what models are worth on held-out records, and whether they look."""

from __future__ import annotations

from collections.abc import Sequence

from qwenvl.evaluate.held_out import evaluate_held_out


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, and print the table. Status 1 for bad data, 2 for a bad command line."""
    return evaluate_held_out(argv)
