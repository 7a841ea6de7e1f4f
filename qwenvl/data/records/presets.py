"""Presets: formats that keep question, options and answer apart, each with the function that makes our rows of them.

The prompt is in our own words: benchmarks word the request for an answer differently, each in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records import label_studio
from qwenvl.data.records.choices import Choices
from qwenvl.data.records.forms import draft_of
from qwenvl.data.records.frame_settings import META_KEYS, ROW_KEYS
from qwenvl.data.records.keys import (
    FIELDS_OF_A_RUN,
    FRAME_KEYS,
    READ_KEYS,
    SYSTEM_KEYS,
    TURN_KEYS,
)
from qwenvl.data.records.questions import (
    Made,
    Values,
    given_options,
    media_columns,
    question_row,
    text_at,
)
from qwenvl.data.records.spans import check_times, is_cut_of_a_film, time_in
from qwenvl.option import did_you_mean
from qwenvl.rewards.functions.grounding import spans_in
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.kinds import LABELS, NUMBER, SPAN, WORDS, kind_called
from qwenvl.types import FrameInfo, Hint, Record

OURS = "qwenvl"
"""The name of our own forms, with which nothing is guessed."""

# Keys of our own forms that mean the same in a row of a preset: its system turn, and which frames are taken.
_PASSED = (*SYSTEM_KEYS, *FRAME_KEYS)
# Keys by which a format is guessed, and others that stand for them.
_INSTEAD = {"answer": {"answer_index", "answer_number"}, "video_id": {"video", "videos"}}


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
    found = given_options(row)
    if answer is None or found is None:
        return None
    options, _ = found
    return row.get(answer), options


# Parts of rows


def _has_known_keys(meta: Any) -> bool:
    """Whether the ``meta`` of a row of another format has frame settings, and is not one of that format."""
    entries = meta if isinstance(meta, list) else [meta]
    return any(isinstance(each, dict) and each.keys() & set(META_KEYS) for each in entries)


# Questions with an answer and perhaps options


def _video_r1(row: Values, first_number: int | None = None) -> Made:
    """The row of a ``problem`` and a ``solution`` in tags. ``path`` is a clip or a picture."""
    media, media_keys = media_columns(row)
    more: Values = {}
    if row.get("path"):
        medium = row.get("data_type")
        if medium not in ("video", "image"):
            raise ValueError(f'data_type: expected "video" or "image", got {medium!r}')
        media, _ = media_columns({medium: row["path"]})
        more["data_type"] = medium
    thought = row.get("process")  # in the file for a warm start
    if isinstance(thought, str):
        more["thinking"] = thought.replace("<think>", "").replace("</think>", "").strip()
    return question_row(
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
    name = text_at(row, "videoID")
    return question_row(row, first_number, media={"videos": [name]}, read=("videoID",), videoID=name)


def _mvbench(row: Values, first_number: int | None = None) -> Made:
    """The row of a question, in some tasks about a stretch of the clip, or with a folder of frames as the clip."""
    names = {"start": "video_start", "end": "video_end", "fps": "frames_fps"}
    meta = {known: row[key] for key, known in names.items() if row.get(key) is not None}
    return question_row(row, first_number, read=tuple(names), **meta)


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
    question = f'When does the following happen in the video? "{text_at(row, "sentence").strip()}"'
    asked = row | {"question": question, "answer": times}
    kept: Values = {}  # as fields of the record
    media = None
    if "video_id" in row:
        kept["video_id"] = text_at(row, "video_id")
        media = {"videos": [kept["video_id"]]}
    kept["sentence"] = text_at(row, "sentence")
    read = ["start", "end", "timestamp", *kept]
    is_cut = is_cut_of_a_film(row)
    if is_cut:
        read += ["video_start", "video_end"]
    made = question_row(asked, kind=SPAN, media=media, read=read, **kept)
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
    made = question_row(asked, kind=_ANSWER_KINDS[answer.kind], media={key: [path]}, read=used)
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
        "EasyR1 and trainers made of it", ("problem", "answer"), partial(question_row, question="problem")
    ),
    "question-answer": Preset(
        "columns question and answer, with options or without", ("question", "answer"), question_row, generic=True
    ),
    "videomme": Preset("Video-MME", ("videoID", "question", "options", "answer"), _videomme),
    "mvbench": Preset("the tasks of MVBench", ("video", "question", "candidates", "answer"), _mvbench),
    "activitynet": Preset("ActivityNet Captions", ("video_id", "timestamp", "sentence"), _span_row, answer=None),
    "charades-sta": Preset("Charades-STA", ("video_id", "start", "end", "sentence"), _span_row, answer=None),
    "label-studio": Preset(
        "the full export of Label Studio, JSON", ("annotations", "data"), _label_studio, answer=None
    ),
}
