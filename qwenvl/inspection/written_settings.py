"""Writes the frame settings of a record into a row, so that the row is read as the record again.

Most rows say all of it in ``meta`` and beside the turns, which a converted row keeps as they are. Settings of typed
parts and objects move into the object that holds the clip.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import FRAME_LIST_SUFFIX
from qwenvl.data.records.clip_settings import clip_meta, image_size_settings
from qwenvl.data.records.frame_settings import MediumSettings, Settings, meta_settings, row_settings
from qwenvl.types import ClipMeta, LibraryCount, LibrarySize, Record


@dataclass(frozen=True)
class WrittenSettings:
    """The settings of the media of a record as its row has them.

    Attributes:
        videos, images: for each medium the settings that stand in an object beside its path. Empty: the path is enough.
        meta: the ``meta`` of the row where that of the record's fields does not do. None: it does.
    """

    videos: list[Settings]
    images: list[Settings]
    meta: Any = None


def written_settings(record: Record) -> WrittenSettings:
    """The settings of a record beside its fields, which the row keeps."""
    images = [_of_image(record, number) for number in range(len(record.images))]
    clips = range(len(record.videos))
    videos = [_of_clip(record, number) for number in clips]
    if all(_is_read_again(record, number, said=settings) for number, settings in enumerate(videos)):
        return WrittenSettings(videos=videos, images=images)
    # A record that was made without a row, or whose fields are others by now.
    metas = [_own_meta(record, number) | _in_meta(record.clip_meta[number]) for number in clips]
    videos = [_in_library_words(meta) for meta in record.clip_meta]
    return WrittenSettings(videos=videos, images=images, meta=metas[0] if len(metas) == 1 else metas)


def _of_image(record: Record, number: int) -> Settings:
    """The settings of an image in its object."""
    size = record.image_sizes[number] if record.image_sizes else None
    try:
        beside = row_settings(record.fields, "image", len(record.images), record.where)[number]
        if image_size_settings(MediumSettings(row=beside), record.where) == size:
            return {}
    except RecordError:
        pass  # the fields are not those of the record
    return _given(size)


def _of_clip(record: Record, number: int) -> Settings:
    """The settings of a clip in its object: those that ``meta`` and the keys beside the turns do not say."""
    if _is_read_again(record, number, said={}):
        return {}
    meta = record.clip_meta[number]
    settings = _in_library_words(meta)
    try:
        elsewhere = _beside_turns(record, number) | (_in_own_meta(record, number) or {})
    except RecordError:  # the fields are not those of the record
        return settings
    ours = _in_meta(meta)
    if "sample_fps" in settings:  # which says the same
        ours.pop("frames_fps", None)
    for name, value in _as_read(ours).items():
        if elsewhere.get(name) != value:
            settings[name] = ours[name]
    if elsewhere.get("dynamic_sample") and (meta is None or not meta.dynamic_sample):
        settings["dynamic_sample"] = False
    # A rate that is read beside the turns has another meaning there as soon as the object has one too.
    without_rate = {name: value for name, value in settings.items() if name not in ("sample_fps", "frames_fps")}
    return without_rate if _is_read_again(record, number, said=without_rate) else settings


def _is_read_again(record: Record, number: int, said: Settings) -> bool:
    """Whether a clip has its settings again if its object holds these, and the row the fields of the record."""
    path = record.videos[number]
    listed = path.endswith(FRAME_LIST_SUFFIX) or os.path.isdir(path)
    try:
        settings = MediumSettings(part=_as_read(said), row=_beside_turns(record, number))
        return clip_meta(_in_own_meta(record, number), settings, listed, record.where) == record.clip_meta[number]
    except RecordError:  # the fields are not those of the record
        return False


def _as_read(written: Settings) -> Settings:
    """Settings that are written in a row, as they are read: lists are tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}


def _beside_turns(record: Record, number: int) -> Settings:
    """The settings of a clip beside the turns."""
    return row_settings(record.fields, "video", len(record.videos), record.where)[number]


def _in_own_meta(record: Record, number: int) -> Settings | None:
    """The settings of a clip in the ``meta`` of its record's fields. None: it has none."""
    meta = record.fields.get("meta")
    if isinstance(meta, list):
        meta = meta[number] if len(meta) == len(record.videos) else None
    return None if meta in (None, {}) else meta_settings(meta, record.where)


def _own_meta(record: Record, number: int) -> Settings:
    """The ``meta`` of a clip as the fields of its record have it."""
    meta = record.fields.get("meta")
    if isinstance(meta, list) and len(meta) == len(record.videos):
        meta = meta[number]
    return dict(meta) if isinstance(meta, Mapping) else {}


def _in_meta(meta: ClipMeta | None) -> Settings:
    """The settings of a clip in our words."""
    row = _given(meta)
    row.pop("count", None)
    row.pop("size", None)
    counts = row.pop("frame_counts", None)
    if counts:
        whole = [int(count) if count.is_integer() else count for count in counts]
        row = {"frame_cnts": whole, **row}
    if "frame_times" in row:
        row["frame_times"] = list(row["frame_times"])
    return row


def _in_library_words(meta: ClipMeta | None) -> Settings:
    """The settings of a clip in the words of ``qwen_vl_utils``."""
    if meta is None:
        return {}
    settings = _given(meta.count) | _given(meta.size)
    if settings.pop("listed", False):
        if meta.frames_fps is not None:
            settings["sample_fps"] = meta.frames_fps
        elif meta.frame_times is None and "fps" in settings:
            # Of a list, `fps` would be the rate at which its frames are shown.
            settings["video_fps"] = settings.pop("fps")
    if settings.pop("beside_turns", False):
        for key in ("nframes", "fps"):  # they stay beside the turns, with the other fields of the row
            settings.pop(key, None)
    return settings


def _given(settings: ClipMeta | LibraryCount | LibrarySize | None) -> Settings:
    """The settings that are not at their defaults."""
    if settings is None:
        return {}
    return {name: value for name, value in vars(settings).items() if value is not None and value is not False}
