"""Presets: the formats of other projects, and for each a small function that turns a row of it into one of our rows.

Formats that keep question, options and answer apart get a prompt in our own words: benchmarks word the request for an
answer differently, each in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records.forms import draft_of
from qwenvl.option import did_you_mean

Values = dict[str, Any]

OURS = "qwenvl"
"""The name of our own forms, with which nothing is guessed."""

CHOICE, NUMBER, REGRESSION = "multiple choice", "numerical", "regression"
OCR, WORDS, YES_NO, SPAN, LABELS = "OCR", "free-form", "yes or no", "temporal grounding", "labels"
ASKED_FOR = {
    CHOICE: "the letter of the right option",
    NUMBER: "a number",
    REGRESSION: "a number",
    OCR: "the text as it is written",
    WORDS: "the answer in words",
    YES_NO: "yes or no",
    SPAN: "start and end in seconds, with the word to between them,",
    LABELS: "the labels, with commas between them,",
}
"""What a prompt asks for by kind of answer. The kind is the record's field ``problem_type``, which rewards may read."""

# Keys that mean something in our forms. A foreign row's values under them enter the record only on purpose.
_OUR_KEYS = {"id", "conversations", "messages", "prompt", "solution", "reward_model", "meta"}
_OUR_KEYS |= {"video", "videos", "image", "images"}
OPTION_KEYS = ("options", "choices", "candidates")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERED = re.compile(r"\s*\(?([A-Z])\s*[).:]")
_LETTER_ALONE = re.compile(r"\(?([A-Z])[).:]?")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:[.,][0-9]+)*%?")


@dataclass(frozen=True)
class Preset:
    """A format.

    Attributes:
        summary: who writes it, in a few words.
        fits: whether a row looks like this format. Rows in our own forms are never passed to it.
        row: returns one of our rows, in the messages or the prompt form. Raises ValueError naming the key that is
            wrong.
        rewards: reward functions that can score its solutions.
        generic: it is guessed only where no other preset fits.
        without_ending: clips are named without their ending, which is looked for on the disk.
    """

    summary: str
    fits: Callable[[Values], bool]
    row: Callable[[Values], Values]
    rewards: tuple[str, ...] = ("by_problem_type",)
    generic: bool = False
    without_ending: bool = False


def check_name(name: str) -> None:
    """Check that a preset is in the table, or ``OURS``.

    Raises:
        ValueError: it is not. The message lists the names.
    """
    if name not in PRESETS and name != OURS:
        near = did_you_mean(name, PRESETS)
        raise ValueError(f"--format: no format {name!r}{near}; known: {OURS}, {', '.join(PRESETS)}")


def how_read(name: str, read_as: str) -> str:
    """The line that reports by which preset a data set is read, where it was guessed."""
    preset = PRESETS[read_as]
    fitting = " or ".join(preset.rewards)
    return f"{name}: read as {read_as} ({preset.summary}); rewards that fit: {fitting}; --format says otherwise"


def guessed(row: Any, where: str) -> str | None:
    """The name of the preset that a row is written by. None for rows of our own forms, and where no preset fits.

    Raises:
        RecordError: several fit.
    """
    if not isinstance(row, dict):
        return None
    try:
        draft_of(row, where)
    except RecordError:
        fitting = [name for name, preset in PRESETS.items() if preset.fits(row)]
    else:
        return None
    special = [name for name in fitting if not PRESETS[name].generic] or fitting
    if len(special) > 1:
        raise RecordError(
            f"{where}: the row may be read as {' or as '.join(special)}; say which by --format {special[0]} or "
            f"--format {special[1]}"
        )
    return special[0] if special else None


def our_row(name: str, row: Values, where: str, form: bool = True) -> Values:
    """One of our rows, made by the preset of that name.

    Args:
        form: a prompt made of a question also says in which form to answer, unless it mentions ``<answer>`` itself.

    Raises:
        RecordError: the row is not of this format.
    """
    try:
        made = PRESETS[name].row(row)
    except ValueError as error:
        raise RecordError(f"{where}: read as {name}: {error}") from None
    prompt = made.get("prompt")
    if form and isinstance(prompt, str) and "<answer>" not in prompt:
        wanted = ASKED_FOR.get(made["problem_type"], "the answer")
        how = f"First think, within <think> </think>. Then give {wanted} within <answer> </answer>."
        made["prompt"] = f"{prompt}\n{how}"
    return made


# Parts of rows


def _other_fields(row: Values, used: Sequence[str] = ()) -> Values:
    """The values that reward functions may want: under keys without a meaning here. ``id`` becomes ``source_id``."""
    fields = {key: value for key, value in row.items() if key not in _OUR_KEYS and key not in used}
    if isinstance(fields.get("reward"), int | float):  # of somebody's model: here the field names reward functions
        del fields["reward"]
    return fields | ({"source_id": row["id"]} if row.get("id") is not None else {})


def _text(row: Values, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: expected text, got {kind_of(value)}")
    return value


def _list(row: Values, key: str) -> list[Any]:
    if not isinstance(value := row.get(key), list) or not value:
        raise ValueError(f"{key}: expected a list, got {kind_of(value)}")
    return value


def _media(row: Values) -> Values:
    """The media columns of a row that are not empty, as ``videos`` and ``images``."""
    columns: Values = {}
    for one, several in (("video", "videos"), ("image", "images")):
        medium = row.get(several) if row.get(several) is not None else row.get(one)
        if medium is not None and medium != [] and medium != "":
            columns[several] = medium if isinstance(medium, list) else [medium]
    return columns


def _has(*keys: str) -> Callable[[Values], bool]:
    return lambda row: row.keys() >= set(keys)


# Questions with an answer and perhaps options


def options_of(given: Any, key: str = "options") -> dict[str, str]:
    """The options of a question by letter, from a list of texts, with or without letters in front, or texts by letter.

    Raises:
        ValueError: something else, or more than 26.

    Example:
        >>> options_of(["A. a cat", "B. a dog"])
        {'A': 'a cat', 'B': 'a dog'}
    """
    if isinstance(given, Mapping):
        options = {str(letter).strip().upper(): text for letter, text in given.items() if text not in (None, "")}
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        texts = [str(text) if isinstance(text, int | float) else text for text in given]
        found = [_LETTERED.match(text) if isinstance(text, str) else None for text in texts]
        if all(match and match[1] == letter for match, letter in zip(found, _LETTERS, strict=False)):
            texts = [text[match.end() :] for text, match in zip(texts, found, strict=True)]
        options = dict(zip(_LETTERS, texts, strict=False)) if len(texts) <= len(_LETTERS) else {}
    else:
        raise ValueError(f"{key}: expected a list of options or options by letter, got {kind_of(given)}")
    if not 0 < len(options) <= len(_LETTERS) or not all(isinstance(text, str) for text in options.values()):
        raise ValueError(f"{key}: expected 1 to 26 options, each a text, got {kind_of(given)}")
    return {letter: text.strip() for letter, text in options.items()}


def chosen(answer: Any, options: Mapping[str, str], key: str = "answer") -> str:
    """The letter of an answer, given as letters, as the text of an option, or as its number from 0.

    Raises:
        ValueError: it is none of the options.

    Example:
        >>> cats = options_of(["a cat", "a dog"])
        >>> chosen("(B)", cats), chosen("a dog", cats), chosen(1, cats), chosen("B. a dog", cats)
        ('B', 'B', 'B', 'B')
    """
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        return list(options)[answer]
    text = _bare(answer, key)
    same = [letter for letter, option in options.items() if option.casefold() == text.casefold()]
    if len(same) == 1:
        return same[0]
    found = _LETTER_ALONE.fullmatch(text) or _LETTERED.match(text)
    if found and found[1] in options:
        return found[1]
    several = re.split(r"[\s,;]+", text)
    if len(several) > 1 and set(several) <= options.keys():
        return ", ".join(several)
    shown = ", ".join(f"{letter}. {option}" for letter, option in options.items())
    raise ValueError(f"{key}: {text!r} is none of the options {shown[:200]}")


def _bare(answer: Any, key: str) -> str:
    """An answer as text, without tags."""
    text = str(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key}: expected text or a number, got {kind_of(answer)}")
    return text.replace("<answer>", "").replace("</answer>", "").strip()


def _kind_of_answer(answer: Any) -> str:
    """The kind of an answer to a question without options."""
    text = str(answer).strip()
    if _NUMBER.fullmatch(text):
        return NUMBER
    return YES_NO if text.casefold().strip(".") in ("yes", "no") else WORDS


def _question_row(
    row: Values,
    *,
    question: str = "question",
    answer: str = "answer",
    options: Mapping[str, str] | None = None,
    kind: str | None = None,
    media: Values | None = None,
    used: Sequence[str] = (),
    **more: Any,
) -> Values:
    """One of our rows: the question with its options, and the answer as its solution.

    Args:
        question, answer: their keys in the row.
        kind: of the answer. None: by the options and the answer.
        media: where other keys than those of ``_media`` name them.
        used: further keys of the row that are no fields of the record.
        more: fields of the record.
    """
    prompt = _text(row, question).strip()
    listed = options or {}
    if not all(re.search(rf"\b{letter}[).:] ?{re.escape(text)}", prompt) for letter, text in listed.items()):
        prompt = "\n".join([prompt, *(f"{letter}. {text}" for letter, text in listed.items())])
    given = row.get(answer)
    kind = kind or (CHOICE if options else _kind_of_answer(given))
    solution = chosen(given, options, answer) if options and kind == CHOICE else _bare(given, answer)
    made = {"prompt": prompt, "solution": f"<answer>{solution}</answer>", "problem_type": kind}
    fields = _other_fields(row, (question, answer, *OPTION_KEYS, *used))
    return fields | (_media(row) if media is None else media) | made | more


def _listed_options(row: Values) -> dict[str, str]:
    """The options of a row in a list or by letter. Empty without any."""
    key = next((key for key in OPTION_KEYS if row.get(key)), None)
    return options_of(row[key], key) if key else {}


def _video_r1(row: Values) -> Values:
    """``problem`` with ``options``, ``problem_type`` and a ``solution`` in tags. ``path`` is a clip or a picture."""
    media, more = _media(row), {}
    if row.get("path"):
        if (medium := row.get("data_type")) not in ("video", "image"):
            raise ValueError(f'data_type: expected "video" or "image", got {medium!r}')
        media = _media({medium: row["path"]})
    if isinstance(thought := row.get("process"), str):  # of the file for a warm start
        more["thinking"] = thought.replace("<think>", "").replace("</think>", "").strip()
    options, kind, used = _listed_options(row), _text(row, "problem_type"), ("path", "process")
    names = {"question": "problem", "answer": "solution"}
    return _question_row(row, **names, options=options, kind=kind, media=media, used=used, **more)


def _easyr1(row: Values) -> Values:
    """``problem`` and ``answer``, with ``images`` or ``videos``. Some files add ``problem_type`` and ``options``."""
    return _question_row(row, question="problem", options=_listed_options(row), kind=row.get("problem_type") or None)


def _question_answer(row: Values) -> Values:
    """``question`` and ``answer``, with options in a list, by letter, or in columns A, B, C, ..."""
    if row.get("video_id") is not None and not _media(row):
        raise ValueError("video_id: expected the path of the clip in `video`; name its column by --columns NAME=video")
    columns = {letter: row[letter] for letter in _LETTERS[:8] if row.get(letter) not in (None, "")}
    options = _listed_options(row) or (options_of(columns) if columns else {})
    return _question_row(row, options=options, kind=row.get("problem_type") or None, used=tuple(columns))


# Benchmarks, as their authors or lmms-eval publish them


def _videomme(row: Values) -> Values:
    """``videoID`` names the clip."""
    return _question_row(row, options=options_of(row.get("options")), media={"videos": [_text(row, "videoID")]})


def _mvbench(row: Values) -> Values:
    """The answer is the text of a candidate. Some tasks ask about a stretch of the clip, or have folders of frames."""
    names = {"start": "video_start", "end": "video_end", "fps": "frames_fps"}
    meta = {known: row[key] for key, known in names.items() if row.get(key) is not None}
    options = options_of(row.get("candidates"), "candidates")
    return _question_row(row, options=options, used=tuple(names), **meta)


# Sentences and when they happen

_CHARADES = re.compile(r"(\S+) ([0-9]+\.?[0-9]*) ([0-9]+\.?[0-9]*)\s?##\s?(.+)")


def _span_row(row: Values) -> Values:
    """A record that asks when a sentence happens: from ``start`` to ``end``, or in ``timestamp``, which holds both."""
    times: Any = row.get("timestamp", [row.get("start"), row.get("end")])
    if not isinstance(times, list) or len(times) != 2:
        raise ValueError(f"timestamps: expected start and end, got {kind_of(times)}")
    for key, value in zip(("start", "end"), times, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ValueError(f"{key}: expected seconds, got {kind_of(value)}")
    if times[0] == times[1]:
        raise ValueError(f"start and end: expected two times, got {times[0]:g} twice")
    question = f'When does the following happen in the video? "{_text(row, "sentence").strip()}"'
    row = row | {"question": question, "answer": f"{min(times):g} to {max(times):g}"}
    media = {"videos": [_text(row, "video_id")]}
    return _question_row(row, kind=SPAN, media=media, used=("start", "end", "timestamp"))


def activitynet_rows(content: Values) -> Iterator[tuple[str, Values]]:
    """Place and row of each sentence of an object that holds ``timestamps`` and ``sentences`` by clip.

    Raises:
        TypeError, KeyError: an object of another format.
    """
    for clip, entry in content.items():
        for i, (times, sentence) in enumerate(zip_longest(entry["timestamps"], entry["sentences"])):
            row = {"video_id": clip, "duration": entry.get("duration"), "timestamp": times, "sentence": sentence}
            yield f"{clip}[{i}]", row


def charades_row(line: str) -> Values:
    """The row of ``3MSZA 24.3 30.4##person turn a light on.``, and a row that is refused of any other line."""
    if not (found := _CHARADES.fullmatch(line.strip())):
        return {"line": line}
    return {"video_id": found[1], "start": float(found[2]), "end": float(found[3]), "sentence": found[4]}


# Label Studio

_PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def _label_studio(row: Values) -> Values:
    """The first annotation that is not cancelled, ground truth before others, and the clip of ``data``."""
    data = row.get("data")
    if not isinstance(data, dict):
        raise ValueError(f"data: expected an object with the clip of the task, got {kind_of(data)}")
    listed = [one for one in row.get("annotations") or [] if isinstance(one, dict) and not one.get("was_cancelled")]
    listed.sort(key=lambda one: not one.get("ground_truth"))  # the order stays otherwise
    answer, kind = next(filter(None, (_annotated(one.get("result")) for one in listed)), (None, ""))
    if answer is None:
        raise ValueError("annotations: expected one that is not cancelled and has choices, labels, text or a number")
    question = data.get("question") or data.get("text")
    question = question if isinstance(question, str) else "What does the video show?"
    texts = {key: value for key, value in data.items() if isinstance(value, str) and key not in ("question", "text")}
    name = next((key for key in ("video", "image", *texts) if key in texts), None)
    if name is None:
        raise ValueError(f"data: expected a clip or a picture, got {kind_of(data)}")
    path = _stored_path(texts[name])
    media = {"images" if PurePosixPath(path).suffix.lower() in _PICTURES else "videos": [path]}
    used = ("data", "annotations", "predictions", "drafts")
    return _question_row(row | {"question": question, "answer": answer}, kind=kind, media=media, used=used)


def _annotated(result: Any) -> tuple[str, str] | None:
    """The answer that the regions of an annotation give, labels in order of their times, and its kind."""
    labels: list[tuple[float, str]] = []
    for region in result if isinstance(result, list) else []:
        value, kind = region.get("value") or {}, region.get("type")
        if kind in ("number", "rating") and value.get(kind) is not None:
            return str(value[kind]), NUMBER
        if kind == "textarea" and value.get("text"):
            return " ".join([value["text"]] if isinstance(value["text"], str) else value["text"]), WORDS
        named = value.get(kind) if kind in ("choices", "timelinelabels", "labels") else None
        if kind == "taxonomy":
            named = [path[-1] for path in value.get("taxonomy") or () if path]
        ranges = value.get("ranges") or [{"start": value.get("start") or 0}]
        labels += [(float(ranges[0].get("start") or 0), str(label)) for label in named or ()]
    labels.sort(key=lambda label: label[0])
    return (", ".join(text for _, text in labels), LABELS) if labels else None


def _stored_path(address: str) -> str:
    """The path of an upload (``/data/upload/1/clip.mp4``) or of local storage (``/data/local-files/?d=clip.mp4``)."""
    parts = urlsplit(address)
    if parts.path.rstrip("/").endswith("/local-files") and (local := parse_qs(parts.query).get("d")):
        return local[0].lstrip("/")
    return address.removeprefix("/data/") if address.startswith("/data/upload/") else address


# Conversations, which have their questions and solutions written out

_SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_SPEAKERS |= {"bot": "assistant", "model": "assistant"}
_TAGS = ("<video>", "<image>")


def _is_llava_video(row: Values) -> bool:
    turns = row.get("conversations")
    values = [turn.get("value") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    text = "\n".join(value for value in values if isinstance(value, str))
    return bool(row.get("video")) and not row.get("image") and "<image>" in text and "<video>" not in text


def _llava_video(row: Values) -> Values:
    """Our conversations, but that ``<image>`` stands for the clip."""
    turns = _list(row, "conversations")
    if row.get("video") and not row.get("image"):
        said = lambda turn: isinstance(turn, dict) and isinstance(turn.get("value"), str)
        turns = [t | {"value": t["value"].replace("<image>", "<video>")} if said(t) else t for t in turns]
    media = {key: row[key] for key in ("video", "image") if row.get(key)}
    return _other_fields(row) | media | {"conversations": turns}


def _is_sharegpt(row: Values) -> bool:
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return False
    speakers = [turn.get("from", turn.get("role")) for turn in turns]
    ours = all("from" in turn for turn in turns) and set(speakers) <= {"human", "gpt", "system"}
    known = all(speaker in _SPEAKERS for speaker in speakers)
    return known and (not ours or bool({"videos", "images", "system"} & set(row)))


def _sharegpt(row: Values) -> Values:
    """Conversations of ``user`` and ``assistant``, under ``from`` or ``role``, with ``videos`` and ``images``."""
    turns = []
    for i, turn in enumerate(_list(row, "conversations")):
        if not isinstance(turn, dict):
            raise ValueError(f"conversations[{i}]: expected an object with from and value, got {kind_of(turn)}")
        speaker = turn.get("from", turn.get("role"))
        if speaker not in _SPEAKERS:
            raise ValueError(f"conversations[{i}].from: expected one of {', '.join(_SPEAKERS)}, got {kind_of(speaker)}")
        turns.append({"role": _SPEAKERS[speaker], "content": turn.get("value", turn.get("content"))})
    if isinstance(system := row.get("system"), str) and system.strip():
        turns.insert(0, {"role": "system", "content": system})
    return _other_fields(row, ("system",)) | _messages(turns, _media(row), row.get("solution"))


def _is_trl(row: Values) -> bool:
    turns = row.get("prompt", row.get("messages"))
    plain = isinstance(turns, list) and all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in turns)
    return plain and bool(_media(row)) and not any(tag in turn["content"] for turn in turns for tag in _TAGS)


def _trl(row: Values) -> Values:
    """Messages of plain text, with their media in columns beside and no tags for them."""
    turns = _list(row, "prompt" if isinstance(row.get("prompt"), list) else "messages")
    solution = row.get("solution", row.get("answer"))
    if solution is None and isinstance(completion := row.get("completion"), list):
        turns = [*turns, *completion]
    return _other_fields(row, ("answer", "completion")) | _messages(turns, _media(row), solution)


def _messages(turns: list[Any], media: Values, solution: Any = None) -> Values:
    """A row of the messages form. Where no turn has a media tag, the tags come first in the first user turn."""
    texts = [turn.get("content") if isinstance(turn, dict) else None for turn in turns]
    plain = all(isinstance(text, str) and not any(tag in text for tag in _TAGS) for text in texts)
    first = next((i for i, turn in enumerate(turns) if plain and turn.get("role") == "user"), None)
    if first is not None:
        tags = "<video>" * len(media.get("videos", ())) + "<image>" * len(media.get("images", ()))
        turns = [*turns[:first], turns[first] | {"content": tags + texts[first]}, *turns[first + 1 :]]
    return media | {"messages": turns} | ({} if solution is None else {"solution": solution})


PRESETS: dict[str, Preset] = {
    "llava-video": Preset(
        "LLaVA-Video-178K and files like it", _is_llava_video, _llava_video, ("rouge", "multiple_choice")
    ),
    "sharegpt": Preset("LLaMA-Factory, ms-swift", _is_sharegpt, _sharegpt, ("accuracy",)),
    "trl": Preset("TRL", _is_trl, _trl, ("accuracy",)),
    "video-r1": Preset(
        "the training files of Video-R1 and its six files for evaluation",
        _has("problem", "problem_type", "solution"),
        _video_r1,
    ),
    "easyr1": Preset("EasyR1 and trainers made of it", _has("problem", "answer"), _easyr1),
    "question-answer": Preset(
        "columns question and answer, with options or without",
        _has("question", "answer"),
        _question_answer,
        generic=True,
    ),
    "videomme": Preset("Video-MME", _has("videoID", "question", "options", "answer"), _videomme, without_ending=True),
    "mvbench": Preset("the tasks of MVBench", _has("video", "question", "candidates", "answer"), _mvbench),
    "activitynet": Preset(
        "ActivityNet Captions",
        _has("video_id", "timestamp", "sentence"),
        _span_row,
        ("temporal_iou",),
        without_ending=True,
    ),
    "charades-sta": Preset(
        "Charades-STA", _has("video_id", "start", "end", "sentence"), _span_row, ("temporal_iou",), without_ending=True
    ),
    "label-studio": Preset(
        "the full export of Label Studio, JSON",
        lambda row: isinstance(row.get("annotations"), list) and isinstance(row.get("data"), dict),
        _label_studio,
    ),
}
