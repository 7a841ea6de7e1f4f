"""``qwenvl train``: train a checkpoint by GRPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qwenvl.train.run.start import start_training

if TYPE_CHECKING:
    from transformers import TrainerCallback


def main(argv: list[str] | None = None, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train, evaluate if there is data for it, save model and processor. See ``--help`` for the flags.

    Args:
        callbacks: more callbacks of transformers.
    """
    start_training(argv, callbacks)
