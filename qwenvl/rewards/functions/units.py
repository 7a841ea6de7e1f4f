r"""The unit behind a mathematical expression: ``5 m/s``, ``24 cm^2``, ``\frac{1}{2} \text{ m}``.

They are split off and compared as names. math-verify would leave them out, so that 5 m is 5 s, or read them as products
of variables, so that 5 cm is 5 mc.
"""

from __future__ import annotations

import re
from typing import Any

from qwenvl.rewards.functions.expressions import (
    FUNCTION,
    PLAIN_NUMBER,
    WRAPPED_TEXT,
    plain,
    unwrapped,
)
from qwenvl.rewards.functions.text import normalized

_UNITS_OF_TWO_LETTERS = {"mm", "cm", "dm", "km", "nm", "um", "ft", "in", "yd", "mi", "ha", "ml", "cl", "dl", "mg", "kg"}
_UNITS_OF_TWO_LETTERS |= {"lb", "oz", "ms", "ns", "us", "hr", "am", "pm", "hz", "pa", "ma", "mv", "kv", "mw", "kw"}
_UNITS_OF_TWO_LETTERS |= {"gw", "mj", "kj", "kn", "ev", "db", "kb", "mb", "gb", "tb", "px"}
_SHORT_UNIT = re.compile("[msghdctVAKNJWLl]|min")  # min is also a function
# A number that a unit may follow: 5, 3e8, 3 \times 10^8.
_NUMBER = re.compile(
    rf"{PLAIN_NUMBER.pattern}(?:(?:\\times|\\cdot|[*\u00d7\u22c5])10(?:\^|\*\*)(?:-?[0-9]{{1,3}}|\{{-?[0-9]{{1,3}}\}}))?"
)
_UNIT_IN_WORDS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}|/[^\W\d_]+)*")  # cm, square metres, km/h
_LENGTHS = {"mm", "cm", "dm", "km", "nm", "um", "ft", "in", "yd", "mi", "px"}
_AFTER_NUMBER = re.compile(r"[^0-9}\])°%]*$")
_MEGA = re.compile(r"M(?:Wh?|A|V|J|N|Hz|Pa|eV|B|bit)(?![^\W\d_])")  # MW, which is not mW

# m/s^2, N m, square metres: words, and letters that are units, with powers.
_SIMPLE_UNIT = rf"(?:[^\W\d_]{{2,}}|{_SHORT_UNIT.pattern})(?:\^\{{?-?[0-9]\}}?)?"
_TIMES = r"\s*(?:\*|·|\\cdot)\s*"
_COMPOUND_UNIT = re.compile(rf"{_SIMPLE_UNIT}(?:(?:\s*/\s*|{_TIMES}|\s+){_SIMPLE_UNIT})*")
_NUMBER_AND_UNIT = re.compile(rf"(.*?[0-9]\}}?)\s*({_COMPOUND_UNIT.pattern})\s*")

# The unit of 24 cm^2, which would be words beside mathematics. A lone letter, 24 x^2, may be a variable.
_UNIT_WITH_POWER = re.compile(r"(?<=[0-9}]) ?([^\W\d_]{2,}) ?\^ ?\{?([0-9])\}?$")

# The unit at the end of 5\,\text{ m}^2, and what may part it from its number.
_WRAPPED_UNIT = re.compile(rf"{WRAPPED_TEXT.pattern}\s*(\^\{{?-?[0-9]\}}?)?\s*$")
_SPACES_OF_LATEX = re.compile(r"(?:\s|\\[,;:!> ]|\\quad)+$")
_ENDS_AS_A_NUMBER = re.compile(r"[0-9}\])°%]$")


def is_unit(text: str) -> bool:
    r"""Whether a text is a unit that has a symbol, ``m``, ``km/h`` or ``\text{cm}^2``, and not any word.

    Example:
        >>> [is_unit(text) for text in ("cm^2", "ways", "m/s.")]
        [True, False, True]
    """
    shown = unwrapped(text).rstrip(".")
    letters = re.findall(r"[^\W\d_]+", shown)
    are_known = all(_SHORT_UNIT.fullmatch(each) or each.lower() in _UNITS_OF_TWO_LETTERS for each in letters)
    return are_known and _COMPOUND_UNIT.fullmatch(shown) is not None


def split_unit(text: str) -> tuple[str, str]:
    r"""An expression and the name of the unit behind it, or an empty name where nothing or something else follows it.

    Example:
        >>> split_unit("2.5 Cars"), split_unit(r"\frac{1}{2} \text{ m}^2"), split_unit("x + 1")
        (('2.5', 'cars'), ('\\frac{1}{2}', 'm^2'), ('x + 1', ''))
    """
    found = _unit_in_latex(text)
    if found is not None:
        return found
    shown = unwrapped(text)
    for find in (_rate, _unit_with_power, _short_unit, _unit_in_words):
        found = find(shown)
        if found is not None:
            return found
    return text, ""


def split_units(text: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    r"""``split_unit`` of two expressions that are compared.

    A letter behind more than a plain number may be a variable. It is a unit where the other expression has that unit.

    Example:
        >>> split_units(r"\frac{3}{2} m", "1.5 m"), split_units(r"\frac{3}{2} m", r"\frac{m}{2}")
        ((('\\frac{3}{2}', 'm'), ('1.5', 'm')), (('\\frac{3}{2} m', ''), ('\\frac{m}{2}', '')))
    """
    found = split_unit(text)
    other_found = split_unit(other)
    if not found[1]:
        found = _known_unit(text, other_found[1]) or found
    elif not other_found[1]:
        other_found = _known_unit(other, found[1]) or other_found
    return found, other_found


def _known_unit(text: str, unit: str) -> tuple[str, str] | None:
    """An expression and the letter behind it that is known to be a unit."""
    shown = unwrapped(text)
    if not (_SHORT_UNIT.fullmatch(unit) and shown.endswith(unit)):
        return None
    number = shown.removesuffix(unit).rstrip()
    return (number, unit) if _ENDS_AS_A_NUMBER.search(number) else None


def _unit_in_latex(text: str) -> tuple[str, str] | None:
    r"""That of ``5\,\text{m}^2``."""
    shown = text.replace("$", " ").replace("~", " ")
    found = _WRAPPED_UNIT.search(shown)
    if found is None:
        return None
    number = _SPACES_OF_LATEX.sub("", shown[: found.start()])
    words = found[1].strip()
    is_unit = _COMPOUND_UNIT.fullmatch(words) is not None and not FUNCTION.fullmatch(words)
    if not (is_unit and _ENDS_AS_A_NUMBER.search(number)):
        return None
    return number, _name_of_unit(words + (found[2] or ""))


def _rate(text: str) -> tuple[str, str] | None:
    """That of ``5 m/s``, behind a plain number alone: elsewhere letters on both sides of a slash may be variables."""
    found = _NUMBER_AND_UNIT.fullmatch(text)
    if found is None or "/" not in found[2] or not _NUMBER.fullmatch(plain(found[1])):
        return None
    return found[1], _name_of_unit(found[2])


def _unit_with_power(text: str) -> tuple[str, str] | None:
    """That of ``24 cm^2``. ``2mv^2`` is a product."""
    found = _UNIT_WITH_POWER.search(text)
    if found is None or FUNCTION.fullmatch(found[1]):
        return None
    if len(found[1]) == 2 and found[1].lower() not in _LENGTHS:
        return None
    return text[: found.start()], f"{normalized(found[1])}^{found[2]}"


def _short_unit(text: str) -> tuple[str, str] | None:
    """That of ``5 m``, behind a plain number alone: in ``2 x m`` the letter may be a variable."""
    number, tail = _split_tail(text)
    unit = tail.strip()
    if not (_SHORT_UNIT.fullmatch(unit) and _NUMBER.fullmatch(plain(number))):
        return None
    return number, unit


def _unit_in_words(text: str) -> tuple[str, str] | None:
    """That of ``2.5 cars``."""
    number, tail = _split_tail(text)
    unit = normalized(tail)
    if not number or not _UNIT_IN_WORDS.fullmatch(unit) or FUNCTION.search(unit):
        return None
    if _may_be_a_product(unit):
        return None
    return number, _with_mega(tail.strip(), unit)


def _may_be_a_product(letters: str) -> bool:
    """Whether letters behind a number are no known unit, as in ``2ab``."""
    return len(letters) == 2 and letters.lower() not in _UNITS_OF_TWO_LETTERS


def _split_tail(text: str) -> tuple[str, str]:
    """A text up to its last digit, bracket or sign of a unit, and what follows that."""
    tail: Any = _AFTER_NUMBER.search(text)  # it always matches, at the end at the latest
    return text[: tail.start()], tail[0]


def _name_of_unit(text: str) -> str:
    r"""A unit in one notation. Words have small letters; of lone letters and of ``MW`` these are other units.

    Example:
        >>> _name_of_unit("KM / h"), _name_of_unit(r"N \cdot m^{2}"), _name_of_unit("MW"), _name_of_unit("Metres")
        ('km/h', 'N m^2', 'Mw', 'metres')
    """
    name = re.sub(
        r"[^\W\d_]{2,}", lambda word: _with_mega(word[0], word[0].lower()), re.sub(_TIMES, " ", text)
    )
    name = re.sub(r"\s*/\s*", "/", name.replace("{", "").replace("}", ""))
    return " ".join(name.split())


def _with_mega(written: str, small: str) -> str:
    """A unit in small letters, but for the M of a million, which would be a thousandth."""
    return f"M{small[1:]}" if _MEGA.match(written) else small
