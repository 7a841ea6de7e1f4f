"""What a run has logged, as rules read it: entries, and windows of groups or steps at its ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

WATCHED = ("reward/total", "reward/max", "group/zero_std_frac", "completion/truncated_frac", "entropy", "kl")
WINDOW = 24
"""Groups, or optimizer steps where a number is one of the step, that are judged together."""


@dataclass(frozen=True)
class Entry:
    """One entry of the log.

    Attributes:
        step: the last optimizer step that it is about.
        steps: how many it is about.
        groups: how many were sampled in these, over all processes.
        values: means over these, by the name of the metric. Those that no rule reads may be missing.
    """

    step: int
    steps: int
    groups: int
    values: Mapping[str, float]

    @classmethod
    def of(cls, step: int, steps: int, groups: int, logs: Mapping[str, float]) -> Entry:
        """An entry with what rules read of the log: a run has thousands."""
        return cls(step, steps, groups, {name: v for name, v in logs.items() if name in WATCHED or is_format(name)})


History = Sequence[Entry]


@dataclass(frozen=True)
class Sampled:
    """How many groups the steps of a run sample.

    Attributes:
        prompts: of a step that samples, over all processes.
        iterations: steps on the same completions.
        totals_tell: whether total rewards of different groups can be compared. Some aggregations make them relative to
            their group, and then they are 0 on average.
    """

    prompts: int
    iterations: int = 1
    totals_tell: bool = True

    def entry(self, before: int, step: int, values: Mapping[str, float]) -> Entry:
        """The entry of a line of the log that was written after ``step``, the one before it being of ``before``."""
        sampled = sum(each % self.iterations == 0 for each in range(before, step))
        if not self.totals_tell:
            values = {name: value for name, value in values.items() if name != "reward/total"}
        return Entry.of(step, step - before, sampled * self.prompts, values)

    def history(self, rows: Sequence[Mapping[str, float]]) -> list[Entry]:
        """The entries of the lines of ``metrics.jsonl`` that are of optimizer steps.

        Example:
            >>> [entry.groups for entry in Sampled(prompts=4).history([{"step": 2, "kl": 0.1}, {"step": 3, "kl": 0.1}])]
            [8, 4]
        """
        steps = [0, *(int(row["step"]) for row in rows)]
        return [self.entry(before, step, row) for before, step, row in zip(steps, steps[1:], rows, strict=False)]


def is_format(name: str) -> bool:
    """Whether a metric is a reward for the form of an answer, by its name."""
    return name.startswith("reward/") and "format" in name and name.count("/") == 1


def having(history: History, name: str) -> list[Entry]:
    """The entries that have a finite number of this name."""
    return [entry for entry in history if math.isfinite(entry.values.get(name, math.nan))]


def last_of(entries: History, unit: str, enough: int = WINDOW) -> list[Entry]:
    """The last entries that are about so many groups or steps, all of them where there are fewer."""
    sums = accumulate(getattr(entry, unit) for entry in reversed(entries))
    count = next((n for n, so_far in enumerate(sums, 1) if so_far >= enough), len(entries))
    return list(entries[len(entries) - count :])


def first_of(entries: History, unit: str, enough: int = WINDOW) -> list[Entry]:
    """The same of the first entries."""
    return last_of(entries[::-1], unit, enough)[::-1]


def last_two_of(entries: History, unit: str) -> tuple[list[Entry], list[Entry]]:
    """The last window and the one before it, earlier one first. Both are empty where there is not enough for two."""
    last = last_of(entries, unit)
    before = last_of(entries[: len(entries) - len(last)], unit)
    enough = sum(getattr(entry, unit) for entry in before) >= WINDOW
    return (before, last) if enough else ([], [])


def mean_of(entries: History, name: str, unit: str) -> float:
    """Weighted by groups or steps. 0 where no entry has the number."""
    weights = [(getattr(entry, unit), entry.values[name]) for entry in having(entries, name)]
    return sum(weight * value for weight, value in weights) / max(1, sum(weight for weight, _ in weights))
