"""Rewards for answers in words (choices, yes or no, text), in numbers, and in arithmetic (Countdown)."""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Annotated, Any

from qwenvl.characters import CJK
from qwenvl.files import require
from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.text import answer_of, normalized, pairs, solution_of, unreadable

_SPLIT = re.compile(r"[\s,;/&\u3001]+")
_RUN = re.compile(r"[A-H]{2,8}")
# "B. a cat", "b) a cat" and, with Chinese signs and no space, "B、..."
_MARKED = re.compile(
    r"(?P<before>^|[\n,;/&|]|\b(?:and|or)\b)[ \t]{0,8}(?P<bracket>[(\[]?)"
    rf"(?:(?P<capital>[A-Z])(?:[).:\]](?=\s|$|[{CJK}])|[\u3001\u3002])|(?P<small>[a-z])[).:\]](?=\s))"
)
_OPTIONS = "ABCDEFGH"
_LAST_OPTION = _OPTIONS[-1]  # letters behind it begin names: "B. Carl and J. Smith"
# "(A) left (C) up". Behind another notation, "B. screw (A)", brackets belong to a text.
_IN_BRACKETS = re.compile(r"(?:(?<=\s)|^)[(\[]([A-Z])[)\]](?=\s|$)")
# In front of a choice, in words and in Chinese.
_ANNOUNCED = r"\b(?i:answer|option|choice|antwort)s?(?: is| are)?"
_ANNOUNCED_IN_CHINESE = "答案[是为為]?|选项?"
# A small letter must end what is said: "the answer is a man" chooses nothing.
_SAID = re.compile(
    # "Option A, not option B" chooses one.
    rf"(?:(?<!\bnot ){_ANNOUNCED}|{_ANNOUNCED_IN_CHINESE}):? ?"
    # "Answer: A man" chooses nothing either, and "the answer is A because" does.
    r"[(\[]?(?:([A-Z])\b(?!(?<=A) (?!(?:as|and|because|but|for|if|is|or|since|which|with)\b)[a-z])"
    # "Option B is wrong" chooses nothing.
    r"(?![)\]]?\s{1,4}(?:is|are)\s{1,4}(?:not|incorrect|wrong|false)\b)"
    r"|([a-z])(?=[)\]]?\s{0,4}[.,;]?\s{0,4}(?:$|\n)))"
)
# "the answer is A or B": several letters, and not the first one.
_SAID_SEVERAL = re.compile(
    rf"(?:{_ANNOUNCED}|{_ANNOUNCED_IN_CHINESE}):? ?"
    # "I" before a word is no choice: "the answer is B, I am sure".
    r"([(\[]?[A-Z][)\]]?(?:\s{0,4}(?:,|/|&|、|和|,? ?\b(?:and|or)\b)\s{0,4}(?!I\s+[a-z])[(\[]?[A-Z]\b[)\]]?)+)"
)
# "D. A and B": a letter with the text of its option, and no list.
_WITH_A_TEXT = re.compile(r"[(\[]?([A-Za-z])[).:\]][ \t]{1,8}(?!(?:and|or)\b)\w")
# A letter that may be another choice: "A. left C. up".
_LONE_MARK = re.compile(r"(?<![\w(\[])([A-H])[).:\]](?=\s{1,9}\S)|[,;]\s{0,4}([A-H])[).:\]]\s{0,4}\Z")
# A solution that accepts several letters, and not all of them together: "B or C".
_OR_ANOTHER = re.compile(r"(?<!\w)[A-Z][)\]]?,? or [(\[]?[A-Z](?!\w)")
# A wrapper of LaTeX without another one in it: what \boxed{\text{B}} says is found from the inside out.
_BOXED = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|mbox)\s{0,4}\{([^{}]*)\}")
_MOST_BOXES = 3
_MARKUP = str.maketrans("", "", "*`$")  # of Markdown and LaTeX: **B**, $B$
_AROUND_CHOICE = "()[]{}.:\u3002\u3001"
_QUOTED_LETTER = re.compile(r"(['\"])([A-Z])\1")
# A letter and what is said of it: "B - left", "B (left)", "B because it moves", "B is correct", "I choose B".
_CHOICE = r"[(\[]?([A-H])[)\]]?"
_BEFORE_ITS_TEXT = rf"{_CHOICE}\s{{1,4}}[-\u2010-\u2015\u2192]\s{{1,4}}\w{{2,}}"
_SAID_ALONE = (
    re.compile(rf"{_BEFORE_ITS_TEXT}(?!(?s:.){{0,2000}}[\s,;]{_BEFORE_ITS_TEXT})"),
    re.compile(r"([A-H])\s{1,4}\([^()]{2,}\)\Z"),
    re.compile(rf"{_CHOICE},?\s{{1,4}}(?:because|since|as)\b"),
    re.compile(rf"{_CHOICE} (?:is|would be) (?:the )?(?:correct|right|best)(?: answer| option| choice| one)?[.!]?\Z"),
    re.compile(rf"(?i:(?:I|we)(?:'d| would| will)? (?:choose|pick|select|say|go with)) {_CHOICE}[.!]?\Z"),
    re.compile(rf"(?i:it(?: is|'s|\u2019s)) {_CHOICE}[.!]?\Z"),
)
_YES_NO = re.compile(r"\b(?:yes|no)\b")
_NEITHER = re.compile(r"^(?:yes|no)\s?(?:/|\bor\b)\s?(?:yes|no)\b|\bnot (?:yes|no)\b")
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
    return _alike(normalized, completions, solution)


def multiple_choice(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    r"""1 if the answer chooses the same letters as the solution, else 0.

    Several letters compare as sets. Read as letters: "B", "b", "(B)", "B. some text", "b) some text", "A, C", "A and
    C", "AC" (A to H, rising), "the answer is B", "I choose B", "B because it moves", and each
    of these in quotes, in Markdown, "**B**", or in a LaTeX box, "\boxed{B}".
    """
    return _alike(letters, completions, solution)


def yes_no(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 if answer and solution both say yes or both say no, else 0.

    An answer that begins with one of the words says it. One that holds only one of them elsewhere says that one.
    "yes or no", "yes/no" and "not yes" say neither.
    """
    return _alike(affirms, completions, solution)


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


def letters(text: str) -> set[str]:
    """The choices that a text makes, as capital letters.

    Example:
        >>> sorted(letters("(A), C")), sorted(letters("B. a cat")), sorted(letters("a cat"))
        (['A', 'C'], ['B'], [])
        >>> sorted(letters("The answer is A or B.")), sorted(letters("The answer is B."))
        (['A', 'B'], ['B'])
    """
    for _ in range(_MOST_BOXES):
        text = _BOXED.sub(r"\1", text)
    text = text.translate(_MARKUP).strip().strip("\"'\u201c\u201d\u300c\u300d")
    text = _QUOTED_LETTER.sub(r"\2", text).replace(")(", ") (")
    said_alone = [found[1] for found in (pattern.match(text) for pattern in _SAID_ALONE) if found]
    if said_alone:
        return set(said_alone)
    parts = [part for part in _SPLIT.split(text) if part]
    words = [part.strip(_AROUND_CHOICE) for part in parts if part not in ("and", "or")]
    are_marked = {part[-1] in ").:]" for part in parts}
    is_list = len(words) < len(parts) or any(mark in text for mark in ",;/&")
    if _WITH_A_TEXT.match(text) and are_marked == {True, False}:
        is_list = False
    # "B. x" is the choice B with its text, "B x" and "(B) (X)" are two choices.
    if is_list or len(are_marked) == 1:
        if all(len(word) == 1 and word.isascii() and word.isalpha() for word in words):
            return {word.upper() for word in words}
        if len(words) == 1 and _RUN.fullmatch(words[0]) and list(words[0]) == sorted(set(words[0])):
            return set(words[0])
    several = _SAID_SEVERAL.search(text)
    said = _SAID.search(text)
    # Not those of "D. Both options A and B" and of "The answer is D because options A and B are wrong".
    is_first = several is not None and (said is None or several.start() <= said.start())
    if several is not None and is_first and not _WITH_A_TEXT.match(text):
        return set(re.findall("[A-Z]", several[1]))
    if said is not None and not _MARKED.match(text):
        choices = [(capital or small).upper() for capital, small in _SAID.findall(text)]
        return set(choices[:1]) if several else set(choices)
    if _IN_BRACKETS.match(text):
        in_brackets = _IN_BRACKETS.findall(text)
        return _marked(text) | {letter for letter in in_brackets if in_brackets[0] <= letter <= _LAST_OPTION}
    return _marked(text)


def _marked(text: str) -> set[str]:
    """The letters with a sign behind them, of which the first one says how the others are written.

    Within a line only those count that follow the last one in the alphabet and have a text: in "D. Both A and B."
    and "B. Carl and J. Smith" there is one choice.
    """
    chosen: list[str] = []
    notation = None
    for found in _MARKED.finditer(text):
        letter = (found["capital"] or found["small"]).upper()
        own = (bool(found["bracket"]), bool(found["capital"]))
        if notation is None:
            notation = own
            chosen.append(letter)
            continue
        begins_a_line = found["before"] in ("", "\n")
        follows = chosen[-1] < letter <= _LAST_OPTION and bool(text[found.end() :].strip())
        if own == notation and (begins_a_line or follows):
            chosen.append(letter)
    return set() if _lists_options(text, chosen) else set(chosen)


def _lists_options(text: str, chosen: Sequence[str]) -> bool:
    """Whether a text lists all options in a line, "A. left B. right C. up", of which the first would be the choice.

    A single other letter may belong to the text of an option, "B. Vitamin D. It helps", and so may letters that do not
    follow each other.
    """
    others = _other_marks(text, chosen)
    in_order = "".join(sorted(others.union(chosen)))
    return len(others) > 1 and in_order in _OPTIONS


def _other_marks(text: str, chosen: Iterable[str]) -> set[str]:
    """The letters of a text that may be choices, too, beside those that are read as chosen."""
    return {mark or last for mark, last in _LONE_MARK.findall(text)} - set(chosen)


def affirms(text: str) -> bool | None:
    """Whether a text says yes (True), no (False), or neither or both (None)."""
    plain = normalized(text)
    said = _YES_NO.findall(plain)
    if not said or _NEITHER.search(plain):
        return None
    if len(set(said)) > 1 and (_BOTH.fullmatch(plain) or not plain.startswith(said[0])):
        return None
    return said[0] == "yes"


def _alike(read: Callable[[str], Any], completions: list[str], solution: list[str]) -> list[float]:
    """1 where ``read`` finds something in the solution and the same in the answer, else 0."""
    scores = []
    for answer, truth in pairs(completions, solution):
        expected = read(truth)
        is_readable = answer is not None and expected not in (None, set())
        scores.append(float(is_readable and read(answer or "") == expected))
    return scores


def check_letters(solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
    """The reason why a solution chooses no letters, or leaves open which. None: it chooses some."""
    text = solution_of(solution)
    if _OR_ANOTHER.search(text):
        return f"the solution must choose letters, and all of them are compared: which is right, {solution[:80]!r}?"
    chosen = letters(text)
    others = _other_marks(text, chosen)
    if chosen and others:
        return f"the solution must choose letters, and {solution[:80]!r} may choose {others.pop()} too: write A, C"
    return unreadable(letters, 'must choose letters like "B" or "A, C"', solution)


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
    r"(?!B\b|\s?(?:\u03c0|\\?pi\b)|\s?(?:[kKM]|(?i:hundred|thousand|million|billion|trillion|dozen|lakh|crore|bn|mn|mio|mrd)s?)\b|\s?[\u4e07\u5343\u4ebf])"
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
    text = _MINUS_IN_WORDS.sub("-", _WITHOUT_A_ZERO.sub("0.", text))
    text = _FUNCTION_OF.sub(_NO_NUMBER, text)
    text = _UNCLEAR_MINUS.sub(_NO_NUMBER, _MINUS.sub("-", _HYPHEN.sub(" ", text)))
    return [Decimal(number.replace(",", "")) for number in _NUMBER.findall(text)]


def only_number(text: str | None) -> Decimal | None:
    """The number of a text that holds exactly one, or None for none or several."""
    numbers = numbers_in(text or "")
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
