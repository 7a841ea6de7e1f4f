"""Reads the frame settings of a row: the choice, the times and the sizes of the frames of its clips.

They stand in four places, and the place says what they mean:

    a typed part        {"type": "video", "video": "a.mp4", "nframes": 16}
    an object           "videos": [{"video": "a.mp4", "fps": 2, "max_frames": 32}]
    beside the turns    {"messages": [...], "videos": ["a.mp4"], "fps": 2}
    ``meta``            {"messages": [...], "videos": ["a.mp4"], "meta": {"video_fps": 2}}

``meta`` has our words and our rules. In the other places the words are those of the package ``qwen_vl_utils``, and so
are the rules: the same ``max_frames`` bounds another number of frames there. Words that only one side has mean the same
everywhere. Where several places speak of a clip, a part or object comes before ``meta``, and ``meta`` before the row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeGuard

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.library_rules import CAMERA_RATE
from qwenvl.times import seconds_of_clock
from qwenvl.types import Hint

Settings = dict[str, Any]
"""Checked values by their keys."""

# ---- the keys and their values


@dataclass(frozen=True)
class Number:
    """The numbers that a key takes.

    Attributes:
        expected: the numbers in words, for errors.
        kind: the type of the value in the record. ``int`` takes whole numbers alone.
        least: the smallest number.
        below: the bound that all numbers are below.
        with_least: the smallest number itself is taken.
    """

    expected: str
    kind: type
    least: float
    below: float
    with_least: bool = True

    def allows(self, number: float) -> bool:
        """Whether a number is one of these."""
        if self.kind is int and number != int(number):
            return False
        above = number >= self.least if self.with_least else number > self.least
        return above and number < self.below


_FRAMES = Number("a whole number of frames of at least 1", int, least=1, below=1e12)
PAIRS = Number("a whole number of frames of at least 2", int, least=2, below=1e12)
_PIXELS = Number("a whole number of pixels of at least 1", int, least=1, below=1e12)
_ALL_PIXELS = Number("a number of pixels of at least 1", float, least=1, below=1e15)
_SECONDS = Number("a number of at least 0", float, least=0, below=1e9)
_RATE = Number("a number above 0", float, least=0, below=1e9, with_least=False)

SPAN = ("video_start", "video_end")
FRAME_BOUNDS = ("min_frames", "max_frames")
PIXEL_BOUNDS = ("min_pixels", "max_pixels")
COUNT = ("nframes", "fps", *FRAME_BOUNDS)
SIDES = ("resized_height", "resized_width")
SIZE = (*PIXEL_BOUNDS, "total_pixels", *SIDES)
LIST_RATES = ("sample_fps", "raw_fps")
# Keys of ours that the package does not have.
OURS = ("frame_cnts", "dynamic_sample", "video_fps", "frames_fps", "frame_times")
_LISTS = ("frame_cnts", "frame_times")

META_KEYS = (
    "frame_cnts",
    *FRAME_BOUNDS,
    "dynamic_sample",
    "video_fps",
    "frames_fps",
    *SPAN,
    *PIXEL_BOUNDS,
    "frame_times",
)
"""Keys of ``meta``."""

_NUMBERS: dict[str, Number] = {
    **dict.fromkeys(FRAME_BOUNDS, _FRAMES),
    **dict.fromkeys((*PIXEL_BOUNDS, *SIDES), _PIXELS),
    **dict.fromkeys(SPAN, _SECONDS),
    **dict.fromkeys(("video_fps", "frames_fps", "fps", *LIST_RATES), _RATE),
    "nframes": PAIRS,
    "total_pixels": _ALL_PIXELS,
}

# Other words for the span, read in parts and objects only: beside the turns they are as often the answer of a question.
_SPAN_NAMES = {"start": "video_start", "start_time": "video_start", "end": "video_end", "end_time": "video_end"}

ROW_KEYS = frozenset((*COUNT, *SIZE, *SPAN, *LIST_RATES, *OURS))
"""Keys beside the turns that are read in a row with clips."""

IMAGE_KEYS = frozenset((*PIXEL_BOUNDS, *SIDES))
"""Keys that are read of an image: in its part or object, and beside the turns of a row with images."""

_SORTED_ROW_KEYS = tuple(sorted(ROW_KEYS))

PART_KEYS = ROW_KEYS | _SPAN_NAMES.keys()
"""Keys that are read in a typed part or object that holds a clip."""

# Keys of a part or object that hold the medium or a text, and no setting.
_HOLDERS = frozenset(("type", "text", "video", "image", "video_url", "image_url", "path", "url", "bytes"))

# Names that other programs have for the settings. They are too far from ours to be found by their letters.
_USUAL_NAMES = {
    "num_frames": "nframes",
    "n_frames": "nframes",
    "num_sampled_frames": "nframes",
    "max_num_frames": "max_frames",
    "video_max_frames": "max_frames",
    "video_min_frames": "min_frames",
    "video_maxlen": "max_frames",
    "fps_max_frames": "max_frames",
    "fps_min_frames": "min_frames",
    "sampling_fps": "fps",
    "target_fps": "fps",
    "video_max_pixels": "max_pixels",
    "video_min_pixels": "min_pixels",
    "video_total_pixels": "total_pixels",
    "image_max_pixels": "max_pixels",
    "image_min_pixels": "min_pixels",
    "start_sec": "video_start",
    "start_seconds": "video_start",
    "start_timestamp": "video_start",
    "clip_start": "video_start",
    "end_sec": "video_end",
    "end_seconds": "video_end",
    "end_timestamp": "video_end",
    "clip_end": "video_end",
    "times": "frame_times",
    "timestamps": "frame_times",
    "frame_timestamps": "frame_times",
}
# What to write in `meta` for the words of the package, which mean nothing there.
_IN_META = {
    "fps": "video_fps takes so many frames per second, frames_fps is the rate of a list of frames",
    "nframes": "min_frames and max_frames of the same number take so many frames",
    "total_pixels": "it is read in the part or object that holds the clip, or beside the turns",
    "sample_fps": "frames_fps is the rate of a list of frames",
    "raw_fps": "frames_fps is the rate of a list of frames",
    "resized_height": "it is read in the part or object that holds the clip, or beside the turns",
    "resized_width": "it is read in the part or object that holds the clip, or beside the turns",
    "start": "video_start is where frames begin",
    "end": "video_end is where frames end",
    "start_time": "video_start is where frames begin",
    "end_time": "video_end is where frames end",
}
_NEAR = 0.85  # how like a known key another must be to be taken for a slip of the pen: frame_counts is 0.91


def keys_read(clips: bool, images: bool) -> frozenset[str]:
    """The keys beside the turns that are read as frame settings of a row with clips, or with images."""
    return (ROW_KEYS if clips else frozenset()) | (IMAGE_KEYS if images else frozenset())


@lru_cache(maxsize=1000)
def usual_name(key: str) -> str | None:
    """The setting that a key of other programs stands for: ``nframes`` for ``num_frames``. None for other keys."""
    return _USUAL_NAMES.get(_plain(key))


@lru_cache(maxsize=1000)
def _near_miss(key: str, known: tuple[str, ...]) -> str | None:
    """The known key that a key is nearly, in any case and with any sign between the words."""
    near = get_close_matches(_plain(key), known, n=1, cutoff=_NEAR)
    return near[0] if near else None


def _plain(key: str) -> str:
    """A key in snake case: ``max_frames`` for ``maxFrames`` and ``Max-Frames``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", key).lower()


# ---- the places


@dataclass
class MediumSettings:
    """The settings of one clip or image outside of ``meta``.

    Attributes:
        part: the settings in its typed part or object.
        row: the settings beside the turns.
        notes: hints from reading them.
    """

    part: Settings = field(default_factory=dict)
    row: Settings = field(default_factory=dict)
    notes: list[Hint] = field(default_factory=list)


def part_settings(holder: Mapping[str, Any], kind: str, place: str, notes: list[Hint]) -> Settings:
    """The settings in a typed part or object that holds a medium.

    Args:
        kind: ``video`` or ``image``.
        notes: hints are added to these.

    Raises:
        RecordError: a value is not of its form, two keys say the same, or a key is nearly a known one.
    """
    known = PART_KEYS if kind == "video" else IMAGE_KEYS
    settings: Settings = {}
    unread: list[str] = []
    for key, value in holder.items():
        if value is None or value == "" or key in _HOLDERS:
            continue
        if key not in known:
            _refuse_near_miss(key, tuple(sorted(known)), place)
            unread.append(str(key)[:80])
            continue
        name = _SPAN_NAMES.get(key, key)
        if name in settings:
            raise RecordError(f"{place}: {key} says again what {name} says; leave one of them out")
        settings[name] = _checked(name, value, f"{place}.{key}")
    if unread:
        notes.append(
            Hint(
                f"unknown key of {_AN[kind]}",
                f"{_AN[kind]} has {', '.join(sorted(unread))}, which change nothing; known are "
                f"{', '.join(sorted(known))}",
            )
        )
    return settings


_AN = {"video": "a clip's part", "image": "an image's part"}


def row_settings(row: Mapping[str, Any], kind: str, count: int, where: str) -> list[Settings]:
    """The settings beside the turns, for each clip or image of a row.

    A value holds for all of them, or is a list with one value for each.

    Args:
        kind: ``video`` or ``image``.
        count: of these media.

    Raises:
        RecordError: a value is not of its form.
    """
    each: list[Settings] = [{} for _ in range(count)]
    known = ROW_KEYS if kind == "video" else IMAGE_KEYS
    given = sorted(known & row.keys()) if count else []
    for key in given:
        value = row[key]
        if value is None or value == "":
            continue
        place = f"{where}.{key}"
        # The value of some keys is itself a list: of one clip it may be given alone, or in a list of one.
        is_nested = isinstance(value, list) and bool(value) and isinstance(value[0], list | None)
        has_one_for_each = isinstance(value, list) and (key not in _LISTS or count > 1 or is_nested)
        lists_for_each = has_one_for_each and all(isinstance(one, list | None) for one in value)
        if key in _LISTS and count > 1 and not lists_for_each:
            raise RecordError(f"{place}: the row has {count} clips; expected a list with one list for each")
        if has_one_for_each and len(value) != count:
            raise RecordError(f"{place}: expected a number, or a list with one for each of {count} {kind}s")
        for settings, one in zip(each, value if has_one_for_each else [value] * count, strict=True):
            if one is not None:
                settings[key] = _checked(key, one, place, advice=f"; --columns {key}=NAME renames a key of your own")
    return each


def row_notes(row: Mapping[str, Any]) -> Iterable[Hint]:
    """Hints about keys that look like settings and are none, beside the turns of a row with clips."""
    named = [key for key in _SPAN_NAMES if row.get(key) is not None]  # the start first
    if named:
        columns = ",".join(f"{key}={_SPAN_NAMES[key]}" for key in named)
        yield Hint(
            "seconds beside the turns",
            f"{' and '.join(named)} beside the turns bound no frames, as they may be the answer; --columns {columns} "
            "where they are the part of the clip to show",
        )
    for key, value in row.items():
        name = None if value is None or key in PART_KEYS else _setting_meant(key, value)
        if name is None or row.get(name) is not None:
            continue
        if name == "frame_times" and not _holds_a_list(row):
            continue  # of a file they are the answer, most often
        advice = "meta.frame_times" if name == "frame_times" else name
        yield Hint("setting by another name", f"{key} beside the turns changes no frames; {advice} is the key here")
    rate = row.get("fps")
    if _is_number(rate) and rate >= CAMERA_RATE and row.get("max_frames") is None and not _holds_a_list(row):
        yield Hint(
            "fps like a camera's",
            "fps beside the turns is as high as a camera's: for clips of at most this rate it is taken for a note "
            "about the file and changes nothing; in a typed part it takes all frames; --columns fps=NAME renames it",
        )


def _setting_meant(key: str, value: Any) -> str | None:
    """The setting that a key beside the turns is nearly, or that it stands for in other programs.

    A key whose value no setting may have, such as a text or a list of paths, is no slip of the pen.
    """
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, int | float) for one in values):
        return None
    return usual_name(key) or _near_miss(key, _SORTED_ROW_KEYS)


def _holds_a_list(row: Mapping[str, Any]) -> bool:
    """Whether a clip beside the turns is a list of frames."""
    media = row.get("videos") if row.get("videos") is not None else row.get("video")
    return isinstance(media, list) and any(isinstance(medium, list) for medium in media)


def _checked(key: str, value: Any, place: str, advice: str = "") -> Any:
    """The value of a key, with numbers read from text as the package's own examples and tables have them.

    Raises:
        RecordError: it is not of its form.
    """
    if key == "dynamic_sample":
        flag = value
        if isinstance(value, str):
            flag = {"true": True, "false": False}.get(value.lower())
        if not isinstance(flag, bool):
            raise RecordError(f"{place}: expected true or false, got {kind_of(value)}{advice}")
        return flag
    if isinstance(value, str):
        clock = _CLOCK.fullmatch(value.strip()) if key in SPAN else None
        try:
            value = json.loads(value) if clock is None else _seconds_of(clock)
        except ValueError:
            raise RecordError(f"{place}: expected {_expected(key)}, got {kind_of(value)}{advice}") from None
    if key == "frame_cnts":
        return _frame_counts(value, place)
    if key == "frame_times":
        return _frame_times(value, place)
    number = _NUMBERS[key]
    if not _is_number(value) or not number.allows(value):
        raise RecordError(f"{place}: expected {number.expected}, got {kind_of(value)}{advice}")
    return number.kind(value)


_CLOCK = re.compile(r"(?:([0-9]+):)?([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]+)?)")


def _seconds_of(clock: re.Match[str]) -> float:
    """Seconds of a time such as ``00:01:02.5`` or ``1:02.5``.

    Raises:
        ValueError: it has 60 minutes or seconds.
    """
    seconds = seconds_of_clock(clock[1], clock[2], clock[3])
    if seconds is None:
        raise ValueError
    return seconds


def _expected(key: str) -> str:
    """The values that a key takes, in words."""
    return "a list of numbers" if key in _LISTS else _NUMBERS[key].expected


def _frame_counts(value: Any, place: str) -> tuple[float, ...]:
    """The numbers of frames of a clip's segments. RecordError: they are none."""
    if not isinstance(value, list) or not value or not all(_is_number(n) and 0 < n < 1e9 for n in value):
        raise RecordError(f"{place}: expected a list of numbers above 0, got {kind_of(value)}")
    return tuple(map(float, value))


def _frame_times(value: Any, place: str) -> tuple[float, ...]:
    """Seconds of frames.

    Raises:
        RecordError: they are no seconds, or do not rise. The message names the first that is wrong.
    """
    if not isinstance(value, list) or not value:
        raise RecordError(f"{place}: expected a list with the seconds of each frame, got {kind_of(value)}")
    for i, time in enumerate(value):
        if not _is_number(time) or not _SECONDS.allows(time):
            raise RecordError(f"{place}[{i}]: expected {_SECONDS.expected}, got {kind_of(time)}")
    for i, (before, after) in enumerate(pairwise(value), start=1):
        if after <= before:
            raise RecordError(f"{place}[{i}]: expected seconds that rise, got {after:g} after {before:g}")
    return tuple(map(float, value))


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse_near_miss(key: Any, known: tuple[str, ...], place: str) -> None:
    """Raise RecordError for a key that is nearly a known one, or a usual name of one."""
    meant = _near_miss(str(key), known)
    usual = usual_name(str(key))
    if meant is None and usual in known:
        meant = usual
    if meant is not None:
        raise RecordError(
            f"{place}: the key {str(key)[:80]!r} is not known; did you mean {meant!r}? A key of your own needs a "
            "name that is less like it"
        )


# ---- ``meta``


def meta_settings(meta: Any, place: str) -> Settings:
    """The settings of the ``meta`` of one clip. Keys that are not known here are left to the reward functions.

    Raises:
        RecordError: a value is not of its form, or a key is nearly a known one.
    """
    if not isinstance(meta, dict):
        raise RecordError(f"{place}: expected an object with some of {', '.join(META_KEYS)}, got {kind_of(meta)}")
    for key in unknown_meta_keys(meta):
        meant = _near_miss(str(key), META_KEYS)
        if meant is not None:
            raise RecordError(
                f"{place}: the key {str(key)[:80]!r} is not known; did you mean {meant!r}? A key of your own needs a "
                "name that is less like it"
            )
    settings: Settings = {}
    for key in META_KEYS:
        value = meta.get(key)
        if value is None:
            continue
        if isinstance(value, str):  # here numbers are numbers
            expected = "true or false" if key == "dynamic_sample" else _expected(key)
            raise RecordError(f"{place}.{key}: expected {expected}, got {kind_of(value)}")
        settings[key] = _checked(key, value, f"{place}.{key}")
    for low, high in (FRAME_BOUNDS, PIXEL_BOUNDS, SPAN):
        check_order(settings, low, high, place)
    check_whole_clip(settings, place)
    return settings


def check_order(settings: Mapping[str, Any], low: str, high: str, place: str) -> None:
    """Check that a lower bound is not above its upper one.

    Raises:
        RecordError: it is.
    """
    if low in settings and high in settings and settings[low] > settings[high]:
        raise RecordError(f"{place}: expected {low} <= {high}, got {settings[low]} and {settings[high]}")


def check_whole_clip(settings: Mapping[str, Any], place: str) -> None:
    """Check that segments of a whole clip do not stand beside a part of it.

    Raises:
        RecordError: they do.
    """
    if "frame_cnts" in settings and settings.keys() & set(SPAN):
        raise RecordError(f"{place}: frame_cnts speak of the whole clip; expected no video_start and video_end beside")


def unknown_meta_keys(meta: Mapping[str, Any]) -> list[str]:
    """The keys of a clip's ``meta`` that have no meaning here."""
    return [key for key in meta if key not in META_KEYS]


def advice_on_meta(unknown: Iterable[str]) -> str:
    """Advice for keys of ``meta`` that mean something elsewhere. Empty for keys of the user's own."""
    text = ""
    for key in unknown:
        name = usual_name(key)
        if key in _IN_META:
            text += f"; {key}: {_IN_META[key]}"
        elif name == "frame_times":
            text += f"; {key}: frame_times has the seconds of each frame of a list or folder"
        elif name is not None:
            text += f"; {key}: {name if name in META_KEYS else _IN_META[name]}"
    return text
