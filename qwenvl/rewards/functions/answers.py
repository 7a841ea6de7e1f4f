"""Rewards for answers in words (yes or no, text) and in arithmetic (Countdown)."""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from qwenvl.characters import CJK
from qwenvl.files import require
from qwenvl.rewards.functions.text import alike, answer_of, normalized, pairs, unmarked, unreadable

_YES_NO = re.compile(r"\b(?:yes|no)\b")
_NEITHER = re.compile(r"^(?:yes|no)\s?(?:/|\bor\b)\s?(?:yes|no)\b")
_NEGATED = re.compile(r"(?:n't(?: be)?|\bnever|\bcannot say|\bnot) (?:yes|no)\b")
_ANSWER_IS = re.compile(r"\banswer(?: is:?|:) (yes|no)!{0,3}\Z")
_BOTH = re.compile(r"(?:yes|no)\W{0,4}(?:(?:or|and|but)\b\W{0,4}(?:also\s)?)?(?:yes|no)\W*")  # and nothing else
# Vowel signs and accents of many scripts are marks, which belong to the letters in front of them.
_BLOCKS_WITH_MARKS = (range(0x300, 0x1E00), range(0x20D0, 0x2100), range(0xA600, 0xAC00), range(0x10A00, 0x12000))
# `re` knows no class of characters for them. A search of all of Unicode would take a twentieth of a second.
_MARKS = "".join(sign for sign in map(chr, chain(*_BLOCKS_WITH_MARKS)) if unicodedata.category(sign).startswith("M"))
_WORD = re.compile(rf"[{CJK}]|[^\W_{CJK}](?:[^\W_{CJK}]|[{_MARKS}])*")


def exact_match(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution are the same text, else 0.

    Case, runs of white space, outer dots and quotes, and full-width forms of characters do not matter, nor do Markdown,
    "**dog**", and a box of LaTeX.
    """
    return alike(lambda text: normalized(unmarked(text)), completions, solution)


def yes_no(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution both say yes or both say no, else 0.

    An answer that begins with one of the words says it, and so does one that ends with "the answer is yes". One that
    holds only one of them elsewhere says that one.
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
    plain = normalized(unmarked(text))
    said = _ANSWER_IS.findall(plain) or _YES_NO.findall(plain)
    begins_so = _YES_NO.match(plain) is not None
    if not said or _NEITHER.search(plain) or (_NEGATED.search(plain) and not begins_so):
        return None
    if len(set(said)) > 1 and (_BOTH.fullmatch(plain) or not plain.startswith(said[0])):
        return None
    return said[0] == "yes"


check_text = partial(unreadable, _WORD.search, "holds no word")
check_yes_no = partial(unreadable, affirms, "must say yes or no")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


# ---- arithmetic

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
