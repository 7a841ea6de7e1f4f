"""``qwenvl warmup``: teach a checkpoint to answer in the right form, so that GRPO finds rewards to compare."""

from __future__ import annotations

from qwenvl.config.flags import USUAL, USUAL_OF_A_WARMUP, WARMUP_GROUPS
from qwenvl.train.train_grpo import start

PURPOSE = (
    "Teach Qwen-VL by cross-entropy to give the records' solutions, or the best completions of a run, before GRPO.\n"
    "Settings that only training by rewards reads are refused as flags, and passed over in a file."
)


def main(argv: list[str] | None = None, says_next: bool = True) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags.

    Args:
        says_next: end with the command to type next.
    """
    usual = {**USUAL_OF_A_WARMUP, **USUAL}
    start("qwenvl warmup", PURPOSE, WARMUP_GROUPS, usual, argv, says_next=says_next)


if __name__ == "__main__":
    main()
