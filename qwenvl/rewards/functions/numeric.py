"""Rewards for a single number: which one an answer holds, and how near it is."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

from qwenvl.characters import CJK
from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.text import pairs, unreadable

Tolerance = Annotated[float, Argument("Error that is accepted, times the solution where that is above 1.", least=0)]

_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079"
_FRACTIONS = "\u00bc-\u00be\u2150-\u215e"
# Behind a number these make another one of it: 2.5k, 3万, 1.5 million, 2 dozen, 3 and a half, 2π.
_SCALES = (
    r"\s?(?:[kKM]|(?i:hundred|thousand|million|billion|trillion|dozen|lakh|crore|bn|mn|mln|mio|mrd|trn|tn|mil|mille"
    r"|millones|milliard|millionen|milliarde|milliarden|tausend|hundert|млн|тыс)s?)\b"
    rf"|\s?(?:[万萬亿億兆만억천백]|[百千十](?:[万萬亿億]|(?![{CJK}])))"
    r"|\s(?i:and\s(?:a\s)?(?:half|quarter|third)s?)\b"
    r"|\s?(?:\u03c0|\\?pi\b)"
)
# A number with a superscript or a fraction behind it, 2² or 3½, is another one than its digits, and is not read.
# Thousands may be set apart by commas, and 0,125 has none.
# Lengths are bounded so that a number is always one that can be computed with.
_NUMBER = re.compile(
    r"(?<![0-9.^/])[-+]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3}){1,6}(?![0-9])|[0-9]{1,30})(?:\.[0-9]{1,30})?"
    rf"(?:[eE][-+]?[0-9]{{1,2}})?(?!\.?[0-9]|[{_RAISED}{_FRACTIONS}])(?!B\b|{_SCALES})"
)
_OF_ANOTHER_NUMBER = re.compile(rf"[0-9{_RAISED}{_FRACTIONS}\u03c0\u00b1]|\\pi\b|\\pm\b")

# ".5" is written "0.5": a dot alone in front of digits is what takes them for no number.
_WITHOUT_A_ZERO = re.compile(rf"(?<!\.)(?<![^\W{CJK}])\.(?=[0-9])")
_DASH = r"[-\u2010-\u2015\u2212]"
# A dash in front of a number is a minus sign, however it is typed. In 3\u20135 it stands between numbers.
_MINUS = re.compile(rf"(?<![.)])(?<![^\W{CJK}]){_DASH}(?=[0-9])")
_MINUS_IN_WORDS = re.compile(
    r"(?:\b(?:minus|negative|moins|menos)\s|\\textminus\s?|负|負|零下|マイナス)(?=[$€£¥]?[0-9])", re.IGNORECASE
)
# A minus sign with nothing but signs, currencies and markup between it and its number: -$5, -US$5, -(5), -\\mathrm{5}.
_MINUS_AND_SIGNS = re.compile(
    rf"(?<![\w)]){_DASH}(?:US|USD\s|EUR\s|\\[a-z]{{2,10}}|\\[^\w\s]|\\ |[$€£¥({{\[}}*`≈~]){{1,6}}\s?(?=[.0-9])"
)
_HYPHEN = re.compile(rf"(?<=[^\W\d_{CJK}])(?<![0-9][eE])-(?=[0-9])")  # of "step-3", and not of 2e-3
# One apart from its number may be a minus sign, begin an item of a list, or stand between a word and the number.
_UNCLEAR_MINUS = re.compile(rf"(?<![0-9)])(?<![0-9)]\s){_DASH}\s{{1,20}}(?=[0-9])")
# Powers of ten as e: 3×10⁸ and 3 x 10^8 are 3e8.
_TIMES_TEN = re.compile(
    r"(?<=[0-9])\s?(?:[\u00d7\u22c5\u00b7xX*]|\\(?:times|cdot))\s?10\s?"
    rf"(?:\^\s?\{{?([-\u2212]?[0-9]{{1,2}})\}}?|([\u207b\u207a]?[{_RAISED}]{{1,2}}))(?![0-9])"
)
# Of units: 24 cm^2, 9.8 m/s². Other letters may be variables.
_POWER_OF_UNIT = re.compile(
    rf"(?<![^\W\d_])((?:[A-Za-z]{{2,9}}|[ms])\s?\}}?)(?:\^\{{?-?[0-9]\}}?|[\u207b]?[{_RAISED}])(?![0-9])"
)
_FUNCTION_OF = re.compile(r"(?:\u221a|\bsqrt|\\(?:sqrt|log|ln|exp|sin|cos|tan))\s?[({\[]?\s?[-+]?(?=[0-9])")
_NO_NUMBER = " ."  # in front of digits, which then are none


def numbers_in(text: str) -> list[Decimal]:
    """The numbers of a text: ``-3``, with a dash as minus sign too, ``0.5``, ``.5``, ``1,000``, ``2e-3``, ``3×10⁸``.

    Not those of ``- 3`` and ``sqrt(3)``, and two of ``0,125``.

    Example:
        >>> numbers_in("1,250 of 3.0 or -2")
        [Decimal('1250'), Decimal('3.0'), Decimal('-2')]
    """
    return [Decimal(number.replace(",", "")) for number in _NUMBER.findall(_prepared(text))]


def only_number(text: str | None) -> Decimal | None:
    """The number of a text that holds exactly one, and nothing of another. None for none or several.

    Example:
        >>> only_number("-$5 or so"), only_number("9.8 m/s^2"), only_number("3 cm - 5 cm"), only_number("2³ + 1")
        (Decimal('-5'), Decimal('9.8'), None, None)
    """
    prepared = _prepared(text or "")
    numbers = _NUMBER.findall(prepared)
    if len(numbers) != 1 or _OF_ANOTHER_NUMBER.search(_NUMBER.sub("", prepared)):
        return None
    return Decimal(numbers[0].replace(",", ""))


def _prepared(text: str) -> str:
    """A text with its numbers as ``_NUMBER`` finds them, and a dot in front of digits that are none."""
    text = text.replace("{,}", ",")  # 1{,}450 in LaTeX
    text = _POWER_OF_UNIT.sub(r"\1", _TIMES_TEN.sub(_with_e, text))
    text = _MINUS_AND_SIGNS.sub("-", _MINUS_IN_WORDS.sub("-", _WITHOUT_A_ZERO.sub("0.", text)))
    text = _FUNCTION_OF.sub(_NO_NUMBER, text)
    return _UNCLEAR_MINUS.sub(_NO_NUMBER, _MINUS.sub("-", _HYPHEN.sub(" ", text)))


def _with_e(found: re.Match[str]) -> str:
    exponent = unicodedata.normalize("NFKC", found[1] or found[2]).replace("\u2212", "-")
    return f"e{exponent}"


def count(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if the answer holds a single number and it equals the solution's, else 0.

    Other words may surround it: "there are 3 cubes" is 3. "3.0" equals "3". "three" is no number.
    """
    return [float(number is not None and number == truth) for number, truth in _pairs(completions, solution)]


def numeric(completions: list[str], solution: list[str], *, tolerance: Tolerance = 1e-6, **columns: Any) -> list[float]:
    """1 if the answer's single number is within a tolerance of the solution's, else 0.

    Within means |answer - solution| <= ``tolerance`` * max(1, |solution|): absolute for small numbers, relative for
    large ones.
    """
    share = Decimal(repr(float(tolerance)))
    return [
        float(number is not None and abs(number - truth) <= share * max(Decimal(1), abs(truth)))
        for number, truth in _pairs(completions, solution)
    ]


def regression(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - relative error of the answer's single number, the error clipped to 0..1.

    The relative error is |answer - solution| / |solution|. Where the solution is 0, only 0 scores.
    """
    scores = []
    for number, truth in _pairs(completions, solution):
        if number is None:
            error = Decimal(1)
        elif truth == 0:
            error = Decimal(0 if number == 0 else 1)
        else:
            error = abs(number - truth) / abs(truth)
        scores.append(1.0 - float(min(error, Decimal(1))))
    return scores


check_number = partial(unreadable, only_number, "must hold exactly one number")


def _pairs(completions: list[str], solution: list[str]) -> list[tuple[Decimal | None, Decimal]]:
    found = []
    for answer, truth in pairs(completions, solution):
        expected = only_number(truth)
        if expected is None:
            raise ValueError(check_number(truth))
        found.append((only_number(answer), expected))
    return found
