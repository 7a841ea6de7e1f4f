"""The numbered list of actions in a prompt, and the actions of it that an answer gives by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from qwenvl.rewards.functions.text import normalized, unified

_LINE = re.compile(r"[ \t]*\(\s*([0-9]{1,9})\s*\)(.*)")
_NUMBER = re.compile(r"\(\s*[0-9]{1,9}\s*\)")
_BETWEEN = re.compile(r"(?:[\s.:,;&\"'*\-\u2022]|\b(?:and|then)\b)+")
_WORD = re.compile(r"\S[^\s,;]*")


class NamedActions(NamedTuple):
    """What an answer names.

    Attributes:
        numbers: of the listed actions that it names.
        unknown: how many of its phrases are no listed action.
    """

    numbers: frozenset[int]
    unknown: int


def list_of(prompt: Sequence[dict[str, Any]] | None) -> dict[str, int] | None:
    """The actions of the last user turn by name: lines that begin with ``(k)`` and give the rest of the line a number.

    Args:
        prompt: messages, as reward functions get them.

    Returns:
        Names as ``text.normalized`` writes them. None where there is no such list of two actions or more, or where it
        is ambiguous: a number or a name stands twice, a number has no name, or a line holds two numbers.
    """
    asked = [message["content"] for message in prompt or () if message.get("role") == "user"]
    return _list_in(asked[-1]) if asked and isinstance(asked[-1], str) else None


@lru_cache(maxsize=256)
def _list_in(text: str) -> dict[str, int] | None:
    found = [match for line in unified(text).splitlines() if (match := _LINE.match(line))]
    names = {normalized(match[2]): int(match[1]) for match in found}
    whole = all(names) and len(names) == len(set(names.values())) == len(found) > 1
    return names if whole and not any(_NUMBER.search(match[2]) for match in found) else None


def named_actions(answer: str, listed: dict[str, int]) -> NamedActions:
    """The listed actions that an answer without numbers names, read from left to right, the longest name first.

    Between names may stand signs, "and" and "then". Any other words up to the next comma, semicolon, line or name count
    as one unknown action.

    Example:
        >>> named_actions("Insert the fan, then fasten the screw; wait", {"insert the fan": 1, "fasten the screw": 2})
        NamedActions(numbers=frozenset({1, 2}), unknown=1)
    """
    names = sorted(listed, key=len, reverse=True)
    numbers: set[int] = set()
    unknown = 0
    for line in answer.splitlines():
        text, at, in_unknown = " ".join(line.casefold().split()), 0, False
        while at < len(text):
            if name := next((name for name in names if _stands_at(text, at, name)), None):
                numbers.add(listed[name])
                at, in_unknown = at + len(name), False
            elif between := _BETWEEN.match(text, at):
                in_unknown = in_unknown and not set(between[0]) & {",", ";"}
                at = between.end()
            else:
                unknown += not in_unknown
                word = _WORD.match(text, at)
                at, in_unknown = word.end() if word else at + 1, True
    return NamedActions(frozenset(numbers), unknown)


def _stands_at(text: str, at: int, name: str) -> bool:
    end = at + len(name)
    return text.startswith(name, at) and not (end < len(text) and text[end].isalnum() and name[-1].isalnum())
