"""The reward for mathematical answers, checked by math-verify in a worker process."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from qwenvl.child import Child, ChildDied, ChildFailed, ChildTimeout
from qwenvl.files import check_installed, require
from qwenvl.rewards.function import Unfinished
from qwenvl.rewards.functions.equations import DERIVATIVE, compared_values, parts_of
from qwenvl.rewards.functions.expressions import (
    LONE_LETTER,
    PLAIN_NUMBER,
    fraction_of,
    has_several_numbers,
    improper,
    is_mathematical,
    plain,
    unwrapped,
)
from qwenvl.rewards.functions.notation import grouped
from qwenvl.rewards.functions.results import expression_in, result_of
from qwenvl.rewards.functions.text import answer_of, normalized, solution_of
from qwenvl.rewards.functions.units import are_one_unit, split_unit, split_units

LONGEST = 500  # characters of an expression
CPU_SECONDS = 2.0  # of computing that a pair may take, whatever else the machine does
HANGING_SECONDS = 300.0  # after which a pair that neither computes nor ends is given up
MEMORY = 3 * 2**30
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of a child process

_PRIMES = re.compile(r"(?<=\w)'+|\\prime\b")  # f'(x), 30'
_BASE = re.compile(r"(?<=[0-9)])_\{?[0-9]")  # of the number 17_8

# math-verify leaves out dots and remainders, and takes derivatives of names for 0.
_TEXT_ALONE = re.compile(
    r"\\(?:[lc]?dots|[bp]?mod|partial|nabla)(?![a-zA-Z])|\.\.\.|\u2026"
    rf"|{DERIVATIVE.pattern}\s?(?:[^=\s]|\Z)|\S\s?{DERIVATIVE.pattern}"
)
_EITHER_SIGN = re.compile(r"\\pm(?![a-zA-Z])")  # of which math-verify reads that of a sum alone
_IMAGINARY_UNIT = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])")
_UNIT_SIGNS = re.compile(r"%|\\circ|\\\$|[€£¥¢]")
_PERCENT = re.compile(r"\s?\\?%\s*\Z")
_CURRENCY = re.compile("[€£¥¢]")


class MathReward:
    """1 if the answer and the solution are the same mathematically, else 0.

    The answer block of the completion, the first behind its thinking, is compared with the answer block of the
    solution, or with all of it where it has no block: of a worked solution with its last box, or what is behind ####,
    as in GSM8K. Markdown, a box, "the answer is" or an equals sign in front and a dot at the end do not matter.

    Texts that are equal once normalized are equal, but mathematics whose letters differ in case alone is not. Words,
    single letters and what holds a colon compare as text ("A", "yes", "12:30"), and so do numbers with a base (17_8),
    derivatives, dots and remainders.

    Other pairs are parsed as LaTeX and verified by math-verify, gold first: 1/2 is 0.5, and the square root of 8 is
    twice that of 2. Plain writing such as ``ln(2)``, ``x**2``, ``sqrt(x + 1)``, ``3 x 10^8`` and ``1/2 x`` (half of x,
    while ``x/2y`` is x/(2y)) and signs that Unicode has (x², ½, √2, π, ≤, 90°) are read as their LaTeX. A lone i is the
    imaginary unit.

    "2 or 3" is "3, 2", and "x = 2, y = 3" is "(2, 3)" alone. "x = 3" is 3, and "4x = 12" is no value. A unit behind the
    value must be the same, and is not converted. One of the signs %, ° and $ may be missing on one side.

    An answer longer than 500 characters scores 0. A pair that takes more than 2 s of computing, or 3 GiB of memory,
    gets no value: it is named in the log and counted as ``reward/math_accuracy/skipped``.
    """

    def __init__(self) -> None:
        check_installed("math_verify", "rewards")
        self._child: Child | None = None
        self._lock = threading.Lock()  # records may be checked by several threads

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float | Unfinished]:
        verdicts = [
            compare_as_text(result_of(solution_of(truth)), answer_of(text))
            for text, truth in zip(completions, solution, strict=True)
        ]
        # Equal completions are verified once: one that takes all its time would take it again for each of a group.
        pairs = dict.fromkeys(each for each in verdicts if isinstance(each, tuple))
        verified = {pair: self._verify(*pair) for pair in pairs}
        return [verified[each] if isinstance(each, tuple) else float(each) for each in verdicts]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """The reason why a record cannot be scored: its solution is empty or cannot be parsed. None: it can."""
        gold = result_of(solution_of(solution))
        if not normalized(gold):
            return "the solution is empty"
        if len(gold) > LONGEST:
            return f"the solution has {len(gold)} characters; at most {LONGEST} can be verified"
        part, _ = split_unit(gold)
        expression = improper(_PERCENT.sub("", _CURRENCY.sub("", part)))
        in_plain = plain(expression)
        if not is_mathematical(expression) or PLAIN_NUMBER.fullmatch(in_plain):
            return None
        if has_several_numbers(in_plain):
            return None  # several numbers, which compare as text
        pair = compared_values(expression, expression)
        if pair is None or _TEXT_ALONE.search(expression):
            return None  # compares as text
        value = self._verify(*pair)
        if isinstance(value, Unfinished):
            return f"{value}: choose a simpler solution than {gold!r}"
        if value:
            return None
        return f"the solution cannot be parsed as mathematics: {gold!r}"

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _verify(self, gold: str, answer: str) -> float | Unfinished:
        """``equivalent`` in the child process, which is replaced when it has died.

        An expression that math-verify fails on is not equal.
        """
        with self._lock:
            if self._child is None or not self._child.alive:
                self._child = Child(f"{__name__}:serve", memory_bytes=MEMORY, environment=ENVIRONMENT)
            try:
                return float(self._child.ask((gold, answer), HANGING_SECONDS, CPU_SECONDS))
            except ChildFailed as error:
                return Unfinished("a pair took more than 3 GiB") if "MemoryError" in str(error) else 0.0
            except (ChildTimeout, ChildDied) as error:
                return Unfinished(f"a pair could not be verified: {error}")
            except BaseException:  # interrupted: the child's answer would be taken for that of the next pair
                self.close()
                raise


def compare_as_text(gold: str, answer: str | None) -> bool | tuple[str, str]:
    """Whether a pair is equal, where text can tell, else the two expressions to be compared as mathematics."""
    if answer is None or len(answer) > LONGEST:
        return False
    gold = expression_in(gold)
    answer = _expression_beside(gold, answer)
    gold_text = plain(unwrapped(gold))
    answer_text = plain(unwrapped(answer))
    (gold_part, gold_unit), (answer_part, answer_unit) = split_units(gold, answer)
    are_mathematical = is_mathematical(gold_part, answer_part) and is_mathematical(answer_part, gold_part)
    are_letters = bool(LONE_LETTER.fullmatch(gold_text) and LONE_LETTER.fullmatch(answer_text))
    gold_signs = _unit_signs(gold)
    answer_signs = _unit_signs(answer)
    if are_mathematical and gold_signs and answer_signs and gold_signs != answer_signs:
        return False  # 50% and 50°; without a sign one may be meant
    have_same_primes = _number_of_primes(gold) == _number_of_primes(answer)
    if are_letters and not have_same_primes:
        return False  # A and A'
    # Words are the same whatever their case. Letters are not: R^2 - r^2 is the opposite of r^2 - R^2.
    have_same_letters = have_same_primes and _letters_of(gold) == _letters_of(answer)
    if gold_text == answer_text and (have_same_letters or not are_mathematical):
        return True
    # (B) and B. are the option B, and no mathematics.
    if are_letters:
        return gold_text.strip("().") == answer_text.strip("().")
    if not are_mathematical or not are_one_unit(gold_unit, answer_unit):
        return False
    gold_part, answer_part = _without_percent(_CURRENCY.sub("", gold_part), _CURRENCY.sub("", answer_part))
    parts = (gold_part, answer_part)
    if any(_TEXT_ALONE.search(part) or _BASE.search(plain(part)) for part in parts):
        return False  # math-verify leaves out dots, bases and remainders
    values = compared_values(gold_part, answer_part)
    if values is None:
        return False
    if _number_of_primes(values[0]) != _number_of_primes(values[1]):
        return False  # math-verify leaves them out
    in_plain = [plain(value) for value in values]
    if all(map(PLAIN_NUMBER.fullmatch, in_plain)):
        number, other = map(fraction_of, in_plain)
        return number is not None and number == other
    if any(map(has_several_numbers, in_plain)) or _differ_in_case(*parts):
        return False  # math-verify would read 1 2 as 12, and does not tell N_2 from n_2
    return values


def _expression_beside(gold: str, answer: str) -> str:
    """The expression of an answer, in which 100,200 is a list where the gold is one of as many parts."""
    expression = expression_in(answer)
    if ", " not in gold or len(parts_of(gold)) == len(parts_of(expression)):
        return expression
    listed = expression_in(answer, has_thousands=False)
    return listed if len(parts_of(listed)) == len(parts_of(gold)) else expression


def _without_percent(gold: str, answer: str) -> tuple[str, str]:
    """Two expressions without the signs of percent that math-verify does not read: it knows those of numbers alone."""
    found = [_PERCENT.search(each) for each in (gold, answer)]
    without = [_PERCENT.sub("", each) for each in (gold, answer)]
    if not all(found):
        if all(PLAIN_NUMBER.fullmatch(plain(each)) for each in without):
            return gold, answer
        without = [rf"\frac{{{each}}}{{100}}" if sign else each for each, sign in zip(without, found, strict=True)]
    return without[0], without[1]


def _unit_signs(text: str) -> set[str]:
    """The signs of a text that are units: of percent, degrees and money."""
    found = set(_UNIT_SIGNS.findall(text))
    if text.replace(r"\$", "").count("$") % 2:  # one that has no other around mathematics
        found.add(r"\$")
    return found


def _number_of_primes(text: str) -> int:
    r"""That of ``f''(x)``, ``x^\prime`` and ``30"`` (two). Quotation marks around a text are none."""
    text = text.strip("$ ")
    if text[:1] in "'\"":
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


def equivalent(gold: str, answer: str) -> bool:
    """Whether math-verify finds two expressions equal. A worker runs this, because it may never end."""
    parsed_gold = _parsed(gold)
    parsed_answer = _parsed(answer)
    if _cannot_be_verified(parsed_gold) or _cannot_be_verified(parsed_answer):
        return False
    if _is_finite_set(parsed_gold) != _is_finite_set(parsed_answer) and (
        _has_an_order(parsed_gold) or _has_an_order(parsed_answer)
    ):
        return False  # to math-verify -2 < x < 3 is {-2, 3}
    if _are_small_and_differ(parsed_gold, parsed_answer):
        return False
    verify = require("math_verify", "rewards").verify
    return bool(verify(parsed_gold, parsed_answer, allow_set_relation_comp=True, timeout_seconds=None))


def _are_small_and_differ(gold: Any, answer: Any) -> bool:
    """Whether two numbers differ by more than a ten-thousandth of them, where math-verify would round both to 0."""
    sympy = require("sympy", "rewards")
    numbers = [each for each in (gold, answer) if isinstance(each, sympy.Expr) and each.is_number and each.is_real]
    if len(numbers) < 2:
        return False
    first, second = (sympy.N(each, 30) for each in numbers)
    largest = max(abs(first), abs(second))
    return bool(largest < 1e-4 and abs(first - second) > largest * 1e-4)


def _is_finite_set(expression: Any) -> bool:
    return isinstance(expression, require("sympy", "rewards").FiniteSet)


def _has_an_order(expression: Any) -> bool:
    """Whether an expression is a pair, an interval or inequalities."""
    sympy = require("sympy", "rewards")
    inequality = sympy.core.relational._Inequality
    return isinstance(expression, sympy.Tuple | sympy.Interval | sympy.And | inequality)


def _cannot_be_verified(expression: Any) -> bool:
    """Whether an expression is not parsed, or a relation that SymPy knows to be true or false.

    Those would all be the same: 1 = 2, and x^2 = -1 for real numbers.
    """
    sympy = require("sympy", "rewards")
    if isinstance(expression, sympy.core.relational.Relational):
        if not expression.free_symbols:  # f(2) + f(3) = 3
            return True
        expression = expression.doit()
    return expression is None or expression in (sympy.true, sympy.false)


def serve() -> Callable[[tuple[str, str]], bool]:
    """The child's side. Loading what ``equivalent`` needs takes longer than most pairs do."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it sets no deadline: this process has one
    equivalent(r"\frac{1}{2}", "0.5")
    return lambda pair: equivalent(*pair)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Any:
    """An expression of SymPy. None: it cannot be parsed."""
    parser = require("latex2sympy2_extended.latex2sympy2", "rewards")
    # math-verify's own parse would leave out what it takes for a unit, so that x + 2h would be x + 2, and it would make
    # all letters small, so that R^2 - r^2 would be 0. The rest is as it does it.
    normalization = parser.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    text = parser.normalize_latex(grouped(expression.replace("$", " ")).strip(), normalization)
    parsed = _expression_of(text)
    if parsed is None and _EITHER_SIGN.search(text):
        both = [_expression_of(_EITHER_SIGN.sub(sign, text)) for sign in "+-"]
        return None if None in both else require("sympy", "rewards").FiniteSet(*both)
    return parsed


def _expression_of(text: str) -> Any:
    parser = require("latex2sympy2_extended.latex2sympy2", "rewards")
    grader = require("math_verify.grader", "rewards")
    is_complex = _IMAGINARY_UNIT.search(text) is not None or grader.should_treat_as_complex(text)
    try:
        found = parser.latex2sympy(
            text,
            is_real=not is_complex,
            normalization_config=None,
            conversion_config=parser.ConversionConfig(lowercase_symbols=False),
        )
        letters = {each: require("sympy", "rewards").I for each in found.free_symbols if each.name == "i"}
        return found.subs(letters) if letters else found
    except Exception:
        logging.getLogger(__name__).debug("%r cannot be parsed", text, exc_info=True)
        return None
