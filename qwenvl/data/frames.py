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
from qwenvl.data.options import FrameOptions
from qwenvl.data.seeds import stable_random
from qwenvl.types import ClipMeta, Record

FRAMES_PER_PATCH = 2
# How far the segments of ``meta`` may disagree with the decoded length: real annotations are off by a frame or two.
MAX_RELATIVE_MISMATCH = 0.10
MAX_FRAME_MISMATCH = 2
SLACK_SECONDS = 1.0  # how far a span may end after its clip: annotations are rounded
LOOKS_PER_SECOND = 4  # how often ``frame_sampler change`` compares pictures of a clip
FEWEST_LOOKS = 64  # and how often at least, where the clip has so many frames

Stretch = tuple[int, int]
"""A run of frames: the number of the first one, and that after the last one."""


class Looks(NamedTuple):
    """How much a clip changes between some of its frames.

    Attributes:
        frames: their numbers, rising.
        change: for each, how much its picture differs from that of the one before, in any unit. 0 for the first.
    """

    frames: Sequence[int]
    change: Sequence[int]

    def within(self, first: int, stop: int) -> Looks:
        """The looks at the frames from ``first`` to before ``stop``, whose numbers are then counted from ``first``."""
        start, end = bisect_left(self.frames, first), bisect_left(self.frames, stop)
        change = [0, *self.change[start + 1 : end]] if start < end else []
        return Looks([frame - first for frame in self.frames[start:end]], change)


class Timeline(NamedTuple):
    """When the frames of a clip are shown, how long it lasts, in seconds, and how much changes, where that is known."""

    times: Sequence[float]
    duration: float
    looks: Looks | None = None


@dataclass(frozen=True)
class FramePlan:
    """The frames of a clip to show.

    Attributes:
        indices: an even number of source frame numbers, rising, the last one repeated where the count was odd.
        segments: for each index the number of its segment or span, from 0, or None where the clip has neither.
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
        """Choose the frames of the record's clip ``number``, at most ``most`` of them.

        Raises:
            FramePlanError: the clip and its ``meta`` contradict each other.
        """
        meta = record.clip_meta[number] or ClipMeta()
        draw = stable_random(self.seed, epoch, record.id, number) if self.training else None
        try:
            stretches = stretches_of(meta, timeline)
            frames = sum(stop - first for first, stop in stretches)
            duration = timeline.duration * frames / len(timeline.times)
            if meta.spans is not None:
                return plan_spans(stretches, duration, self.options, meta, draw, most, timeline.looks)
            ((first, stop),) = stretches
            looks = timeline.looks and timeline.looks.within(first, stop)
            plan = plan_frames(frames, duration, self.options, meta, draw, most, looks)
        except FramePlanError as error:
            raise FramePlanError(f"{record.videos[number]}: {error}") from None
        return replace(plan, indices=tuple(first + index for index in plan.indices))

    def frames_to_look_at(self, record: Record, number: int, timeline: Timeline) -> list[int]:
        """The frames of a clip to compare before its frames are chosen: none with ``frame_sampler`` uniform.

        Raises:
            FramePlanError: as ``plan`` raises it.
        """
        if self.options.frame_sampler == "uniform":
            return []
        try:
            stretches = stretches_of(record.clip_meta[number] or ClipMeta(), timeline)
        except FramePlanError as error:
            raise FramePlanError(f"{record.videos[number]}: {error}") from None
        looked: list[int] = []
        for first, stop in stretches:
            seconds = timeline.duration * (stop - first) / len(timeline.times)
            n = max(FEWEST_LOOKS, round(LOOKS_PER_SECOND * seconds))
            looked += [first + index for index in uniform_indices(stop - first, n)]
        return looked


def stretches_of(meta: ClipMeta, timeline: Timeline) -> list[Stretch]:
    """Return where frames may be taken: the spans of ``meta``, or one stretch of the clip.

    A frame belongs to a span if it is shown at its start, at its end or between them. One that is shown where a span
    ends and the next begins belongs to the earlier one.

    Raises:
        FramePlanError: a span ends after the clip, or no frame is shown where ``meta`` says.

    Example:
        >>> halves = Timeline([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5], 4.0)
        >>> stretches_of(ClipMeta(spans=((0.5, 1.0), (3.0, 3.5))), halves)
        [(1, 3), (6, 8)]
    """
    times = timeline.times
    if meta.spans is None:
        first = 0 if meta.video_start is None else bisect_left(times, meta.video_start)
        stop = len(times) if meta.video_end is None else bisect_right(times, meta.video_end)
        if first >= stop:
            raise FramePlanError(
                f"no frames from video_start {meta.video_start} to video_end {meta.video_end}; its frames lie from 0 "
                f"to {times[-1]:.3f} s"
            )
        return [(first, stop)]
    stretches: list[Stretch] = []
    done = 0
    for number, (start, end) in enumerate(meta.spans):
        if start > times[-1] or end > timeline.duration + SLACK_SECONDS:
            raise FramePlanError(
                f"meta.spans[{number}] is {start:g} to {end:g} s, but the clip ends at {timeline.duration:.3f} s: "
                "correct the span or the clip"
            )
        first, stop = max(done, bisect_left(times, start)), bisect_right(times, end)
        if first >= stop:
            raise FramePlanError(f"meta.spans[{number}]: no frame is shown from {start:g} to {end:g} s: make it longer")
        stretches.append((first, stop))
        done = stop
    return stretches


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
    and stretches are even in what changes, see ``choose``, and their number is the same.

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
    meta = meta or ClipMeta()
    low, high = _bounds(options, meta)
    most = high if most is None else max(most, low)
    edges, rescaled = _segment_edges(frame_count, meta.frame_counts)
    if meta.dynamic_sample:
        indices = [
            start + offset
            for start, end in pairwise(edges)
            for offset in _dynamic_offsets(end - start, low, high, most, draw, looks and looks.within(start, end))
        ]
    else:
        indices = choose(frame_count, min(_frames_wanted(duration, options, meta, low, high), most), None, looks)
    indices = _made_even(indices)
    segments = None
    if meta.frame_counts is not None:
        segments = tuple(bisect_right(edges, index, lo=1) - 1 for index in indices)
    return FramePlan(tuple(indices), segments, rescaled)


def plan_spans(
    stretches: Sequence[Stretch],
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
        stretches: the frames of each span.
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
    own = [(stop - first, looks and looks.within(first, stop)) for first, stop in stretches]
    if meta.dynamic_sample:
        chosen = [_dynamic_offsets(length, low, high, most, draw, seen) for length, seen in own]
    else:
        if len(stretches) > -(-high // FRAMES_PER_PATCH):
            raise FramePlanError(
                f"meta.spans: {len(stretches)} spans need {FRAMES_PER_PATCH * len(stretches)} frames, a pair for each, "
                f"but at most {high} are taken: raise --video_max_frames or max_frames, or name fewer spans"
            )
        wanted = min(_frames_wanted(duration, options, meta, low, high), most)
        pairs = pairs_of_each(stretches, max(-(-wanted // FRAMES_PER_PATCH), len(stretches)))
        chosen = [
            _made_even(choose(length, FRAMES_PER_PATCH * n, None, seen))
            for (length, seen), n in zip(own, pairs, strict=True)
        ]
    indices = [first + offset for (first, _), offsets in zip(stretches, chosen, strict=True) for offset in offsets]
    segments = [number for number, offsets in enumerate(chosen) for _ in offsets]
    return FramePlan(tuple(_made_even(indices)), tuple(_made_even(segments)))


def pairs_of_each(stretches: Sequence[Stretch], pairs: int) -> list[int]:
    """Return how many pairs of frames each stretch gives, ``pairs`` in all where there are so many.

    Each gives one. Each further one comes from the stretch with the most frames for each pair that it gives so far,
    the first of several, but none gives more pairs than it has frames for.

    Example:
        >>> pairs_of_each([(0, 30), (40, 50)], 4)  # 30 and 10 frames: 30 / 1, then 30 / 2, then 10 / 1 = 30 / 3
        [3, 1]
    """
    lengths = [stop - first for first, stop in stretches]
    given = [1] * len(lengths)
    for _ in range(pairs - len(lengths)):
        room = [number for number, length in enumerate(lengths) if 2 * given[number] < length]
        if not room:
            break
        given[max(room, key=lambda number: lengths[number] / given[number])] += 1
    return given


def choose(frame_count: int, n: int, draw: Random | None = None, looks: Looks | None = None) -> list[int]:
    """Return at most ``n`` rising frame numbers of a run of ``frame_count`` frames.

    Without ``looks`` they are even in time: ``uniform_indices``, or with ``draw`` one random frame from each of ``n``
    equal stretches of the frames. With looks they are even in what changes: ``even_in_change``, or with ``draw`` one
    random frame from each of ``n`` stretches of equal change. With no more than ``n`` looks frames are even in time.
    """
    if looks is not None and len(looks.frames) > n:
        if draw is None:
            return [looks.frames[i] for i in even_in_change(looks.change, n)]
        weights, part = levelled(looks.change, n)
        sums = [0, *accumulate(weights)]
        inner = [looks.frames[bisect_right(sums, part * i) - 1] for i in range(1, n)]
        edges = [0, *inner, frame_count]
    elif draw is None:
        return uniform_indices(frame_count, n)
    else:
        n = min(n, frame_count)
        edges = [frame_count * i // n for i in range(n + 1)]
    return [draw.randrange(start, end) for start, end in pairwise(edges)]


def uniform_indices(frame_count: int, n: int) -> list[int]:
    """Return at most ``n`` rising frame numbers, evenly spaced from the first frame to the last.

    For n = 1 it is the middle one.
    """
    n = min(n, frame_count)
    if n == 1:
        return [(frame_count - 1) // 2]
    last, gaps = frame_count - 1, n - 1
    return [(2 * i * last + gaps) // (2 * gaps) for i in range(n)]  # i * last / gaps, rounded half up


def even_in_change(change: Sequence[int], n: int) -> list[int]:
    """Return ``n`` rising positions, fewer than there are, with as much change between each two neighbours.

    Half of what counts as change is time, so that neighbours are at most about twice as far apart as evenly spaced
    ones. A single change counts as much as one gap between two positions, however large it is, so that a cut takes one
    of them and not many. Where all changes are equal the positions are those of ``uniform_indices``.

    Args:
        change: at each position how much has changed since the one before. That of the first is not read.

    Example:
        >>> even_in_change([0, 0, 0, 0, 0, 9, 0, 0, 0, 0], 4)  # a cut between positions 4 and 5
        [0, 4, 5, 9]
    """
    weights, step = levelled(change[1:], max(1, n - 1))
    sums = [0, *accumulate(weights)]
    chosen = []
    for value in [step * i for i in range(n)] if n > 1 else [step // 2]:
        after = bisect_left(sums, value)
        nearer_before = after > 0 and value - sums[after - 1] < sums[after] - value
        chosen.append(after - nearer_before)
    return chosen


def levelled(change: Sequence[int], parts: int) -> tuple[list[int], int]:
    """Return what each change weighs where all are cut into ``parts`` of equal weight, and the weight of a part.

    The weight of a change is its share of all changes plus 1 / their number, for time. What exceeds a part is lowered
    to a part: with m of them lowered, a part is the weight of all others / (parts - m). All weights are multiplied by
    the same number so that they are integers.

    Args:
        change: at least ``parts`` of them.

    Example:
        >>> levelled([0, 8, 0], 2)  # shares 1/3, 1 + 1/3, 1/3: the second is lowered to the 2/3 of the others
        ([8, 16, 8], 16)
    """
    total = sum(change)
    weights = [len(change) * each + total for each in change] if total else [1] * len(change)
    left, lowered = sum(weights), 0
    for weight in sorted(weights, reverse=True):
        if weight * (parts - lowered) <= left:
            break
        left -= weight
        lowered += 1
    return [min(weight * (parts - lowered), left) for weight in weights], left


def _made_even(numbers: list[int]) -> list[int]:
    """The numbers, the last one again where they are odd in number."""
    return numbers + numbers[-1:] * (-len(numbers) % FRAMES_PER_PATCH)


def _bounds(options: FrameOptions, meta: ClipMeta) -> tuple[int, int]:
    """The least and most frames: the record's where it has them, else the options'."""
    low = options.video_min_frames if meta.min_frames is None else meta.min_frames
    high = options.video_max_frames if meta.max_frames is None else meta.max_frames
    # One bound from the record and the other from the flags may cross; the record's word counts.
    if low > high and meta.min_frames is None:
        low = high
    elif low > high and meta.max_frames is None:
        high = low
    if not 1 <= low <= high:
        raise FramePlanError(f"expected 1 <= min_frames <= max_frames, got {low} and {high}")
    return low, high


def _frames_wanted(duration: float, options: FrameOptions, meta: ClipMeta, low: int, high: int) -> int:
    """The number of frames of so many seconds, within the bounds, and even where the bounds allow it."""
    rate = options.video_fps if meta.video_fps is None else meta.video_fps
    n = min(max(round(duration / options.base_interval if rate is None else duration * rate), low), high)
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
    return choose(length, min(high if draw is None else draw.randrange(low, high + 1), most), draw, looks)


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
