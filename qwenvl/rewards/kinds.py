"""The kinds of answers: the reward of each, how a prompt asks for it, and what files call it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerKind:
    """A kind of answer, which is the record's field ``problem_type``.

    Attributes:
        name: the value of the field.
        reward: the function that compares such answers.
        request: what a prompt asks for, in words.
        other_names: by which files call it, in small letters and without hyphens.
    """

    name: str
    reward: str
    request: str
    other_names: tuple[str, ...] = ()


CHOICE = "multiple choice"
NUMBER = "numerical"
REGRESSION = "regression"
OCR = "OCR"
WORDS = "free-form"
YES_NO = "yes or no"
SPAN = "temporal grounding"
LABELS = "labels"

KINDS = (
    AnswerKind(
        CHOICE,
        "multiple_choice",
        "the letter of the right option",
        ("mc", "mcq", "multi choice", "multiplechoice", "multiple choice question", "choice"),
    ),
    AnswerKind(NUMBER, "numeric", "a number", ("number", "numeric", "count")),
    AnswerKind(REGRESSION, "regression", "a number"),
    AnswerKind(OCR, "ocr", "the text as it is written"),
    AnswerKind(WORDS, "rouge", "the answer in words", ("open ended", "open", "oe", "freeform", "free text")),
    AnswerKind(YES_NO, "yes_no", "yes or no", ("yes no", "yesno", "binary")),
    AnswerKind(
        SPAN,
        "temporal_iou",
        "start and end in seconds, with the word to between them,",
        (
            "tvg",
            "tg",
            "moment retrieval",
            "temporal localization",
            "temporal qa",
            "video temporal grounding",
        ),
    ),
    AnswerKind(LABELS, "accuracy", "the labels, with commas between them,", ("actions",)),
)


def _plain(name: str) -> str:
    """A name in small letters, with blanks for hyphens and underscores."""
    return " ".join(re.split(r"[\s_-]+", name.casefold().strip()))


_BY_NAME: dict[str, AnswerKind] = {}
for _kind in KINDS:
    # Files write one kind in many ways: "Multiple-Choice", "multiple_choice" and "mcq".
    _BY_NAME |= dict.fromkeys(map(_plain, (_kind.name, *_kind.other_names)), _kind)


def kind_called(name: str) -> AnswerKind | None:
    """The kind of answer of a name in any case, with hyphens or underscores. None: it is no such name.

    Example:
        >>> kind_called("Multiple-Choice").name, kind_called("video_temporal_grounding").reward, kind_called("hard")
        ('multiple choice', 'temporal_iou', None)
    """
    return _BY_NAME.get(_plain(name))
