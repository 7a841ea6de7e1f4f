"""Hints about timelines: the fineness of their times with the frames that are shown, and spans that are too short."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qwenvl.data.records.timelines import OVERHANG, numbers_of
from qwenvl.failure import counted
from qwenvl.rewards.functions.actions import names_in
from qwenvl.rewards.functions.looking import readable_evidence
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.table import FOR_TIMELINES, may_read_times
from qwenvl.timeline import TimedStep, timeline_in
from qwenvl.types import FrameInfo, Hint, Record

FRAMES_OF_A_SPAN = 2
"""A span needs a frame in it and the next one outside to have an edge; with two frames in it both edges show."""


@dataclass(frozen=True)
class TimelineTimes:
    """The spans of a record compared with the frames of its clip.

    Attributes:
        shortest: seconds of the shortest span.
        distance: mean seconds between neighbouring frames that are shown.
    """

    shortest: float
    distance: float


def record_timeline(record: Record) -> list[TimedStep]:
    """The timeline of a record's solution. Empty where it is none, or has spans without a number in the list."""
    spans = timeline_in(solution_of(record.solution), numbers_of(names_in(record.messages[-1].text)))
    if isinstance(record.fields.get("timeline"), list) or all(span.number is not None for span in spans):
        return spans
    return []


def timeline_times(record: Record, clips: Sequence[FrameInfo]) -> TimelineTimes | None:
    """The times of a record with a timeline and one clip. None for others."""
    spans = record_timeline(record) if len(clips) == 1 else []
    if not spans:
        return None
    return TimelineTimes(min(span.seconds for span in spans), clips[0].seconds_per_frame)


def span_problems(record: Record, clips: Sequence[FrameInfo]) -> list[Hint]:
    """Hints where a span of a timeline or of ``evidence`` ends after the record's only clip, and about names."""
    if len(clips) != 1:
        return []
    longest = clips[0].duration + OVERHANG
    hints = []
    spans = record_timeline(record)
    if len({span.number is None for span in spans}) > 1:
        hints.append(
            Hint(
                "steps by number and by name",
                "the timeline names some steps by number and others by name, and the prompt has no list, a step a line "
                "as in (1) insert the fan, that says which are the same: no answer in one form is right",
            )
        )
    if any(span.end > longest for span in spans):
        hints.append(Hint("timeline and clip disagree", "the timeline has a span that ends after the clip"))
    if any(end > longest for _, end in readable_evidence(record.fields)):
        hints.append(Hint("evidence and clip disagree", "`evidence` has a span that ends after the clip"))
    return hints


def unread_times(timelines: int, records: int, rewards: Collection[str]) -> list[Hint]:
    """A hint where answers are timelines, and no reward reads their times: each wrong time would be right.

    Args:
        timelines: how many of so many records have one.
        rewards: the names of the rewards.
    """
    if not timelines or any(map(may_read_times, rewards)):
        return []
    return [
        Hint(
            "times that no reward reads",
            f"timelines are the solutions of {timelines:,} of {counted(records, 'record')}, and no reward reads their "
            f"times ({', '.join(rewards)}): wrong ones score as right ones do; --reward_funcs format "
            f"{' '.join(FOR_TIMELINES)} reads them",
        )
    ]


def fineness(times: Sequence[TimelineTimes]) -> str:
    """A line on the fineness that times can have. Empty without timelines."""
    if not times:
        return ""
    distance = max(each.distance for each in times)
    shortest = min(each.shortest for each in times)
    return (
        f"timelines: the shortest span has {shortest:.2f} s; frames are up to {distance:.2f} s apart, and Qwen3-VL and "
        f"Qwen3.5 read a time for each pair of them, every {2 * distance:.2f} s"
    )


def short_spans(times: Sequence[TimelineTimes]) -> list[Hint]:
    """Name --video_fps where a span is shorter than two frames."""
    short = [each for each in times if each.shortest < FRAMES_OF_A_SPAN * each.distance]
    if not short:
        return []
    shortest = min(each.shortest for each in short)
    fps = math.ceil(FRAMES_OF_A_SPAN / shortest)
    return [
        Hint(
            "short spans",
            f"{len(short):,} of {len(times):,} timelines have a span that is shorter than two frames (the shortest has "
            f"{shortest:.2f} s): its edges can't be seen; --video_fps {fps} with --video_max_frames high enough shows "
            "two frames of it, and with --tools look a model can look at a stretch again",
        )
    ]
