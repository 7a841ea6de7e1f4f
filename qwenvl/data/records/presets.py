"""Presets: formats that keep question, options and answer apart, each with the function that makes our rows of them.

The prompt is in our own words: benchmarks word the request for an answer differently, each in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records import label_studio
from qwenvl.data.records.answer_kinds import has_times_alone, kind_in_row, kind_named, times_with_points, yes_or_no
from qwenvl.data.records.choices import OPTION_KEYS, Choices, options_of, whole_number
from qwenvl.data.records.chosen import bare, chosen, has_text, is_letter
from qwenvl.data.records.forms import draft_of
from qwenvl.data.records.frame_settings import META_KEYS, ROW_KEYS
from qwenvl.data.records.keys import (
    FIELDS_OF_A_RUN,
    FRAME_KEYS,
    READ_KEYS,
    SYSTEM_KEYS,
    TURN_KEYS,
    Medium,
    is_empty,
    media_key,
)
from qwenvl.data.records.option_columns import option_columns, options_in
from qwenvl.data.records.spans import check_times, is_cut_of_a_film, spans_text, time_in, times_in
from qwenvl.option import did_you_mean
from qwenvl.rewards.functions.grounding import spans_in
from qwenvl.rewards.functions.text import first_block, solution_of, thinking_of
from qwenvl.rewards.kinds import CHOICE, LABELS, NUMBER, SPAN, WORDS, YES_NO, kind_called
from qwenvl.types import FrameInfo, Hint, Record

Values = dict[str, Any]

OURS = "qwenvl"
"""The name of our own forms, with which nothing is guessed."""

# Keys of our own forms that mean the same in a row of a preset: its system turn, and which frames are taken.
_PASSED = (*SYSTEM_KEYS, *FRAME_KEYS)
# The keys of an answer: as it is, and as the number of an option that counts from 0 or from 1.
_ANSWER_KEYS = {"answer": None, "answer_index": 0, "answer_number": 1}
_ASKS_FOR_AN_ORDER = re.compile(r"\b(?:order|sequence)\b", re.IGNORECASE)
# A number with a unit: -5 °C, 12 mm, 3 km/h.
_WITH_UNIT = re.compile(
    r"[-+\u2010-\u2015\u2212]?\s?[0-9]{1,9}(?:[.,][0-9]{1,9})?\s?\u00b0?[^\W\d_]{1,6}(?:/[a-z]{1,3})?"
)
# Keys by which a format is guessed, and others that stand for them.
_INSTEAD = {"answer": {"answer_index", "answer_number"}, "video_id": {"video", "videos"}}


@dataclass
class Made:
    """One of our rows, made of a row of another format.

    Attributes:
        row: the row in our prompt form.
        read: the keys that it was made of. All other keys become fields of the record.
        hints: changes that are worth a look.
        asked: the answer that the prompt requests, in words. None: by the kind of the answer.
    """

    row: Values
    read: set[str]
    hints: list[Hint] = field(default_factory=list)
    asked: str | None = None


@dataclass(frozen=True)
class Preset:
    """A format of rows.

    Attributes:
        summary: the program or data set that writes the format, in a few words.
        keys: the keys of a row by which the format is guessed, or keys that ``_INSTEAD`` has for them. Rows in our own
            forms are not guessed.
        row: makes one of our rows. Its second argument is the number of the first option in the answers of the file,
            None where that is not known. Raises ValueError naming the key that is wrong.
        generic: the format is guessed only where no other one fits.
        answer: the key of the answer that options belong to. None: the format has no options.
    """

    summary: str
    keys: tuple[str, ...]
    row: Callable[[Values, int | None], Made]
    generic: bool = False
    answer: str | None = "answer"

    def fits(self, row: Values) -> bool:
        """Whether a row has the keys of this format."""
        return all(key in row or row.keys() & _INSTEAD.get(key, set()) for key in self.keys)


def check_name(name: str, place: str = "--format") -> None:
    """Check that a preset is in the table, or ``OURS``.

    Args:
        place: that names it, for the error.

    Raises:
        ValueError: it is not. The message lists the names.
    """
    if name not in PRESETS and name != OURS:
        near = did_you_mean(name, PRESETS) or "."
        raise ValueError(
            f"{place}: no format {name!r}{near} Known: {OURS}, {', '.join(PRESETS)}. Conversations and messages "
            "of other trainers need none"
        )


def how_read(name: str, read_as: str) -> str:
    """The line that reports by which preset a data set is read, where it was guessed."""
    summary = PRESETS[read_as].summary
    return f"{name}: read as {read_as} ({summary}); the reward that fits: by_problem_type; --format says otherwise"


def how_counted(name: str, first_number: int) -> str:
    """The line that reports how the answers of a data set that are whole numbers are read."""
    return f"{name}: whole numbers in its answers count the options from {first_number}"


def guessed(row: Values, where: str) -> str:
    """The name of the preset that a row is written by. ``OURS`` for rows of our own forms, and where no preset fits.

    Raises:
        RecordError: several fit.
    """
    if row.keys() & set(TURN_KEYS):
        with suppress(RecordError):
            draft_of(row, where)
            return OURS
    fitting = [name for name, preset in PRESETS.items() if preset.fits(row)]
    special = [name for name in fitting if not PRESETS[name].generic] or fitting or [OURS]
    if len(special) > 1:
        raise RecordError(
            f"{where}: the row may be read as {' or as '.join(special)}; say which by --format {special[0]} or "
            f"--format {special[1]}"
        )
    return special[0]


def our_row(name: str, row: Values, where: str, form: bool = True, first_number: int | None = None) -> Made:
    """One of our rows, made by the preset of that name. Its other keys become fields, ``id`` as ``source_id``.

    Args:
        form: a prompt made of a question also requests a form of the answer, unless it mentions ``<answer>`` itself.
        first_number: the number of the first option in the answers of the file. None: not known.

    Raises:
        RecordError: the row is not of this format.
    """
    try:
        made = PRESETS[name].row(row, first_number)
    except ValueError as error:
        raise RecordError(f"{where}: read as {name}: {error}") from None
    passed = {*_PASSED, "meta"} if _has_known_keys(row.get("meta")) else set(_PASSED)
    others = {key: one for key, one in row.items() if key not in made.read and key not in READ_KEYS - passed}
    if isinstance(others.get("reward"), int | float):
        del others["reward"]  # a number that some model gave: here the field names reward functions
    if row.get("id") is not None:
        others["source_id"] = row["id"]
        made.read.add("id")
    made.read |= passed
    made.row = others | made.row
    if form and "<answer>" not in made.row["prompt"]:
        made.row["prompt"] += answer_request(made.row["problem_type"], made.asked)
    return made


def answer_request(kind: str, wanted: str | None = None) -> str:
    """The text behind a question that requests a form of the answer.

    Args:
        kind: of the answer, by its name.
        wanted: the requested answer in words. None: as the kind requests it.
    """
    known = kind_called(kind)
    wanted = wanted or (known.request if known else "the answer")
    return f"\nFirst think, within <think> </think>. Then give {wanted} within <answer> </answer>."


def has_options(name: str) -> bool:
    """Whether the rows of a preset may have options."""
    return PRESETS[name].answer is not None


def answer_and_options(name: str, row: Values) -> tuple[Any, Choices] | None:
    """The answer and the options of a row, for ``counted_from``. None for a row without options.

    Raises:
        ValueError: the options are not of their form.
    """
    answer = PRESETS[name].answer
    found = _given_options(row)
    if answer is None or found is None:
        return None
    options, _ = found
    return row.get(answer), options


# Parts of rows


def _has_known_keys(meta: Any) -> bool:
    """Whether the ``meta`` of a row of another format has frame settings, and is not one of that format."""
    entries = meta if isinstance(meta, list) else [meta]
    return any(isinstance(each, dict) and each.keys() & set(META_KEYS) for each in entries)


def _text(row: Values, key: str) -> str:
    """The text under a key. ValueError: it is blank or no text."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: expected text, got {kind_of(value)}")
    return value


def _media(row: Values) -> tuple[Values, set[str]]:
    """The media columns of a row that are not empty, as ``videos`` and ``images``, and their keys."""
    columns: Values = {}
    read: set[str] = set()
    kinds: tuple[Medium, ...] = ("video", "image")
    for kind in kinds:
        key = media_key(row, kind)
        if key is None:
            continue
        medium = row[key]
        if isinstance(medium, int) and not isinstance(medium, bool):  # the id of a clip, in a table with types
            medium = str(medium)
        columns[f"{kind}s"] = medium if isinstance(medium, list) else [medium]
        read.update((kind, f"{kind}s"))
    return columns, read


# Questions with an answer and perhaps options


def _given_options(row: Values) -> tuple[Choices, tuple[str, ...]] | None:
    """The options of a row, and the keys that hold them: one of ``OPTION_KEYS``, or columns. None without options."""
    for key in OPTION_KEYS:
        given = row.get(key)
        # A table gives open questions the letters too, each without a text.
        is_without_texts = isinstance(given, dict) and all(map(is_empty, given.values()))
        if not is_empty(given) and not is_without_texts:
            return options_of(given, key), (key,)
    return option_columns(row)


def _question_row(
    row: Values,
    first_number: int | None = None,
    *,
    question: str = "question",
    answer: str = "answer",
    kind: str | None = None,
    media: Values | None = None,
    read: Sequence[str] = (),
    **more: Any,
) -> Made:
    """One of our rows: the question with its options, and the answer as its solution.

    Options are in one of ``OPTION_KEYS``, in columns, or in the text of the question itself.

    Args:
        question, answer: their keys in the row.
        kind: of the answer. None: by the options, by a column such as ``problem_type``, or by the answer.
        media: ``videos`` and ``images`` of our row. None: by the keys of ``_media``.
        read: further keys of the row that its record is made of.
        more: further fields of the record.
    """
    prompt = _text(row, question).strip()
    if answer == "answer" and row.get(answer) is None:
        answer = next((key for key in _ANSWER_KEYS if row.get(key) is not None), answer)
        first_number = _ANSWER_KEYS[answer]
    given, thinking = _without_tags(row.get(answer))

    options: Choices | None
    option_keys: tuple[str, ...] = ()
    of_row = _given_options(row) if kind is None else None
    if of_row is not None:
        options, option_keys = of_row
    else:
        options = _options_in(prompt, given, first_number)
    if options and isinstance(given, str) and given in option_keys and len(option_keys) > 1:
        given = _letter_of_column(given, options, option_keys, answer)

    said_by = ""  # the column that says the kind
    if kind is None:
        kind, said_by = kind_in_row(row, given, prompt, has_options=options is not None)
    choices = options if kind == CHOICE else None
    if choices is not None and of_row is not None and not _shows(prompt, choices):
        for letter, text in choices.texts.items():
            prompt += f"\n{letter}. {text}"

    made = Made(row={}, read={question, answer, *option_keys, *read})
    if choices is not None:
        solution = chosen(given, choices, answer, first_number)
        if "," in solution:
            made.asked = "the letters of all right options, with commas between them,"
            made.hints += _hints_about_an_order(prompt)
    else:
        solution = _written(given, answer, kind, row.get("duration"), made)
    if options is None and not said_by:
        made.hints += _hints_about_the_kind(row, kind)

    if media is None:
        media, media_keys = _media(row)
        made.read |= media_keys
    fields = _kept_fields(row, kind, said_by, made)
    own_kind = row.get("problem_type")
    if own_kind:
        made.read.add("problem_type")
    if own_kind and choices is not None and said_by != "problem_type":
        fields["source_problem_type"] = own_kind  # somebody's own name for a kind of question
    of_question = {"prompt": prompt, "solution": f"<answer>{solution}</answer>", "problem_type": kind}
    made.row = media | of_question | fields | thinking | more
    return made


def _kept_fields(row: Values, kind: str, said_by: str, made: Made) -> Values:
    """The columns that are read, and that rewards may want as well: fields of the record.

    Args:
        said_by: the column that says the kind of the answer, or an empty text.
        made: gets their keys.
    """
    keys = [said_by] if said_by else []
    if kind == SPAN:
        keys.append("duration")
    kept = [key for key in keys if row.get(key) is not None]
    made.read.update(kept)
    return {key: row[key] for key in kept if key != "problem_type"}


def _written(given: Any, key: str, kind: str, duration: Any, made: Made) -> str:
    """The solution of a question without options.

    Args:
        given: the answer of the row, at ``key``.
        duration: of the clip, if the row says it.
        made: gets hints, and what the prompt asks for.

    Raises:
        ValueError: the answer is no text, number or span.
    """
    times = times_in(given) if kind == SPAN else []
    if times:
        solution, hints = spans_text(times, duration)
        made.hints += hints
        if len(times) > 1:
            made.asked = "start and end in seconds of every time that it happens, with the word to between them,"
        return solution
    # A truth value says so for any kind of answer. "TRUE" as a text may be what is shown.
    said = yes_or_no(given) if isinstance(given, bool) or kind == YES_NO else None
    solution = said or bare(given, key)
    made.hints += _hints_about(solution, kind)
    return solution


def _letter_of_column(column: str, options: Choices, columns: Sequence[str], answer: str) -> str:
    """The letter of the option that an answer names by its column, ``option_3``.

    Raises:
        ValueError: the row has nothing in the column.
    """
    place = columns.index(column)
    letters = list(options.texts)
    if place >= len(letters):  # empty columns at the end are left out
        raise ValueError(f"{answer}: names the column {column!r}, which is empty in this row")
    return letters[place]


def _without_tags(answer: Any) -> tuple[Any, Values]:
    """An answer, which may be alone in a list, without tags and thinking, and the field ``thinking`` if it has any."""
    if isinstance(answer, list | tuple) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, str) or not (first_block(answer, "answer") or "</think>" in answer):
        return answer, {}
    thought = thinking_of(answer, opened=False)
    return solution_of(answer), {} if thought is None else {"thinking": thought[0].strip()}


def _options_in(question: str, answer: Any, first_number: int | None) -> Choices | None:
    """The options that a question's own text holds, where its answer is one of them.

    Args:
        first_number: see ``chosen``.

    Raises:
        ValueError: the answer is a number, which may be that of an option or a count.
    """
    options = options_in(question)
    if options is None:
        return None
    number = whole_number(answer)
    # Lines of options leave no other answer than one of them. "Part A. or part B." within a sentence may be none.
    on_lines = all(re.search(rf"(?mi)^\W*(?:option\W+)?{letter}\W", question) for letter in options.texts)
    if number is not None and first_number is None and not has_text(options, str(number)):
        # Two letters within a sentence may be parts, "between A. and B.". Three are options.
        if on_lines or (len(options.texts) > 2 and number <= len(options.texts)):
            raise ValueError(
                f"answer: {number} may be the number of an option in the question, or a count; write a letter, or "
                "--columns answer=answer_index or answer=answer_number"
            )
        return None
    with suppress(ValueError):
        chosen(answer, options, first_number=first_number)
        return options
    return options if on_lines and (number is not None or is_letter(answer)) else None


def _shows(prompt: str, options: Choices) -> bool:
    """Whether a prompt holds all options with their letters."""
    return all(
        re.search(rf"\b{letter}[).\]:]\s*{re.escape(text)}", prompt, re.IGNORECASE)
        for letter, text in options.texts.items()
    )


def _hints_about(solution: str, kind: str) -> Iterator[Hint]:
    """Hints about an answer that is scored as words and seems to be something else."""
    if kind == WORDS and re.fullmatch(r"\(?[A-H][).]?", solution):
        yield Hint(
            "a letter without options",
            "the answer is a letter, and the row has no options: it is scored as words; write the options into "
            "`options` or into the question",
        )
    if kind == WORDS and _WITH_UNIT.fullmatch(solution):
        yield Hint(
            "a number with a unit as words",
            'the answer is a number with a unit, and is scored as words, without its sign; "numerical" in '
            "`problem_type` compares the number",
        )
    if kind == WORDS and (has_times_alone(solution) or times_with_points(solution) is not None):
        yield Hint(
            "a span as words",
            'the answer looks like start and end in seconds, and is scored as words; "temporal grounding" in '
            "`problem_type` makes it a span",
        )


def _hints_about_an_order(prompt: str) -> Iterator[Hint]:
    """A hint about several letters as the answer to a question for an order."""
    if _ASKS_FOR_AN_ORDER.search(prompt):
        message = "letters are compared as a set, whatever their order; write the orders as options"
        yield Hint("an order of letters", message)


def _hints_about_the_kind(row: Values, kind: str) -> Iterator[Hint]:
    """A hint about an answer that is of another kind than a column of its row says."""
    named = kind_named(row)
    if named not in (None, kind):
        message = f"a column says that the answer is {named}, and it is read as {kind}: is it written as it should be?"
        yield Hint("another kind of answer than its column says", message)


def _video_r1(row: Values, first_number: int | None = None) -> Made:
    """The row of a ``problem`` and a ``solution`` in tags. ``path`` is a clip or a picture."""
    media, media_keys = _media(row)
    more: Values = {}
    if row.get("path"):
        medium = row.get("data_type")
        if medium not in ("video", "image"):
            raise ValueError(f'data_type: expected "video" or "image", got {medium!r}')
        media, _ = _media({medium: row["path"]})
        more["data_type"] = medium
    thought = row.get("process")  # in the file for a warm start
    if isinstance(thought, str):
        more["thinking"] = thought.replace("<think>", "").replace("</think>", "").strip()
    return _question_row(
        row,
        first_number,
        question="problem",
        answer="solution",
        media=media,
        read=("path", "process", "data_type", *media_keys),
        **more,
    )


def _videomme(row: Values, first_number: int | None = None) -> Made:
    """The row of a question about the clip that ``videoID`` names."""
    name = _text(row, "videoID")
    return _question_row(row, first_number, media={"videos": [name]}, read=("videoID",), videoID=name)


def _mvbench(row: Values, first_number: int | None = None) -> Made:
    """The row of a question, in some tasks about a stretch of the clip, or with a folder of frames as the clip."""
    names = {"start": "video_start", "end": "video_end", "fps": "frames_fps"}
    meta = {known: row[key] for key, known in names.items() if row.get(key) is not None}
    return _question_row(row, first_number, read=tuple(names), **meta)


# Sentences and when they happen


def span_hints(record: Record, clips: Sequence[FrameInfo]) -> Iterator[Hint]:
    """Hints about a solution that no answer can equal: a span of it ends after the record's only clip."""
    kind = kind_called(str(record.fields.get("problem_type")))
    is_span = kind is not None and kind.name == SPAN
    if len(clips) != 1 or not is_span:
        return
    spans = spans_in(solution_of(record.solution))
    # The last frame is shown until the clip ends, which headers round.
    if any(max(span) > clips[0].duration + 1 for span in spans):
        yield Hint("a span beyond the clip", "the solution has a span that ends after the clip")


def _span_row(row: Values, first_number: int | None = None) -> Made:
    """A record that asks when a sentence happens: from ``start`` to ``end``, or in ``timestamp``, which holds both."""
    times: Any = row.get("timestamp", [time_in(row.get("start")), time_in(row.get("end"))])
    if isinstance(times, str):  # in a cell of CSV
        times = [list(span) for span in spans_in(times)]
    check_times(times)
    question = f'When does the following happen in the video? "{_text(row, "sentence").strip()}"'
    asked = row | {"question": question, "answer": times}
    kept: Values = {}  # as fields of the record
    media = None
    if "video_id" in row:
        kept["video_id"] = _text(row, "video_id")
        media = {"videos": [kept["video_id"]]}
    kept["sentence"] = _text(row, "sentence")
    read = ["start", "end", "timestamp", *kept]
    is_cut = is_cut_of_a_film(row)
    if is_cut:
        read += ["video_start", "video_end"]
    made = _question_row(asked, kind=SPAN, media=media, read=read, **kept)
    if is_cut:
        made.hints.append(
            Hint(
                "times of the film",
                "`video_start` and `video_end` lie beyond the `duration` of the clip, which was cut from a film at "
                "these times: all of the clip is shown",
            )
        )
    return made


# Label Studio

_ANSWER_KINDS = {"labels": LABELS, "number": NUMBER, "text": WORDS}


def _label_studio(row: Values, first_number: int | None = None) -> Made:
    """The row of a task's clip or picture, with the answer of the annotation that counts."""
    data = row.get("data")
    if not isinstance(data, dict):
        raise ValueError(f"data: expected an object with the clip of the task, got {kind_of(data)}")
    answer, has_more = label_studio.answer_of_task(row)
    key, path = label_studio.medium_of(data)
    question = data.get("question") or data.get("text")
    question = question if isinstance(question, str) else "What does the video show?"
    used = ("data", "annotations", "predictions", "drafts")
    asked = row | {"question": question, "answer": answer.text}
    made = _question_row(asked, kind=_ANSWER_KINDS[answer.kind], media={key: [path]}, read=used)
    # Fields, as further columns of other formats are. But one that is called `fps` is a note of the annotators, and as
    # a field beside our prompt it would choose frames.
    others = label_studio.other_values(data)
    with_a_meaning = READ_KEYS | ROW_KEYS | FIELDS_OF_A_RUN | made.row.keys() | row.keys()
    reserved = sorted(others.keys() & with_a_meaning)
    made.row = {name: value for name, value in others.items() if name not in reserved} | made.row
    if reserved:
        message = f"{', '.join(reserved)} of a task's data would have another meaning in a record: left out"
        made.hints.append(Hint("data with another meaning", message))
    if has_more:
        message = "text, boxes or the like stand beside the labels of the annotation: the labels alone are the answer"
        made.hints.append(Hint("more than labels", message))
    return made


PRESETS: dict[str, Preset] = {
    "video-r1": Preset(
        "the training files of Video-R1 and its six files for evaluation",
        ("problem", "problem_type", "solution"),
        _video_r1,
        answer="solution",
    ),
    "easyr1": Preset(
        "EasyR1 and trainers made of it", ("problem", "answer"), partial(_question_row, question="problem")
    ),
    "question-answer": Preset(
        "columns question and answer, with options or without", ("question", "answer"), _question_row, generic=True
    ),
    "videomme": Preset("Video-MME", ("videoID", "question", "options", "answer"), _videomme),
    "mvbench": Preset("the tasks of MVBench", ("video", "question", "candidates", "answer"), _mvbench),
    "activitynet": Preset("ActivityNet Captions", ("video_id", "timestamp", "sentence"), _span_row, answer=None),
    "charades-sta": Preset("Charades-STA", ("video_id", "start", "end", "sentence"), _span_row, answer=None),
    "label-studio": Preset(
        "the full export of Label Studio, JSON", ("annotations", "data"), _label_studio, answer=None
    ),
}
