"""Equations, lists and pairs: what of two expressions is compared, and in which order.

math-verify takes the last side of an equation for its value, also that of 4x = 12, and lists for sets, also
x = 2, y = 3. Equations that are never true, such as f(2) = 3, are all the same to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qwenvl.rewards.mathematics.expressions import COMMAND, GREEK_NAME, SUBSCRIPT, closing_brackets, improper

DERIVATIVE = re.compile(r"\\frac\s?\{d[^\W\d_]{0,2}\}\s?\{d[^\W\d_]\}")

# Between expressions, and between the sides of an equation; also that of x \in (2, 5).
_BETWEEN = re.compile(r"[,;\n]|\\\\(?![a-zA-Z])")
_BETWEEN_EQUATIONS = re.compile(rf"{_BETWEEN.pattern}|\\(?:lor|land|vee|wedge)(?![a-zA-Z])|[\u2227\u2228]")
_EQUALS_SIGN = re.compile(r"(?<![<>!=])==?(?![<>=])|\\in(?![a-zA-Z])")
_ENVIRONMENT = re.compile(r"\\begin\{.{0,500}?\\end\{[a-z*]{1,12}\}", re.DOTALL)  # of a matrix
_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_SET = re.compile(r"\\?\{|\\left\s?\\\{")

_GREEK = re.compile(GREEK_NAME, re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
_BINDS_A_LETTER = re.compile(r"\\(?:sum|prod|int|lim)(?![a-zA-Z])")

# Names: x, v_1, f(2), f(g(x)), (f + g)(x), E[X], f^{-1}(x), y', \alpha, \angle 1, \sigma^2, |z|, \frac{dy}{dx}, (x, y).
_CONSTANT = re.compile(r"\\(?:pi|infty|emptyset)(?![a-zA-Z])")
_NUMBERED_ANGLE = re.compile(r"\\angle\s?[0-9]")
_COMBINATIONS_OF = re.compile(r"[CPA]_\{?[0-9]{1,3}\}?\^\{?[0-9]{1,3}\}?")  # C_5^2, the number of pairs of five
_UNSOLVED = re.compile(r"\\(?:sqrt|ln|log|exp)(?![a-zA-Z])|([A-Za-z])\([^()]*\1[^()]*\)")  # \sqrt{x} = 3, n(n + 1) = 42
_MARK = re.compile(r"\\(?:vec|overline|hat|bar|text|math(?:bf|bb|rm)|left|right)(?![a-zA-Z])|\\Delta(?= ?[A-Za-z])")
_INVERSE_OR_VARIANCE = re.compile(r"(?<=[A-Za-z])\^\{?-1\}?|(?<=\\sigma)\^\{?2\}?")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z'}])\s?(?:\([^()]*\)|\[[^\[\]]*\])")
_COMBINED_FUNCTION = re.compile(r"\([^()0-9]*\)\s?(?=\()")
_NAME = re.compile(r"[^\W\d_]+|\|{1,2}[^\W\d_]+\|{1,2}")
_COMBINATION = re.compile(r"[^\W\d_]+(?:[-+/][^\W\d_]+){1,9}")  # m + n = 11, a/b = 2
_LETTER_OF_TUPLE = r"\s*[^\W\d_](?:_\{?\w{1,3}\}?)?\s*"
_TUPLE_OF_NAMES = re.compile(rf"\({_LETTER_OF_TUPLE}(?:,{_LETTER_OF_TUPLE})+\)")
_COORDINATES = frozenset("xyz")
_INDEX = re.compile(r"_\{?[0-9]+\}?")


class Entry(NamedTuple):
    """One part of an expression: the value that it has, or that it gives to a name.

    Attributes:
        name: empty where the part is a value alone.
    """

    name: str
    value: str


class Values(NamedTuple):
    """The values that an expression has, or that it gives to names.

    Attributes:
        names: of the values, ``x`` and ``f(2)``, one for each or one for all. Empty: the expression has values alone.
        values: of them.
        is_ordered: the order of the values has a meaning, as in ``(1, 2)``. Else they are alternatives.
        text: the values as the expression writes them.
    """

    names: tuple[str, ...]
    values: tuple[str, ...]
    is_ordered: bool
    text: str

    @property
    def names_without_index(self) -> frozenset[str]:
        """Those of x_1 = 2, x_2 = 3 are x."""
        return frozenset(_INDEX.sub("", name) for name in self.names)

    @property
    def are_indexed(self) -> bool:
        """Whether the names differ in their indices alone, as those of the roots of an equation."""
        return len(self.names) > 1 and len(self.names_without_index) == 1

    def listed(self) -> str:
        """The values in the order in which they are written."""
        return ", ".join(self.values)

    def as_tuple(self, *, by_name: bool) -> str:
        """The values in the order of their names, or as they are written. Coordinates are in the order x, y, z."""
        if not self.names:
            return self.text if self.text.startswith("(") else f"({self.listed()})"
        if not by_name and not self.names_without_index <= _COORDINATES:
            return f"({self.listed()})"
        by_name_sorted = sorted(zip(self.names, self.values, strict=True))
        return f"({', '.join(value for _, value in by_name_sorted)})"


def compared_values(gold: str, answer: str) -> tuple[str, str] | None:
    """What math-verify is to compare of two expressions. None: they differ.

    Example:
        >>> compared_values("x = 3", "3"), compared_values("4x = 12", "12"), compared_values("f(2) = 3", "f(5) = 3")
        (('3', '3'), None, None)
        >>> compared_values("y = 3, x = 2", "(2, 3)"), compared_values("x = 2 , x = 3", "3, 2")
        (('(2, 3)', '(2, 3)'), ('2, 3', '3, 2'))
    """
    golden_entries = _entries(gold)
    answered_entries = _entries(answer)
    if _have_several_pairs(golden_entries) or _have_several_pairs(answered_entries):
        return None
    golden = _values_of(gold, golden_entries)
    answered = _values_of(answer, answered_entries)
    if golden is None or answered is None:
        are_equations = bool(_EQUALS_SIGN.search(gold) and _EQUALS_SIGN.search(answer))
        return (gold, answer) if are_equations else None
    # The roots x_1 = 2 and x_2 = 3 are 3 and 2 as well, but not x_1 = 3 and x_2 = 2.
    one_has_indices = golden.are_indexed != answered.are_indexed
    if one_has_indices and not (golden.is_ordered and answered.is_ordered):
        have_one_name = golden.names_without_index == answered.names_without_index
        may_be_roots = have_one_name or not (golden.names and answered.names)
        return (golden.listed(), answered.listed()) if may_be_roots else None
    if golden.names and answered.names and set(golden.names) != set(answered.names):
        # x = y + 1 is y = x - 1. Derivatives would be 0.
        have_derivatives = DERIVATIVE.search(gold + answer) is not None
        have_combinations = any(map(_is_combination, golden.names + answered.names))
        have_letters = _has_letters(golden.text) and _has_letters(answered.text)
        are_equations = (have_letters or have_combinations) and not have_derivatives
        return (gold, answer) if are_equations else None
    if not golden.is_ordered and not answered.is_ordered:
        return golden.text, answered.text
    by_name = bool(golden.names and answered.names)
    compared = []
    for each in (golden, answered):
        are_alternatives = bool(each.names) and not each.is_ordered and len(each.values) > 1  # x = 2 or x = 3
        if are_alternatives or _SET.match(each.text):
            return None  # they are no pair
        # A single value may be a pair in itself, as a vector is.
        is_list = each.is_ordered or len(each.values) > 1
        compared.append(each.as_tuple(by_name=by_name) if is_list else each.text)
    return compared[0], compared[1]


def is_equation(text: str) -> bool:
    """Whether a part of a text is an equation that gives no value to a name, as ``2x = 24`` and ``x + y = 5``."""
    return any(entry is None or _is_combination(entry.name) for entry in _entries(text))


def parts_of(text: str) -> list[str]:
    """The parts of a text between commas and other signs between expressions, but not those in brackets."""
    sign = _BETWEEN_EQUATIONS if "=" in text else _BETWEEN
    return [part for part in _split(text, sign) if part.strip()] or [text]


def _entries(text: str) -> list[Entry | None]:
    """The parts of a text as names and values. None: a part is another equation."""
    return [_entry(part) for part in parts_of(text.replace("$", " ").strip())]


def _values_of(text: str, entries: Sequence[Entry | None]) -> Values | None:
    """The values that an expression has or gives to names. None: it is an equation, or several of them.

    Args:
        entries: of the text, as ``_entries`` has them.
    """
    text = text.replace("$", " ").strip()
    if _is_tuple(text):
        return Values((), (text,), True, text)
    found = [entry for entry in entries if entry is not None]
    if len(found) < len(entries):
        return None
    values = tuple(entry.value for entry in found)
    names = tuple(entry.name for entry in found if entry.name)
    if len(found) == 1 and names and _TUPLE_OF_NAMES.fullmatch(names[0]):  # (x, y) = (1, 2)
        inside = tuple(part.strip() for part in _split(values[0].strip()[1:-1], _BETWEEN))
        names = tuple(part.strip() for part in names[0][1:-1].split(","))
        return Values(names, inside, True, values[0]) if len(names) == len(inside) else None
    if len(set(names)) < 2:  # x = 2, x = 3, and x = 2, 3
        return Values(names[:1], values, False, ", ".join(values))
    if len(names) < len(found):  # x = 1, 5, y = 2
        return None
    return Values(names, values, True, text)


def _have_several_pairs(entries: Iterable[Entry | None]) -> bool:
    """Whether entries are like ``x = 1, y = 2, x = 2, y = 1``, of which a list would lose what belongs together."""
    names = [entry.name for entry in entries if entry is not None and entry.name]
    return 1 < len(set(names)) < len(names)


def _entry(text: str) -> Entry | None:
    """The name and the value of ``x = 3``. None: it is another equation."""
    sides = [side.strip() for side in _split(text, _EQUALS_SIGN)]
    if len(sides) == 1:
        return Entry("", improper(sides[0]))
    names: list[str] = []
    values: list[str] = []
    for side in sides:
        (names if _is_name(side) else values).append(side)
    if not values:  # x = y
        *names, last = sides
        values = [last]
    if not names and any(_has_letters(value) and not _BINDS_A_LETTER.search(value) for value in values):
        return None
    name = names[0] if names else ""
    return Entry("".join(name.split()), improper(values[-1]))


def _is_name(text: str) -> bool:
    """Whether a side of an equation names what the other one is."""
    if _TUPLE_OF_NAMES.fullmatch(text):
        return True
    if _UNSOLVED.search(text):
        return False
    shown = _CONSTANT.sub("1", DERIVATIVE.sub("d", _NUMBERED_ANGLE.sub("a", _COMBINATIONS_OF.sub("C", text))))
    shown = _INVERSE_OR_VARIANCE.sub("", shown)
    shown = SUBSCRIPT.sub("", shown)
    shown = COMMAND.sub("a", _MARK.sub("", shown))
    shown = _COMBINED_FUNCTION.sub("f", shown)
    for _ in range(2):  # f(g(x))
        shown = _ARGUMENTS.sub("", shown)
    for sign in "{}' ":
        shown = shown.replace(sign, "")
    return (_NAME.fullmatch(shown) or _COMBINATION.fullmatch(shown)) is not None


def _is_combination(name: str) -> bool:
    """Whether a name is ``m+n`` or ``a/b``."""
    return any(sign in name for sign in "+-/")


def _has_letters(text: str) -> bool:
    return _LETTER.search(COMMAND.sub("", _GREEK.sub("a", text))) is not None


def _is_tuple(text: str) -> bool:
    """Whether a text is ``(1, 2)``."""
    shown = text.replace(r"\left", "").replace(r"\right", "").strip()
    return shown.startswith("(") and closing_brackets(shown).get(0) == len(shown) - 1 and "," in shown


def _split(text: str, sign: re.Pattern[str]) -> list[str]:
    """The parts of a text between signs outside of brackets and matrices."""
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
