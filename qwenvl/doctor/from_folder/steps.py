"""A numbered list of steps, and answers in one form: ``(2) insert the fan (3) fasten the screw``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qwenvl.data.errors import RecordError
from qwenvl.files import plain_file
from qwenvl.rewards.functions.actions import action_numbers
from qwenvl.rewards.functions.text import normalized

_LISTED = re.compile(r"\(?\s*([0-9]{1,4})\s*[).:]+\s*(.*)", re.DOTALL)  # "(2) insert", "2. insert", "2: insert"
_NUMBERED = re.compile(r"(?:step\s*)?\(?\s*([0-9]{1,4})\s*(?:[).:\s]+(.*))?", re.DOTALL | re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+(?:[\s,;|+&/]+[0-9]+)*")
_MARK = re.compile(r"(?=\(\s*[0-9]{1,9}\s*\))")


@dataclass(frozen=True)
class StepList:
    """The steps of a procedure. Step n is ``names[n - 1]``.

    Raises:
        ValueError: no steps, a step twice, or a step whose name holds a number in brackets, which rewards would read
            as the number of a step.

    Example:
        >>> StepList(("take the lid", "insert the fan")).answer("2; take the lid")
        '(2) insert the fan (1) take the lid'
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("expected at least one step")
        for i, name in enumerate(self.names):
            if (found := action_numbers(name)) or "<" in name:
                what = f"({found[0]})" if found else "<"
                raise ValueError(f"step {i + 1}, {name!r}: {what} has a meaning in answers; write the name without")
            if (first := list(map(_plain, self.names)).index(_plain(name))) < i:
                raise ValueError(f"steps {first + 1} and {i + 1} have the same name, {name!r}")

    @classmethod
    def read(cls, path: Path) -> StepList:
        """The steps of a text file, one a line. Lines may be numbered, ``(1) take the lid``, and then count from 1.

        Raises:
            RecordError: naming the line.
        """
        names: list[str] = []
        numbered = 0
        for line, text in enumerate(plain_file(path).read_text("utf-8-sig").splitlines(), start=1):
            if not (text := " ".join(text.split())):
                continue
            if found := _LISTED.fullmatch(text):
                numbered += 1
                if int(found[1]) != len(names) + 1:
                    raise RecordError(f"{path}:{line}: expected step {len(names) + 1}, got {text!r}")
                text = found[2]
            names.append(text)
        if numbered not in (0, len(names)):
            raise RecordError(f"{path}: {numbered} of {len(names)} steps have a number; number all of them or none")
        try:
            return cls(tuple(names))
        except ValueError as error:
            raise RecordError(f"{path}: {error}") from None

    def __str__(self) -> str:
        return "\n".join(f"({number}) {name}" for number, name in enumerate(self.names, start=1))

    def answer(self, text: str) -> str:
        """An answer in the form of the steps' list.

        Args:
            text: numbers ("2 3", "2;3"), numbers with names ("(2) insert the fan (3) ..."), or names between
                semicolons or commas. The steps stay in their order.

        Raises:
            ValueError: a part of the text is no step, or a number has the name of another step.
        """
        text = text.replace("<answer>", "").replace("</answer>", "").strip()
        if action_numbers(text):
            parts: Sequence[str] = [part for part in _MARK.split(text) if part.strip(" ,;|")]
        elif _NUMBERS.fullmatch(text):
            parts = re.findall("[0-9]+", text)
        else:
            splits = ([text], re.split(r"[;|\n]", text), text.split(","))
            parts = next((split for split in splits if all(self._number(part) for part in split)), splits[1])
        numbers = [self._checked(part) for part in parts]
        return " ".join(f"({number}) {self.names[number - 1]}" for number in numbers)

    def _number(self, part: str) -> int | None:
        """The number of the step that a part of an answer names, or None."""
        names = list(map(_plain, self.names))
        if (plain := _plain(part)) in names:
            return names.index(plain) + 1
        found = _NUMBERED.fullmatch(part.strip(" ,;|"))
        if not found or not 1 <= int(found[1]) <= len(names):
            return None
        return int(found[1]) if _plain(found[2] or "") in ("", names[int(found[1]) - 1]) else None

    def _checked(self, part: str) -> int:
        if (number := self._number(part)) is not None:
            return number
        shown = part.strip(" ,;|")
        found = _NUMBERED.fullmatch(shown)
        if found and 1 <= int(found[1]) <= len(self.names):
            raise ValueError(f"{shown!r}: step {found[1]} is {self.names[int(found[1]) - 1]!r}")
        if found and not (found[2] or "").strip():
            raise ValueError(f"there is no step {found[1]}: the steps are 1 to {len(self.names)}")
        near = difflib.get_close_matches(_plain(part), list(map(_plain, self.names)), n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else "; if a clip may show none of them, list that as a step"
        raise ValueError(f"{shown!r} is no step{meant}")


def _plain(name: str) -> str:
    """A name by which steps are compared: ``Insert_the-fan`` is ``insert the fan``."""
    return normalized(re.sub(r"[\s_-]+", " ", name).strip(" ,;|"))
