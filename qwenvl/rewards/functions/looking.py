"""Rewards for looking at a video again: at the right time, and for the right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.grounding import Span, span_iou, united
from qwenvl.rewards.functions.shaping import ACCURACY, Correctness, by_correctness
from qwenvl.timeline import seconds_of
from qwenvl.types import FrameInfo, ToolCall, Turn


def answered_calls(turns: Sequence[Turn]) -> list[ToolCall]:
    """The calls of a completion that tools have answered."""
    answered: list[ToolCall] = []
    for turn in turns:
        answered += [call for call in turn.calls if call.error is None]
    return answered


def has_looked(turns: Sequence[Turn]) -> bool:
    """Whether tools have shown a completion frames or a picture. A tool of one's own may say a text alone."""
    return any(call.clips or call.pictures for call in answered_calls(turns))


def evidence_of(fields: Mapping[str, Any]) -> list[Span] | None:
    """The spans of a record's field ``evidence``, in seconds. None where it has none.

    Raises:
        ValueError: the field is no list of [start, end].
    """
    given = fields.get("evidence")
    if given is None:
        return None
    spans = [_span_in(pair) for pair in given] if isinstance(given, list | tuple) else []
    sound = [span for span in spans if span is not None]
    if not sound or len(sound) < len(spans):
        raise ValueError(f"the field 'evidence' must be a list of [start, end] in seconds, got {given!r}")
    return sound


def _span_in(pair: Any) -> Span | None:
    """The span of a start and an end in seconds. None where they are none."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    start, end = map(seconds_of, pair)
    if start is None or end is None or start >= end:
        return None
    return start, end


def readable_evidence(fields: Mapping[str, Any]) -> list[Span]:
    """The same spans. Empty where the record has none, or a field of that name which is something else."""
    return [] if check_evidence("", fields) else evidence_of(fields) or []


def looks_iou(turns: Sequence[Turn], evidence: Sequence[Span]) -> float:
    """Intersection over union, in seconds, of all that a completion looked at and of the evidence."""
    looked_at: list[Span] = []
    for call in answered_calls(turns):
        looked_at += map(_span_of, call.clips)
    return span_iou(united(looked_at), united(list(evidence)))


def check_evidence(solution: str, fields: Mapping[str, Any]) -> str | None:
    """The reason why a record's evidence cannot be read. None: it can, or there is none."""
    try:
        evidence_of(fields)
    except ValueError as error:
        return str(error)
    return None


def evidence_iou(
    completions: list[str],
    turns: list[Sequence[Turn]] | None = None,
    evidence: list[Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Intersection over union of the seconds that a completion looked at and those of the record's ``evidence``.

    ``evidence`` is a list of spans, [[start, end], ...] in seconds. The spans of all answered looks are united, without
    what lies outside of the clip. A completion without a look scores 0. None for a record without evidence.
    """
    scores: list[float | None] = []
    none: list[Any] = [()] * len(completions)
    for each, given in zip(turns or none, evidence or [None] * len(none), strict=True):
        spans = evidence_of({"evidence": given})
        scores.append(None if spans is None else looks_iou(each, spans))
    return scores


def _span_of(clip: FrameInfo) -> Span:
    """The span that a look took its frames from, as far as the clip has it, else that of the frames it was shown."""
    return clip.looked_at or (clip.times[0], clip.times[-1])


def looked_and_right(
    completions: list[str],
    turns: list[Sequence[Turn]] | None = None,
    *,
    correctness_func: Correctness = ACCURACY,
    bonus: Annotated[float, Argument("The value of a completion that looked and is right.", above=0)] = 0.1,
    **columns: Any,
) -> list[Any]:
    """``bonus`` for a completion that looked at the video again and is right, else 0.

    A completion has looked where a tool showed it frames or a picture. It is right where ``correctness_func`` gives 1.
    Where that gives None, so does this. A bonus for looking alone would teach calls without an answer.
    """

    def score(is_right: bool, looked_before: bool) -> float:
        return bonus * (is_right and looked_before)

    looked = [has_looked(each) for each in turns or [()] * len(completions)]
    if turns is not None:
        columns["turns"] = turns
    return by_correctness(score, looked, correctness_func, completions, columns)
