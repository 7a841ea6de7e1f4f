"""``qwenvl warmup``: teach a checkpoint to answer in the right form, so that GRPO finds rewards to compare."""

from __future__ import annotations

from qwenvl.train.run.start import start_warmup


def main(argv: list[str] | None = None) -> None:
    """Train, evaluate if there is data for it, save model and processor. See ``--help`` for the flags."""
    start_warmup(argv)
