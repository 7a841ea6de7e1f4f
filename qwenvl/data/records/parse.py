"""From rows to validated records.

This is a row of the conversations form. ``schemas`` knows other forms:

    {"id": 17, "conversations": [{"from": "human", "value": "<video>\\nWhich steps?"},
                                 {"from": "gpt", "value": "<answer>(1) take the lid</answer>"}],
     "video": "clips/17.mp4",
     "meta": {"frame_cnts": [30, 45], "min_frames": 4, "max_frames": 6, "dynamic_sample": true}}
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.media.source import media_path
from qwenvl.data.records.clip_meta import parse_meta
from qwenvl.data.records.presets.table import OURS, PRESETS, check_name, guessed, our_row
from qwenvl.data.records.rows import Row
from qwenvl.data.records.schemas import MAIN_KEYS, Draft, draft_of, with_types
from qwenvl.files import plain_file
from qwenvl.types import Message, Record

RecordCheck = Callable[[Record], "str | None"]
"""Returns a sentence that says why the rewards can't score a record, or None if they can."""

_ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov")


@dataclass(frozen=True)
class ReadOptions:
    """How rows are read.

    Attributes:
        allow_outside_media: media paths may leave the media root.
        allow_remote_media: media may be http(s) URLs.
        columns: from names in the file to the names known here, ``{"question": "prompt"}``.
        prompt_template: a text in which the last user turn replaces ``{prompt}``.
        system: a system turn for every prompt. It replaces the prompt's own.
        format: the preset by which rows are read, ``OURS`` for rows of our own forms. None guesses it from the first
            row of a file.
    """

    allow_outside_media: bool = False
    allow_remote_media: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    prompt_template: str | None = None
    system: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template: expected a text that contains {prompt}")
        if self.format is not None:
            check_name(self.format)

    @classmethod
    def of(cls, flags: Any) -> ReadOptions:
        """From the flags of these names, which say columns as text and prompt_template as a file.

        Raises:
            ValueError, OSError: columns of another form, a template that can't be read or has no ``{prompt}``.
        """
        template = flags.prompt_template
        return cls(
            allow_outside_media=flags.allow_outside_media,
            allow_remote_media=flags.allow_remote_media,
            columns=parse_columns(flags.columns or ""),
            prompt_template=None if template is None else plain_file(template).read_text("utf-8"),
            system=text_or_file(flags.system),
            format=flags.format,
        )


def parse_columns(text: str) -> dict[str, str]:
    """``question=prompt,answer=solution`` as ``ReadOptions.columns``. An empty text gives no columns.

    Raises:
        ValueError: the text has another form.
    """
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(name and known for name, _, known in pairs):
        raise ValueError(f"--columns: expected name=known,name=known, got {text!r}")
    return {name: known for name, _, known in pairs}


def text_or_file(text: str | None) -> str | None:
    """The content of the file of that name if there is one, and otherwise the text itself.

    Raises:
        OSError: it names a pipe, a socket or a device.
    """
    if text is None or "\n" in text or not os.path.exists(text) or os.path.isdir(text):  # of pathlib's, some raise
        return text
    return plain_file(text).read_text("utf-8").strip()


def parse_row(row: Row, media_root: Path, options: ReadOptions | None = None) -> Record:
    """The record of a row.

    Args:
        media_root: a path whose links are resolved.

    Raises:
        RecordError: the row is bad. The message begins with its place.
    """
    options = options or ReadOptions()
    where, value = row.where, _value(row, options)
    preset = PRESETS.get(options.format or OURS)
    if preset is not None:
        form = "<answer>" not in (options.prompt_template or "") + (options.system or "")
        value = our_row(preset, options.format or OURS, value, where, form)
    draft = _dressed(draft_of(value, where), options)
    if preset is not None and preset.without_ending:
        draft.videos[:] = [(place, _with_ending(clip, media_root)) for place, clip in draft.videos]
    media = [
        [
            media_path(
                medium,
                place,
                media_root,
                allow_outside=options.allow_outside_media,
                allow_remote=options.allow_remote_media,
            )
            for place, medium in listed
        ]
        for listed in (draft.videos, draft.images)
    ]
    metas = [
        None if meta is None else parse_meta(meta, f"{where}.meta{f'[{i}]' if len(draft.metas) > 1 else ''}")
        for i, meta in enumerate(draft.metas)
    ]
    return Record(
        id=_parse_id(value.get("id"), where, row.default_id),
        messages=tuple(draft.messages),
        solution=draft.solution,
        videos=tuple(media[0]),
        images=tuple(media[1]),
        clip_meta=tuple(metas),
        fields=value | {"solution": draft.solution} if "solution" in value else value,
        where=where,
    )


def format_of(row: Row, options: ReadOptions) -> str:
    """The name of the preset by which the rows of a file are to be read, by its first row. ``OURS`` where none fits.

    Raises:
        RecordError: several presets fit.
    """
    if options.format is not None:
        return options.format
    try:
        value = _value(row, options)
    except RecordError:  # told when the row is parsed
        return OURS
    return guessed(value, row.where) or OURS


def _value(row: Row, options: ReadOptions) -> dict[str, Any]:
    """What a row holds, under the names of ``options.columns`` and with types."""
    value = row.read()
    if not isinstance(value, dict):
        raise RecordError(f"{row.where}: expected an object with {MAIN_KEYS}, got {kind_of(value)}")
    value = _renamed(value, options.columns, row.where)
    return with_types(value) if row.untyped else value


def _with_ending(clip: Any, media_root: Path) -> Any:
    """The path of a clip that is named without its ending: that of the file that is there."""
    if not isinstance(clip, str) or Path(clip).suffix.lower() in _ENDINGS or (media_root / clip).exists():
        return clip
    return next((clip + ending for ending in _ENDINGS if (media_root / (clip + ending)).exists()), clip + _ENDINGS[0])


def _renamed(row: dict[str, Any], columns: dict[str, str], where: str) -> dict[str, Any]:
    for column, name in columns.items():
        if column not in row:
            raise RecordError(f"{where}: --columns names {column!r}; the row has {', '.join(row)}")
        if name in row and name not in columns:
            raise RecordError(f"{where}: --columns {column}={name} would hide the row's own {name!r}")
    return {columns.get(name, name): value for name, value in row.items()}


def _dressed(draft: Draft, options: ReadOptions) -> Draft:
    """The draft, with the template and the system turn of the options applied."""
    messages = draft.messages
    if options.prompt_template is not None:
        asked = messages[-1]
        messages = [*messages[:-1], Message("user", options.prompt_template.replace("{prompt}", asked.text))]
    if options.system is not None:
        messages = [Message("system", options.system), *(m for m in messages if m.role != "system")]
    return replace(draft, messages=messages)


def _parse_id(value: Any, where: str, default_id: str) -> str:
    if value is None:
        return default_id
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise RecordError(f"{where}.id: expected a string or a whole number, got {kind_of(value)}")
    return str(value)
