"""How an answer stands against the solution: its parts, each right or not, and the parts that are missing.

The texts are those that the reward functions read. This comparison is for the eye: each reward has a rule of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBERED = re.compile(r"\(\s*([0-9]{1,9})\s*\)")
_SEPARATOR = re.compile(r"[,;\n]")


class Part(NamedTuple):
    """One part of an answer: its text, and what it is compared by (the number of a numbered part)."""

    text: str
    key: str


class Compared(NamedTuple):
    """An answer beside its solution.

    Attributes:
        parts: the texts of the answer's parts, each with whether the solution has it.
        missing: the texts of the solution's parts that the answer lacks.
    """

    parts: list[tuple[str, bool]]
    missing: list[str]


def compared(answer: str | None, truth: str) -> Compared:
    """Compare part by part. None is a completion without an answer.

    Example:
        >>> compared("(2) fan (4) lid", "(2) fan (3) screw")
        Compared(parts=[('(2) fan', True), ('(4) lid', False)], missing=['(3) screw'])
    """
    wanted = parts_of(truth)
    given = [] if answer is None else parts_of(answer)
    known, named = {part.key for part in wanted}, {part.key for part in given}
    return Compared(
        [(part.text, part.key in known) for part in given], [part.text for part in wanted if part.key not in named]
    )


def parts_of(text: str) -> list[Part]:
    """Numbered parts ``(2) insert the fan`` where there are any, else what stands between commas and line ends.

    Example:
        >>> parts_of("(2) insert the fan (3)")
        [Part(text='(2) insert the fan', key='2'), Part(text='(3)', key='3')]
        >>> parts_of("Left, right")
        [Part(text='Left', key='left'), Part(text='right', key='right')]
    """
    marks = list(_NUMBERED.finditer(text))
    if marks:
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        pieces = [(text[mark.start() : end], mark[1]) for mark, end in zip(marks, ends, strict=True)]
        return [Part(piece.strip(" ,;\n"), str(int(number))) for piece, number in pieces]
    pieces_of_words = (" ".join(piece.split()) for piece in _SEPARATOR.split(text))
    return [Part(piece, piece.casefold().rstrip(".")) for piece in pieces_of_words if piece]
