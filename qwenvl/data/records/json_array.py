"""The elements of a JSON array, of which one at a time is in memory.

The standard library decodes them, as it has written most of them. ``ijson`` would be shorter here. But it refuses NaN
and integers above 64 bits, turns lone surrogates into question marks, takes memory with the square of the depth of
nesting (25 GB for 100,000 brackets), and does not say where a mistake stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TextIO

READ_CHARACTERS = 2**20
MAX_BLANK = 2**20  # characters of white space in a row
MAX_CHARACTERS = 256 * 2**20  # of an element: a small gzip file may hold gigabytes
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=[^ \t\r\n])")
_CUT_NUMBER = 3  # a number that is cut off, as in "1e+", is read as 1, which ends at most this far before the cut
_CUT_WORD = 16  # a word or an escape that is cut off is reported at most this far before the cut
_decode = json.JSONDecoder().raw_decode


class ArrayDamage(ValueError):
    """The text is no JSON. The message ends with the line and column, both from 1, where that shows."""


class ArrayText:
    """A window on the text of a JSON array. It moves on, and grows where an element does not fit.

    Args:
        file: opened with ``newline=""``.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text, self._at = "", 0
        self._line, self._column = 1, 1  # of the first character of the window

    def elements(self) -> Iterator[str]:
        """The JSON text of each element.

        Raises:
            ArrayDamage: after the elements that come before the damage.
        """
        mark = self._mark("[")
        if self._next() == "]":
            mark = self._mark("]")
        while mark != "]":
            yield self._element()
            comma = _COMMA.match(self._text, self._at)
            if comma:  # most often, and faster
                self._at = comma.end()
            else:
                mark = self._mark(",]")
                self._next()
        if self._next():
            raise self._damage("text after the end of the array", self._at)

    def _mark(self, expected: str) -> str:
        mark = self._next()
        if not mark:
            raise self._damage("the file ends within the array", self._at)
        if mark not in expected:
            raise self._damage(f"expected {' or '.join(expected)}, found {mark!r}", self._at)
        self._at += 1
        return mark

    def _next(self) -> str:
        """The next character that is not white space. It is empty at the end of the file."""
        blank = 0
        while True:
            start, self._at = self._at, _SPACE.match(self._text, self._at).end()
            blank += self._at - start
            if blank > MAX_BLANK:
                raise self._damage("more than a million characters of white space", self._at)
            if self._at < len(self._text) or not self._grow():
                return self._text[self._at : self._at + 1]

    def _element(self) -> str:
        while True:
            try:
                _, end = _decode(self._text, self._at)
            except RecursionError:
                raise self._damage("nested too deeply", self._at) from None
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _CUT_WORD
                if not (cut and self._grow()):
                    raise self._damage(error.msg.removesuffix(" at"), error.pos) from None
                continue
            except ValueError:
                raise self._damage("an integer of more than 4,300 digits", self._at) from None
            if end <= len(self._text) - _CUT_NUMBER or not self._grow():
                start, self._at = self._at, end
                return self._text[start:end]

    def _grow(self) -> bool:
        """Drop what was read, and read as much again as is left. False at the end of the file."""
        if len(self._text) - self._at > MAX_CHARACTERS:
            raise self._damage(f"an element of more than {MAX_CHARACTERS >> 20} million characters", self._at)
        more = self._file.read(max(READ_CHARACTERS, len(self._text) - self._at))
        if more:
            self._line, self._column = self._place(self._at)
            self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def _place(self, at: int) -> tuple[int, int]:
        """Line and column of a character of the window."""
        line_start = self._text.rfind("\n", 0, at) + 1
        column = at - line_start + (1 if line_start else self._column)
        return self._line + self._text.count("\n", 0, at), column

    def _damage(self, message: str, at: int) -> ArrayDamage:
        return ArrayDamage("{} at line {} column {}".format(message, *self._place(at)))
