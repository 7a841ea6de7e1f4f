"""Timelines on the pages: the spans of solutions and answers as the scripts draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qwenvl.timeline import TimedStep
from qwenvl.types import FrameInfo

MOST_SPANS = 200
"""Spans of one answer on a page. An answer may have many more, which nobody reads."""
FOUND_AT = 0.5  # intersection over union from which a span counts as found

Messages = Sequence[Mapping[str, str]]
"""The turns of a prompt, each with ``role`` and ``text``."""


@dataclass(frozen=True)
class ReadTimelines:
    """The timelines of a completion and of its record.

    Attributes:
        named, true: the spans of the answer and of the solution.
        overlaps: for each named span its best intersection over union with a span of the same step in the solution.
        partners: the places of found spans of the solution, by the places of the named spans that find them.
    """

    named: Sequence[TimedStep]
    true: Sequence[TimedStep]
    overlaps: Sequence[float]
    partners: Mapping[int, int]


class Reading(Protocol):
    """Reads texts as the reward functions do. It comes from a room above, since this one knows no rewards."""

    def answer(self, completion: str) -> str | None:
        """The answer of a completion. None: it has no answer."""
        ...

    def solution(self, solution: str) -> str:
        """The text of a solution inside its answer block."""
        ...

    def timelines(
        self, prompt: Messages, completion: str, solution: str, rewards: Mapping[str, float | None]
    ) -> ReadTimelines | None:
        """The timelines of a completion and its solution. None where the record does not ask for a timeline.

        Args:
            rewards: of the completion, by name.
        """
        ...


def solution_as_shown(read: ReadTimelines | None, clips: Sequence[FrameInfo]) -> dict[str, Any] | None:
    """The page's object of a solution: its ``spans``, and the ``length`` of the axis in seconds.

    Args:
        clips: that the prompt shows. The axis has the length of the only one, or reaches to the last span's end.
    """
    if read is None:
        return None
    return {"length": axis_length(read.true, clips), "spans": [span_as_shown(span) for span in read.true]}


def answer_as_shown(read: ReadTimelines | None) -> dict[str, Any] | None:
    """The page's object of an answer.

    Its ``spans`` have ``iou`` and whether they are ``found``; ``missed`` are the places of spans of the solution that
    no span finds; ``more`` is the number of spans that are left out.
    """
    if read is None:
        return None
    spans = [
        span_as_shown(span) | {"iou": round(float(overlap), 3), "found": place in read.partners}
        for place, (span, overlap) in enumerate(zip(read.named[:MOST_SPANS], read.overlaps, strict=False))
    ]
    found = set(read.partners.values())
    return {
        "spans": spans,
        "missed": [place for place in range(len(read.true)) if place not in found],
        "more": len(read.named) - len(spans),
    }


def span_as_shown(span: TimedStep) -> dict[str, Any]:
    """The page's object of a span."""
    return {"start": round(span.start, 3), "end": round(span.end, 3), "number": span.number, "name": span.name}


def axis_length(spans: Sequence[TimedStep], clips: Sequence[FrameInfo]) -> float:
    """Seconds that the axis of a timeline has: of the clip if there is one alone, and at least to the last end."""
    ends = [span.end for span in spans]
    if len(clips) == 1:
        ends += [clips[0].duration, *clips[0].times[-1:]]
    return round(max(ends, default=0.0), 3)
