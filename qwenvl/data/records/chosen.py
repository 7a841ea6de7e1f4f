"""The option of a question that an answer names: by letter, by text or by number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.choices import LETTERED, LETTERS, Choices, plain_option, whole_number
from qwenvl.failure import counted

_LETTER_ALONE = re.compile(r"(?:(?:option|choice|answer)[\s:]*)?[(\[]?([A-Za-z])[)\].:]*", re.IGNORECASE)
_BETWEEN_OPTIONS = re.compile(r"\s*(?:[,;|&/\n]|\band\b)\s*")  # where several are right: "A. left, C. up"


def is_letter(answer: Any) -> bool:
    """Whether an answer is the letter of an option and nothing else."""
    return isinstance(answer, str) and bool(_LETTER_ALONE.fullmatch(bare(answer, "answer") if answer.strip() else ""))


def names_option(answer: Any, options: Choices) -> bool:
    """Whether an answer is the letter of an option, or its letter and text.

    Example:
        >>> hands = Choices({"A": "left", "B": "right"})
        >>> names_option("b", hands), names_option("B. right", hands), names_option("right", hands)
        (True, True, False)
    """
    return isinstance(answer, str) and bool(answer.strip()) and _letter_of(answer.strip(), options.texts) is not None


def chosen(answer: Any, options: Choices, key: str = "answer", first_number: int | None = None) -> str:
    """The letter of an answer: given as letters, as the text of an option, or as its number.

    Args:
        first_number: the number of the first option in the answers of the file. None: not known.

    Raises:
        ValueError: it is none of the options, or a number that may mean several.

    Example:
        >>> cats = options_of(["a cat", "a dog"])
        >>> chosen("(b)", cats), chosen("a dog", cats), chosen(0, cats), chosen("B. a dog", cats)
        ('B', 'B', 'A', 'B')
    """
    if isinstance(answer, list | tuple) and answer:
        if first_number is None and {0, len(options.texts)} <= {whole_number(each) for each in answer}:
            raise ValueError(f"{key}: {list(answer)} has numbers from 0 and from 1; write letters")
        return ", ".join(dict.fromkeys(chosen(each, options, key, first_number) for each in answer))
    text = bare(answer, key)
    texts = options.texts
    number = whole_number(text)
    if number is not None:
        return _numbered(number, options, key, first_number)
    same = _same_text(text, texts)
    if len(same) > 1:
        raise ValueError(f"{key}: {text!r} is the text of the options {' and '.join(same)}; write a letter")
    if len(same) == 1:
        if text.strip("().").upper() in texts.keys() - set(same):
            raise ValueError(
                f"{key}: {text!r} is the letter of an option and the text of option {same[0]}: write the letter as "
                f'"Option {same[0]}"'
            )
        return same[0]
    letter = _letter_of(text, texts)
    if letter is not None:
        return letter
    several = letters_in(text)
    if len(several) > 1 and set(several) <= texts.keys():
        return ", ".join(several)
    with_texts = [_letter_of(part, texts) for part in _BETWEEN_OPTIONS.split(text) if part]
    if len(with_texts) > 1 and all(with_texts):
        return ", ".join(each for each in with_texts if each)
    named = LETTERED.match(text)
    if named is None or named[1].upper() not in texts:
        raise ValueError(f"{key}: {text!r} is none of the options {_shown(options)}")
    others = _same_text(text[named.end() :], texts)
    behind = f"the text of option {others[0]}" if others else "another text than that"
    raise ValueError(f"{key}: {text!r} names option {named[1].upper()}, and has {behind}")


def _letter_of(text: str, texts: Mapping[str, str]) -> str | None:
    """The option that a text names by its letter, alone or with the text of the option behind it. None: none."""
    alone = _LETTER_ALONE.fullmatch(text)
    named = alone or LETTERED.match(text)
    letter = named[1].upper() if named else ""
    if named is None or letter not in texts:
        return None
    return letter if alone or letter in _same_text(text[named.end() :], texts) else None


def letters_in(text: str) -> list[str]:
    """The letters of an answer that names several options: ``A, C``, ``(a) and (c)`` or ``AC``. Words stay words."""
    pieces = [each.strip("().") for each in re.split(r"[\s,;&/]+", text) if each not in ("", "and")]
    if len(pieces) == 1 and text.isupper() and list(text) == sorted(set(text)):  # AC, and not the word "be"
        return list(text)
    return [piece.upper() if len(piece) == 1 else piece for piece in pieces]


def _numbered(number: int, options: Choices, key: str, first_number: int | None) -> str:
    """The letter of an answer that is a whole number: the text of an option, or the place of an option."""
    letters = list(options.texts)
    if letters != list(LETTERS[: len(letters)]):
        raise ValueError(f"{key}: {number} may be the number of several of {_shown(options)}; write a letter")
    if first_number is not None:
        place = number - first_number
        if 0 <= place < len(letters):
            return letters[place]
        raise ValueError(
            f"{key}: {number} is none of the options {_shown(options)}, which the file counts from {first_number}"
        )
    by_text = _same_text(str(number), options.texts)
    by_name = [letters[options.numbers.index(number)]] if number in options.numbers else []
    if len(by_text) == 1 and by_name in ([], by_text):
        return by_text[0]
    if by_text and by_name:
        raise ValueError(
            f"{key}: {number} is the text of option {by_text[0]} and the number of option {by_name[0]}: write a letter"
        )
    if by_name:
        return by_name[0]
    within = _numbers_within(options, number)
    if within:
        raise ValueError(
            f"{key}: {number} may be the number of an option, and stands in the text of option {within[0]}: write a "
            "letter"
        )
    # Only counting from 0 has 0, and only counting from 1 has the number of options.
    if number == 0:
        return letters[0]
    if number == len(letters):
        return letters[-1]
    if number > len(letters):
        raise ValueError(f"{key}: {number} is none of the options {_shown(options)}")
    raise ValueError(
        f"{key}: {number} may count the options from 0 or from 1, and no row tells which; --columns "
        f"{key}=answer_index counts them from 0, --columns {key}=answer_number from 1"
    )


def _numbers_within(options: Choices, number: int) -> list[str]:
    """The letters of the options whose text has a number among other words: 3 of "3 screws"."""
    return [letter for letter, text in options.texts.items() if str(number) in re.findall("[0-9]+", text)]


def counted_from(rows: Iterable[tuple[Any, Choices]]) -> int | None:
    """The first number of options in the answers of a file: 0 or 1, or None where no row tells.

    A row tells if no option has the number as its text, and the number is 0 or the number of options, or the source
    itself numbers the options.

    Args:
        rows: answer and options of each.

    Raises:
        ValueError: one row has 0 and another one the number of its options, or the number of a row is the text of
            another option than that at its place.
    """
    starts = set()
    telling = 0
    by_text: list[tuple[int, int]] = []  # a number and the place, from 0, of the option with this text
    for answer, options in rows:
        number = None if isinstance(answer, list) else whole_number(answer)
        if number is None:
            continue
        same = _same_text(str(number), options.texts)
        if same:
            by_text.append((number, list(options.texts).index(same[0])))
        elif number in options.numbers:
            telling += 1
            starts.add(options.numbers[0])
        elif number in (0, len(options.texts)) and not _numbers_within(options, number):
            telling += 1
            starts.add(0 if number == 0 else 1)
    if len(starts) > 1:
        raise ValueError(
            "answer: 0 in one row and the number of its options in another, so the options are counted neither from 0 "
            "nor from 1; write the letters"
        )
    if not starts:
        return None
    start = starts.pop()
    others = sum(number - start != place for number, place in by_text)
    if others:
        raise ValueError(
            f"answer: in {counted(others, 'row')} a number is the text of one option and, counted from {start} as in "
            f"{telling} of the rows, the place of another one; write the letters, or say that all are places: "
            f"--columns answer={'answer_number' if start else 'answer_index'}"
        )
    return start


def bare(answer: Any, key: str) -> str:
    """An answer as text, without tags."""
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    text = str(answer) if is_number else answer
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key}: expected text or a number, got {kind_of(answer)}")
    return text.replace("<answer>", "").replace("</answer>", "").strip()


def has_text(options: Choices, text: str) -> bool:
    """Whether one of the options has this text."""
    return bool(_same_text(text, options.texts))


def _same_text(text: str, texts: Mapping[str, str]) -> list[str]:
    """The letters of the options that have a text, whatever its case, its spaces and the stop at its end."""
    wanted = plain_option(text)
    return [letter for letter, option in texts.items() if plain_option(option) == wanted]


def _shown(options: Choices) -> str:
    """The options as an error shows them."""
    return ", ".join(f"{letter}. {option}" for letter, option in options.texts.items())[:200]
