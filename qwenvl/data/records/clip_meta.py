"""What a row says of one clip, its ``meta``: which frames are taken, and how large they become.

For example ``{"frame_cnts": [30, 45], "max_frames": 6, "dynamic_sample": true}`` or ``{"spans": [[12.5, 20]]}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.types import ClipMeta

_FRAME_BOUNDS = ("min_frames", "max_frames")
_PIXEL_BOUNDS = ("min_pixels", "max_pixels")
_RATES = ("video_fps", "frames_fps")
_SECONDS = ("video_start", "video_end")
META_KEYS = ("frame_cnts", *_FRAME_BOUNDS, "dynamic_sample", *_RATES, *_SECONDS, "spans", *_PIXEL_BOUNDS)
_NEAR = 0.85  # how like a known key another must be to be taken for a slip of the pen: frame_counts is 0.91


def parse_meta(meta: Any, where: str) -> ClipMeta:
    """What a row says of one clip. Keys that are not known here are left to the reward functions.

    Raises:
        RecordError: a value is not of its form, two of them contradict each other, or a key is nearly a known one.
    """
    if not isinstance(meta, dict):
        raise RecordError(f"{where}: expected an object with some of {', '.join(META_KEYS)}, got {kind_of(meta)}")
    for key in unknown_meta_keys(meta):
        if meant := _meant(str(key)):
            raise RecordError(
                f"{where}: the key {str(key)[:80]!r} is not known; did you mean {meant!r}? A key of your own needs a "
                "name that is less like it"
            )
    dynamic = meta.get("dynamic_sample")
    dynamic = False if dynamic is None else dynamic
    if not isinstance(dynamic, bool):
        raise RecordError(f"{where}.dynamic_sample: expected true or false, got {kind_of(dynamic)}")
    bounds: dict[str, Any] = {key: _whole(meta, key, where) for key in (*_FRAME_BOUNDS, *_PIXEL_BOUNDS)}
    seconds: dict[str, Any] = {key: _positive(meta, key, where, zero=True) for key in _SECONDS}
    for low, high in (_FRAME_BOUNDS, _PIXEL_BOUNDS, _SECONDS):
        values = bounds | seconds
        if values[low] is not None and values[high] is not None and values[low] > values[high]:
            raise RecordError(f"{where}: expected {low} <= {high}, got {values[low]} and {values[high]}")
    counts = _frame_counts(meta.get("frame_cnts"), where)
    if counts is not None and any(value is not None for value in seconds.values()):
        raise RecordError(f"{where}: frame_cnts speak of the whole clip; expected no video_start and video_end beside")
    spans = _spans(meta.get("spans"), where)
    if spans is not None and (counts is not None or any(value is not None for value in seconds.values())):
        raise RecordError(
            f"{where}: spans say where frames are taken; expected no frame_cnts, video_start or video_end"
        )
    rates: dict[str, Any] = {key: _positive(meta, key, where) for key in _RATES}
    return ClipMeta(counts, dynamic_sample=dynamic, spans=spans, **bounds, **rates, **seconds)


def unknown_meta_keys(meta: Mapping[str, Any]) -> list[str]:
    """The keys of a clip's ``meta`` that say nothing here."""
    return [key for key in meta if key not in META_KEYS]


@lru_cache(maxsize=1000)
def _meant(key: str) -> str | None:
    """The known key that another is nearly, in any case and with any sign between the words."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", key).lower()
    return next(iter(get_close_matches(plain, META_KEYS, n=1, cutoff=_NEAR)), None)


def _frame_counts(counts: Any, where: str) -> tuple[float, ...] | None:
    if counts is None:
        return None
    if not isinstance(counts, list) or not counts:
        raise RecordError(f"{where}.frame_cnts: expected a list of frame counts, got {kind_of(counts)}")
    for i, count in enumerate(counts):
        if not _is_number(count) or not 0 < count < 1e9:
            raise RecordError(f"{where}.frame_cnts[{i}]: expected a number of frames above 0, got {kind_of(count)}")
    return tuple(float(count) for count in counts)


def _spans(spans: Any, where: str) -> tuple[tuple[float, float], ...] | None:
    """The spans of a clip, in order of time."""
    if spans is None:
        return None
    form = "a list of spans in seconds such as [[12.5, 20], [31, 40]]"
    if not isinstance(spans, list) or not spans:
        raise RecordError(f"{where}.spans: expected {form}, got {kind_of(spans)}")
    before = 0.0
    for i, span in enumerate(spans):
        if not isinstance(span, list) or len(span) != 2 or not all(_is_number(x) and 0 <= x < 1e9 for x in span):
            raise RecordError(f"{where}.spans[{i}]: expected two numbers of at least 0, got {kind_of(span)}")
        start, end = span
        if start >= end:
            raise RecordError(f"{where}.spans[{i}]: expected a start before the end, got {start} and {end}")
        if start < before:
            raise RecordError(
                f"{where}.spans[{i}]: begins at {start} s, before the end of the one before it, {before} s; expected "
                "spans in order of time that do not overlap"
            )
        before = end
    return tuple((float(start), float(end)) for start, end in spans)


def _whole(meta: dict[str, Any], key: str, where: str) -> int | None:
    value = meta.get(key)
    if value is None:
        return None
    if not _is_number(value) or not 1 <= value < 1e12 or value != int(value):
        unit = "frames" if key in _FRAME_BOUNDS else "pixels"
        raise RecordError(f"{where}.{key}: expected a whole number of {unit} of at least 1, got {kind_of(value)}")
    return int(value)


def _positive(meta: dict[str, Any], key: str, where: str, zero: bool = False) -> float | None:
    value = meta.get(key)
    if value is None:
        return None
    if not _is_number(value) or not 0 <= value < 1e9 or (value == 0 and not zero):
        raise RecordError(
            f"{where}.{key}: expected a number {'of at least' if zero else 'above'} 0, got {kind_of(value)}"
        )
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
