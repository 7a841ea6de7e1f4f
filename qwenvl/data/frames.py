"""Chooses the frames of a clip that the model sees, by pure functions of numbers: nothing here opens a file.

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

from qwenvl.data.errors import BadMediaError
from qwenvl.data.library_rules import frames_by_library, rate_of, without_note
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.types import ClipMeta, Record

FRAMES_PER_PATCH = 2
# How far the segments of ``meta`` may disagree with the decoded length: real annotations are off by a frame or two.
MAX_RELATIVE_MISMATCH = 0.10
MAX_FRAME_MISMATCH = 2
# Mean distances of frames by which the place of a frame may differ from the one that its number says before a clip
# counts as one of variable rate. Rounding a place to a frame takes half of one, and clocks and lost frames the rest.
MAX_UNEVENNESS = 2.0


class Timeline(NamedTuple):
    """The times of a clip's frames, and its duration, in seconds."""

    times: Sequence[float]
    duration: float


@dataclass(frozen=True)
class FramePlan:
    """The frames of a clip to show.

    Attributes:
        indices: an even number of source frame numbers, rising, the last one repeated where the count was odd.
        segments: for each index the number of its segment, from 0, or None where the clip has none.
        rescaled: the segments did not sum to the clip's length and were stretched or shrunk to it.
    """

    indices: tuple[int, ...]
    segments: tuple[int, ...] | None = None
    rescaled: bool = False


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
        """Choose the frames of the record's clip ``number``, at most ``most`` as ``plan_frames`` takes it.

        Raises:
            BadMediaError: the clip and its ``meta`` contradict each other.
        """
        meta = record.clip_meta[number] or ClipMeta()
        options = self.options
        if meta.count is not None:
            frame_count = len(timeline.times)
            rate = rate_of(frame_count, timeline.duration)
            meta = replace(meta, count=without_note(meta.count, frame_count, rate))
        record_decides = any((meta.count, meta.min_frames, meta.max_frames, meta.video_fps))
        if options.counts and not record_decides:
            # Without the epoch: a record always shows the same number of frames.
            count = stable_random(self.seed, record.id, "frame_counts").choice(options.counts)
            meta = replace(meta, min_frames=count, max_frames=count)
        draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
        try:
            first, stop = _stretch_of(meta, timeline.times)
            plan = plan_frames(
                frame_count=stop - first,
                duration=duration_of_stretch(timeline, first, stop, meta.video_end),
                options=options,
                meta=meta,
                draw=draw,
                most=most,
                times=timeline.times[first:stop],
            )
        except ValueError as error:
            raise BadMediaError(record.videos[number], str(error), "meta and clip disagree") from None
        return replace(plan, indices=tuple(first + index for index in plan.indices))


def _stretch_of(meta: ClipMeta, times: Sequence[float]) -> tuple[int, int]:
    """The first frame from ``video_start`` on, and the one after the last up to ``video_end``."""
    first = 0 if meta.video_start is None else bisect_left(times, meta.video_start)
    stop = len(times) if meta.video_end is None else bisect_right(times, meta.video_end)
    if first >= stop:
        bounds = {"video_start": meta.video_start, "video_end": meta.video_end}
        given = " and ".join(f"{name} {seconds:g}" for name, seconds in bounds.items() if seconds is not None)
        raise ValueError(f"no frames are left by {given}: those of the clip lie from 0 to {times[-1]:.3f} s")
    return first, stop


def duration_of_stretch(timeline: Timeline, first: int, stop: int, video_end: float | None) -> float:
    """The seconds from the frame ``first`` to the end of the one before ``stop``, at most to ``video_end``.

    In a clip of constant rate they are its frames' share of the duration, as in other libraries.
    """
    times = timeline.times
    by_share = timeline.duration * (stop - first) / len(times)
    if stop - first == len(times):
        return by_share
    end = times[stop] if stop < len(times) else times[0] + timeline.duration
    if video_end is not None:
        end = min(end, video_end)
    by_times = max(0.0, end - times[first])
    tolerance = MAX_UNEVENNESS * timeline.duration / len(times)
    return by_share if abs(by_share - by_times) <= tolerance else by_times


def plan_frames(
    frame_count: int,
    duration: float,
    options: FrameOptions,
    meta: ClipMeta | None = None,
    draw: Random | None = None,
    most: int | None = None,
    times: Sequence[float] | None = None,
) -> FramePlan:
    """Choose the frames of one clip.

    Without ``meta``: clamp(round(duration / base_interval), min_frames, max_frames) frames, made even, uniformly spaced
    from the first to the last. With ``meta.dynamic_sample`` each segment gives its own frames: in training (``draw``
    given) a number drawn uniformly from [min_frames, max_frames] and one random frame from each of as many equal
    stretches of the segment. In evaluation (``draw`` None) max_frames of them, uniformly spaced. Without
    ``dynamic_sample`` the bounds of ``meta`` take the place of the options' for the whole clip. With ``meta.count`` the
    number is that of ``qwen_vl_utils``.

    Args:
        frame_count: frames in the clip, at least 1.
        duration: seconds.
        draw: the random numbers of (run seed, epoch, record), or None to choose without chance.
        most: at most so many frames (of each segment with ``dynamic_sample``), but never fewer than the lower bound.
        times: seconds of each frame. None: the rate is constant.

    Raises:
        ValueError: the segments differ from ``frame_count`` by more than two frames and more than 10 %, or the clip has
            fewer frames than ``meta.count`` requests.

    Example:
        >>> plan_frames(100, 10.0, FrameOptions(base_interval=2.0)).indices  # round(10 / 2) = 5, made even
        (0, 20, 40, 59, 79, 99)
    """
    meta = meta or ClipMeta()
    if times is None:
        times = range(frame_count)
    edges, rescaled = _segment_edges(frame_count, meta.frame_counts)
    if meta.count is not None:
        wanted = frames_by_library(meta.count, frame_count, rate_of(frame_count, duration), options)
        limit = wanted.frames if most is None else max(most, wanted.least)
        indices = evenly_spaced(times, min(wanted.frames, limit))
        return _plan(indices, edges, meta, rescaled)
    low, high = _bounds(options, meta)
    most = high if most is None else max(most, low)
    if not meta.dynamic_sample:
        wanted_frames = _frames_wanted(duration, options, meta, low, high)
        indices = evenly_spaced(times, min(wanted_frames, most))
        return _plan(indices, edges, meta, rescaled)
    indices = []
    for start, end in pairwise(edges):
        offsets = _dynamic_offsets(times[start:end], low, high, most, draw)
        indices += [start + offset for offset in offsets]
    return _plan(indices, edges, meta, rescaled)


def _plan(indices: list[int], edges: list[int], meta: ClipMeta, rescaled: bool) -> FramePlan:
    """The plan of these frames, made even, with the segment of each where the record names segments."""
    indices = made_even(indices)
    segments = None
    if meta.frame_counts is not None:
        segments = tuple(bisect_right(edges, index, lo=1) - 1 for index in indices)
    return FramePlan(tuple(indices), segments, rescaled)


def uniform_indices(frame_count: int, n: int) -> list[int]:
    """Return at most ``n`` rising frame numbers, evenly spaced from the first frame to the last.

    For n = 1 it is the middle one.
    """
    n = min(n, frame_count)
    if n == 1:
        return [(frame_count - 1) // 2]
    last = frame_count - 1
    gaps = n - 1
    return [(2 * i * last + gaps) // (2 * gaps) for i in range(n)]  # i * last / gaps, rounded half up


def evenly_spaced(times: Sequence[float], n: int) -> list[int]:
    """Return at most ``n`` rising numbers of the frames with these times, evenly spaced from the first to the last.

    At a constant rate they are evenly spaced by number, as in other libraries. At a variable rate they are the frames
    nearest to evenly spaced times. Where one frame is the nearest to several of these, frames between those chosen
    make up the number.

    Example:
        >>> evenly_spaced([0.0, 0.1, 0.2, 0.3, 0.4, 5.0, 10.0], 3)
        [0, 5, 6]
    """
    by_number = uniform_indices(len(times), n)
    if len(by_number) == len(times):
        return by_number
    first = times[0]
    last = times[-1]
    gaps = len(by_number) - 1
    wanted = [first + (last - first) * i / gaps for i in range(gaps + 1)] if gaps else [(first + last) / 2]
    tolerance = MAX_UNEVENNESS * (last - first) / (len(times) - 1)
    if all(abs(times[index] - at) <= tolerance for index, at in zip(by_number, wanted, strict=True)):
        return by_number
    nearest = {_nearest(times, at) for at in wanted}
    others = [index for index in range(len(times)) if index not in nearest]
    missing = len(by_number) - len(nearest)
    more = [others[i] for i in uniform_indices(len(others), missing)]
    return sorted([*nearest, *more])


def _nearest(times: Sequence[float], at: float) -> int:
    """The number of the frame nearest to a time, of two the earlier one."""
    after = bisect_left(times, at)
    if after == 0:
        return 0
    before = after - 1
    is_nearer = after < len(times) and times[after] - at < at - times[before]
    return after if is_nearer else before


def made_even(numbers: list[int]) -> list[int]:
    """The numbers, with the last one twice where their count is odd."""
    missing = -len(numbers) % FRAMES_PER_PATCH
    return numbers + numbers[-1:] * missing


def _bounds(options: FrameOptions, meta: ClipMeta) -> tuple[int, int]:
    """The least and most frames: the record's where it has them, else the options'."""
    low = options.video_min_frames if meta.min_frames is None else meta.min_frames
    high = options.video_max_frames if meta.max_frames is None else meta.max_frames
    if low > high:  # one from the record and the other from the flags: that of the record counts
        return (high, high) if meta.min_frames is None else (low, low)
    return low, high


def _frames_wanted(duration: float, options: FrameOptions, meta: ClipMeta, low: int, high: int) -> int:
    """The number of frames of so many seconds, within the bounds, and even where the bounds allow it."""
    rate = options.video_fps if meta.video_fps is None else meta.video_fps
    by_time = duration / options.base_interval if rate is None else duration * rate
    n = min(max(round(by_time), low), high)
    if n % FRAMES_PER_PATCH == 0:
        return n
    if n + 1 <= high:
        return n + 1
    return n - 1 if n - 1 >= max(low, 1) else n


def _dynamic_offsets(times: Sequence[float], low: int, high: int, most: int, draw: Random | None) -> list[int]:
    """Frames of one segment, counted from its start. A segment emptied by rescaling gives none."""
    length = len(times)
    if length == 0:
        return []
    if draw is None:
        return evenly_spaced(times, min(high, most))
    n = min(draw.randrange(low, high + 1), most, length)
    # One random frame from each of n equal stretches.
    return [draw.randrange(length * i // n, length * (i + 1) // n) for i in range(n)]


def _segment_edges(frame_count: int, counts: tuple[float, ...] | None) -> tuple[list[int], bool]:
    """The first frame of each segment and the end of the last, and whether the counts had to be rescaled."""
    if counts is None:
        return [0, frame_count], False
    total = sum(counts)
    mismatch = abs(total - frame_count)
    if mismatch > MAX_FRAME_MISMATCH and mismatch > MAX_RELATIVE_MISMATCH * frame_count:
        raise ValueError(
            f"meta.frame_cnts {list(counts)} sum to {total:g} frames but the clip has {frame_count}; expected at most "
            f"{MAX_FRAME_MISMATCH} frames or {MAX_RELATIVE_MISMATCH:.0%} of difference: correct the counts or the clip"
        )
    scale = frame_count / total
    edges = [0]
    for end in accumulate(counts):
        edges.append(min(frame_count, int(end * scale + 0.5)))
    edges[-1] = frame_count  # whatever rounding makes of the last end
    return edges, mismatch >= 0.5
