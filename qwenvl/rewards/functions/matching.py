"""Rewards for answers in words: choices, yes or no, exact and approximate text."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from qwenvl.files import require
from qwenvl.rewards.functions.text import CJK, normalized, pairs, unreadable

_SPLIT = re.compile(r"[\s,;/&]+")
_RUN = re.compile(r"[A-H]{2,8}")
_MARKED = re.compile(r"(?:^|[\n,;])[ \t]{0,8}[(\[]?([A-Z])[).:\]](?=\s|$)")
_SAID = re.compile(r"\b(?:[Aa]nswer|[Oo]ption|[Cc]hoice)s?(?: is| are)?:? ?[(\[]?([A-Z])\b")
# A wrapper of LaTeX without another one in it: what \boxed{\text{B}} says is found from the inside out.
_BOXED = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|mbox)\s{0,4}\{([^{}]*)\}")
_MOST_BOXES = 3
_YES_NO = re.compile(r"\b(?:yes|no)\b")
_WORD = re.compile(rf"[{CJK}]|[^\W_{CJK}]+")


def exact_match(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution are the same text, else 0.

    Case, runs of white space, outer dots and quotes, and full-width forms of characters do not matter.
    """
    return [
        float(answer is not None and normalized(answer) == normalized(truth))
        for answer, truth in pairs(completions, solution)
    ]


def multiple_choice(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    r"""1 if the answer chooses the same letters as the solution, else 0.

    Several letters compare as sets. Read as letters: "B", "b", "(B)", "B. some text", "A, C", "A and C", "AC" (A to H,
    rising), "the answer is B", and each of these in a LaTeX box, "\boxed{B}".
    """
    return [
        float(bool(letters(truth)) and letters(answer or "") == letters(truth))
        for answer, truth in pairs(completions, solution)
    ]


def yes_no(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution both say yes or both say no, else 0.

    An answer that begins with one of the words says it. One that holds only one of them elsewhere says that one.
    """
    return [
        float(affirms(answer or "") is not None and affirms(answer or "") == affirms(truth))
        for answer, truth in pairs(completions, solution)
    ]


def ocr(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - word error rate of the answer against the solution, not below 0.

    The word error rate is (substitutions + insertions + deletions) / words of the solution. Case and punctuation count.
    """
    word_error_rate = require("jiwer", "rewards").wer
    return [
        max(0.0, 1.0 - word_error_rate(truth, answer)) if answer else 0.0
        for answer, truth in pairs(completions, solution)
    ]


def rouge(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """Mean of the F measures of ROUGE-1, ROUGE-2 and ROUGE-L between answer and solution.

    Words are lower-cased runs of letters and digits, without stemming. Each Chinese or Japanese character is a word of
    its own.
    """
    scorer = require("rouge_score.rouge_scorer", "rewards").RougeScorer(["rouge1", "rouge2"], tokenizer=_Words())
    subsequence = require("rapidfuzz.distance", "rewards").LCSseq  # that of rouge-score is quadratic in plain Python
    scores = []
    for answer, truth in pairs(completions, solution):
        overlaps = scorer.score(truth, answer or "")
        expected, words = _Words().tokenize(truth), _Words().tokenize(answer or "")
        longest = 2 * subsequence.similarity(expected, words) / (len(expected) + len(words) or 1)
        scores.append((overlaps["rouge1"].fmeasure + overlaps["rouge2"].fmeasure + longest) / 3)
    return scores


def letters(text: str) -> set[str]:
    """The choices that a text makes, as capital letters.

    Example:
        >>> sorted(letters("(A), C")), sorted(letters("B. a cat")), sorted(letters("a cat"))
        (['A', 'C'], ['B'], [])
    """
    for _ in range(_MOST_BOXES):
        text = _BOXED.sub(r"\1", text)
    text = text.strip().strip("$")
    parts = [part for part in _SPLIT.split(text) if part]
    words = [part.strip("()[].:*") for part in parts if part not in ("and", "or")]
    is_list = len(words) < len(parts) or any(mark in text for mark in ",;/&")
    # "B. x" is the choice B with its text, "B x" and "(B) (X)" are two choices.
    if is_list or len({part[-1] in ").:]" for part in parts}) == 1:
        if all(len(word) == 1 and word.isascii() and word.isalpha() for word in words):
            return {word.upper() for word in words}
        if len(words) == 1 and _RUN.fullmatch(words[0]) and list(words[0]) == sorted(set(words[0])):
            return set(words[0])
    return set(_MARKED.findall(text)) or set(_SAID.findall(text))


def affirms(text: str) -> bool | None:
    """Whether a text says yes (True), no (False), or neither or both (None)."""
    plain = normalized(text)
    said = _YES_NO.findall(plain)
    if not said or (len(set(said)) > 1 and not plain.startswith(said[0])):
        return None
    return said[0] == "yes"


check_text = partial(unreadable, _WORD.search, "holds no word")
check_letters = partial(unreadable, letters, 'must choose letters like "B" or "A, C"')
check_yes_no = partial(unreadable, affirms, "must say yes or no")


class _Words:
    """A tokenizer for rouge-score."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.casefold())
