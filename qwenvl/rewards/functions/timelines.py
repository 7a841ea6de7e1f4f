"""Rewards for timelines: which step from when to when, by the measures of temporal action segmentation.

Segmental F1, segmental edit score and frame accuracy are those of Lea et al., arXiv:1611.05267.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.actions import list_of
from qwenvl.rewards.functions.text import pairs, solution_of, unreadable
from qwenvl.timeline import TimedStep, entry_in_other_units, entry_without_span, merged, timeline_in

if TYPE_CHECKING:
    import numpy as np

Spans = Sequence[TimedStep]
Threshold = Annotated[
    float | list,
    Argument("Least intersection over union of a match; of a list the mean is taken.", above=0, most=1),
]
FrameRate = Annotated[float, Argument("Frames at which the labels are compared.", "per second", above=0, most=1000)]
ExtraShare = Annotated[
    float,
    Argument("Weight of the share of spans beyond the solution's number.", least=0, most=1),
]


def check_timeline(solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
    """The reason why a record cannot be scored by its timeline: it has none, or an entry is no span. Else None."""
    text = solution_of(solution)
    entry = entry_in_other_units(text)
    if entry is not None:
        return f"the solution's times must be seconds or mm:ss, got {entry[:80]!r}"
    expected = 'must be a timeline, a span a line such as "0.0-3.5 (2) insert the fan"'
    problem = unreadable(timeline_in, expected, solution)
    if problem is not None:
        return problem
    # The spans that are read would be all of the solution, and the others would be lost without a word.
    entry = entry_without_span(text)
    if entry is not None:
        return f"the solution {expected}; no span is {entry[:80]!r}"
    # "2 bolts" and "2 nuts" would both be step 2.
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for span in timeline_in(text):
        if span.number is None or not span.name:
            continue
        first = names.setdefault(span.number, span.name)
        if span.name != first:
            return f"the solution calls step {span.number} {first!r} and {span.name!r}; write (number) name"
        if numbers.setdefault(span.name, span.number) != span.number:  # "1. 0-3 tighten", numbers of lines
            return f"the solution calls steps {numbers[span.name]} and {span.number} {span.name!r}; write (number) name"
    return None


def check_frames(solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
    """The reason why a record cannot be scored by its frames: its timeline, or its duration. None: it can."""
    problem = check_timeline(solution, fields)
    if problem is None and fields:
        try:
            given_duration(fields.get("duration"))
        except ValueError as error:
            return str(error)
    return problem


def given_duration(duration: Any) -> float | None:
    """The field ``duration`` of a record, in seconds. None without one: tables have NaN or an empty text there.

    Raises:
        ValueError: it is no number of seconds of at least 0.
    """
    if duration is None or duration == "" or duration != duration:
        return None
    try:
        seconds = math.nan if isinstance(duration, bool) else float(duration)  # a cell of a CSV file is a text
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"the field 'duration' must be a number of seconds of at least 0, got {duration!r}")
    return seconds


def segment_f1(
    completions: list[str],
    solution: list[str],
    prompts: list[Any] | None = None,
    *,
    iou: Threshold = 0.5,
    **columns: Any,
) -> list[float]:
    """Segmental F1 at ``iou``: 2 TP / (2 TP + FP + FN) over the spans of answer and solution. arXiv:1611.05267.

    In order of time, each span of the answer takes the span of the solution with the same step and the largest
    intersection over union. It is a true positive (TP) if this is at least ``iou`` and no earlier span took the same
    one, and else a false positive (FP). Spans of the solution without a match are false negatives (FN). With
    ``iou=[0.1, 0.25, 0.5]`` the value is the mean of the three.
    """
    if problem := thresholds_problem(iou):
        raise ValueError(problem)
    thresholds = iou if isinstance(iou, list) else [iou]
    scores = []
    for named, true in timelines(completions, solution, prompts):
        values = [f1_at(threshold, named, true) for threshold in thresholds]
        scores.append(sum(values) / len(values))
    return scores


def thresholds_problem(iou: Any) -> str | None:
    """Why this argument of ``segment_f1`` is no threshold or list of thresholds, or None."""
    thresholds = iou if isinstance(iou, list) else [iou]
    if thresholds and all(_is_share(threshold) for threshold in thresholds):
        return None
    return f"iou must be numbers above 0 and at most 1, got {iou!r}"


def edit_score(
    completions: list[str], solution: list[str], prompts: list[Any] | None = None, **columns: Any
) -> list[float]:
    """Segmental edit score: 1 - edit distance / longer length between the sequences of steps. arXiv:1611.05267.

    The steps are in the order of their starts. Insertions, deletions and substitutions cost 1 each (Levenshtein).
    Times matter for the order alone.
    """
    return [edit_of(named, true) for named, true in timelines(completions, solution, prompts)]


def frame_accuracy(
    completions: list[str],
    solution: list[str],
    prompts: list[Any] | None = None,
    duration: list[float | None] | None = None,
    *,
    fps: FrameRate = 10.0,
    **columns: Any,
) -> list[float]:
    """Share of the frames at which answer and solution have the same steps, none included. arXiv:1611.05267.

    Frame i is at i / ``fps`` seconds. The frames reach from 0 to the record's ``duration`` in seconds, or to the last
    end of a span where that is later or there is no duration. Of spans that overlap, all steps must be the same. An
    answer without a span scores 0.
    """
    none = [None] * len(completions)
    rows = zip(timelines(completions, solution, prompts), duration or none, strict=True)
    return [frames_right(named, true, given_duration(seconds), fps) for (named, true), seconds in rows]


def step_order(
    completions: list[str], solution: list[str], prompts: list[Any] | None = None, **columns: Any
) -> list[float]:
    """Share of the pairs of spans that answer and solution have in the same order of starts.

    The pairs are those of all spans that either names; a pair with a missing or an extra span is not in order. The
    n-th span of a step in the answer is the n-th of this step in the solution. Spans of the solution that start
    together may be in any order. A single span scores 1 if it is named, else 0.
    """
    return [order_of(named, true) for named, true in timelines(completions, solution, prompts)]


def timeline_iou(
    completions: list[str],
    solution: list[str],
    prompts: list[Any] | None = None,
    *,
    extra: ExtraShare = 1.0,
    **columns: Any,
) -> list[float]:
    """Mean over the solution's spans of the best intersection over union with a span of the same step, less extra ones.

    Of an answer with n spans where the solution has m < n, ``extra`` * (n - m) / n is subtracted, not below 0: many
    guesses must not pay. A span at the wrong place is no extra one, its step only has no overlap. The value
    grows with every edge that gets nearer; that of ``segment_f1`` jumps at its threshold.
    """
    return [best_iou(named, true, extra) for named, true in timelines(completions, solution, prompts)]


def timelines(
    completions: Sequence[str], solution: Sequence[str], prompts: Sequence[Any] | None = None
) -> list[tuple[list[TimedStep], list[TimedStep]]]:
    """The merged spans of each completion's answer, and those of its record's solution.

    Names have the numbers of the list in the last user turn of the prompt, if there is one. A solution without numbers
    is compared by names.
    """
    found = []
    lists = [list_of(prompt) for prompt in prompts or [None] * len(completions)]
    for (answer, truth), listed in zip(pairs(completions, solution), lists, strict=True):
        found.append(read_pair(answer or "", truth, listed))
    return found


def read_pair(
    answer: str, truth: str, listed: Mapping[str, int] | None = None
) -> tuple[list[TimedStep], list[TimedStep]]:
    """The merged spans of an answer and of a solution, with steps that can be compared."""
    named = timeline_in(answer, listed)
    true = timeline_in(truth, listed)
    if all(span.number is None for span in true):
        named = [replace(span, number=None) if span.name else span for span in named]
    return merged(named), merged(true)


# ---- the measures, on merged spans


def overlaps(named: Spans, true: Spans) -> np.ndarray:
    """Intersection over union of each pair of spans, n x m. 0 for spans of different steps."""
    import numpy as np

    numbers: dict[int | str, int] = {}  # so that steps are compared as numbers
    columns = []
    for spans in (named, true):
        rows = [(numbers.setdefault(span.step, len(numbers)), span.start, span.end) for span in spans]
        columns.append(np.array(rows, dtype=float).reshape(-1, 3).T)
    (step, start, end), (true_step, true_start, true_end) = columns
    common = np.minimum(end[:, None], true_end) - np.maximum(start[:, None], true_start)
    together = np.maximum(end[:, None], true_end) - np.minimum(start[:, None], true_start)
    # Where spans touch, their union is all from the first start to the last end; where they do not, common is below 0.
    return np.where(step[:, None] == true_step, common.clip(min=0) / together, 0.0)


def matches(iou: float, named: Spans, true: Spans) -> list[tuple[int, int]]:
    """The true positives of segmental F1: places in ``named`` and in ``true``."""
    if not named or not true:
        return []
    quality = overlaps(named, true)
    best = quality.argmax(axis=1)
    taken: dict[int, int] = {}
    for place, partner in enumerate(best.tolist()):
        # 1e-9: an IoU of exactly one half must not fail by the rounding of its division.
        if quality[place, partner] >= iou - 1e-9:
            taken.setdefault(partner, place)
    return [(place, partner) for partner, place in taken.items()]


def f1_at(iou: float, named: Spans, true: Spans) -> float:
    """Segmental F1. 2 TP + FP + FN is the number of spans in both timelines."""
    both = len(named) + len(true)
    return 2 * len(matches(iou, named, true)) / both if both else 0.0


def edit_of(named: Spans, true: Spans) -> float:
    """The segmental edit score. 0 where one of the two is empty."""
    if not named or not true:
        return 0.0
    distance = edit_distance([span.step for span in named], [span.step for span in true])
    return 1 - distance / max(len(named), len(true))


def edit_distance(one: Sequence[int | str], other: Sequence[int | str]) -> int:
    """Insertions, deletions and substitutions that make one sequence of the other (Levenshtein).

    Example:
        >>> edit_distance([1, 2, 3], [1, 3, 3, 4])
        2
    """
    import numpy as np

    numbers: dict[int | str, int] = {}
    columns = np.array([numbers.setdefault(step, len(numbers)) for step in other], dtype=int)
    place = np.arange(len(other) + 1)
    # distances[j]: between the steps of ``one`` so far and the first j of ``other``.
    distances = place
    for count, step in enumerate(one, start=1):
        deleted: np.ndarray = distances[1:] + 1
        replaced = distances[:-1] + (columns != numbers.get(step, -1))
        without_insertions = np.concatenate([[count], np.minimum(deleted, replaced)])
        # An insertion adds 1 to the distance on its left, so that the running minimum of distance - place decides.
        distances = np.minimum.accumulate(without_insertions - place) + place
    return int(distances[-1])


def frames_right(named: Spans, true: Spans, duration: float | None, fps: float) -> float:
    """The share of frames with the same steps. Computed from edge to edge, so that its cost is not that of frames."""
    if not named:
        return 0.0
    edges: dict[int, list[tuple[int | str, int]]] = {}  # by frame: the step that begins or ends, and in which of both
    for sign, spans in ((1, true), (-1, named)):
        for span in spans:
            # Frame i belongs to a span where start <= i / fps < end.
            first = _frame_at(span.start, fps)
            after = _frame_at(span.end, fps)
            edges.setdefault(first, []).append((span.step, sign))
            edges.setdefault(after, []).append((span.step, -sign))
    total = max(*edges, _frame_at(duration or 0.0, fps))
    difference: dict[int | str, int] = {}  # of the two timelines, by step, where it is not 0
    right = 0
    position = 0
    for frame in sorted(edges):
        right += 0 if difference else frame - position
        position = frame
        for step, change in edges[frame]:
            difference[step] = difference.get(step, 0) + change
            if not difference[step]:
                del difference[step]
    right += total - position
    return right / total if total else 0.0


def order_of(named: Spans, true: Spans) -> float:
    """The share of ordered pairs. Quadratic in the spans that both have, and these are at most those of ``true``."""
    import numpy as np

    ours = _starts(named)
    theirs = _starts(true)
    both = [key for key in theirs if key in ours]
    everything = len(ours) + len(theirs) - len(both)
    if everything < 2:
        return float(len(both))
    start = np.array([ours[key] for key in both])
    true_start = np.array([theirs[key] for key in both])
    direction = np.sign(start[:, None] - start)
    true_direction = np.sign(true_start[:, None] - true_start)
    in_order = (direction == true_direction) | (true_direction == 0)
    # Each pair is there twice, and each span is in order with itself.
    ordered = (in_order.sum() - len(both)) / 2
    return float(ordered / math.comb(everything, 2))


def best_iou(named: Spans, true: Spans, extra: float) -> float:
    """The mean of the best overlaps minus a share for extra spans, not below 0."""
    if not named or not true:
        return 0.0
    best = overlaps(named, true).max(axis=0)
    beyond = max(0, len(named) - len(true)) / len(named)
    return max(0.0, float(best.mean()) - extra * beyond)


def _starts(spans: Spans) -> dict[tuple[int | str, int], float]:
    """The start of each span by its step and its number among the spans of this step."""
    seen: dict[int | str, int] = {}
    starts = {}
    for span in spans:
        seen[span.step] = seen.get(span.step, 0) + 1
        starts[span.step, seen[span.step]] = span.start
    return starts


def _frame_at(seconds: float, fps: float) -> int:
    """The number of the first frame at ``seconds`` or later. 1e-6: 0.3 * 10 is frame 3 and not frame 4."""
    return math.ceil(seconds * fps - 1e-6)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
