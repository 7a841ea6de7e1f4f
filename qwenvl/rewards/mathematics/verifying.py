"""Whether two expressions are equal, by math-verify and SymPy. It may never end, so that a child process runs it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

from qwenvl.files import require
from qwenvl.rewards.mathematics.notation import grouped, has_two_readings

_EITHER_SIGN = re.compile(r"\\pm(?![a-zA-Z])")  # of which math-verify reads that of a sum alone
_OR_AND = re.compile(r"\\(?:lor|land)(?![a-zA-Z])")
_IMAGINARY_UNIT = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])")


def equivalent(gold: str, answer: str) -> bool:
    """Whether math-verify finds two expressions equal. Of 1/2x and sin x/2 one of the two readings must be."""
    return any(_are_equal(*pair) for pair in product(_readings(gold), _readings(answer)))


def _readings(expression: str) -> list[Any]:
    # People write 1/2x for half of x, and 1/2π for 1/(2π); sin x/2 for sin(x/2), and sin A/sin B for a quotient.
    found = [_parsed(expression)]
    if has_two_readings(expression):
        found.append(_parsed(expression, joined_below=True))
    return found


def _are_equal(parsed_gold: Any, parsed_answer: Any) -> bool:
    if _cannot_be_verified(parsed_gold) or _cannot_be_verified(parsed_answer):
        return False
    if _is_finite_set(parsed_gold) != _is_finite_set(parsed_answer) and (
        _has_an_order(parsed_gold) or _has_an_order(parsed_answer)
    ):
        return False  # to math-verify -2 < x < 3 is {-2, 3}
    if _are_small_and_differ(parsed_gold, parsed_answer):
        return False
    relations = _relations_of(parsed_gold)
    is_same_chain = relations is not None and relations == _relations_of(parsed_answer)
    if is_same_chain and type(parsed_gold) is type(parsed_answer):  # and not "or" beside "and"
        return True
    sets = [_solutions_of(each) for each in (parsed_gold, parsed_answer)]
    if None not in sets:  # x < 2 or x > 3, and its union of intervals
        names = [each.free_symbols for each in (parsed_gold, parsed_answer) if each.free_symbols]
        return sets[0] == sets[1] and all(each == names[0] for each in names)
    verify = require("math_verify", "rewards").verify
    return bool(verify(parsed_gold, parsed_answer, allow_set_relation_comp=True, timeout_seconds=None))


def _relations_of(expression: Any) -> set[Any] | None:
    """The inequalities of a chain, each in one direction: a > b > c is c < b < a. None: it is something else."""
    sympy = require("sympy", "rewards")
    is_chain = isinstance(expression, (sympy.And, sympy.Or))
    if not is_chain or not all(isinstance(part, sympy.Rel) for part in expression.args):
        return None
    relations = {part.canonical for part in expression.args}
    return relations if len(relations) == len(expression.args) else None


def _solutions_of(expression: Any) -> Any:
    """The real numbers that inequalities of one variable or intervals have. None: the expression is something else."""
    sympy = require("sympy", "rewards")
    if isinstance(expression, (sympy.Interval, sympy.Union)):
        return expression
    if not isinstance(expression, (sympy.Or, sympy.And)) or len(expression.free_symbols) != 1:
        return None
    try:
        found = expression.as_set()
    except (NotImplementedError, TypeError, ValueError):  # SymPy cannot solve it
        return None
    return None if found is sympy.S.EmptySet else found  # nothing would be the same as any other nothing


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
    inequalities = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
    return isinstance(expression, (sympy.Tuple, sympy.Interval, sympy.And, *inequalities))


def _cannot_be_verified(expression: Any) -> bool:
    """Whether an expression is not parsed, or a relation that SymPy knows to be true or false.

    Those would all be the same: 1 = 2, and x^2 = -1 for real numbers.
    """
    sympy = require("sympy", "rewards")
    if isinstance(expression, sympy.Rel):
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
def _parsed(expression: str, *, joined_below: bool = False) -> Any:
    """An expression of SymPy. None: it cannot be parsed."""
    parser = require("latex2sympy2_extended.latex2sympy2", "rewards")
    # math-verify's own parse would leave out what it takes for a unit, so that x + 2h would be x + 2, and it would make
    # all letters small, so that R^2 - r^2 would be 0. The rest is as it does it.
    normalization = parser.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    text = grouped(expression.replace("$", " "), joined_below=joined_below).strip()
    text = parser.normalize_latex(text, normalization)
    if _OR_AND.search(text):
        return _connected(text)
    parsed = _expression_of(text)
    if parsed is None and _EITHER_SIGN.search(text):
        both = [_expression_of(_EITHER_SIGN.sub(sign, text)) for sign in "+-"]
        return None if None in both else require("sympy", "rewards").FiniteSet(*both)
    return parsed


def _connected(text: str) -> Any:
    """Inequalities with "or" or "and" between them. None: they cannot be parsed, or both words connect them."""
    sympy = require("sympy", "rewards")
    parts = [_expression_of(part) for part in _OR_AND.split(text)]
    connectives = set(_OR_AND.findall(text))
    if len(connectives) > 1 or not all(isinstance(part, (sympy.Rel, sympy.And)) for part in parts):
        return None
    connect = sympy.Or if connectives == {r"\lor"} else sympy.And
    return connect(*parts)


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
