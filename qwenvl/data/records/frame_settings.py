"""Frame settings of a row: which frames of a clip are taken, when they are shown, and how large they become.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.library_rules import CAMERA_RATE
from qwenvl.types import ClipMeta, Hint, LibraryCount, LibrarySize

Settings = dict[str, Any]
"""Checked values by their keys."""

# ---- the keys and their values


@dataclass(frozen=True)
class Number:
    """What is expected of the value of a key.

    Attributes:
        expected: in words, for errors.
        allowed: whether a number is that.
        kind: its type in the record.
    """

    expected: str
    allowed: Callable[[float], bool]
    kind: type


_FRAMES = Number("a whole number of frames of at least 1", lambda n: 1 <= n < 1e12 and n == int(n), int)
_PAIRS = Number("a whole number of frames of at least 2", lambda n: 2 <= n < 1e12 and n == int(n), int)
_PIXELS = Number("a whole number of pixels of at least 1", lambda n: 1 <= n < 1e12 and n == int(n), int)
_ALL_PIXELS = Number("a number of pixels of at least 1", lambda n: 1 <= n < 1e15, float)
_SECONDS = Number("a number of at least 0", lambda n: 0 <= n < 1e9, float)
_RATE = Number("a number above 0", lambda n: 0 < n < 1e9, float)

SPAN = ("video_start", "video_end")
FRAME_BOUNDS = ("min_frames", "max_frames")
PIXEL_BOUNDS = ("min_pixels", "max_pixels")
_COUNT = ("nframes", "fps", *FRAME_BOUNDS)
_SIDES = ("resized_height", "resized_width")
_SIZE = (*PIXEL_BOUNDS, "total_pixels", *_SIDES)
_LIST_RATES = ("sample_fps", "raw_fps")
# Keys of ours that the package does not have.
_OURS = ("frame_cnts", "dynamic_sample", "video_fps", "frames_fps", "frame_times")
_LISTS = ("frame_cnts", "frame_times")

META_KEYS = (
    *("frame_cnts", *FRAME_BOUNDS, "dynamic_sample", "video_fps", "frames_fps"),
    *(*SPAN, *PIXEL_BOUNDS, "frame_times"),
)
"""Keys of ``meta``."""

_NUMBERS: dict[str, Number] = {
    **dict.fromkeys(FRAME_BOUNDS, _FRAMES),
    **dict.fromkeys((*PIXEL_BOUNDS, *_SIDES), _PIXELS),
    **dict.fromkeys(SPAN, _SECONDS),
    **dict.fromkeys(("video_fps", "frames_fps", "fps", *_LIST_RATES), _RATE),
    "nframes": _PAIRS,
    "total_pixels": _ALL_PIXELS,
}

# Other words for the span. Beside the turns they are as often the answer of a question about times.
_SPAN_NAMES = {"start": "video_start", "start_time": "video_start", "end": "video_end", "end_time": "video_end"}

ROW_KEYS = frozenset((*_COUNT, *_SIZE, *SPAN, *_LIST_RATES, *_OURS))
"""Keys beside the turns that are read in a row with clips."""

IMAGE_KEYS = frozenset((*PIXEL_BOUNDS, *_SIDES))
"""Keys that are read of an image: in its part or object, and beside the turns of a row with images."""

_SORTED_ROW_KEYS = tuple(sorted(ROW_KEYS))

PART_KEYS = ROW_KEYS | _SPAN_NAMES.keys()
"""Keys that are read in a typed part or object that holds a clip."""

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


def usual_name(key: str) -> str | None:
    """The setting that a key of other programs stands for: ``nframes`` for ``num_frames``. None for other keys."""
    return _USUAL_NAMES.get(_plain(key))


@lru_cache(maxsize=1000)
def _near_miss(key: str, known: tuple[str, ...]) -> str | None:
    """The known key that another is nearly, in any case and with any sign between the words."""
    return next(iter(get_close_matches(_plain(key), known, n=1, cutoff=_NEAR)), None)


def _plain(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", key).lower()


# ---- the places


@dataclass
class ClipSettings:
    """What is said of one clip or image outside of ``meta``.

    Attributes:
        part: in its typed part or object.
        row: beside the turns.
        notes: what was noticed while these were read.
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
    for key in sorted(ROW_KEYS if kind == "video" else IMAGE_KEYS):
        value = row.get(key)
        if value is None or value == "" or not count:
            continue
        place = f"{where}.{key}"
        is_nested = isinstance(value, list) and bool(value) and isinstance(value[0], list | None)
        is_list = isinstance(value, list) and (key not in _LISTS or count > 1 or is_nested)
        if key in _LISTS and count > 1 and not (is_list and all(isinstance(one, list | None) for one in value)):
            raise RecordError(f"{place}: the row has {count} clips; expected a list with one list for each")
        if is_list and len(value) != count:
            raise RecordError(f"{place}: expected a number, or a list with one for each of {count} {kind}s")
        for settings, one in zip(each, value if is_list else [value] * count, strict=True):
            if one is not None:
                settings[key] = _checked(key, one, place, advice=f"; --columns {key}=NAME renames a key of your own")
    return each


def row_notes(row: Mapping[str, Any]) -> Iterable[Hint]:
    """Hints about keys beside the turns of a row with clips that look like settings and are none."""
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

    Only of values that a setting may have: a text or a list of paths is no slip of the pen.
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
        flag = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
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
    if not _is_number(value) or not number.allowed(value):
        raise RecordError(f"{place}: expected {number.expected}, got {kind_of(value)}{advice}")
    return number.kind(value)


_CLOCK = re.compile(r"(?:([0-9]+):)?([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]+)?)")


def _seconds_of(clock: re.Match[str]) -> float:
    """Seconds of a time such as ``00:01:02.5`` or ``1:02.5``."""
    hours, minutes, seconds = clock.groups(default="0")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def _expected(key: str) -> str:
    return "a list of numbers" if key in _LISTS else _NUMBERS[key].expected


def _frame_counts(value: Any, place: str) -> tuple[float, ...]:
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
        if not _is_number(time) or not _SECONDS.allowed(time):
            raise RecordError(f"{place}[{i}]: expected {_SECONDS.expected}, got {kind_of(time)}")
    for i, (before, after) in enumerate(pairwise(value), start=1):
        if after <= before:
            raise RecordError(f"{place}[{i}]: expected seconds that rise, got {after:g} after {before:g}")
    return tuple(map(float, value))


def _is_number(value: Any) -> bool:
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
        if meant := _near_miss(str(key), META_KEYS):
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
        _check_order(settings, low, high, place)
    _check_whole_clip(settings, place)
    return settings


def _check_whole_clip(settings: Mapping[str, Any], place: str) -> None:
    if "frame_cnts" in settings and settings.keys() & set(SPAN):
        raise RecordError(f"{place}: frame_cnts speak of the whole clip; expected no video_start and video_end beside")


def unknown_meta_keys(meta: Mapping[str, Any]) -> list[str]:
    """The keys of a clip's ``meta`` that have no meaning here."""
    return [key for key in meta if key not in META_KEYS]


def advice_on_meta(unknown: Iterable[str]) -> str:
    """What to write in place of keys of ``meta`` that are known elsewhere. Empty for keys of the user's own."""
    told = []
    for key in unknown:
        if key in _IN_META:
            told.append(f"{key}: {_IN_META[key]}")
        elif usual_name(key) == "frame_times":
            told.append(f"{key}: frame_times has the seconds of each frame of a list or folder")
        elif (name := usual_name(key)) is not None:
            told.append(f"{key}: {name if name in META_KEYS else _IN_META[name]}")
    return "".join(f"; {line}" for line in told)


# ---- what a clip's places say together


def clip_meta(meta: Settings | None, said: ClipSettings, listed: bool, place: str) -> ClipMeta | None:
    """What a row says of a clip, from all places. None where it says nothing. Hints are added to ``said.notes``.

    Args:
        meta: as ``meta_settings`` returns it. None: the row has no ``meta`` for the clip.
        listed: the clip is a list or folder of frames.
        place: of the row, for errors.

    Raises:
        RecordError: settings contradict each other.
    """
    if meta is None and not (said.part or said.row):
        return None
    of_meta = {} if meta is None else meta
    _note_differences(of_meta, said)
    # Words that mean the same everywhere.
    shared = (*SPAN, *_OURS)
    own = {key: value for key, value in said.row.items() if key in shared} | of_meta
    own |= {key: value for key, value in said.part.items() if key in shared}
    sampled = _settle_times(own, said, listed, place)
    count = _settle_count(own, said, listed, sampled, place)
    size = _settle_size(own, said, place)
    for low, high in (FRAME_BOUNDS, PIXEL_BOUNDS, SPAN):
        _check_order(own, low, high, place)
    _check_whole_clip(own, place)
    if _uneven(own.get("frame_times", ())):
        _note(
            said,
            "frame_times are uneven: Qwen3-VL and Qwen3.5 read the time of each pair of frames, Qwen2.5-VL only their "
            "mean distance, and Qwen2-VL none",
        )
    frame_counts = own.pop("frame_cnts", None)
    made = ClipMeta(frame_counts, count=count, size=size, **own)
    return None if meta is None and made == ClipMeta() else made


def _uneven(times: Sequence[float]) -> bool:
    """Whether some frames are more than a tenth further apart, or closer, than the mean ones."""
    if len(times) < 3:
        return False
    mean = (times[-1] - times[0]) / (len(times) - 1)
    return any(abs(after - before - mean) > 0.1 * mean for before, after in pairwise(times))


def _note_differences(meta: Settings, said: ClipSettings) -> None:
    """Note keys that have different values in two places."""
    for key in sorted(meta.keys() & said.part.keys()):
        if meta[key] != said.part[key]:
            _note(said, f"{key} stands in meta and in the part or object of its clip, whose value counts")
    for key in sorted(said.row.keys() & (meta.keys() | said.part.keys())):
        if said.row[key] != said.part.get(key, meta.get(key)):
            _note(said, f"{key} stands beside the turns and closer to its clip, and the value there counts")


def _note(said: ClipSettings, message: str) -> None:
    said.notes.append(Hint("frame settings", message))


def _check_order(settings: Mapping[str, Any], low: str, high: str, place: str) -> None:
    if low in settings and high in settings and settings[low] > settings[high]:
        raise RecordError(f"{place}: expected {low} <= {high}, got {settings[low]} and {settings[high]}")


def _settle_times(own: Settings, said: ClipSettings, listed: bool, place: str) -> bool:
    """When the frames of a list or folder are shown. Returns whether the row says, in the words of the package.

    ``sample_fps`` is their rate. ``raw_fps`` is that of the film that they were taken from: alone it stands for their
    rate, as the package hands it to Qwen3-VL. ``fps`` beside frames is their rate too, as in the package until 0.0.11,
    unless another key says their rate.
    """
    if not listed:
        named = [key for key in (*_LIST_RATES, "frames_fps") if key in own or key in said.part or key in said.row]
        if named:
            _note(said, f"{' and '.join(named)} of a clip that is a file changes nothing: the file has its own times")
        return False
    for settings in (said.part, said.row):
        key = next((key for key in _LIST_RATES if key in settings), None)
        timed = "frame_times" in own or "frames_fps" in own
        if key is None and "fps" in settings and not timed:
            own["frames_fps"] = settings.pop("fps")
            return True
        if key is None:
            continue
        if "sample_fps" in settings and "raw_fps" in settings and settings["sample_fps"] != settings["raw_fps"]:
            _note(said, "raw_fps beside sample_fps is the rate of the film that frames come from, and changes nothing")
        if settings is said.part and "frame_times" in own:
            raise RecordError(f"{place}: {key} and frame_times both say when frames are shown; leave one of them out")
        if settings is said.row and timed:
            _note(said, f"{key} beside the turns changes nothing, as another place says when frames are shown")
            return False
        own["frames_fps"] = settings[key]
        return True
    if "frame_times" in own and "frames_fps" in own:
        raise RecordError(f"{place}: frames_fps and frame_times both say when frames are shown; leave one of them out")
    return False


def _settle_count(own: Settings, said: ClipSettings, listed: bool, sampled: bool, place: str) -> LibraryCount | None:
    """How many frames are taken. None: by our rules, with what ``own`` then says."""
    part = {key: said.part[key] for key in _COUNT if key in said.part}
    row = {key: said.row[key] for key in _COUNT if key in said.row}
    for settings in (part, row):
        if "nframes" in settings and "fps" in settings:
            raise RecordError(f"{place}: nframes and fps both say how many frames are taken; leave one of them out")
    bounds = {key: row[key] for key in FRAME_BOUNDS if key in row}
    bounds |= {key: own[key] for key in FRAME_BOUNDS if key in own}
    bounds |= {key: part[key] for key in FRAME_BOUNDS if key in part}
    _check_order(bounds, *FRAME_BOUNDS, place)
    if own.get("dynamic_sample"):
        for key in ("nframes", "fps"):
            if key in part:
                raise RecordError(
                    f"{place}: {key} says how many frames of the clip are taken, and dynamic_sample draws them for "
                    "each segment; leave one of them out"
                )
            if key in row:
                _note(said, f"{key} beside the turns changes no frames where dynamic_sample draws them")
        own |= bounds  # of each segment
        return None
    by_meta = own.keys() & {*FRAME_BOUNDS, "video_fps"}
    if not part and (by_meta or not (row or sampled)):
        for key in ("nframes", "fps"):
            if key in row:
                _note(said, f"{key} beside the turns changes no frames, as meta or video_fps says how many are taken")
        own |= bounds
        return None
    # By the package, and each rate from the first place that has one.
    rates: list[Settings] = [
        {key: part[key] for key in ("nframes", "fps") if key in part},
        {"fps": own["video_fps"]} if "video_fps" in own else {},
        {key: row[key] for key in ("nframes", "fps") if key in row},
    ]
    rate: Settings = next((each for each in rates if each), {})
    for each in rates:
        if each and each is not rate:
            (key,) = each
            (better,) = rate
            _note(said, f"{key} changes nothing, as {better} stands closer to the clip and says how many are taken")
    if "nframes" in rate and bounds:
        _note(said, f"{' and '.join(bounds)} beside nframes change nothing")
    if bounds.get("max_frames", 2) < 2:
        raise RecordError(f"{place}.max_frames: expected {_PAIRS.expected}, as frames come in pairs, got 1")
    for key in (*FRAME_BOUNDS, "video_fps"):
        own.pop(key, None)
    beside_turns = bool(rate) and rate is rates[2] and not listed
    return LibraryCount(**rate, **bounds, listed=listed, beside_turns=beside_turns)


def _settle_size(own: Settings, said: ClipSettings, place: str) -> LibrarySize | None:
    """How large frames become. None: by our rules, with what ``own`` then says."""
    part = {key: said.part[key] for key in _SIZE if key in said.part}
    row = {key: said.row[key] for key in _SIZE if key in said.row}
    in_meta = {key: own[key] for key in PIXEL_BOUNDS if key in own}
    together = row | in_meta | part
    _check_order(together, *PIXEL_BOUNDS, place)
    if not part and (in_meta or not row):
        unused = [key for key in ("total_pixels", *_SIDES) if key in row]
        if unused:
            _note(said, f"{' and '.join(unused)} beside the turns changes nothing, as meta bounds the pixels")
        own |= {key: together[key] for key in PIXEL_BOUNDS if key in together}
        return None
    for key in PIXEL_BOUNDS:
        own.pop(key, None)
    return _library_size(together, said, place)


def image_size(said: ClipSettings, place: str) -> LibrarySize | None:
    """What a row says of the size of an image, in its part or object and beside the turns. None: nothing.

    Raises:
        RecordError: settings contradict each other.
    """
    together = {key: value for key, value in (said.row | said.part).items() if key in IMAGE_KEYS}
    if not together:
        return None
    _check_order(together, *PIXEL_BOUNDS, place)
    return _library_size(together, said, place)


def _library_size(settings: Settings, said: ClipSettings, place: str) -> LibrarySize:
    sides = [key for key in _SIDES if key in settings]
    if len(sides) == 1:
        (other,) = set(_SIDES) - set(sides)
        raise RecordError(f"{place}: {sides[0]} without {other}; expected both, or max_pixels for a size of any shape")
    without = [key for key in settings if key not in _SIDES]
    if sides and without:
        _note(said, f"{' and '.join(without)} beside resized_height and resized_width change nothing")
    return LibrarySize(**settings)


# ---- what was read, for people


def settings_read(meta: ClipMeta | LibraryCount | LibrarySize | None) -> Settings:
    """The settings of a clip or image by the names that rows have for them, for previews and reports.

    Example:
        >>> settings_read(ClipMeta(video_start=1.5, count=LibraryCount(nframes=16)))
        {'video_start': 1.5, 'nframes': 16}
    """
    if meta is None:
        return {}
    read: Settings = {}
    for name, value in vars(meta).items():
        if value is None or value is False or name in ("listed", "beside_turns"):
            continue
        if isinstance(value, LibraryCount | LibrarySize):
            read |= settings_read(value)
        else:
            read["frame_cnts" if name == "frame_counts" else name] = value
    return read


def in_words(settings: Settings) -> str:
    """Settings in a line: ``nframes 16, video_start 1.5``. Lists are named without their values."""
    return ", ".join(
        name if isinstance(value, tuple | bool) else f"{name} {value:.10g}" for name, value in settings.items()
    )
