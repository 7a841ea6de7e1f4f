"""The options of a question: a list of texts, or texts by letter or number."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.data.errors import kind_of

OPTION_KEYS = ("options", "choices", "candidates", "option")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TAKEN_OUT = 2  # options of a list that may have lost some, so that its letters or numbers have gaps

LETTERED = re.compile(r"\s*[(\[]?([A-Za-z])\s*[)\].:]\s*")
_NUMBERED = re.compile(r"\s*[(\[]?(\d{1,2})\s*[)\].:](?!\d)\s*")
_WHOLE_NUMBER = re.compile(r"\d{1,3}(?:\.0)?")
# Columns that hold an option each: option1, option_b, "option 0", a0, choice2, answer3.
COLUMN_LETTERS = LETTERS[:10]
OPTION_COLUMN = re.compile(
    rf"(?:option|choice|candidate|opt|answer|ans)[ _-]?(\d{{1,2}}|[{COLUMN_LETTERS}])|a(\d{{1,2}})", re.IGNORECASE
)
# Letters and numbers in front of options in notations that are not taken off: "Option B: right", "2 - up".
_BEFORE_NAME = r"\W*(?:(?:option|choice|answer)\W+)?"
_ANY_NAME = re.compile(
    rf"{_BEFORE_NAME}(?:([A-Z])\W|([0-9]{{1,2}})\s*[-\u2010-\u2015\uff1a]\s)", re.IGNORECASE
)
# A letter with a sign, and not "C major": （B）, B、, B - and **B.** in front of a text.
_SIGN = r"(?:[)\].:>*\uff1a\uff0e\uff09\u3001\u3002\u3011]|[-\u2010-\u2015]\s)"
_NAME_AND_SIGN = re.compile(rf"{_BEFORE_NAME}([A-Z])\s*{_SIGN}", re.IGNORECASE)
# Keys of an object that is one option, in the order in which they are looked for.
_OPTION_TEXTS = ("choice", "option", "text", "content", "value")
# Keys of the letter or number by which it is called. The text of an option may be a letter too, where it has no other.
_OPTION_NAMES = ("label", "letter", "key", "id", "choice_id", "option_id", "index", "idx", "choice", "option", "value")
_OPTION_NAME = re.compile(r"\s*[(\[]?([A-Za-z]|\d{1,2})[)\].:]?\s*")


@dataclass(frozen=True)
class Choices:
    """The options of a question.

    Attributes:
        texts: by letter, in order.
        numbers: the numbers of the options in the source, such as 1 and 2 of the columns option1 and option2. Empty:
            they have none.
    """

    texts: dict[str, str]
    numbers: tuple[int, ...] = ()


def options_of(given: Any, key: str = "options") -> Choices:
    """The options of a list of texts, with or without letters in front, of texts by letter or number, or of objects.

    Raises:
        ValueError: something else, an option without a text between others, or more than 26.

    Example:
        >>> options_of(["A. a cat", "B. a dog"]).texts, options_of(["a cat", "a dog", ""]).texts
        ({'A': 'a cat', 'B': 'a dog'}, {'A': 'a cat', 'B': 'a dog'})
    """
    if isinstance(given, str):
        given = written_list(given, key)
    if isinstance(given, list):
        given = _by_name(given, key) or given
    if isinstance(given, Mapping):
        return _named_options(given, key)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise ValueError(f"{key}: expected a list of options or options by letter, got {kind_of(given)}")
    texts = [option_text(each) for each in given]
    while texts and texts[-1] == "":  # tables with as many columns as their longest question has options
        texts.pop()
    if not 0 < len(texts) <= len(LETTERS) or None in texts:
        raise ValueError(f"{key}: expected 1 to 26 options, each a text, got {kind_of(given)}")
    if "" in texts:
        raise ValueError(f"{key}: option {LETTERS[texts.index('')]} is empty; leave it out and mend the answer")
    return _without_names([text for text in texts if text is not None], key)


def _by_name(given: list[Any], options_key: str) -> dict[str, Any]:
    """The options of a list of objects by their letters or numbers. Empty where some have none, or the same.

    Raises:
        ValueError: the numbers may be flags that say which option is right.
    """
    by_name: dict[str, Any] = {}
    flags = 0
    for each in given:
        key, name = _name_of(each)
        if not name or name in by_name:
            return {}
        by_name[name] = each
        flags += key == "label" and name in ("0", "1")
    names = list(by_name)
    if flags == len(names) == 2 and names != ["0", "1"]:
        raise ValueError(
            f"{options_key}: `label` 1 and 0 may number the options or say which is right; write their texts alone, "
            "in order"
        )
    return by_name


def _name_of(option: Any) -> tuple[str, str]:
    """The letter or number that an object of one option names itself by, and its key. Empty where it has none."""
    if not isinstance(option, Mapping):
        return "", ""
    for key in _OPTION_NAMES:
        value = option.get(key)
        found = _OPTION_NAME.fullmatch(str(value)) if isinstance(value, int | str) else None
        if found and not isinstance(value, bool) and any(other in option for other in _OPTION_TEXTS if other != key):
            return key, found[1]
    return "", ""


def _named_options(given: Mapping[Any, Any], key: str) -> Choices:
    """Options by letter, by number, or by names that end so, such as option_a. Empty ones at the end are left out."""
    by_end: dict[str, str | None] = {}  # the letter or number at the end of each name
    for name, value in given.items():
        text = option_text(value)
        stripped = str(name).strip()
        column = OPTION_COLUMN.fullmatch(stripped)
        end = ((column[1] or column[2]) if column else stripped).upper()
        if not (end.isdecimal() or re.fullmatch("[A-Z]", end)):
            if text == "":
                continue
            raise ValueError(f"{key}: expected options by letter or number, got {kind_of(given)}")
        if end in by_end:
            raise ValueError(f"{key}: has option {end} twice, got {kind_of(given)}")
        by_end[end] = text
    if None in by_end.values() or not any(by_end.values()):
        raise ValueError(f"{key}: expected 1 to 26 options, each a text, got {kind_of(given)}")
    by_number = all(end.isdecimal() for end in by_end)
    if not by_number and any(end.isdecimal() for end in by_end):
        raise ValueError(f"{key}: expected options by letter or number, got {kind_of(given)}")
    ends = sorted(by_end, key=int) if by_number else sorted(by_end)
    while by_end[ends[-1]] == "":
        ends.pop()
    texts = {end: str(by_end[end]) for end in ends}
    if "" in texts.values():
        empty = next(end for end in ends if not texts[end])
        raise ValueError(f"{key}: option {empty} is empty; leave it out and mend the answer")
    given_ends = [end for end in by_end if end in texts]
    if given_ends != ends:  # answers may mean the letters and numbers of options, or their places in the list
        names = "numbers" if by_number else "letters"
        raise ValueError(
            f"{key}: have the {names} {', '.join(given_ends)} in this order; write them in the order of their {names}"
        )
    own = [found[1].upper() for found in map(LETTERED.match, texts.values()) if found]
    if not by_number and own != ends and sorted(own) == ends:
        raise ValueError(f"{key}: have the letters {', '.join(own)} in front of their texts, and are {', '.join(ends)}")
    if not by_number:
        return Choices(_without_own_letters(texts) or texts)
    numbers = tuple(map(int, ends))
    if numbers[0] > 1 or numbers != tuple(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError(f"{key}: expected options by every number from 0 or 1 on, got {', '.join(ends)}")
    return Choices(dict(zip(LETTERS, texts.values(), strict=False)), numbers)


def _without_names(texts: list[str], key: str) -> Choices:
    """Options by letter. Letters or numbers in front of all texts, in order, are taken off."""
    by_place = dict(zip(LETTERS, texts, strict=False))
    without_letters = _without_own_letters(by_place)
    if without_letters:
        return Choices(without_letters)
    letters = [found[1].upper() for found in map(LETTERED.match, texts) if found]
    # Answers may mean the letters or the places, where options were shuffled or one was taken out. Initials of names
    # look the same, but few lists have only such that are near to A.
    near_to_a = LETTERS[: len(texts) + TAKEN_OUT]
    if len(letters) == len(texts) > 1 and set(letters) <= set(near_to_a):
        raise ValueError(
            f"{key}: have the letters {', '.join(letters)} in this order; write them in the order of the letters, "
            'none left out, or as an object such as {"A": "left", "B": "right"}'
        )
    named = [_ANY_NAME.match(text) for text in texts]
    in_front = [(found[1] or found[2]).upper() for found in named if found]
    is_shuffled = len(in_front) == len(texts) and in_front != sorted(in_front) and _are_names(in_front)
    # As for the letters above: of （B） and （C） one was taken out, and the answer B may mean the first or the second.
    signed = [found[1].upper() for found in map(_NAME_AND_SIGN.match, texts) if found]
    are_near = len(set(signed)) == len(texts) > 1 and set(signed) <= set(near_to_a)
    has_gaps = are_near and signed != list(LETTERS[: len(signed)])
    if is_shuffled or has_gaps:
        names = ", ".join(signed if has_gaps else in_front)
        raise ValueError(f"{key}: seem to have the names {names} in this order; write their texts alone, in order")
    numbered = [_NUMBERED.match(text) for text in texts]
    numbers = [int(found[1]) for found in numbered if found]
    behind = _behind(texts, numbered)
    if numbers in (list(range(len(texts))), list(range(1, len(texts) + 1))) and _differ(behind):
        return Choices(dict(zip(LETTERS, behind, strict=False)), tuple(numbers))
    if len(numbers) == len(texts) and len(set(numbers)) > 1 and max(numbers) <= len(texts) + TAKEN_OUT:
        raise ValueError(
            f"{key}: have the numbers {', '.join(map(str, numbers))} in this order; number all of them from 0 or 1 on"
        )
    return Choices(by_place)


def _are_names(in_front: Sequence[str]) -> bool:
    """Whether letters or numbers are those of all options, in some order."""
    count = len(in_front)
    if in_front[0].isdecimal():
        return sorted(in_front) in ([str(n) for n in range(count)], [str(n) for n in range(1, count + 1)])
    return set(in_front) == set(LETTERS[:count])


def _without_own_letters(texts: Mapping[str, str]) -> dict[str, str]:
    """Options by letter without the letters that stand in front of their texts. Empty where one has not its own."""
    found = list(map(LETTERED.match, texts.values()))
    if not all(match and match[1].upper() == letter for match, letter in zip(found, texts, strict=True)):
        return {}
    behind = _behind(texts.values(), found)
    return dict(zip(texts, behind, strict=True)) if _differ(behind) else {}


def _differ(texts: Sequence[str]) -> bool:
    """Whether no two texts are alike: of "1. gear" and "2. gear" the numbers are a part."""
    return len(set(map(plain_option, texts))) == len(texts)


def _behind(texts: Iterable[str], found: Iterable[re.Match[str] | None]) -> list[str]:
    """The end of each text behind its match, and the whole text where there is no match."""
    return [text[match.end() :] if match else text for text, match in zip(texts, found, strict=True)]


def option_text(given: Any) -> str | None:
    """The text of an option, empty where it has none. None: it is no option, or its text may be one of several."""
    if isinstance(given, Mapping):
        name_key, _ = _name_of(given)
        others = {key: value for key, value in given.items() if key != name_key}
        texts = {others[key] for key in _OPTION_TEXTS if isinstance(others.get(key), str)}
        # Numbers, flags and further names beside the text are left out, and no other text.
        strings = {value for value in others.values() if isinstance(value, str) and not _OPTION_NAME.fullmatch(value)}
        given = texts.pop() if len(texts) == 1 and strings <= texts else given
    if given is None:
        return ""
    if isinstance(given, int | float) and not isinstance(given, bool):
        is_nan = given != given  # which tables have in the place of missing texts
        return "" if is_nan else str(given)
    return given.strip() if isinstance(given, str) else None


def written_list(text: str, key: str) -> Any:
    """The list or object that a text holds as JSON, or as Python and NumPy print them into the cells of a CSV file.

    Raises:
        ValueError: it holds none.

    Example:
        >>> written_list('["a", "b"]', "options"), written_list("['a' 'b']", "options")
        (['a', 'b'], ['a', 'b'])
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(_with_commas(text))
        except (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
            value = None
    if isinstance(value, str):  # encoded twice
        return written_list(value, key)
    if not isinstance(value, list | tuple | dict):
        raise ValueError(f"{key}: expected a list of options, such as [\"left\", \"right\"], got {kind_of(text)}")
    return value


def _with_commas(text: str) -> str:
    """A printed list with commas between texts. NumPy prints none, and Python would join the texts to one.

    Raises:
        ValueError, SyntaxError, tokenize.TokenError: the text is no Python.
    """
    line_ends = (tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    pieces: list[str] = []
    before_is_text = False
    before_ends = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        if token.type in line_ends:
            continue
        is_text = token.type == tokenize.STRING
        if before_is_text and is_text:
            if token.start == before_ends:
                raise ValueError("a quote in a text is written twice, 'don''t', as in YAML")
            pieces.append(",")
        pieces.append(token.string)
        before_is_text = is_text
        before_ends = token.end
    return " ".join(pieces)


def whole_number(answer: Any) -> int | None:
    """An answer as a whole number of at least 0. None: it is something else.

    Example:
        >>> whole_number(2), whole_number("2"), whole_number("2 cats"), whole_number(True)
        (2, 2, None, None)
    """
    if isinstance(answer, bool) or not isinstance(answer, int | float | str):
        return None
    text = str(answer).strip()
    return int(float(text)) if _WHOLE_NUMBER.fullmatch(text) else None


def plain_option(text: str) -> str:
    """A text in small letters with single spaces, without a stop at its end. Whole numbers lose their ``.0``.

    Blanks beside commas do not matter: "B,A,C" is the option "B, A, C".
    """
    plain = re.sub(r"\s*,\s*", ", ", " ".join(text.casefold().split()).rstrip("."))
    return str(int(float(plain))) if _WHOLE_NUMBER.fullmatch(plain) else plain
