"""What reward functions log of themselves, kept apart from the columns that the run writes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

OWN = frozenset(
    {"step", "epoch", "loss", "grad_norm", "learning_rate", "kl", "entropy", "total_flos", "num_input_tokens_seen"}
)
"""Columns of ``metrics.jsonl`` that the run writes."""
OWN_FAMILIES = (
    *("group/", "completion/", "prompt/", "time/", "memory/", "data/", "dataset/", "loss/", "ratio/"),
    *("parity/", "filter/", "difficulty/"),
    *("frame_cache/", "vision_cache/", "nonfinite/", "eval_", "train_"),
)
"""Beginnings of the names of its other columns. Of ``reward/`` only some names are taken."""
OWN_REWARDS = ("total", "std", "max", "temporal_contrast")
"""What the run logs as ``reward/NAME`` beside the reward functions, none of which can have one of these names."""


class Logged:
    """The numbers that functions log by ``log_metric``, averaged by name.

    Args:
        functions: names of the reward functions, whose values the run logs itself.
    """

    def __init__(self, functions: Iterable[str]) -> None:
        ends = ("", "/skipped", "/unfinished")
        self._rewards = {f"reward/{name}{end}" for name in (*OWN_REWARDS, *functions) for end in ends}
        self._values: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, value: float) -> None:
        """Log one number.

        Raises:
            ValueError: the run writes a column of this name itself.
        """
        name = str(name)
        if name in OWN or name in self._rewards or name.startswith(OWN_FAMILIES):
            raise ValueError(f"log_metric({name!r}, ...): the run logs a column of that name itself; log another name")
        self._values[name].append(float(value))

    def __deepcopy__(self, memo: dict) -> Logged:
        """Functions get copies of what they are handed, but all log here."""
        return self

    def means(self) -> dict[str, float]:
        """The mean of what was logged under each name."""
        return {name: math.fsum(values) / len(values) for name, values in self._values.items()}
