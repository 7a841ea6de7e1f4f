"""Which frames of a clip the model sees. These are pure functions of numbers, and nothing here opens a file.

Vision towers of the Qwen-VL family merge frames in pairs, so every plan has an even number of frames: where the clip or
the bounds give an odd number, the last frame is repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import NamedTuple

from qwenvl.data.errors import FramePlanError
from qwenvl.data.frames.places import FEWEST_LOOKS, LOOKS_PER_SECOND, Looks, places, uniform_indices
from qwenvl.data.frames.spans import frames_of_spans, pairs_of_each
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.types import ClipMeta, Record

FRAMES_PER_PATCH = 2
# How far the segments of ``meta`` may disagree with the decoded length: real annotations are off by a frame or two.
MAX_RELATIVE_MISMATCH = 0.10
MAX_FRAME_MISMATCH = 2


@dataclass(frozen=True)
class FramePlan:
    """The chosen frames.

    Attributes:
        indices: an even number of source frame numbers, rising, the last one repeated where the count was odd.
        segments: for each index the number of its segment or span, from 0, or None where the clip has neither.
        rescaled: the segments did not sum to the clip's length and were stretched or shrunk to it.
    """

    indices: tuple[int, ...]
    segments: tuple[int, ...] | None = None
    rescaled: bool = False


class Timeline(NamedTuple):
    """When the frames of a clip are shown, how long it lasts, in seconds, and how much changes, where that is known."""

    times: Sequence[float]
    duration: float
    looks: Looks | None = None


@dataclass(frozen=True)
class FrameRule:
    """The rule by which the frames of a data set's clips are chosen.

    Attributes:
        options: how densely clips are sampled where their record does not say.
        seed: of the run.
        training: draw the frames of ``dynamic_sample`` clips by (seed, epoch, record, clip), else take them uniformly.
    """

    options: FrameOptions
    seed: int = 0
    training: bool = True

    def plan(self, record: Record, number: int, epoch: int, timeline: Timeline, most: int | None = None) -> FramePlan:
        """Choose the frames of the record's clip ``number``, at most ``most`` of them.

        Raises:
            FramePlanError: the clip and its ``meta`` contradict each other.
        """
        meta = record.clip_meta[number] or ClipMeta()
        draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
        try:
            stretches = stretches_of(meta, timeline)
            duration = _seconds_of(stretches, timeline)
            if meta.spans is not None:
                return plan_spans(stretches, duration, self.options, meta, draw, most, timeline.looks)
            ((first, stop),) = stretches
            looks = timeline.looks and timeline.looks.within(first, stop)
            plan = plan_frames(stop - first, duration, self.options, meta, draw, most, looks)
        except FramePlanError as error:
            raise FramePlanError(f"{record.videos[number]}: {error}") from None
        return replace(plan, indices=tuple(first + index for index in plan.indices))

    def frames_to_look_at(self, record: Record, number: int, timeline: Timeline) -> list[int]:
        """Return at which frames of a clip to look before its frames are chosen: none with ``frame_sampler`` uniform.

        Raises:
            FramePlanError: as ``plan`` raises it.
        """
        if self.options.frame_sampler == "uniform":
            return []
        try:
            stretches = stretches_of(record.clip_meta[number] or ClipMeta(), timeline)
        except FramePlanError as error:
            raise FramePlanError(f"{record.videos[number]}: {error}") from None
        looked = []
        for first, stop in stretches:
            n = max(FEWEST_LOOKS, round(LOOKS_PER_SECOND * _seconds_of([(first, stop)], timeline)))
            looked += [first + index for index in uniform_indices(stop - first, n)]
        return looked


def stretches_of(meta: ClipMeta, timeline: Timeline) -> list[tuple[int, int]]:
    """Return where frames may be taken: runs of frames, each as the first one and the one after its last.

    Raises:
        FramePlanError: there are none where ``meta`` says.
    """
    if meta.spans is not None:
        return frames_of_spans(meta.spans, timeline.times, timeline.duration)
    return [frames_between(timeline.times, meta.video_start, meta.video_end)]


def _seconds_of(stretches: Sequence[tuple[int, int]], timeline: Timeline) -> float:
    return timeline.duration * sum(stop - first for first, stop in stretches) / len(timeline.times)


def frames_between(times: Sequence[float], start: float | None, end: float | None) -> tuple[int, int]:
    """Return the first frame at or after ``start`` seconds, and the one after the last at or before ``end``.

    Raises:
        FramePlanError: there is none between them.
    """
    first = 0 if start is None else bisect_left(times, start)
    stop = len(times) if end is None else bisect_right(times, end)
    if first >= stop:
        raise FramePlanError(
            f"no frames from video_start {start} to video_end {end}; its frames lie from 0 to {times[-1]:.3f} s"
        )
    return first, stop


def plan_frames(
    frame_count: int,
    duration: float,
    options: FrameOptions,
    meta: ClipMeta | None = None,
    draw: Random | None = None,
    most: int | None = None,
    looks: Looks | None = None,
) -> FramePlan:
    """Choose the frames of one clip.

    Without ``meta``: clamp(round(duration / base_interval), min_frames, max_frames) frames, made even, uniformly spaced
    from the first to the last. With ``meta.dynamic_sample`` each segment gives its own frames: in training (``draw``
    given) a number drawn uniformly from [min_frames, max_frames] and one random frame from each of as many equal
    stretches of the segment. In evaluation (``draw`` None) max_frames of them, uniformly spaced. Without
    ``dynamic_sample`` the bounds of ``meta`` take the place of the options' for the whole clip. With ``looks`` frames
    and stretches are even in what changes, as ``places`` says, and their number is the same.

    Args:
        frame_count: frames in the clip.
        duration: seconds.
        draw: the random numbers of (run seed, epoch, record), or None to choose without chance.
        most: at most so many frames (of each segment with ``dynamic_sample``), but never fewer than the lower bound.
        looks: how much the clip changes.

    Raises:
        FramePlanError: the segments differ from ``frame_count`` by more than two frames and more than 10 %, or the
            bounds of ``meta`` and the options together are empty.

    Example:
        >>> plan_frames(100, 10.0, FrameOptions(base_interval=2.0)).indices  # round(10 / 2) = 5, made even
        (0, 20, 40, 59, 79, 99)
    """
    if frame_count < 1:
        raise FramePlanError("the clip has no frames")
    low, high = _bounds(options, meta)
    most = high if most is None else max(most, low)
    edges, rescaled = _segment_edges(frame_count, meta.frame_counts if meta else None)
    if meta is not None and meta.dynamic_sample:
        indices = [
            start + offset
            for start, end in pairwise(edges)
            for offset in _dynamic_offsets(end - start, low, high, most, draw, looks and looks.within(start, end))
        ]
    else:
        wanted = _frames_wanted(_frames_asked(duration, options, meta), low, high)
        indices = places(frame_count, min(wanted, most), None, looks)
    indices = _made_even(indices)
    segments = None
    if meta is not None and meta.frame_counts is not None:
        segments = tuple(_segment_of(index, edges) for index in indices)
    return FramePlan(tuple(indices), segments, rescaled)


def plan_spans(
    stretches: Sequence[tuple[int, int]],
    duration: float,
    options: FrameOptions,
    meta: ClipMeta,
    draw: Random | None = None,
    most: int | None = None,
    looks: Looks | None = None,
) -> FramePlan:
    """Choose the frames of a clip of which a record names spans.

    The number of frames is that of a clip as long as all spans together. It is split among them in pairs, at least one
    for each, so that no temporal patch joins two spans. A span with an odd number of frames repeats its last one. With
    ``meta.dynamic_sample`` the spans are what segments are in ``plan_frames``.

    Args:
        stretches: the first frame of each span, and the one after its last.
        duration: of all spans together, in seconds.
        draw, most, looks: as for ``plan_frames``.

    Raises:
        FramePlanError: more spans than pairs of frames.

    Example:
        >>> plan_spans([(10, 20), (50, 60)], 4.0, FrameOptions(base_interval=1.0), ClipMeta()).indices
        (10, 19, 50, 59)
    """
    low, high = _bounds(options, meta)
    most = high if most is None else max(most, low)
    own_looks = [looks and looks.within(*stretch) for stretch in stretches]
    own = list(zip((stop - first for first, stop in stretches), own_looks, strict=True))
    if meta.dynamic_sample:
        chosen = [_dynamic_offsets(length, low, high, most, draw, seen) for length, seen in own]
    else:
        if len(stretches) > _in_pairs(high):
            raise FramePlanError(
                f"meta.spans: {len(stretches)} spans need {FRAMES_PER_PATCH * len(stretches)} frames, a pair for each, "
                f"but at most {high} are taken: raise --video_max_frames or max_frames, or name fewer spans"
            )
        wanted = min(_frames_wanted(_frames_asked(duration, options, meta), low, high), most)
        pairs = pairs_of_each(stretches, max(_in_pairs(wanted), len(stretches)))
        chosen = [
            _made_even(places(length, FRAMES_PER_PATCH * n, None, seen))
            for (length, seen), n in zip(own, pairs, strict=True)
        ]
    indices = [first + offset for (first, _), offsets in zip(stretches, chosen, strict=True) for offset in offsets]
    segments = [number for number, offsets in enumerate(chosen) for _ in offsets]
    return FramePlan(tuple(_made_even(indices)), tuple(_made_even(segments)))


def _in_pairs(n: int) -> int:
    """How many pairs hold ``n`` frames."""
    return -(-n // FRAMES_PER_PATCH)


def _made_even(numbers: list[int]) -> list[int]:
    """The numbers, the last one again where they are odd in number."""
    return numbers + numbers[-1:] * (-len(numbers) % FRAMES_PER_PATCH)


def _bounds(options: FrameOptions, meta: ClipMeta | None) -> tuple[int, int]:
    """The record's bounds where it has them, else the options'."""
    low, high = options.video_min_frames, options.video_max_frames
    if meta is not None:
        low = low if meta.min_frames is None else meta.min_frames
        high = high if meta.max_frames is None else meta.max_frames
        # One bound from the record and the other from the flags may cross; the record's word counts.
        if low > high and meta.min_frames is None:
            low = high
        elif low > high and meta.max_frames is None:
            high = low
    if not 1 <= low <= high:
        raise FramePlanError(f"expected 1 <= min_frames <= max_frames, got {low} and {high}")
    return low, high


def _frames_asked(duration: float, options: FrameOptions, meta: ClipMeta | None) -> float:
    """The number of frames that so many seconds ask for."""
    rate = options.video_fps if meta is None or meta.video_fps is None else meta.video_fps
    return duration / options.base_interval if rate is None else duration * rate


def _frames_wanted(asked: float, low: int, high: int) -> int:
    """The number of frames that time asks for, within the bounds, even where the bounds allow it."""
    n = min(max(round(asked), low), high)
    if n % FRAMES_PER_PATCH == 0:
        return n
    if n + 1 <= high:
        return n + 1
    return n - 1 if n - 1 >= max(low, 1) else n


def _dynamic_offsets(
    length: int, low: int, high: int, most: int, draw: Random | None, looks: Looks | None
) -> list[int]:
    """Frames of one segment, counted from its start. A segment emptied by rescaling gives none."""
    if length == 0:
        return []
    return places(length, min(high if draw is None else draw.randrange(low, high + 1), most), draw, looks)


def _segment_edges(frame_count: int, counts: tuple[float, ...] | None) -> tuple[list[int], bool]:
    """First frame of each segment and the end of the last, and whether the counts had to be rescaled."""
    if counts is None:
        return [0, frame_count], False
    total = sum(counts)
    mismatch = abs(total - frame_count)
    if mismatch > MAX_FRAME_MISMATCH and mismatch > MAX_RELATIVE_MISMATCH * frame_count:
        raise FramePlanError(
            f"meta.frame_cnts {list(counts)} sum to {total:g} frames but the clip has {frame_count}; expected at most "
            f"{MAX_FRAME_MISMATCH} frames or {MAX_RELATIVE_MISMATCH:.0%} of difference: correct the counts or the clip"
        )
    scale = frame_count / total
    edges = [0, *(min(frame_count, int(end * scale + 0.5)) for end in accumulate(counts))]
    edges[-1] = frame_count
    return edges, mismatch >= 0.5


def _segment_of(index: int, edges: list[int]) -> int:
    return next(number for number, end in enumerate(edges[1:]) if index < end)
