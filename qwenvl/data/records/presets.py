"""Presets: formats that keep question, options and answer apart, and what turns a row of each into one of our rows.

The prompt is in our own words: benchmarks word the request for an answer differently, each in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
_OUR_KEYS |= {"video", "videos", "image", "images", "system", "completion"}
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
        keys: of a row by which it is guessed. Rows in our own forms are never passed to it.
        row: returns one of our rows, in the prompt form. Raises ValueError naming the key that is wrong.
        generic: it is guessed only where no other preset fits.
        without_ending: clips are named without their ending, which is looked for on the disk.
    """

    summary: str
    keys: tuple[str, ...]
    row: Callable[[Values], Values]
    generic: bool = False
    without_ending: bool = False


def check_name(name: str) -> None:
    """Check that a preset is in the table, or ``OURS``.

    Raises:
        ValueError: it is not. The message lists the names.
    """
    if name not in PRESETS and name != OURS:
        near = did_you_mean(name, PRESETS)
        raise ValueError(
            f"--format: no format {name!r}{near}; known: {OURS}, {', '.join(PRESETS)}. Conversations and messages of "
            "other trainers need none"
        )


def how_read(name: str, read_as: str) -> str:
    """The line that reports by which preset a data set is read, where it was guessed."""
    summary = PRESETS[read_as].summary
    return f"{name}: read as {read_as} ({summary}); the reward that fits: by_problem_type; --format says otherwise"


def guessed(row: Values, where: str) -> str:
    """The name of the preset that a row is written by. ``OURS`` for rows of our own forms, and where no preset fits.

    Raises:
        RecordError: several fit.
    """
    with suppress(RecordError):
        draft_of(row, where)
        return OURS
    fitting = [name for name, preset in PRESETS.items() if row.keys() >= set(preset.keys)]
    special = [name for name in fitting if not PRESETS[name].generic] or fitting or [OURS]
    if len(special) > 1:
        raise RecordError(
            f"{where}: the row may be read as {' or as '.join(special)}; say which by --format {special[0]} or "
            f"--format {special[1]}"
        )
    return special[0]


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
    if form and "<answer>" not in made["prompt"]:
        made["prompt"] += answer_request(made["problem_type"])
    return made


def answer_request(kind: str) -> str:
    """What stands behind a question of this kind: in which form to answer it."""
    wanted = ASKED_FOR.get(kind, "the answer")
    return f"\nFirst think, within <think> </think>. Then give {wanted} within <answer> </answer>."


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


def _media(row: Values) -> Values:
    """The media columns of a row that are not empty, as ``videos`` and ``images``."""
    columns: Values = {}
    for one, several in (("video", "videos"), ("image", "images")):
        medium = row.get(several) if row.get(several) is not None else row.get(one)
        if medium is not None and medium != [] and medium != "":
            columns[several] = medium if isinstance(medium, list) else [medium]
    return columns


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
    kind: str | None = None,
    media: Values | None = None,
    used: Sequence[str] = (),
    **more: Any,
) -> Values:
    """One of our rows: the question with its options, and the answer as its solution.

    Options are in one of ``OPTION_KEYS``, as a list or by letter, or in columns A, B, C, ...

    Args:
        question, answer: their keys in the row.
        kind: of the answer. None: the row's ``problem_type``, or by the options and the answer.
        media: where other keys than those of ``_media`` name them.
        used: further keys of the row that are no fields of the record.
        more: fields of the record.
    """
    if media is None and not (media := _media(row)) and row.get("video_id") is not None:
        raise ValueError("video_id: expected the path of the clip in `video`; name its column by --columns NAME=video")
    prompt = _text(row, question).strip()
    columns = {letter: row[letter] for letter in _LETTERS[:8] if row.get(letter) not in (None, "")}
    key = next((key for key in OPTION_KEYS if row.get(key)), None)
    options = options_of(row[key], key) if key else options_of(columns) if columns else {}
    if not all(re.search(rf"\b{letter}[).:] ?{re.escape(text)}", prompt) for letter, text in options.items()):
        prompt = "\n".join([prompt, *(f"{letter}. {text}" for letter, text in options.items())])
    given = row.get(answer)
    kind = kind or row.get("problem_type") or (CHOICE if options else _kind_of_answer(given))
    solution = chosen(given, options, answer) if options and kind == CHOICE else _bare(given, answer)
    made = {"prompt": prompt, "solution": f"<answer>{solution}</answer>", "problem_type": kind}
    fields = _other_fields(row, (question, answer, *OPTION_KEYS, *columns, *used))
    return fields | media | made | more


def _video_r1(row: Values) -> Values:
    """``problem`` and a ``solution`` in tags. ``path`` is a clip or a picture."""
    media, more = _media(row), {}
    if row.get("path"):
        if (medium := row.get("data_type")) not in ("video", "image"):
            raise ValueError(f'data_type: expected "video" or "image", got {medium!r}')
        media = _media({medium: row["path"]})
    if isinstance(thought := row.get("process"), str):  # of the file for a warm start
        more["thinking"] = thought.replace("<think>", "").replace("</think>", "").strip()
    return _question_row(row, question="problem", answer="solution", media=media, used=("path", "process"), **more)


def _videomme(row: Values) -> Values:
    """``videoID`` names the clip."""
    return _question_row(row, media={"videos": [_text(row, "videoID")]})


def _mvbench(row: Values) -> Values:
    """Some tasks ask about a stretch of the clip, or have folders of frames."""
    names = {"start": "video_start", "end": "video_end", "fps": "frames_fps"}
    meta = {known: row[key] for key, known in names.items() if row.get(key) is not None}
    return _question_row(row, used=tuple(names), **meta)


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


PRESETS: dict[str, Preset] = {
    "video-r1": Preset(
        "the training files of Video-R1 and its six files for evaluation",
        ("problem", "problem_type", "solution"),
        _video_r1,
    ),
    "easyr1": Preset(
        "EasyR1 and trainers made of it", ("problem", "answer"), partial(_question_row, question="problem")
    ),
    "question-answer": Preset(
        "columns question and answer, with options or without", ("question", "answer"), _question_row, generic=True
    ),
    "videomme": Preset("Video-MME", ("videoID", "question", "options", "answer"), _videomme, without_ending=True),
    "mvbench": Preset("the tasks of MVBench", ("video", "question", "candidates", "answer"), _mvbench),
    "activitynet": Preset(
        "ActivityNet Captions", ("video_id", "timestamp", "sentence"), _span_row, without_ending=True
    ),
    "charades-sta": Preset("Charades-STA", ("video_id", "start", "end", "sentence"), _span_row, without_ending=True),
    "label-studio": Preset("the full export of Label Studio, JSON", ("annotations", "data"), _label_studio),
}
