"""Prompts made of a question, its options and the form of the answer, and solutions made of an answer.

The words are ours: benchmarks word the request for an answer differently, each in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qwenvl.data.errors import kind_of

CHOICE, NUMBER, REGRESSION = "multiple choice", "numerical", "regression"
OCR, WORDS, YES_NO, SPAN, LABELS = "OCR", "free-form", "yes or no", "temporal grounding", "labels"

ASKED_FOR = {
    CHOICE: "the letter of the right option",
    NUMBER: "a number",
    REGRESSION: "a number",
    OCR: "the text as it is written",
    WORDS: "the answer in words",
    YES_NO: "yes or no",
    SPAN: "start and end in seconds, with the word to between them,",
    LABELS: "the labels, with commas between them,",
}
"""What a prompt asks for by kind of answer. The kind is the record's field ``problem_type``, which rewards may read."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERED = re.compile(r"\s*\(?([A-Z])\s*[).:]")
_LETTER_ALONE = re.compile(r"\(?([A-Z])[).:]?")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:[.,][0-9]+)*%?")


class Option(NamedTuple):
    """One of several answers."""

    letter: str
    text: str


def options_of(given: Any, key: str = "options") -> list[Option]:
    """The options of a question: a list of texts, with or without letters in front, or texts by letter.

    Raises:
        ValueError: something else, or more than 26.

    Example:
        >>> options_of(["A. a cat", "B. a dog"]) == options_of({"A": "a cat", "B": "a dog"})
        True
    """
    if isinstance(given, Mapping):
        named = [(str(letter), text) for letter, text in given.items() if text not in (None, "")]
        texts = [text for _, text in named]
        letters = [letter.strip().upper() for letter, _ in named]
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        texts = [str(text) if isinstance(text, int | float) else text for text in given]
        letters = list(_LETTERS[: len(texts)])
        found = [_LETTERED.match(text) if isinstance(text, str) else None for text in texts]
        if all(match and match[1] == letter for match, letter in zip(found, letters, strict=False)):
            texts = [text[match.end() :].strip() for text, match in zip(texts, found, strict=True)]
    else:
        raise ValueError(f"{key}: expected a list of options or options by letter, got {kind_of(given)}")
    if not texts or not all(isinstance(text, str) for text in texts) or len(texts) > len(_LETTERS):
        raise ValueError(f"{key}: expected 1 to 26 options, each a text, got {kind_of(given)}")
    return [Option(letter, text.strip()) for letter, text in zip(letters, texts, strict=True)]


def asked(question: str, options: Sequence[Option] = ()) -> str:
    """A question with its options, each on a line. One that has all options in it lists them itself."""
    lines = [question.strip()]
    if not all(re.search(rf"\b{option.letter}[).:] ?{re.escape(option.text)}", question) for option in options):
        lines += [f"{option.letter}. {option.text}" for option in options]
    return "\n".join(lines)


def with_form(prompt: str, kind: str) -> str:
    """A prompt with the form in which to answer. One that mentions ``<answer>`` says itself how to answer."""
    if "<answer>" in prompt:
        return prompt
    wanted = ASKED_FOR.get(kind, "the answer")
    return f"{prompt}\nFirst think, within <think> </think>. Then give {wanted} within <answer> </answer>."


def chosen(answer: Any, options: Sequence[Option], key: str = "answer") -> str:
    """The letter of an answer, given as letters, as the text of an option, or as its number from 0.

    Raises:
        ValueError: it is none of the options.

    Example:
        >>> cats = options_of(["a cat", "a dog"])
        >>> chosen("(B)", cats), chosen("a dog", cats), chosen(1, cats), chosen("B. a dog", cats)
        ('B', 'B', 'B', 'B')
    """
    letters = [option.letter for option in options]
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        return letters[answer]
    text = bare(answer, key)
    same = [option.letter for option in options if option.text.casefold() == text.casefold()]
    if len(same) == 1:
        return same[0]
    if (alone := _LETTER_ALONE.fullmatch(text)) and alone[1] in letters:
        return alone[1]
    if (first := _LETTERED.match(text)) and first[1] in letters:
        return first[1]
    several = re.split(r"[\s,;]+", text)
    if len(several) > 1 and set(several) <= set(letters):
        return ", ".join(several)
    shown = ", ".join(f"{option.letter}. {option.text}" for option in options)
    raise ValueError(f"{key}: {text!r} is none of the options {shown[:200]}")


def kind_of_answer(answer: Any) -> str:
    """The kind of an answer to a question without options."""
    text = str(answer).strip()
    if _NUMBER.fullmatch(text):
        return NUMBER
    return YES_NO if text.casefold().strip(".") in ("yes", "no") else WORDS


def bare(answer: Any, key: str = "answer") -> str:
    """An answer as text, without tags.

    Raises:
        ValueError: there is none.
    """
    text = str(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key}: expected text or a number, got {kind_of(answer)}")
    return text.replace("<answer>", "").replace("</answer>", "").strip()


def tagged(answer: str) -> str:
    """An answer as a solution has it."""
    return f"<answer>{answer}</answer>"
