"""Where the elements of a JSON array begin and end in a file that need not fit into memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

WINDOW_BYTES = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER_GOES_ON = 3  # of 1e+5 a window that ends before the 5 shows a 1 and two characters more
_LONGEST_WORD = 16  # a literal or an escape that the window's end cuts is reported this close to it, at most
_decode = json.JSONDecoder().raw_decode


class JSONDamage(ValueError):
    """Not JSON from byte ``at`` on."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def message_of(error: json.JSONDecodeError) -> str:
    """What the library says, ready for a place to follow."""
    return error.msg.removesuffix(" at")


class Window:
    """A stretch of a file as text; it moves on, and grows where a value does not fit. A character is a byte."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()  # byte of the first character
        self._text = ""
        self._at = 0

    def elements(self) -> Iterator[tuple[int, int]]:
        """First byte and end of each element of the array that begins here.

        Raises:
            JSONDamage: after the elements before it.
        """
        self._expect("[")
        if self._next() == "]":
            self._at += 1
        else:
            mark = ","
            while mark == ",":
                self._next()
                length = self._length_of_value()
                end = self._start + self._at
                yield end - length, end
                mark = self._expect(",]")
        if self._next():
            raise self._damage("text after the end of the array")

    def _expect(self, marks: str) -> str:
        mark = self._next()
        if not mark:
            raise self._damage("the file ends within the array")
        if mark not in marks:
            raise self._damage(f"expected {' or '.join(marks)}, found {mark!r}")
        self._at += 1
        return mark

    def _next(self) -> str:
        """Move to the next character that is not white space and return it; empty at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def _length_of_value(self) -> int:
        """Move behind the value that begins here and return its length."""
        while True:
            try:
                _, end = _decode(self._text, self._at)
            except RecursionError:
                raise self._damage("nested too deeply") from None
            except json.JSONDecodeError as error:
                at = self._start + error.pos
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _LONGEST_WORD
                if cut and self._grow():
                    continue
                raise JSONDamage(message_of(error), at) from None
            if end > len(self._text) - _NUMBER_GOES_ON and self._grow():
                continue
            length, self._at = end - self._at, end
            return length

    def _grow(self) -> bool:
        """Leave what lies behind, and read as much again as there is ahead; False at the end of the file."""
        data = self._file.read(max(WINDOW_BYTES, len(self._text) - self._at))
        if data:
            self._start += self._at
            self._text, self._at = self._text[self._at :] + data.decode("latin-1"), 0
        return bool(data)

    def _damage(self, message: str) -> JSONDamage:
        return JSONDamage(message, self._start + self._at)
