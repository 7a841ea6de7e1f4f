"""Options that a row has in columns of their own, or in the text of its question."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qwenvl.data.records.choices import (
    COLUMN_LETTERS,
    LETTERED,
    LETTERS,
    OPTION_COLUMN,
    Choices,
    option_text,
    options_of,
    plain_option,
    whole_number,
)
from qwenvl.data.records.chosen import is_letter, letters_in

_NAMES_OPTIONS = ("option", "choice", "candidate", "opt")  # which nothing else begins with
# Lettered options in a text, on lines of their own, where no blank need follow the letter, or one after another.
_IN_TEXT = re.compile(
    r"(?:^|(?<=\s)(?=[(\[*]{0,3}[A-Za-z][)\].:*]{1,3}\s))"
    r"[(\[*]{0,3}([A-Za-z])[)\].:*\u3001\uff0e\uff1a\uff09]{1,3}\s*(?=\S)",
    re.MULTILINE,
)


def is_option_column(name: str) -> bool:
    """Whether a column may hold one of the options, as ``option_1``, ``choice b`` and ``a0`` do."""
    return OPTION_COLUMN.fullmatch(name) is not None


def option_columns(row: Mapping[str, Any]) -> tuple[Choices, tuple[str, ...]] | None:
    """Options in columns of their own, A, B, ... or numbered ones, and the names of the columns. None: there are none.

    Columns a, b, ... are options where the answer is a letter or one of their texts, and no number: they may be numbers
    of a sum, and "a" the answer itself.

    Raises:
        ValueError: a column between others is empty.
    """
    return _columns_of_letters(row) or _columns_of_a_name(row)


def _columns_of_letters(row: Mapping[str, Any]) -> tuple[Choices, tuple[str, ...]] | None:
    """Options in the columns A, B, ... or a, b, ..."""
    letters = COLUMN_LETTERS
    small = COLUMN_LETTERS.lower()
    # Any two of them, and not a and b: empty cells are no keys of a row, and `options_of` names one between others.
    if len(row.keys() & set(small)) > 1 and _names_an_option(row, small):
        letters = small
    texts = [option_text(row.get(letter)) for letter in letters]
    while texts and texts[-1] == "":
        texts.pop()
    if not texts:
        return None
    columns = letters[: len(texts)]
    by_letter = {letter.upper(): row.get(letter) for letter in columns}
    return options_of(by_letter, "/".join(columns)), tuple(columns)


def _columns_of_a_name(row: Mapping[str, Any]) -> tuple[Choices, tuple[str, ...]] | None:
    """Options in columns of one name with numbers or letters at its end, ``option_1`` or ``choice b``."""
    families: dict[str, dict[str, str]] = {}  # columns by their ends, by what stands before the end
    for column in row:
        found = OPTION_COLUMN.fullmatch(column)
        if found:
            end = (found[1] or found[2]).lower()
            families.setdefault(column[: -len(end)].lower(), {})[end] = column
    for stem, columns in families.items():
        if stem.startswith("ans") and _is_text_of_its_own(row.get("answer")):
            continue  # answer1 and answer2 are then those of several people
        ends = sorted(columns, key=lambda end: (len(end), end))  # 10 stands behind 9
        texts = [option_text(row[columns[end]]) for end in ends]
        if len(ends) < 2 or not any(text != "" for text in texts):
            continue
        names = [columns[end] for end in ends]
        listed = "/".join(names)
        first = 1 if ends[0] == "1" else 0
        numbers = [str(first + i) for i in range(len(ends))]
        letters = list(COLUMN_LETTERS.lower()[: len(ends)])
        if ends not in (numbers, letters):
            if not stem.startswith(_NAMES_OPTIONS):
                continue
            raise ValueError(
                f"{listed}: expected columns of options from 1, 0 or a on, without a zero in front and with none left "
                "out"
            )
        options = options_of([row[name] for name in names], listed)
        if ends == numbers and not options.numbers:
            options = Choices(options.texts, tuple(range(first, first + len(options.texts))))
        return options, tuple(names)
    return None


def _names_an_option(row: Mapping[str, Any], columns: str) -> bool:
    """Whether the answer of a row begins with letters, or is the text of one of some columns and no number."""
    answer = str(row.get("answer")).strip()
    texts = [str(row[column]) for column in columns if row.get(column) is not None]
    if set(letters_in(answer)) <= set(COLUMN_LETTERS) or LETTERED.match(answer):
        return True
    return plain_option(answer) in map(plain_option, texts) and not re.match("[-+.]*[0-9]", answer)


def _is_text_of_its_own(answer: Any) -> bool:
    """Whether an answer is neither a letter nor a whole number, which name one of some options."""
    return isinstance(answer, str) and bool(answer.strip()) and not is_letter(answer) and whole_number(answer) is None


def options_in(question: str) -> Choices | None:
    """The lettered options that a question's own text holds, A and B at least. None: there are none.

    Example:
        >>> options_in("Where? (A) left (B) to the right").texts
        {'A': 'left', 'B': 'to the right'}
    """
    matches = list(_IN_TEXT.finditer(question))
    of_lines = [match for match in matches if match.start() == 0 or question[match.start() - 1] == "\n"]
    # Where lines alone have the letters in order, they are the options, and the same letter within a line is text.
    letters_of_lines = "".join(match[1].upper() for match in of_lines)
    has_lines = len(of_lines) > 1 and LETTERS.startswith(letters_of_lines)
    found: list[re.Match[str]] = []
    for match in matches:
        if has_lines and match not in of_lines and match[1].upper() in letters_of_lines:
            continue  # the E of "D. E. coli", where E begins another line
        if match[1].upper() == LETTERS[len(found) % len(LETTERS)]:
            found.append(match)
        elif match[1].upper() == "A":  # an "a" of the sentence came before the options
            found = [match]
    if len(found) < 2 or len({match[1].isupper() for match in found}) > 1:
        return None
    ends = [*(match.start() for match in found[1:]), len(question)]
    lines = [question[match.end() : end].strip().split("\n")[0] for match, end in zip(found, ends, strict=True)]
    texts = [line.rstrip(" ,;") for line in lines]
    return Choices(dict(zip(LETTERS, texts, strict=False)))
