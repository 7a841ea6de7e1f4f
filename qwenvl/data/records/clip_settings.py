"""Settles the settings of one clip or image from all places of a row: which place counts, and by whose rules.

The places and their words are those of ``frame_settings``. A part or object comes before ``meta``, and ``meta`` before
the keys beside the turns. The number of frames, their size and their times are settled apart. Settings without effect
are noted, and contradictions are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.media.shape import MAX_ASPECT_RATIO, is_too_thin
from qwenvl.data.records.frame_settings import (
    COUNT,
    FRAME_BOUNDS,
    IMAGE_KEYS,
    LIST_RATES,
    OURS,
    PAIRS,
    PIXEL_BOUNDS,
    SIDES,
    SIZE,
    SPAN,
    MediumSettings,
    Settings,
    check_order,
    check_whole_clip,
)
from qwenvl.types import ClipMeta, Hint, LibraryCount, LibrarySize


def clip_meta(meta: Settings | None, said: MediumSettings, listed: bool, place: str) -> ClipMeta | None:
    """The settings of a clip from all places of its row, or None where there are none. Adds hints to ``said.notes``.

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
    shared = (*SPAN, *OURS)
    own = {key: value for key, value in said.row.items() if key in shared} | of_meta
    own |= {key: value for key, value in said.part.items() if key in shared}
    sampled = _settle_times(own, said, listed, place)
    count = _settle_count(own, said, listed, sampled, place)
    size = _settle_size(own, said, place)
    for low, high in (FRAME_BOUNDS, PIXEL_BOUNDS, SPAN):
        check_order(own, low, high, place)
    check_whole_clip(own, place)
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
    gaps = [after - before for before, after in pairwise(times)]
    return any(abs(gap - mean) > 0.1 * mean for gap in gaps)


def _note_differences(meta: Settings, said: MediumSettings) -> None:
    """Note keys that have different values in two places."""
    for key in sorted(meta.keys() & said.part.keys()):
        if meta[key] != said.part[key]:
            _note(said, f"{key} stands in meta and in the part or object of its clip, whose value counts")
    for key in sorted(said.row.keys() & (meta.keys() | said.part.keys())):
        if said.row[key] != said.part.get(key, meta.get(key)):
            _note(said, f"{key} stands beside the turns and closer to its clip, and the value there counts")


def _note(said: MediumSettings, message: str) -> None:
    """Add a hint about frame settings."""
    said.notes.append(Hint("frame settings", message))


def _settle_times(own: Settings, said: MediumSettings, listed: bool, place: str) -> bool:
    """Settle the times of the frames of a list or folder, and return whether words of the package set their rate.

    ``sample_fps`` is the rate of the frames. ``raw_fps`` is that of the film that they were taken from: alone it stands
    for their rate, as the package hands it to Qwen3-VL. ``fps`` beside frames is their rate too, as in the package
    until 0.0.11, unless another key says their rate.
    """
    if not listed:
        named = [key for key in (*LIST_RATES, "frames_fps") if key in own or key in said.part or key in said.row]
        if named:
            _note(said, f"{' and '.join(named)} of a clip that is a file changes nothing: the file has its own times")
        return False
    has_times = "frame_times" in own or "frames_fps" in own
    of_part = _rate_of_frames(said.part, has_times)
    of_row = _rate_of_frames(said.row, has_times)
    if of_part is not None:
        _note_film_rate(said.part, said)
        if "frame_times" in own:
            raise RecordError(
                f"{place}: {of_part} and frame_times both say when frames are shown; leave one of them out"
            )
        own["frames_fps"] = _taken(said.part, of_part)
        return True
    if of_row is not None:
        _note_film_rate(said.row, said)
        if not has_times:
            own["frames_fps"] = _taken(said.row, of_row)
            return True
        _note(said, f"{of_row} beside the turns changes nothing, as another place says when frames are shown")
    if "frame_times" in own and "frames_fps" in own:
        raise RecordError(f"{place}: frames_fps and frame_times both say when frames are shown; leave one of them out")
    return False


def _rate_of_frames(settings: Settings, has_times: bool) -> str | None:
    """The key that says at which rate the frames of a list are shown. None: no key does.

    Args:
        has_times: another key says when they are shown, and ``fps`` says how many are taken.
    """
    key = next((key for key in LIST_RATES if key in settings), None)
    if key is None and "fps" in settings and not has_times:
        return "fps"
    return key


def _taken(settings: Settings, key: str) -> Any:
    """The value of a key that says the rate of frames. ``fps`` then says no more how many are taken."""
    return settings.pop(key) if key == "fps" else settings[key]


def _note_film_rate(settings: Settings, said: MediumSettings) -> None:
    """Note a rate of the film that counts for nothing, beside the rate of the frames."""
    if "sample_fps" in settings and "raw_fps" in settings and settings["sample_fps"] != settings["raw_fps"]:
        _note(said, "raw_fps beside sample_fps is the rate of the film that frames come from, and changes nothing")


def _settle_count(own: Settings, said: MediumSettings, listed: bool, sampled: bool, place: str) -> LibraryCount | None:
    """Settle the number of frames by the rules of the package. None: our rules count, with the settings in ``own``.

    Args:
        own: settings in our words, which bounds of other places are added to, or taken from.
        sampled: words of the package set the rate of a list of frames, see ``_settle_times``.
    """
    part = {key: said.part[key] for key in COUNT if key in said.part}
    row = {key: said.row[key] for key in COUNT if key in said.row}
    for settings in (part, row):
        if "nframes" in settings and "fps" in settings:
            raise RecordError(f"{place}: nframes and fps both say how many frames are taken; leave one of them out")
    bounds = {key: row[key] for key in FRAME_BOUNDS if key in row}
    bounds |= {key: own[key] for key in FRAME_BOUNDS if key in own}
    bounds |= {key: part[key] for key in FRAME_BOUNDS if key in part}
    check_order(bounds, *FRAME_BOUNDS, place)
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
    meta_counts = bool(own.keys() & {*FRAME_BOUNDS, "video_fps"})
    package_counts = bool(row) or sampled
    if not part and (meta_counts or not package_counts):
        for key in ("nframes", "fps"):
            if key in row:
                _note(said, f"{key} beside the turns changes no frames, as meta or video_fps says how many are taken")
        own |= bounds
        return None
    # By the rules of the package. The rate is that of the first of these places which has one.
    rates: list[Settings] = [
        {key: part[key] for key in ("nframes", "fps") if key in part},
        {"fps": own["video_fps"]} if "video_fps" in own else {},
        {key: row[key] for key in ("nframes", "fps") if key in row},
    ]
    rate: Settings = next((each for each in rates if each), {})
    for each in rates:
        if each and each is not rate:
            key = next(iter(each))  # nframes or fps: both are refused
            better = next(iter(rate))
            _note(said, f"{key} changes nothing, as {better} stands closer to the clip and says how many are taken")
    if "nframes" in rate and bounds:
        _note(said, f"{' and '.join(bounds)} beside nframes change nothing")
    if bounds.get("max_frames", 2) < 2:
        raise RecordError(f"{place}.max_frames: expected {PAIRS.expected}, as frames come in pairs, got 1")
    for key in (*FRAME_BOUNDS, "video_fps"):
        own.pop(key, None)
    beside_turns = bool(rate) and rate is rates[2] and not listed
    return LibraryCount(**rate, **bounds, listed=listed, beside_turns=beside_turns)


def _settle_size(own: Settings, said: MediumSettings, place: str) -> LibrarySize | None:
    """Settle the size of frames by the rules of the package. None: our rules count, with the settings in ``own``."""
    part = {key: said.part[key] for key in SIZE if key in said.part}
    row = {key: said.row[key] for key in SIZE if key in said.row}
    in_meta = {key: own[key] for key in PIXEL_BOUNDS if key in own}
    together = row | in_meta | part
    check_order(together, *PIXEL_BOUNDS, place)
    if not part and (in_meta or not row):
        unused = [key for key in ("total_pixels", *SIDES) if key in row]
        if unused:
            _note(said, f"{' and '.join(unused)} beside the turns changes nothing, as meta bounds the pixels")
        own |= {key: together[key] for key in PIXEL_BOUNDS if key in together}
        return None
    for key in PIXEL_BOUNDS:
        own.pop(key, None)
    return _library_size(together, said, place)


def image_size_settings(said: MediumSettings, place: str) -> LibrarySize | None:
    """The settings of an image's size, in its part or object and beside the turns, or None where there are none.

    Raises:
        RecordError: settings contradict each other.
    """
    together = {key: value for key, value in (said.row | said.part).items() if key in IMAGE_KEYS}
    if not together:
        return None
    check_order(together, *PIXEL_BOUNDS, place)
    return _library_size(together, said, place)


def _library_size(settings: Settings, said: MediumSettings, place: str) -> LibrarySize:
    """A size by the rules of the package. RecordError: one side without the other, or far longer than it."""
    sides = [key for key in SIDES if key in settings]
    if len(sides) == 1:
        (other,) = set(SIDES) - set(sides)
        raise RecordError(f"{place}: {sides[0]} without {other}; expected both, or max_pixels for a size of any shape")
    if sides and is_too_thin((settings["resized_height"], settings["resized_width"])):
        shape = f"{settings['resized_width']} x {settings['resized_height']}"
        raise RecordError(
            f"{place}: resized_width x resized_height is {shape}; expected sides of at most {MAX_ASPECT_RATIO} : 1"
        )
    without = [key for key in settings if key not in SIDES]
    if sides and without:
        _note(said, f"{' and '.join(without)} beside resized_height and resized_width change nothing")
    return LibrarySize(**settings)


# ---- settings as text


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
    words = [name if isinstance(value, tuple | bool) else f"{name} {value:.10g}" for name, value in settings.items()]
    return ", ".join(words)
