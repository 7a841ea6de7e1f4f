"""Prepares the text of a model for those who read it: finds tagged blocks and unifies characters, in linear time.

Blocks are found without regular expressions: with dots that match newlines they take quadratic time on unclosed or
repeated tags, and a policy writes such text early in training.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Tag = Literal["think", "answer"]
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

ANSWER_LIMIT = 10_000  # characters; no answer is that long, and reading one of a megabyte takes time
LONGEST_RUN_OF_MARKS = 30
_AROUND_TEXTS = " .\"'\u2018\u2019\u201c\u201d\u3002"  # dots and quotes, typographic ones too
TEXT_COMMANDS = "text|textrm|textbf|textit|mathrm|mathbf|mbox"
"""Commands of LaTeX around words, without their backslash, as a pattern."""

# A command of LaTeX around a text without another one in it: what \boxed{\text{B}} says is found from the inside out.
_WRAPPED = re.compile(rf"\\(?:boxed|fbox|{TEXT_COMMANDS})\s{{0,4}}\{{([^{{}}]*)\}}")
_MOST_WRAPPERS = 3
_FENCED = re.compile(r"\s{0,9}```[a-z]{0,20}[^\S\n]{0,9}\n([^`]*)```\s{0,9}")
_EMPHASIZED = re.compile(r"(?<![\w*])(\*{1,3}|`)(?!\s)([^*`\n]+)(?<!\s)\1(?![\w*])")
_UNDERLINED = re.compile(r"(?<!\w)(_{1,2})(?!\s)([^_\n]+)(?<!\s)\1(?!\w)")
_IN_DOLLARS = re.compile(r"[\"']?\${1,2}([^$]*)\${1,2}[.\"']{0,2}")
GRAPHEME_JOINER = "\u034f"  # an invisible character that marks on both sides of it are not ordered across


class Block(NamedTuple):
    """A tagged block: ``text[start:end]`` with its tags, ``inner`` without."""

    start: int
    end: int
    inner: str


def first_block(text: str, tag: Tag) -> Block | None:
    """The first ``<tag>...</tag>``, from the first opening tag to the next closing one, or None without such a pair.

    Example:
        >>> first_block("so <answer>(1)</answer>", "answer")
        Block(start=3, end=23, inner='(1)')
    """
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    start = text.find(opening)
    if start < 0:
        return None
    close = text.find(closing, start + len(opening))
    if close < 0:
        return None
    return Block(start, close + len(closing), text[start + len(opening) : close])


def tag_problem(text: str, tag: Tag, *, may_be_opened: bool = False) -> str | None:
    """The reason why a text has no single block of a tag that can be read. None: it has one, or no such tag.

    Args:
        may_be_opened: the prompt may have opened the block, which the text closes.

    Example:
        >>> tag_problem("<answer>(1)", "answer")
        'has 1 <answer> and 0 </answer>; expected one block'
    """
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    opened = text.count(opening)
    closed = text.count(closing)
    is_block = opened == closed == 1 and text.index(opening) < text.index(closing)
    if is_block or opened == closed == 0 or (may_be_opened and (opened, closed) == (0, 1)):
        return None
    return f"has {opened} {opening} and {closed} {closing}; expected one block"


def thinking_of(text: str, opened: bool) -> tuple[str, bool] | None:
    """The thinking part of a turn, and whether it was closed. None: the turn has no such part.

    Args:
        opened: the prompt ends inside a think block, which the turn continues.

    Example:
        >>> thinking_of("left or</think> right", opened=True), thinking_of("<think>left or", opened=False)
        (('left or', True), ('left or', False))
    """
    before, opening, behind = text.partition("<think>")
    if opened:
        # A model may repeat the tag that its prompt has opened the block with.
        behind = behind if opening and not before.strip() else text
    elif not opening:
        return None
    thinking, closing, _ = behind.partition("</think>")
    return thinking, bool(closing)


def _answer_block(text: str) -> Block | None:
    """The first answer block behind the thinking, which may hold drafts, or else the first at all."""
    _, closed, behind = text.rpartition("</think>")  # turns with tools in between think several times
    block = first_block(behind, "answer") if closed else None
    return block or first_block(text, "answer")


def answer_of(completion: str) -> str | None:
    """The content of the answer block, as ``unified`` writes it, without outer white space.

    It is the first block behind the thinking, or where none follows it the first of the completion. None where there is
    no block, or one of more than 10,000 characters: that is no answer, and reading it takes time.
    """
    block = _answer_block(completion)
    if block is None or len(block.inner) > ANSWER_LIMIT:
        return None
    answer = unified(block.inner).strip()
    return answer if len(answer) <= ANSWER_LIMIT else None


def solution_of(solution: str) -> str:
    """The text of a solution as ``unified`` writes it: its answer block, or what follows its thinking.

    Example:
        >>> solution_of("<think>not (1)</think> (2)"), solution_of("(2)")
        ('(2)', '(2)')
    """
    block = _answer_block(solution)
    if block is None:
        return unified(solution.rpartition("</think>")[2]).strip()
    return unified(block.inner).strip()


def pairs(completions: Sequence[str], solutions: Sequence[str]) -> list[tuple[str | None, str]]:
    """The answer of each completion, None where it has none, beside what its record's solution says."""
    return [(answer_of(text), solution_of(truth)) for text, truth in zip(completions, solutions, strict=True)]


def alike(read: Callable[[str], Any], completions: list[str], solution: list[str]) -> list[float]:
    """1 where ``read`` finds something in the solution and the same in the answer, else 0."""
    scores = []
    for answer, truth in pairs(completions, solution):
        expected = read(truth)
        is_readable = answer is not None and expected not in (None, set())
        scores.append(float(is_readable and read(answer or "") == expected))
    return scores


def unreadable(
    read: Callable[[str], Any], expected: str, solution: str, fields: Mapping[str, Any] | None = None
) -> str | None:
    """The reason why a record cannot be scored by what ``read`` finds in its solution: nothing. Else None.

    Example:
        >>> unreadable(str.split, "must have words", "<answer> </answer>")
        "the solution must have words, got '<answer> </answer>'"
    """
    nothing = read(solution_of(solution)) in (None, [], set())
    return f"the solution {expected}, got {solution[:80]!r}" if nothing else None


def unified(text: str) -> str:
    """One way of writing what Unicode can write in several, in linear time: full-width forms become plain ones.

    This is NFKC with three differences. Superscripts, subscripts and fractions stay as they are: x² is not x2. A sign
    in a circle is one in brackets: ② is (2), and ②③ is not 23. And runs of combining marks are broken after 30, as the
    stream-safe text format of Unicode annex 15 breaks them, because putting a run of n marks in order takes n² steps.

    Example:
        >>> unified("（１）　Ｂ"), unified("12㎡")
        ('(1) B', '12m²')
    """
    if text.isascii():
        return text
    characters = []
    marks = 0
    for character in "".join(map(_decomposed, text)):
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > LONGEST_RUN_OF_MARKS:
            characters.append(GRAPHEME_JOINER)
            marks = 1
        characters.append(character)
    return unicodedata.normalize("NFC", "".join(characters))


def without_commands(text: str) -> str:
    r"""A text without the boxes and the text commands of LaTeX around parts of it, three in each other at most.

    Example:
        >>> without_commands(r"\boxed{\text{(B)}}"), without_commands(r"\boxed{B")
        ('(B)', '\\boxed{B')
    """
    for _ in range(_MOST_WRAPPERS):
        text = _WRAPPED.sub(r"\1", text)
    return text


def unmarked(text: str) -> str:
    r"""A text without what shows it otherwise: code fences, Markdown's emphasis, boxes of LaTeX.

    Example:
        >>> unmarked("**open door**, **close door**"), unmarked(r"$\boxed{7}$"), unmarked("2*3*4")
        ('open door, close door', '7', '2*3*4')
    """
    fenced = _FENCED.fullmatch(text)
    if fenced is not None:
        text = fenced[1]
    text = _UNDERLINED.sub(r"\2", _EMPHASIZED.sub(r"\2", without_commands(text))).strip()
    in_dollars = _IN_DOLLARS.fullmatch(text)
    return text if in_dollars is None else in_dollars[1]


def normalized(text: str) -> str:
    """A text of ``answer_of`` or ``solution_of`` in lower case, with single spaces, without outer dots and quotes.

    Example:
        >>> normalized(" The  Fan. "), normalized(".5")
        ('the fan', '.5')
    """
    plain = " ".join(text.casefold().split()).rstrip(_AROUND_TEXTS)
    stripped = plain.lstrip(_AROUND_TEXTS)
    # The point of .5 is no outer dot.
    is_fraction = stripped[:1].isdecimal() and plain.removesuffix(stripped).endswith(".")
    return f".{stripped}" if is_fraction else stripped


@lru_cache(maxsize=4096)
def _decomposed(character: str) -> str:
    """The characters that one is made of by its own compatibility mapping and theirs, superscripts kept whole."""
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    if not kind or kind in ("<super>", "<sub>", "<fraction>"):
        return character
    codes = codes if kind.startswith("<") else [kind, *codes]
    parts = "".join(_decomposed(chr(int(code, 16))) for code in codes)
    return f"({parts})" if kind == "<circle>" else parts
