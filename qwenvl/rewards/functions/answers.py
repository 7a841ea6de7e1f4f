"""Rewards for answers in words (yes or no, text), in numbers, and in arithmetic (Countdown)."""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Annotated, Any

from qwenvl.characters import CJK
from qwenvl.files import require
from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.text import alike, answer_of, normalized, pairs, unreadable

_YES_NO = re.compile(r"\b(?:yes|no)\b")
_NEITHER = re.compile(r"^(?:yes|no)\s?(?:/|\bor\b)\s?(?:yes|no)\b|(?:\bnot|n't|\bnever|\bcannot say) (?:yes|no)\b")
_ANSWER_IS = re.compile(r"\banswer(?: is|:) (yes|no)\b(?!\s?(?:/|or\b|and\b))")
_BOTH = re.compile(r"(?:yes|no)\W{0,4}(?:(?:or|and|but)\b\W{0,4}(?:also\s)?)?(?:yes|no)\W*")  # and nothing else
# Vowel signs and accents of many scripts are marks, which belong to the letters in front of them.
_BLOCKS_WITH_MARKS = (range(0x300, 0x1E00), range(0x20D0, 0x2100), range(0xA600, 0xAC00), range(0x10A00, 0x12000))
# `re` knows no class of characters for them. A search of all of Unicode would take a twentieth of a second.
_MARKS = "".join(sign for sign in map(chr, chain(*_BLOCKS_WITH_MARKS)) if unicodedata.category(sign).startswith("M"))
_WORD = re.compile(rf"[{CJK}]|[^\W_{CJK}](?:[^\W_{CJK}]|[{_MARKS}])*")


def exact_match(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution are the same text, else 0.

    Case, runs of white space, outer dots and quotes, and full-width forms of characters do not matter.
    """
    return alike(normalized, completions, solution)


def yes_no(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution both say yes or both say no, else 0.

    An answer that begins with one of the words says it. One that holds only one of them elsewhere says that one.
    "yes or no", "yes/no" and "not yes" say neither.
    """
    return alike(affirms, completions, solution)


def ocr(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - word error rate of the answer against the solution, not below 0.

    The word error rate is (substitutions + insertions + deletions) / words of the solution. Case and punctuation count.
    """
    word_error_rate = require("jiwer", "rewards").wer
    scores = []
    for answer, truth in pairs(completions, solution):
        read = " ".join((answer or "").split())  # words may stand on lines of their own
        expected = " ".join(truth.split())
        scores.append(max(0.0, 1.0 - word_error_rate(expected, read)) if read else 0.0)
    return scores


def rouge(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """Mean of the F measures of ROUGE-1, ROUGE-2 and ROUGE-L between answer and solution.

    A solution of one word has no pair of words, so ROUGE-2 is left out of its mean: the same word scores 1. Words are
    lower-cased runs of letters and digits, without stemming. Each Chinese or Japanese character is a word of its own.
    """
    tokenizer = SimpleNamespace(tokenize=_words)
    scorer = require("rouge_score.rouge_scorer", "rewards").RougeScorer(["rouge1", "rouge2"], tokenizer=tokenizer)
    subsequence = require("rapidfuzz.distance", "rewards").LCSseq  # that of rouge-score is quadratic in plain Python
    scores = []
    for answer, truth in pairs(completions, solution):
        overlaps = scorer.score(truth, answer or "")
        expected = _words(truth)
        words = _words(answer or "")
        longest = 2 * subsequence.similarity(expected, words) / (len(expected) + len(words) or 1)
        measures = [overlaps["rouge1"].fmeasure, longest]
        if len(expected) > 1:
            measures.insert(1, overlaps["rouge2"].fmeasure)
        scores.append(sum(measures) / len(measures))
    return scores


def affirms(text: str) -> bool | None:
    """Whether a text says yes (True), no (False), or neither or both (None)."""
    plain = normalized(text)
    said = _ANSWER_IS.findall(plain) or _YES_NO.findall(plain)
    if not said or _NEITHER.search(plain):
        return None
    if len(set(said)) > 1 and (_BOTH.fullmatch(plain) or not plain.startswith(said[0])):
        return None
    return said[0] == "yes"


check_text = partial(unreadable, _WORD.search, "holds no word")
check_yes_no = partial(unreadable, affirms, "must say yes or no")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


# ---- numbers

Tolerance = Annotated[float, Argument("Error that is accepted, times the solution where that is above 1.", least=0)]

# A number with a superscript or a fraction behind it, 2² or 3½, is another one than its digits, and is not read.
# Nor is 2.5k, 2.5 k, 1.5 million, 2 dozen, or 2π.
# Thousands may be set apart by commas, and 0,125 has none.
# Lengths are bounded so that a number is always one that can be computed with.
_NUMBER = re.compile(
    r"(?<![0-9.])[-+]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3}){1,6}(?![0-9])|[0-9]{1,30})(?:\.[0-9]{1,30})?"
    r"(?:[eE][-+]?[0-9]{1,2})?(?!\.?[0-9]|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e])"
    r"(?!B\b|\s?(?:\u03c0|\\?pi\b)|\s?(?:[kKM]|(?i:hundred|thousand|million|billion|trillion|dozen|lakh|crore|bn|mn|mio|mrd)s?)\b|\s?[\u4e07\u5343\u4ebf\u767e\u5341])"
)

# ".5" is written "0.5": a dot alone in front of digits is what takes them for no number.
_WITHOUT_A_ZERO = re.compile(rf"(?<!\.)(?<![^\W{CJK}])\.(?=[0-9])")
_DASH = r"[-\u2010-\u2015\u2212]"
# A dash in front of a number is a minus sign, however it is typed. In 3\u20135 it stands between numbers.
_MINUS = re.compile(rf"(?<![.)])(?<![^\W{CJK}]){_DASH}(?=[0-9])")
_MINUS_IN_WORDS = re.compile(r"\b(?:minus|negative)\s(?=[0-9])", re.IGNORECASE)
_HYPHEN = re.compile(rf"(?<=[^\W\d_{CJK}])(?<![0-9][eE])-(?=[0-9])")  # of "step-3", and not of 2e-3
# One apart from its number may be a minus sign, begin an item of a list, or stand between a word and the number.
_UNCLEAR_MINUS = re.compile(rf"(?<![0-9)])(?<![0-9)]\s){_DASH}\s{{1,20}}(?=[0-9])")
# Powers of ten as e: 3×10⁸ and 3 x 10^8 are 3e8.
_TIMES_TEN = re.compile(
    r"(?<=[0-9])\s?(?:[\u00d7\u22c5\u00b7xX*]|\\(?:times|cdot))\s?10\s?"
    r"(?:\^\s?\{?([-\u2212]?[0-9]{1,2})\}?|([\u207b\u207a]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{1,2}))(?![0-9])"
)
_POWER_OF_LETTERS = re.compile(r"(?<=[A-Za-z}])\^\{?-?[0-9]\}?")  # of 24 cm^2
_CURRENCY = "$\u20ac\u00a3\u00a5"
_SIGNED_CURRENCY = re.compile(rf"([-\u2010-\u2015\u2212])\s?[{_CURRENCY}]\s?(?=[0-9.])")  # -$5
# What has other numbers than those that are read: 2³ + 1, √3 + 1, 5 ½ and 5 ± 1.
_OTHER_NUMBERS = re.compile(
    r"[0-9]\s?[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e](?![0-9])|\u00b1|\+/-|\u221a|\\?sqrt\b|[0-9]\s?(?:\u03c0|\\?pi\b)"
)
_FUNCTION_OF = re.compile(r"(?:\u221a|\bsqrt|\\(?:sqrt|log|ln|exp|sin|cos|tan))\s?[({\[]?\s?[-+]?(?=[0-9])")
_NO_NUMBER = "."  # in front of digits, which then are none

_CHARACTERS = frozenset("0123456789+-*/()= \t\n.")
_LONGEST = 200
_MOST_NODES = 64
_LARGEST = 10**6
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def numbers_in(text: str) -> list[Decimal]:
    """The numbers of a text: ``-3``, with a dash as minus sign too, ``0.5``, ``.5``, ``1,000``, ``2e-3``.

    Not those of ``- 3`` and ``sqrt(3)``, and two of ``0,125``.

    Example:
        >>> numbers_in("1,250 of 3.0 or -2")
        [Decimal('1250'), Decimal('3.0'), Decimal('-2')]
    """
    text = _POWER_OF_LETTERS.sub("", _TIMES_TEN.sub(_with_e, text))
    text = _MINUS_IN_WORDS.sub("-", _WITHOUT_A_ZERO.sub("0.", _SIGNED_CURRENCY.sub(r"\1", text)))
    text = _FUNCTION_OF.sub(_NO_NUMBER, text)
    text = _UNCLEAR_MINUS.sub(_NO_NUMBER, _MINUS.sub("-", _HYPHEN.sub(" ", text)))
    return [Decimal(number.replace(",", "")) for number in _NUMBER.findall(text)]


def _with_e(found: re.Match[str]) -> str:
    exponent = unicodedata.normalize("NFKC", found[1] or found[2]).replace("\u2212", "-")
    return f"e{exponent}"


def only_number(text: str | None) -> Decimal | None:
    """The number of a text that holds exactly one, or None for none or several."""
    if text is None or _OTHER_NUMBERS.search(_TIMES_TEN.sub(_with_e, text)):
        return None
    numbers = numbers_in(text)
    return numbers[0] if len(numbers) == 1 else None


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


def countdown(completions: list[str], nums: list[list[int]], target: list[float], **columns: Any) -> list[float]:
    """1 if the answer's expression uses each of the record's ``nums`` once and equals ``target`` within 1e-5, else 0.

    The expression is the text left of any ``=``. It has + - * / and parentheses over whole numbers, no ``**`` and no
    ``//``, and is computed in exact fractions. Right of ``=`` only arithmetic is allowed. An answer has at most 200
    characters.
    """
    return [
        float(solves(answer_of(text) or "", numbers, goal))
        for text, numbers, goal in zip(completions, nums, target, strict=True)
    ]


def solves(answer: str, numbers: list[int], target: float) -> bool:
    """Whether an expression uses exactly these numbers and reaches the target.

    Example:
        >>> solves("(7 - 3) * 6 = 24", [3, 6, 7], 24), solves("9**9**9**9", [9, 9, 9, 9], 1)
        (True, False)
    """
    if len(answer) > _LONGEST or not _CHARACTERS.issuperset(answer):
        return False
    try:
        tree = ast.parse(answer.split("=")[0].strip(), mode="eval").body
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            return False
        used: list[int] = []
        value = _evaluate(tree, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return sorted(used) == sorted(numbers) and abs(value - Fraction(target)) <= Fraction(1, 100_000)


def check_countdown(solution: str, fields: Mapping[str, Any]) -> str | None:
    """The reason why a record is no Countdown game: ``nums`` or ``target`` is missing or of another kind. Else None."""
    nums = fields.get("nums")
    target = fields.get("target")
    if not isinstance(nums, list) or not nums or not all(type(n) is int and 0 <= n <= _LARGEST for n in nums):
        return f"the field 'nums' must be a list of whole numbers from 0 to {_LARGEST}, got {nums!r}"
    if isinstance(target, bool) or not isinstance(target, int | float) or not abs(target) <= _LARGEST:
        return f"the field 'target' must be a number up to {_LARGEST}, got {target!r}"
    return None


def _evaluate(node: ast.AST, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _LARGEST:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, used)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluate(node.left, used), _evaluate(node.right, used))
    raise ValueError("only whole numbers, + - * / and parentheses are read")
