"""Turns rows into validated records, and finds parts of records that have no effect."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.media.source import FRAME_LIST_SUFFIX, frame_list, media_path
from qwenvl.data.records.cells import with_types
from qwenvl.data.records.choices import OPTION_KEYS, whole_number
from qwenvl.data.records.chosen import counted_from
from qwenvl.data.records.clip_settings import clip_meta, image_size_settings
from qwenvl.data.records.forms import MAIN_KEYS, MEDIA_TAG, NEARLY_A_TAG, Draft, checked_text, draft_of
from qwenvl.data.records.frame_settings import META_KEYS, advice_on_meta, meta_settings, unknown_meta_keys
from qwenvl.data.records.keys import ADVICE, CLIP_ENDINGS, FIELDS_OF_A_RUN, READ_KEYS, is_empty
from qwenvl.data.records.presets import OURS, answer_and_options, check_name, guessed, has_options, our_row
from qwenvl.data.records.solution_hints import solution_hints
from qwenvl.data.records.timelines import with_timeline
from qwenvl.failure import beginning, visible
from qwenvl.files import plain_file
from qwenvl.rewards.functions.text import tag_problem
from qwenvl.types import ClipMeta, Hint, Message, Record
from qwenvl.yaml_text import first_repeated

MISSING = ("nan", "NaN", "<NA>", "#N/A", "NULL")
"""Missing values as programs write them into cells."""
# A text that looks so is meant as a file: the name of one that is missing would be the question of every record.
_NAME_OF_A_TEXT = re.compile(r"[^\n?]{1,200}\.(?:txt|md)", re.IGNORECASE)
RecordCheck = Callable[[Record], "str | None"]
"""Returns a sentence that says why the rewards can't score a record, or None if they can."""


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: the source and the place of the row in it, ``steps.json[17]`` or ``steps.jsonl:18``.
        default_id: the id of the row if it has none of its own.
        content: a dict if the row is sound.
        untyped: every value is text, as in CSV. The name of a column must tell whether it holds a number or a list.
    """

    where: str
    default_id: str
    content: Any
    untyped: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a source: a file, a table, or a list. It can be sent to other processes.

    Attributes:
        length: the number of rows.
        size: bytes of all rows. 0 for rows that a program holds in memory.
        row: reads the row of a number. Raises RecordError if it can't be read.
    """

    length: int
    size: int
    row: Callable[[int], Row]


@dataclass(frozen=True)
class ReadOptions:
    """The settings by which rows are read.

    Attributes:
        allow_outside_media: media paths may leave the media root.
        columns: from names in the file to the names known here, ``{"question": "prompt"}``.
        prompt_template: a text in which the last user turn replaces ``{prompt}``.
        system: a system turn for every prompt. It replaces the prompt's own.
        format: the preset by which rows are read, ``OURS`` for rows of our own forms. None guesses it from the first
            row of a file.
        first_number: the number of the first option in the answers of a file, 0 or 1. None: not known. A ``RecordFile``
            finds it out.
    """

    allow_outside_media: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    prompt_template: str | None = None
    system: str | None = None
    format: str | None = None
    first_number: int | None = None

    def __post_init__(self) -> None:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template: expected a text that contains {prompt}")
        # Records that name no place for their media get it in front of this text: two tags for one clip.
        for name, text in (("prompt_template", self.prompt_template), ("system", self.system)):
            tag = MEDIA_TAG.search(text or "")
            if tag is not None:
                raise ValueError(f"{name}: holds {tag[0]}; the place of its media is said by each record, leave it out")
        if self.format is not None:
            check_name(self.format)

    @classmethod
    def of(cls, flags: Any) -> ReadOptions:
        """Make the options from flags of these names, where columns are a text and prompt_template is a file.

        Raises:
            ValueError, OSError: columns of another form, a template that can't be read or has no ``{prompt}``.
        """
        template = None
        if flags.prompt_template is not None:
            # Editors end a file with a line end, which is no part of the prompt.
            template = plain_file(flags.prompt_template).read_text("utf-8-sig").removesuffix("\n")
        return cls(
            allow_outside_media=flags.allow_outside_media,
            columns=parse_columns(flags.columns or ""),
            prompt_template=template,
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
    names = [name for name, _, _ in pairs]
    read_as = [known for _, _, known in pairs]
    for each in (names, read_as):
        twice = first_repeated(each)
        if twice is not None:
            raise ValueError(f"--columns: names {twice!r} twice; a column is read under one name, and a name once")
    return {name: known for name, _, known in pairs}


def text_or_file(text: str | None) -> str | None:
    """The content of the file of that name if there is one, and otherwise the text itself.

    Raises:
        OSError: it names a pipe, a socket or a device, or looks like the name of a file that is not there.
    """
    # `os.path` and not pathlib, whose questions raise errors for a text that no file can be called.
    if text is None or "\n" in text or os.path.isdir(text):
        return text
    if not os.path.exists(text):
        if _NAME_OF_A_TEXT.fullmatch(text):
            raise FileNotFoundError(f"{text}: there is no such file")
        return text
    return plain_file(text).read_text("utf-8-sig").strip()


def read_row(row: Row, media_root: Path, options: ReadOptions | None = None) -> Record:
    """The record of a row.

    Args:
        media_root: a path whose links are resolved.

    Raises:
        RecordError: the row is bad. The message begins with its place.
    """
    options = options or ReadOptions()
    where = row.where
    given = _value(row, options)
    value = given
    read: set[str] = set()  # the keys that a preset has read
    hints: list[Hint] = []
    if options.format not in (None, OURS):
        made = our_row(options.format, value, where, adds_request(options), options.first_number)
        value = made.row
        read = made.read
        hints = made.hints
    draft = draft_of(value, where)
    messages = draft.messages
    if options.prompt_template is not None:
        messages[-1] = Message("user", _filled(options.prompt_template, messages[-1].text, where))
    if options.system is not None:
        if any(MEDIA_TAG.search(message.text) for message in messages if message.role == "system"):
            raise RecordError(f"{where}: has a medium in its system turn, which --system replaces; leave --system out")
        messages = [Message("system", options.system), *(m for m in messages if m.role != "system")]
    solution = with_timeline(value, draft.solution, messages[-1].text, where)
    checked_text(solution, f"{where}: the solution")  # of a column: turns have been checked
    problem = tag_problem(solution, "answer")
    if problem:
        raise RecordError(f"{where}: the solution {problem}, got {kind_of(solution)}", "solution")
    draft.videos = [(place, _with_ending(clip, place, media_root)) for place, clip in draft.videos]
    videos = _paths(draft.videos, media_root, options)
    images = _paths(draft.images, media_root, options)
    metas = _clip_metas(draft, videos, where)
    sizes = tuple(image_size_settings(said, where) for said in draft.image_settings)
    noticed = [*draft.notes]
    for said in (*draft.clip_settings, *draft.image_settings):
        noticed += said.notes
    own_id = None if draft.numbered else value.get("id")
    if own_id is not None and (isinstance(own_id, bool) or not isinstance(own_id, int | str) or own_id == ""):
        raise RecordError(f"{where}.id: expected a string or a whole number, got {kind_of(own_id)}")
    return Record(
        id=row.default_id if own_id is None else str(own_id),
        messages=tuple(messages),
        solution=solution,
        videos=videos,
        images=images,
        clip_meta=metas,
        fields=value | {"solution": solution} if "solution" in value else value,
        where=where,
        unread=tuple(_unread(given, value, draft.unread, read)) if read else draft.unread,
        hints=tuple(dict.fromkeys([*hints, *noticed])),
        image_sizes=sizes if any(sizes) else (),
    )


def _filled(template: str, prompt: str, where: str) -> str:
    """A template with a prompt in it.

    Raises:
        RecordError: the template has it several times, and with it the tags of media, of which each stands for one.
    """
    tag = MEDIA_TAG.search(prompt)
    count = template.count("{prompt}")
    if tag is not None and count > 1:
        raise RecordError(
            f"{where}: the prompt has {tag[0]}, and --prompt_template has {{prompt}} {count} times, which would show "
            "the medium as often; write {prompt} once"
        )
    return template.replace("{prompt}", prompt)


def _paths(media: list[tuple[str, Any]], media_root: Path, options: ReadOptions) -> tuple[str, ...]:
    """The paths of media, each with its place in the row. RecordError: one is no path, or leaves the media root."""
    outside = options.allow_outside_media
    return tuple(media_path(medium, place, media_root, allow_outside=outside) for place, medium in media)


def adds_request(options: ReadOptions) -> bool:
    """Whether presets request a form of the answer. They do not where the template or the system turn does."""
    own_texts = (options.prompt_template or "") + (options.system or "")
    return "<answer>" not in own_texts


def _clip_metas(draft: Draft, videos: tuple[str, ...], where: str) -> tuple[ClipMeta | None, ...]:
    """The settings of each clip, from all places of the row.

    Args:
        videos: the paths of the clips.
    """
    metas: list[ClipMeta | None] = []
    for i, (meta, said, path) in enumerate(zip(draft.metas, draft.clip_settings, videos, strict=True)):
        place = f"{where}.meta[{i}]" if len(draft.metas) > 1 else f"{where}.meta"
        settings = None if meta is None else meta_settings(meta, place)
        if settings is None and not (said.part or said.row):
            metas.append(None)
            continue
        # A look at the disk only where something is said of the clip: files of millions of rows are read row by row.
        listed = path.endswith(FRAME_LIST_SUFFIX) or os.path.isdir(path)
        made = clip_meta(settings, said, listed, where)
        _check_frame_times(made, path, where)
        metas.append(made)
    return tuple(metas)


def _check_frame_times(meta: ClipMeta | None, path: str, where: str) -> None:
    """Raise RecordError where a list of frames has another number of times. A folder is counted when it is opened."""
    if meta is None or meta.frame_times is None:
        return
    frames = frame_list(path)
    if frames is not None and len(frames) != len(meta.frame_times):
        raise RecordError(
            f"{where}: frame_times has {len(meta.frame_times)} times for {len(frames)} frames; expected one for each"
        )


def _unread(given: dict[str, Any], made: dict[str, Any], unread: Collection[str], read: set[str]) -> Iterator[str]:
    """The keys of a row of another format that hold a value, and that neither its preset nor our form reads.

    Args:
        made: the row in our form. A key with a meaning there is in it only where the preset says so.
        unread: the unread keys of ``made``.
        read: the keys that the preset read.
    """
    for key, value in given.items():
        is_left = key in unread or key in READ_KEYS or key not in made
        if is_left and key not in read and not is_empty(value):
            yield key


def format_of(rows: Rows, options: ReadOptions) -> str:
    """The name of the preset that fits the first row of a file. ``OURS`` where none fits.

    Raises:
        RecordError: several presets fit.
    """
    try:
        row = rows.row(0)
        value = _value(row, options)
    except RecordError:  # reported when the row is parsed
        return OURS
    return guessed(value, row.where)


def first_number_of(rows: Rows, numbers: Iterable[int], options: ReadOptions) -> int | None:
    """The number of the first option in the answers of a file, by ``counted_from``.

    Args:
        numbers: the rows that are looked at.

    Raises:
        RecordError: the rows contradict each other.
    """
    if options.format in (None, OURS) or not has_options(options.format):
        return None
    found = []
    first = ""
    for number in numbers:
        with suppress(RecordError, ValueError):  # bad rows are reported when they are parsed
            row = rows.row(number)
            first = first or row.where
            answered = answer_and_options(options.format, _value(row, options))
            # Most files answer by letter or text, and are not kept.
            if answered is not None and whole_number(answered[0]) is not None:
                found.append(answered)
    try:
        return counted_from(found)
    except ValueError as error:
        raise RecordError(f"{first}: {error}") from None


def _value(row: Row, options: ReadOptions) -> dict[str, Any]:
    """The content of a row, under the names of ``options.columns`` and with types."""
    value: dict[str, Any] = row.content
    if not isinstance(value, dict):
        raise RecordError(f"{row.where}: expected an object with {MAIN_KEYS}, got {kind_of(value)}")
    for column, name in options.columns.items():
        if column not in value:
            raise RecordError(f"{row.where}: --columns names {column!r}; the row has {', '.join(value)}")
        if name in value and name not in options.columns:
            raise RecordError(f"{row.where}: --columns {column}={name} would hide the row's own {name!r}")
    # Tables have NaN in the place of missing values.
    named: dict[str, Any] = {}
    for key, one in value.items():
        name = options.columns.get(key, key)
        named[name] = None if _is_missing(one, row.untyped) else one
    if row.untyped:
        return with_types({name: one for name, one in named.items() if one is not None})
    return named


def _is_missing(value: Any, untyped: bool) -> bool:
    """Whether a value stands for a missing one in a table."""
    return (isinstance(value, float) and value != value) or (untyped and value in MISSING)


def _with_ending(clip: Any, place: str, media_root: Path) -> Any:
    """The path of a clip with the ending of its file on the disk, where the row names it without, as by an id.

    Raises:
        RecordError: several files or folders are called so.
    """
    if isinstance(clip, dict) and isinstance(clip.get("path"), str) and clip.get("bytes") is None:
        return clip | {"path": _with_ending(clip["path"], place, media_root)}
    if not isinstance(clip, str) or len(clip) > 1000 or "\0" in clip or Path(clip).suffix.lower() in CLIP_ENDINGS:
        return clip
    if clip.endswith("/") or os.path.isfile(media_root / clip):
        return clip
    # Beside a clip may be a folder of its name, with its frames.
    found = [clip + ending for ending in ("", *CLIP_ENDINGS) if os.path.exists(media_root / (clip + ending))]
    if len(found) > 1:
        raise RecordError(f"{place}: {clip!r} may be {' or '.join(found)}; write the ending, or / behind a folder")
    return found[0] if found else clip


def unread_keys_of(records: Iterable[Record], columns: Collection[str]) -> Counter[str]:
    """The number of records for each key that nothing reads: no form, no reward, and no other part of a run.

    Args:
        columns: the fields that the rewards read.
    """
    known = {*columns, *FIELDS_OF_A_RUN}
    counts: Counter[str] = Counter()
    for record in records:
        # A key of our forms that another one stands in for is no field that a reward asks for.
        counts.update(key for key in record.unread if key not in known or key not in record.fields)
    return counts


SHOWN_KEYS = 20  # of a line about keys


def unread_text(counts: Mapping[str, int], records: int) -> str:
    """A line about the keys that nothing reads, with the number of records that have each, and advice on some.

    Of many keys it names the most frequent ones.
    """
    most_frequent = Counter(counts).most_common(SHOWN_KEYS)
    shown = [f"{beginning(visible(key))} ({count:,} of {records:,})" for key, count in most_frequent]
    if len(counts) > len(shown):
        shown.append(f"and {len(counts) - len(shown):,} more")
    advice = [f"; {key}: {ADVICE[key]}" for key in counts if key in ADVICE]
    return f"keys that no reward and nothing else reads: {', '.join(shown)}{''.join(advice)}"


def media_hints(records: int, without: int) -> Iterator[Hint]:
    """Hints about records that have neither a clip nor a picture."""
    if records and without == records:
        yield Hint("text alone", "no record has a clip or a picture: the model sees text alone")
    elif without:
        message = f"{without:,} of {records:,} records without a clip or a picture: of them the model sees text alone"
        yield Hint("text alone", message)


def record_hints(record: Record) -> Iterator[Hint]:
    """Hints about a record: changes that reading made, parts of it that have no effect, and a doubtful solution."""
    yield from record.hints
    yield from solution_hints(record)
    if not MEDIA_TAG.sub("", record.messages[-1].text).strip():
        yield Hint("no question", "the last user turn has no text beside its media: the model is asked nothing")
    named: set[str] = set()
    for message in record.messages:
        named.update(found.strip() for found in NEARLY_A_TAG.findall(message.text))
    if named:
        yield Hint(
            "text like a tag",
            f"the prompt has {', '.join(sorted(named))}, which is text here; <video> and <image> stand for media",
        )
    unknown: set[str] = set()
    if record.videos:
        meta = record.fields.get("meta")
        for each in meta if isinstance(meta, list) else [meta]:
            if isinstance(each, dict):
                unknown.update(str(key)[:80] for key in unknown_meta_keys(each))
    if unknown:
        listed = sorted(unknown)
        yield Hint(
            "unknown key in meta",
            f"meta has {', '.join(listed)}, which change no frames and are left to the rewards"
            f"{advice_on_meta(listed)}; known are {', '.join(META_KEYS)}",
        )
    hidden = _hidden_options(record.fields, prompt="\n".join(message.text for message in record.messages))
    if hidden:
        advice = "write them into the user turn"
        if isinstance(record.fields.get("prompt"), str):
            advice = "--columns prompt=question,solution=answer --format question-answer writes them there"
        yield Hint("options not in the prompt", f"{hidden} are not in the prompt, so the model can't choose; {advice}")


def _hidden_options(row: dict[str, Any], prompt: str) -> str:
    """The columns of options that are not all in the prompt, in words. Empty where there are none."""
    letters: list[str] = []
    for letter in ascii_uppercase:
        if not _is_text(row.get(letter)):
            break
        letters.append(letter)
    if len(letters) > 1 and not all(row[letter].strip() in prompt for letter in letters):
        return f"the options in the columns {', '.join(letters)}"
    for name in OPTION_KEYS:
        given = row.get(name)
        texts = list(given.values()) if isinstance(given, dict) else given
        if isinstance(texts, list) and len(texts) > 1 and all(map(_is_text, texts)):
            are_shown = all(text.strip() in prompt for text in texts)
            return "" if are_shown else f"the options in the column {name}"
    return ""


def _is_text(value: Any) -> bool:
    """Whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())
