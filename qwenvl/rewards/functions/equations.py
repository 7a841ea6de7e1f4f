"""Equations, lists and pairs: what of two expressions is compared, and in which order.

math-verify takes the last side of an equation for its value, also that of 4x = 12, and lists for sets, also
x = 2, y = 3. Equations that are never true, such as f(2) = 3, are all the same to it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from qwenvl.rewards.functions.expressions import improper
from qwenvl.rewards.functions.notation import closing_brackets

_EQUALS_SIGN = re.compile(r"(?<![<>!=])==?(?![<>=])|\\in(?![a-zA-Z])")  # also that of x \in (2, 5)
_BETWEEN = re.compile(r"[,;\n]|\\\\(?![a-zA-Z])|\\(?:lor|land|vee|wedge)(?![a-zA-Z])|[\u2227\u2228]")
_ENVIRONMENT = re.compile(r"\\begin\{.{0,500}?\\end\{[a-z*]{1,12}\}", re.DOTALL)
_GREEK = re.compile(
    r"\\(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi"
    r"|chi|psi|omega|angle)(?![a-z])",
    re.IGNORECASE,
)
_TUPLE_OF_NAMES = re.compile(r"\(\s*[^\W\d_](?:_\{?\w{1,3}\}?)?(?:\s*,\s*[^\W\d_](?:_\{?\w{1,3}\}?)?)+\s*\)")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CONSTANT = re.compile(r"\\(?:pi|infty|emptyset)(?![a-zA-Z])")
_SUBSCRIPT = re.compile(r"_(?:\{[^{}]*\}|\w)")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z'])\s?\([^()]*\)")
_DERIVATIVE = re.compile(r"\\frac\s?\{d[^\W\d_]{0,2}\}\s?\{d[^\W\d_]\}")
_NUMBERED_ANGLE = re.compile(r"\\angle\s?[0-9]")
_NAME = re.compile(r"[^\W\d_][^\W\d_'|{}\s]*|\|[^\W\d_]+\|")
_LETTER = re.compile(r"[^\W\d_]")
_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_SET = re.compile(r"\\?\{|\\left\s?\\\{")


class Values(NamedTuple):
    """What an expression says the values of something are.

    Attributes:
        names: that it says are equal to them, ``x`` and ``f(2)``. Empty: it has values alone.
        text: the values as an expression.
        is_ordered: they are a pair, ``(1, 2)``, and not alternatives.
    """

    names: tuple[str, ...]
    text: str
    is_ordered: bool


def compared_values(gold: str, answer: str) -> tuple[str, str] | None:
    """What math-verify is to compare of two expressions. None: they differ.

    Example:
        >>> compared_values("x = 3", "3"), compared_values("4x = 12", "12"), compared_values("f(2) = 3", "f(5) = 3")
        (('3', '3'), None, None)
        >>> compared_values("y = 3, x = 2", "(2, 3)"), compared_values("x = 2 , x = 3", "3, 2")
        (('(2, 3)', '(2, 3)'), ('2, 3', '3, 2'))
    """
    if _has_several_pairs(gold) or _has_several_pairs(answer):
        return None
    golden = _values_of(gold)
    answered = _values_of(answer)
    if golden is None or answered is None:
        are_equations = bool(_EQUALS_SIGN.search(gold) and _EQUALS_SIGN.search(answer))
        return (gold, answer) if are_equations else None
    if golden.names and answered.names and golden.names != answered.names:
        # x = y + 1 is y = x - 1. Derivatives would be 0.
        have_derivatives = _DERIVATIVE.search(gold + answer) is not None
        are_equations = _has_letters(golden.text) and _has_letters(answered.text) and not have_derivatives
        return (gold, answer) if are_equations else None
    if golden.is_ordered == answered.is_ordered:
        return golden.text, answered.text
    listed = answered.text if golden.is_ordered else golden.text
    if _SET.match(listed):
        return None
    if len(_parts_of(listed)) > 1:
        listed = f"({listed})"
    return (golden.text, listed) if golden.is_ordered else (listed, answered.text)


def _values_of(text: str) -> Values | None:
    """The values that an expression has or gives to names. None: it is an equation, or several of them."""
    text = text.replace("$", " ").strip()
    if _is_tuple(text):
        return Values((), text, True)
    entries = [_entry(part) for part in _parts_of(text)]
    if None in entries:
        return None
    found = [entry for entry in entries if entry is not None]
    names = [name for name, _ in found if name]
    if len(found) == 1 and _TUPLE_OF_NAMES.fullmatch(names[0] if names else ""):  # (x, y) = (1, 2)
        return Values((), found[0][1], True)
    if len(set(names)) < 2:  # x = 2, x = 3, and x = 2, 3
        return Values(tuple(names[:1]), ", ".join(value for _, value in found), False)
    by_name = sorted(found)
    return Values(tuple(sorted(names)), f"({', '.join(value for _, value in by_name)})", True)


def _has_several_pairs(text: str) -> bool:
    """Whether a text is like ``x = 1, y = 2, x = 2, y = 1``, of which a list would lose what belongs together."""
    names = [entry[0] for entry in map(_entry, _parts_of(text)) if entry is not None and entry[0]]
    return 1 < len(set(names)) < len(names)


def _entry(text: str) -> tuple[str, str] | None:
    """The name and the value of ``x = 3``, and an empty name before a value alone. None: it is another equation."""
    sides = [side.strip() for side in _split(text, _EQUALS_SIGN)]
    if len(sides) == 1:
        return "", improper(sides[0])
    names = [side for side in sides if _is_name(side)]
    values = [side for side in sides if not _is_name(side)]
    if not values:  # x = y
        *names, last = sides
        values = [last]
    if not names and any(map(_has_letters, values)):
        return None
    return "".join("".join(names[:1]).split()), improper(values[-1])


def _is_name(text: str) -> bool:
    r"""Whether a side of an equation names what the other one is: ``x``, ``v_1``, ``f(2)``, ``\alpha``, ``|AB|``."""
    shown = _CONSTANT.sub("1", _DERIVATIVE.sub("d", _NUMBERED_ANGLE.sub("a", text)))
    shown = _SUBSCRIPT.sub("", _COMMAND.sub("a", shown))
    shown = _ARGUMENTS.sub("", shown)
    if _TUPLE_OF_NAMES.fullmatch(text):
        return True
    return _NAME.fullmatch("".join(shown.replace("{", "").replace("}", "").split()).replace("'", "")) is not None


def _has_letters(text: str) -> bool:
    return _LETTER.search(_COMMAND.sub("", _GREEK.sub("a", text))) is not None


def _is_tuple(text: str) -> bool:
    """Whether a text is ``(1, 2)``."""
    shown = text.replace(r"\left", "").replace(r"\right", "").strip()
    return shown.startswith("(") and closing_brackets(shown).get(0) == len(shown) - 1 and "," in shown


def _parts_of(text: str) -> list[str]:
    """The parts of a text between commas and other signs between expressions, but not those in brackets."""
    return _split(text, _BETWEEN)


def _split(text: str, sign: re.Pattern[str]) -> list[str]:
    """The parts of a text between signs that stand in no brackets."""
    outside = _ENVIRONMENT.sub(lambda inside: "." * len(inside[0]), text)
    found = 1
    while found:  # from the innermost brackets outwards
        outside, found = _BRACKETS.subn(lambda inside: "." * len(inside[0]), outside)
    parts = []
    start = 0
    for each in sign.finditer(outside):
        parts.append(text[start : each.start()])
        start = each.end()
    return [*parts, text[start:]]
