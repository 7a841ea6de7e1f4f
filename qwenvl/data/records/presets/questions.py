"""Presets of questions with an answer and perhaps options: Video-R1, EasyR1, and columns of these names."""

from __future__ import annotations

from typing import Any

from qwenvl.data.records.presets.asking import (
    CHOICE,
    Option,
    asked,
    bare,
    chosen,
    kind_of_answer,
    options_of,
    tagged,
)
from qwenvl.data.records.presets.preset import Preset, Row, media_of, rest_of, text_at

_LETTER_COLUMNS = ("A", "B", "C", "D", "E", "F", "G", "H")
_OPTIONS = ("options", "choices", "candidates")


def question_row(
    row: Row,
    *,
    question: str,
    answer: Any,
    options: list[Option] | None = None,
    kind: str | None = None,
    media: Row | None = None,
    used: tuple[str, ...] = (),
    **more: Any,
) -> Row:
    """One of our rows: the question with its options and the form of the answer, and the answer as its solution.

    Args:
        kind: of the answer, where the row says it. Else it is told by the options and the answer.
        media: as ``media_of`` gives them, where they stand elsewhere in the row.
        used: keys of the row that are not carried over.
        more: fields of the record.
    """
    options = options or []
    kind = kind or (CHOICE if options else kind_of_answer(answer))
    solution = chosen(answer, options) if options and kind == CHOICE else bare(answer)
    media = media_of(row) if media is None else media
    made = {"prompt": asked(question, options), "solution": tagged(solution), "problem_type": kind}
    return rest_of(row, used) | media | made | more


def _video_r1(row: Row) -> Row:
    """``problem`` with ``options``, ``problem_type`` and a ``solution`` in tags. ``path`` is a clip or a picture."""
    kind = text_at(row, "problem_type")
    media = media_of(row)
    if row.get("path"):
        if (medium := row.get("data_type")) not in ("video", "image"):
            raise ValueError(f'data_type: expected "video" or "image", got {medium!r}')
        media = media_of({medium: row["path"]})
    more = {}
    if isinstance(thought := row.get("process"), str):  # of the file for a warm start
        more["thinking"] = thought.replace("<think>", "").replace("</think>", "").strip()
    return question_row(
        row,
        question=text_at(row, "problem"),
        answer=row.get("solution"),
        options=options_of(row["options"]) if row.get("options") else None,
        kind=kind,
        media=media,
        used=("problem", "options", "path", "process"),
        **more,
    )


def _easyr1(row: Row) -> Row:
    """``problem`` and ``answer``, with ``images`` or ``videos``. Some files add ``problem_type`` and ``options``."""
    return question_row(
        row,
        question=text_at(row, "problem"),
        answer=row.get("answer"),
        options=options_of(row["options"]) if row.get("options") else None,
        kind=row.get("problem_type") or None,
        used=("problem", "answer", "options"),
    )


def _question_answer(row: Row) -> Row:
    """``question`` and ``answer``, with options in a list, by letter, or in columns A, B, C, ..."""
    letters = {letter: row[letter] for letter in _LETTER_COLUMNS if row.get(letter) not in (None, "")}
    listed = next((key for key in _OPTIONS if row.get(key)), None)
    options = options_of(row[listed], listed) if listed else options_of(letters) if letters else None
    return question_row(
        row,
        question=text_at(row, "question"),
        answer=row.get("answer"),
        options=options,
        kind=row.get("problem_type") or None,
        used=("question", "answer", *_OPTIONS, *letters),
    )


QUESTIONS: dict[str, Preset] = {
    "video-r1": Preset(
        "the training files of Video-R1 and its six files for evaluation",
        fits=lambda row: {"problem", "problem_type", "solution"} <= set(row),
        row=_video_r1,
    ),
    "easyr1": Preset("EasyR1 and trainers made of it", fits=lambda row: {"problem", "answer"} <= set(row), row=_easyr1),
    "question-answer": Preset(
        "columns question and answer, with options or without",
        fits=lambda row: {"question", "answer"} <= set(row),
        row=_question_answer,
        generic=True,
    ),
}
