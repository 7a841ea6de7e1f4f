"""Groups of completions and their marks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from qwenvl.health import all_equal
from qwenvl.runlog import Parity, Rollout

EQUAL, TRUNCATED, REPEATED, SUSPECT, UNSCORED, DROPPED = 1, 2, 4, 8, 16, 32
"""Marks of a group, added up: its rewards are equal, as the log counts them; a completion was truncated; half or more
of the texts occur twice; reward hacking is suspected; a completion has no reward; it was not trained on
(``--filter_groups``)."""

MOST_GAP = 1e9  # in place of an infinite difference of log-probs, for which JSON has no number
HIGH_FORMAT = 0.9  # a format reward from which a completion has the form
HALF_RIGHT = 0.5  # an accuracy from which a repeated text is not suspected
FORM = ("format", "tag", "length", "overlong", "repetition", "brevity")  # a reward with such a word judges the form
_PLACE = re.compile(r"(\[\d+\]|:\d+)$")


@dataclass(frozen=True)
class Group:
    """One prompt with its G completions of one step.

    Attributes:
        rollouts: G rows, by ``sample``.
        gaps: for each the largest difference between trainer's and sampler's log-probs. Empty if not compared.
    """

    rollouts: tuple[Rollout, ...]
    gaps: tuple[float, ...] = ()

    @property
    def head(self) -> Rollout:
        """The first row: step, record, prompt and clips are the same in all."""
        return self.rollouts[0]

    @property
    def totals(self) -> list[float]:
        """The total rewards of the completions that have one."""
        return [each.total for each in self.rollouts if each.total is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values. None where there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def dataset_of(where: str) -> str:
    """The name of the file in a record's place.

    Example:
        >>> dataset_of("data/sop.json[17]"), dataset_of("data/more.jsonl:3")
        ('sop', 'more')
    """
    return Path(_PLACE.sub("", where)).stem


def grouped(rollouts: Iterable[Rollout]) -> Iterator[Group]:
    """The groups of consecutive completions of one prompt. A group begins where ``sample`` is 0."""
    rows: list[Rollout] = []
    key: tuple[object, ...] = ()
    for each in rollouts:
        own = (each.split, each.step, each.epoch, each.record_id, each.where)
        if rows and (own != key or each.sample == 0):
            yield Group(tuple(rows))
            rows = []
        rows.append(each)
        key = own
    if rows:
        yield Group(tuple(rows))


def with_gaps(groups: Iterable[Group], compared: Iterable[Parity]) -> Iterator[Group]:
    """The groups with the gaps of their completions, for those that were compared."""
    known = {(each.step, each.where): tuple(min(gap, MOST_GAP) for gap in each.gaps) for each in compared}
    for group in groups:
        head = group.head
        gaps = known.get((head.step, head.where), ()) if head.split == "train" and not head.dropped else ()
        yield replace(group, gaps=gaps) if len(gaps) == len(group.rollouts) else group


def marks(group: Group) -> int:
    """The marks of a group, added up.

    Example:
        >>> marks(group) & EQUAL
        1
    """
    totals = group.totals
    found = 0
    if all_equal(totals) and len(group.rollouts) > 1:  # an evaluation may have one completion of each prompt
        found |= EQUAL
    if any(each.finish_reason == "length" for each in group.rollouts):
        found |= TRUNCATED
    if len(totals) < len(group.rollouts):
        found |= UNSCORED
    if len(group.rollouts) > 2 and _most_frequent(group)[1] * 2 >= len(group.rollouts):
        found |= REPEATED
    if group.head.dropped:
        found |= DROPPED
    return found | (SUSPECT if suspicions(group) else 0)


def suspicions(group: Group) -> list[str]:
    """Reasons to suspect reward hacking: completions have the form and nothing right, or repeat one wrong text.

    Each needs at least half of the completions, in a group of at least three. A group that repeats a right text is
    solved, and not suspected.
    """
    size = len(group.rollouts)
    if size < 3:
        return []
    reasons = []
    empty = sum(_form_without_content(each.rewards) for each in group.rollouts)
    if empty * 2 >= size:
        reasons.append(f"{empty} of {size} completions keep the form and have nothing right")
    text, count = _most_frequent(group)
    content = [value for each in group.rollouts if each.completion.strip() == text for value in _content(each.rewards)]
    if count * 2 >= size and content and fmean(content) < HALF_RIGHT:
        reasons.append(f"{count} of {size} completions are the same text, which is not right")
    return reasons


@cache
def is_form(name: str) -> bool:
    """Whether a reward judges the form of a completion, by its name. All others judge the content.

    Example:
        >>> is_form("strict_format"), is_form("accuracy")
        (True, False)
    """
    return any(word in name.casefold() for word in FORM)


def _content(rewards: Mapping[str, float | None]) -> list[float]:
    return [value for name, value in rewards.items() if value is not None and not is_form(name)]


def _form_without_content(rewards: Mapping[str, float | None]) -> bool:
    form = [value for name, value in rewards.items() if value is not None and "format" in name.casefold()]
    content = _content(rewards)
    return bool(form and content) and min(form) >= HIGH_FORMAT and max(content) <= 0


def _most_frequent(group: Group) -> tuple[str, int]:
    """The most frequent text, without outer white space, and its count."""
    return Counter(each.completion.strip() for each in group.rollouts).most_common(1)[0]


GroupRow = dict[str, Any]
"""The row of a group in the index of the page, as ``row_of`` makes it."""


def row_of(group: Group, page: int, place: int) -> GroupRow:
    """The row of a group at a place of a page: its numbers, its marks, and the mean of each reward as ``parts``."""
    head, totals = group.head, group.totals
    names = dict.fromkeys(name for each in group.rollouts for name in each.rewards)
    return {
        **{"page": page, "place": place, "split": head.split, "step": head.step, "epoch": head.epoch},
        **{"record": head.record_id, "where": head.where, "size": len(group.rollouts), "marks": marks(group)},
        **{"mean": mean(totals), "low": min(totals, default=None), "high": max(totals, default=None)},
        "parts": {name: mean(each.rewards.get(name) for each in group.rollouts) for name in names},
        "gap": max(group.gaps, default=None),
    }
