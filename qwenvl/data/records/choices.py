"""Options of questions, and the option that an answer names: by letter, by text or by number."""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.failure import counted

OPTION_KEYS = ("options", "choices", "candidates", "option")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TAKEN_OUT = 2  # options of a list that may have lost some, so that its letters or numbers have gaps

_LETTERED = re.compile(r"\s*[(\[]?([A-Za-z])\s*[)\].:]\s*")
_NUMBERED = re.compile(r"\s*[(\[]?(\d{1,2})\s*[)\].:](?!\d)\s*")
_LETTER_ALONE = re.compile(r"(?:(?:option|choice|answer)[\s:]*)?[(\[]?([A-Za-z])[)\].:]*", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"\d{1,3}(?:\.0)?")
# Columns that hold an option each: option1, option_b, "option 0", a0, choice2, answer3.
_COLUMN_LETTERS = LETTERS[:10]
_OPTION_COLUMN = re.compile(
    rf"(?:option|choice|candidate|opt|answer|ans)[ _-]?(\d{{1,2}}|[{_COLUMN_LETTERS}])|a(\d{{1,2}})", re.IGNORECASE
)
# Letters and numbers in front of options in notations that are not taken off: "Option B: right", "2 - up".
_ANY_NAME = re.compile(
    r"\W*(?:(?:option|choice|answer)\W+)?(?:([A-Z])\W|([0-9]{1,2})\s*[-\u2010-\u2015\uff1a]\s)", re.IGNORECASE
)
_NAMES_OPTIONS = ("option", "choice", "candidate", "opt")  # which nothing else begins with
# Keys of an object that is one option, in the order in which they are looked for.
_OPTION_TEXTS = ("choice", "option", "text", "content", "value")
# Keys of the letter or number by which it is called. The text of an option may be a letter too, where it has no other.
_OPTION_NAMES = ("label", "letter", "key", "id", "choice_id", "option_id", "index", "idx", "choice", "option", "value")
_OPTION_NAME = re.compile(r"\s*[(\[]?([A-Za-z]|\d{1,2})[)\].:]?\s*")
_BETWEEN_OPTIONS = re.compile(r"\s*(?:[,;|&/\n]|\band\b)\s*")  # where several are right: "A. left, C. up"
# Lettered options in a text, on lines of their own, where no blank need follow the letter, or one after another.
_IN_TEXT = re.compile(
    r"(?:^|(?<=\s)(?=[(\[*]{0,3}[A-Za-z][)\].:*]{1,3}\s))"
    r"[(\[*]{0,3}([A-Za-z])[)\].:*\u3001\uff0e\uff1a\uff09]{1,3}\s*(?=\S)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Options:
    """The options of a question.

    Attributes:
        texts: by letter, in order.
        numbers: the numbers of the options in the source, such as 1 and 2 of the columns option1 and option2. Empty:
            they have none.
    """

    texts: dict[str, str]
    numbers: tuple[int, ...] = ()


def options_of(given: Any, key: str = "options") -> Options:
    """The options of a list of texts, with or without letters in front, of texts by letter or number, or of objects.

    Raises:
        ValueError: something else, an option without a text between others, or more than 26.

    Example:
        >>> options_of(["A. a cat", "B. a dog"]).texts, options_of(["a cat", "a dog", ""]).texts
        ({'A': 'a cat', 'B': 'a dog'}, {'A': 'a cat', 'B': 'a dog'})
    """
    if isinstance(given, str):
        given = list_in(given, key)
    if isinstance(given, list):
        given = _by_name(given) or given
    if isinstance(given, Mapping):
        return _named_options(given, key)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise ValueError(f"{key}: expected a list of options or options by letter, got {kind_of(given)}")
    texts = [_option_text(each) for each in given]
    while texts and texts[-1] == "":  # tables with as many columns as their longest question has options
        texts.pop()
    if not 0 < len(texts) <= len(LETTERS) or None in texts:
        raise ValueError(f"{key}: expected 1 to 26 options, each a text, got {kind_of(given)}")
    if "" in texts:
        raise ValueError(f"{key}: option {LETTERS[texts.index('')]} is empty; leave it out and mend the answer")
    return _without_names([text for text in texts if text is not None])


def _by_name(given: list[Any]) -> dict[str, Any]:
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
            "options: `label` 1 and 0 may number the options or say which is right; write their texts alone, in order"
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


def _named_options(given: Mapping[Any, Any], key: str) -> Options:
    """Options by letter, by number, or by names that end so, such as option_a. Empty ones at the end are left out."""
    by_end: dict[str, str | None] = {}  # the letter or number at the end of each name
    for name, value in given.items():
        text = _option_text(value)
        stripped = str(name).strip()
        column = _OPTION_COLUMN.fullmatch(stripped)
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
    own = [found[1].upper() for found in map(_LETTERED.match, texts.values()) if found]
    if not by_number and own != ends and sorted(own) == ends:
        raise ValueError(f"{key}: have the letters {', '.join(own)} in front of their texts, and are {', '.join(ends)}")
    if not by_number:
        return Options(_without_own_letters(texts) or texts)
    numbers = tuple(map(int, ends))
    if numbers[0] > 1 or numbers != tuple(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError(f"{key}: expected options by every number from 0 or 1 on, got {', '.join(ends)}")
    return Options(dict(zip(LETTERS, texts.values(), strict=False)), numbers)


def _without_names(texts: list[str]) -> Options:
    """Options by letter. Letters or numbers in front of all texts, in order, are taken off."""
    by_place = dict(zip(LETTERS, texts, strict=False))
    without_letters = _without_own_letters(by_place)
    if without_letters:
        return Options(without_letters)
    letters = [found[1].upper() for found in map(_LETTERED.match, texts) if found]
    # Answers may mean the letters or the places, where options were shuffled or one was taken out. Initials of names
    # look the same, but few lists have only such that are near to A.
    near_to_a = LETTERS[: len(texts) + TAKEN_OUT]
    if len(letters) == len(texts) > 1 and set(letters) <= set(near_to_a):
        raise ValueError(
            f"options: have the letters {', '.join(letters)} in this order; write them in the order of the letters, "
            'none left out, or as an object such as {"A": "left", "B": "right"}'
        )
    named = [_ANY_NAME.match(text) for text in texts]
    in_front = [(found[1] or found[2]).upper() for found in named if found]
    if len(in_front) == len(texts) and in_front != sorted(in_front) and _are_names(in_front):
        raise ValueError(
            f"options: seem to have the names {', '.join(in_front)} in this order; write their texts alone, in order"
        )
    numbered = [_NUMBERED.match(text) for text in texts]
    numbers = [int(found[1]) for found in numbered if found]
    behind = _behind(texts, numbered)
    if numbers in (list(range(len(texts))), list(range(1, len(texts) + 1))) and _differ(behind):
        return Options(dict(zip(LETTERS, behind, strict=False)), tuple(numbers))
    if len(numbers) == len(texts) and len(set(numbers)) > 1 and max(numbers) <= len(texts) + TAKEN_OUT:
        raise ValueError(
            f"options: have the numbers {', '.join(map(str, numbers))} in this order; number all of them from 0 or 1 on"
        )
    return Options(by_place)


def _are_names(in_front: Sequence[str]) -> bool:
    """Whether letters or numbers are those of all options, in some order."""
    count = len(in_front)
    if in_front[0].isdecimal():
        return sorted(in_front) in ([str(n) for n in range(count)], [str(n) for n in range(1, count + 1)])
    return set(in_front) == set(LETTERS[:count])


def _without_own_letters(texts: Mapping[str, str]) -> dict[str, str]:
    """Options by letter without the letters that stand in front of their texts. Empty where one has not its own."""
    found = list(map(_LETTERED.match, texts.values()))
    if not all(match and match[1].upper() == letter for match, letter in zip(found, texts, strict=True)):
        return {}
    behind = _behind(texts.values(), found)
    return dict(zip(texts, behind, strict=True)) if _differ(behind) else {}


def _differ(texts: Sequence[str]) -> bool:
    """Whether no two texts are alike: of "1. gear" and "2. gear" the numbers are a part."""
    return len(set(map(_plain, texts))) == len(texts)


def _behind(texts: Iterable[str], found: Iterable[re.Match[str] | None]) -> list[str]:
    """The end of each text behind its match, and the whole text where there is no match."""
    return [text[match.end() :] if match else text for text, match in zip(texts, found, strict=True)]


def _option_text(given: Any) -> str | None:
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


def list_in(text: str, key: str) -> Any:
    """The list or object that a text holds as JSON, or as Python and NumPy print them into the cells of a CSV file.

    Raises:
        ValueError: it holds none.

    Example:
        >>> list_in('["a", "b"]', "options"), list_in("['a' 'b']", "options")
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
        return list_in(value, key)
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


def is_option_column(name: str) -> bool:
    """Whether a column may hold one of the options, as ``option_1``, ``choice b`` and ``a0`` do."""
    return _OPTION_COLUMN.fullmatch(name) is not None


def option_columns(row: Mapping[str, Any]) -> tuple[Options, tuple[str, ...]] | None:
    """Options in columns of their own, A, B, ... or numbered ones, and the names of the columns. None: there are none.

    Columns a, b, ... are options where the answer is a letter or one of their texts, and no number: they may be numbers
    of a sum, and "a" the answer itself.

    Raises:
        ValueError: a column between others is empty.
    """
    lettered = _COLUMN_LETTERS
    if {"a", "b"} <= row.keys() and _names_an_option(row, lettered.lower()):
        lettered = lettered.lower()
    texts = [_option_text(row.get(letter)) for letter in lettered]
    while texts and texts[-1] == "":
        texts.pop()
    if texts:
        letters = lettered[: len(texts)]
        return options_of({letter.upper(): row.get(letter) for letter in letters}, "/".join(letters)), tuple(letters)
    families: dict[str, dict[str, str]] = {}  # columns by their ends, by what stands before the end
    for column in row:
        found = _OPTION_COLUMN.fullmatch(column)
        if found:
            end = (found[1] or found[2]).lower()
            families.setdefault(column[: -len(end)].lower(), {})[end] = column
    for stem, columns in families.items():
        if stem.startswith("ans") and _is_text_of_its_own(row.get("answer")):
            continue  # answer1 and answer2 are then those of several people
        ends = sorted(columns, key=lambda end: (len(end), end))  # 10 stands behind 9
        texts = [_option_text(row[columns[end]]) for end in ends]
        if len(ends) < 2 or not any(text != "" for text in texts):
            continue
        first = 1 if ends[0] == "1" else 0
        numbers = [str(first + i) for i in range(len(ends))]
        if ends not in (numbers, list(_COLUMN_LETTERS.lower()[: len(ends)])):
            if stem.startswith(_NAMES_OPTIONS):
                listed = "/".join(columns[end] for end in ends)
                raise ValueError(f"{listed}: expected columns of options from 1, 0 or a on, with none left out")
            continue
        names = [columns[end] for end in ends]
        options = options_of([row[name] for name in names], "/".join(names))
        if ends == numbers and not options.numbers:
            options = Options(options.texts, tuple(range(first, first + len(options.texts))))
        return options, tuple(names)
    return None


def _names_an_option(row: Mapping[str, Any], columns: str) -> bool:
    """Whether the answer of a row begins with letters, or is the text of one of some columns and no number."""
    answer = str(row.get("answer")).strip()
    texts = [str(row[column]) for column in columns if row.get(column) is not None]
    if set(_letters_in(answer)) <= set(_COLUMN_LETTERS) or _LETTERED.match(answer):
        return True
    return _plain(answer) in map(_plain, texts) and not re.match("[-+.]*[0-9]", answer)


def _is_text_of_its_own(answer: Any) -> bool:
    """Whether an answer is neither a letter nor a whole number, which name one of some options."""
    return isinstance(answer, str) and bool(answer.strip()) and not is_letter(answer) and whole_number(answer) is None


def options_in(question: str) -> Options | None:
    """The lettered options that a question's own text holds, A and B at least. None: there are none.

    Example:
        >>> options_in("Where? (A) left (B) to the right").texts
        {'A': 'left', 'B': 'to the right'}
    """
    found: list[re.Match[str]] = []
    for match in _IN_TEXT.finditer(question):
        if match[1].upper() == LETTERS[len(found) % len(LETTERS)]:
            found.append(match)
        elif match[1].upper() == "A":  # an "a" of the sentence came before the options
            found = [match]
    if len(found) < 2 or len({match[1].isupper() for match in found}) > 1:
        return None
    ends = [*(match.start() for match in found[1:]), len(question)]
    lines = [question[match.end() : end].strip().split("\n")[0] for match, end in zip(found, ends, strict=True)]
    texts = [line.rstrip(" ,;") for line in lines]
    return Options(dict(zip(LETTERS, texts, strict=False)))


# ---- answers


def is_letter(answer: Any) -> bool:
    """Whether an answer is the letter of an option and nothing else."""
    return isinstance(answer, str) and bool(_LETTER_ALONE.fullmatch(bare(answer, "answer") if answer.strip() else ""))


def chosen(answer: Any, options: Options, key: str = "answer", first_number: int | None = None) -> str:
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
    several = _letters_in(text)
    if len(several) > 1 and set(several) <= texts.keys():
        return ", ".join(several)
    with_texts = [_letter_of(part, texts) for part in _BETWEEN_OPTIONS.split(text) if part]
    if len(with_texts) > 1 and all(with_texts):
        return ", ".join(each for each in with_texts if each)
    named = _LETTERED.match(text)
    if named is None or named[1].upper() not in texts:
        raise ValueError(f"{key}: {text!r} is none of the options {_shown(options)}")
    others = _same_text(text[named.end() :], texts)
    behind = f"the text of option {others[0]}" if others else "another text than that"
    raise ValueError(f"{key}: {text!r} names option {named[1].upper()}, and has {behind}")


def _letter_of(text: str, texts: Mapping[str, str]) -> str | None:
    """The option that a text names by its letter, alone or with the text of the option behind it. None: none."""
    alone = _LETTER_ALONE.fullmatch(text)
    named = alone or _LETTERED.match(text)
    letter = named[1].upper() if named else ""
    if named is None or letter not in texts:
        return None
    return letter if alone or letter in _same_text(text[named.end() :], texts) else None


def _letters_in(text: str) -> list[str]:
    """The letters of an answer that names several options: ``A, C``, ``(a) and (c)`` or ``AC``. Words stay words."""
    pieces = [each.strip("().") for each in re.split(r"[\s,;&/]+", text) if each not in ("", "and")]
    if len(pieces) == 1 and text.isupper() and list(text) == sorted(set(text)):  # AC, and not the word "be"
        return list(text)
    return [piece.upper() if len(piece) == 1 else piece for piece in pieces]


def _numbered(number: int, options: Options, key: str, first_number: int | None) -> str:
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


def _numbers_within(options: Options, number: int) -> list[str]:
    """The letters of the options whose text has a number among other words: 3 of "3 screws"."""
    return [letter for letter, text in options.texts.items() if str(number) in re.findall("[0-9]+", text)]


def counted_from(rows: Iterable[tuple[Any, Options]]) -> int | None:
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


def bare(answer: Any, key: str) -> str:
    """An answer as text, without tags."""
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    text = str(answer) if is_number else answer
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{key}: expected text or a number, got {kind_of(answer)}")
    return text.replace("<answer>", "").replace("</answer>", "").strip()


def has_text(options: Options, text: str) -> bool:
    """Whether one of the options has this text."""
    return bool(_same_text(text, options.texts))


def _same_text(text: str, texts: Mapping[str, str]) -> list[str]:
    """The letters of the options that have a text, whatever its case, its spaces and the stop at its end."""
    wanted = _plain(text)
    return [letter for letter, option in texts.items() if _plain(option) == wanted]


def _plain(text: str) -> str:
    """A text in small letters with single spaces, without a stop at its end. Whole numbers lose their ``.0``.

    Blanks beside commas do not matter: "B,A,C" is the option "B, A, C".
    """
    plain = re.sub(r"\s*,\s*", ", ", " ".join(text.casefold().split()).rstrip("."))
    return str(int(float(plain))) if _WHOLE_NUMBER.fullmatch(plain) else plain


def _shown(options: Options) -> str:
    """The options as an error shows them."""
    return ", ".join(f"{letter}. {option}" for letter, option in options.texts.items())[:200]
