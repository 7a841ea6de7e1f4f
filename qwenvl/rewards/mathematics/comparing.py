"""What of an answer and a solution in mathematics text can compare, and what math-verify has to."""

from __future__ import annotations

import re

from qwenvl.rewards.mathematics.equations import DERIVATIVE, compared_values, parts_of
from qwenvl.rewards.mathematics.expressions import (
    LONE_LETTER,
    PLAIN_NUMBER,
    fraction_of,
    has_several_numbers,
    improper,
    is_mathematical,
    plain,
    unwrapped,
)
from qwenvl.rewards.mathematics.results import expression_in, result_of
from qwenvl.rewards.mathematics.units import are_one_unit, split_unit, split_units

LONGEST = 500  # characters of an expression

_PRIMES = re.compile(r"(?<=\w)'+|\\prime\b")  # f'(x), 30'
_BASE = re.compile(r"(?<![\^0-9])[0-9]+_\{?[0-9]|\)_\{?[0-9]")  # of the number 17_8, and not the 1 of \int^1_0

# math-verify leaves out dots and remainders, and takes derivatives of names for 0.
_TEXT_ALONE = re.compile(
    r"\\(?:[lc]?dots|[bp]?mod|partial|nabla)(?![a-zA-Z])|\.\.\.|\u2026"
    rf"|{DERIVATIVE.pattern}\s?(?:[^=\s]|\Z)|\S\s?{DERIVATIVE.pattern}"
)
_STATEMENTS = re.compile(r"(?:\([0-9]{1,2}\)){2,20}")  # \u2461\u2462 are the statements 2 and 3, and no product
# 20-30, 3-1 and 2024-01-05 are no differences in a solution. In an answer, 5-3 may be one.
_DATE = re.compile(r"[0-9]{1,4}([-/])[0-9]{1,4}(?:\1[0-9]{1,4}){1,9}")
_RANGE_OR_DATE = re.compile(rf"{_DATE.pattern}|[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?-[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?")
_UNIT_SIGNS = re.compile(r"%|\\circ|\\\$|[€£¥¢]")
_PERCENT = re.compile(r"\s?\\?%\s*\Z")
_CURRENCY = re.compile("[€£¥¢]")


def compare_as_text(gold: str, answer: str | None) -> bool | tuple[str, str]:
    """Whether a pair is equal, where text can tell, else the two expressions to be compared as mathematics.

    Args:
        gold: the result of the solution, as ``result_of`` has it.
    """
    if answer is None or len(answer) > LONGEST:
        return False
    gold, answer = _expressions_in(gold, result_of(answer))
    golden, answered = split_units(gold, answer)
    are_mathematical = is_mathematical(golden.value, answered.value) and is_mathematical(answered.value, golden.value)
    if are_mathematical and _have_other_signs(gold, answer):
        return False
    are_equal = _equal_as_text(gold, answer, are_mathematical=are_mathematical)
    if are_equal is not None:
        return are_equal
    if not are_mathematical or not are_one_unit(golden.unit, answered.unit):
        return False
    return _values_to_verify(golden.value, answered.value)


def _equal_as_text(gold: str, answer: str, *, are_mathematical: bool) -> bool | None:
    """Whether two expressions are the same text. None: they may be the same mathematics."""
    gold_text = plain(unwrapped(gold))
    answer_text = plain(unwrapped(answer))
    are_letters = bool(LONE_LETTER.fullmatch(gold_text) and LONE_LETTER.fullmatch(answer_text))
    have_same_primes = _number_of_primes(gold) == _number_of_primes(answer)
    if are_letters:  # (B) and B. are the option B, and A' is not A
        return have_same_primes and gold_text.strip("().") == answer_text.strip("().")
    if any(map(_STATEMENTS.fullmatch, (gold_text, answer_text))):
        return gold_text == answer_text
    # Words are the same whatever their case. Letters are not: R^2 - r^2 is the opposite of r^2 - R^2.
    have_same_letters = have_same_primes and _letters_of(gold) == _letters_of(answer)
    return True if gold_text == answer_text and (have_same_letters or not are_mathematical) else None


def _values_to_verify(gold: str, answer: str) -> bool | tuple[str, str]:
    """The values of two mathematical expressions that math-verify has to compare, or whether they are equal."""
    gold, answer = _without_percent(_CURRENCY.sub("", gold), _CURRENCY.sub("", answer))
    gold_text = plain(unwrapped(gold))
    answer_text = plain(unwrapped(answer))
    if _RANGE_OR_DATE.fullmatch(gold_text) or _DATE.fullmatch(answer_text):
        return gold_text == answer_text
    if any(_TEXT_ALONE.search(each) or _BASE.search(plain(each)) for each in (gold, answer)):
        return False  # math-verify leaves out dots, bases and remainders
    values = compared_values(gold, answer)
    if values is None or _number_of_primes(values[0]) != _number_of_primes(values[1]):
        return False  # math-verify leaves primes out, too
    in_plain = [plain(value) for value in values]
    if all(map(PLAIN_NUMBER.fullmatch, in_plain)):
        number, other = map(fraction_of, in_plain)
        return number is not None and number == other
    if any(map(has_several_numbers, in_plain)) or _differ_in_case(gold, answer):
        return False  # math-verify would read 1 2 as 12, and does not tell N_2 from n_2
    return values


def expression_to_verify(gold: str) -> tuple[str, str] | None:
    """The value of a solution beside itself, to check that it is parsed. None: it compares as text or as a number."""
    expression = improper(_PERCENT.sub("", _CURRENCY.sub("", split_unit(gold).value)))
    in_plain = plain(expression)
    is_other = PLAIN_NUMBER.fullmatch(in_plain) or has_several_numbers(in_plain) or _TEXT_ALONE.search(expression)
    return None if is_other or not is_mathematical(expression) else compared_values(expression, expression)


def _expressions_in(gold: str, answer: str) -> tuple[str, str]:
    """The expressions of a pair, in which 100,200 is a list where the other is one of as many parts."""
    of_gold = expression_in(gold)
    of_answer = expression_in(answer)
    if len(parts_of(of_gold)) == len(parts_of(of_answer)):
        return of_gold, of_answer
    listed = expression_in(answer, has_thousands=False)
    if len(parts_of(of_gold)) == len(parts_of(listed)):
        return of_gold, listed
    listed = expression_in(gold, has_thousands=False)
    if len(parts_of(listed)) == len(parts_of(of_answer)):
        return listed, of_answer
    return of_gold, of_answer


def _without_percent(gold: str, answer: str) -> tuple[str, str]:
    """Two expressions without the signs of percent that math-verify does not read: it knows those of numbers alone."""
    found = [_PERCENT.search(each) for each in (gold, answer)]
    without = [_PERCENT.sub("", each) for each in (gold, answer)]
    if not all(found):
        in_plain = [plain(each) for each in without]
        are_numbers = all(map(PLAIN_NUMBER.fullmatch, in_plain))
        if are_numbers and fraction_of(in_plain[0]) == fraction_of(in_plain[1]):
            return without[0], without[1]  # one side may lack the sign
        without = [_hundredth_of(each) if sign else each for each, sign in zip(without, found, strict=True)]
    return without[0], without[1]


def _hundredth_of(text: str) -> str:
    """A value, perhaps with a name in front of it, by 100."""
    name, sign, value = text.rpartition("=")
    return rf"{name}{sign}\frac{{{value}}}{{100}}"


def _have_other_signs(text: str, other: str) -> bool:
    """Whether both have units, of which one is a sign, and other ones: 50% and 50° or 50 cm. Others may be meant."""
    signs = _unit_signs(text)
    others = _unit_signs(other)
    if signs and others:
        return signs != others
    return bool((signs and split_unit(other).unit) or (others and split_unit(text).unit))


def _unit_signs(text: str) -> set[str]:
    """The signs of a text that are units: of percent, degrees and money."""
    found = set(_UNIT_SIGNS.findall(text))
    if text.replace(r"\$", "").count("$") % 2:  # one that has no other around mathematics
        found.add(r"\$")
    return found


def _number_of_primes(text: str) -> int:
    r"""That of ``f''(x)``, ``x^\prime`` and ``30"`` (two). Quotation marks around a text are none."""
    text = text.strip("$ ")
    if text.startswith(("'", '"')):
        text = text[1:].rstrip("'\"")
    marks = _PRIMES.findall(text.replace('"', "''"))
    return sum(1 if mark.startswith("\\") else len(mark) for mark in marks)


def _letters_of(text: str) -> list[str]:
    return [character for character in unwrapped(text) if character.isalpha()]


def _differ_in_case(text: str, other: str) -> bool:
    """Whether two texts have the same letters, in whatever order, and some of them large in one text alone."""
    letters = sorted(_letters_of(text))
    others = sorted(_letters_of(other))
    return letters != others and sorted(map(str.lower, letters)) == sorted(map(str.lower, others))
