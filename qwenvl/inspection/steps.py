"""The steps of a procedure, read from a text file or from labels, and the answers of a table that name them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.data.errors import RecordError
from qwenvl.data.records.text import whole_text
from qwenvl.inspection.clips import composed
from qwenvl.option import did_you_mean
from qwenvl.rewards.functions.actions import action_numbers, is_range
from qwenvl.rewards.functions.text import normalized, unified
from qwenvl.timeline import TimedStep, plain_name, timeline_in, written_timeline

if TYPE_CHECKING:
    from qwenvl.inspection.spans import LabelledSpan

_NUMBERED = re.compile(r"(?:step\s*)?\(?\s*([0-9]{1,4})\s*(?:[).:\s]+(.*))?", re.DOTALL | re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+(?:[\s,;|+&/]+[0-9]+)*")
# "1. take", "(1) take", "1 - take" and "1,take", but not "4-pin" and "2.5 mm".
_NUMBER_WITH_SIGN = re.compile(r"\(?\s*([0-9]{1,4})\s*(?:[).:,;=]+(?![0-9])|[\u2013\u2014-](?=\s))\s*(.*)")
_NUMBER_WITH_WORD = re.compile(r"(?:step|#)\s*([0-9]{1,4})(?![0-9])\s*[).:,;=\u2013\u2014-]*\s*(.*)", re.IGNORECASE)
_FIRST_NUMBER = re.compile(r"[\W_]*(?:step|s)?[\W_]*([0-9]{1,4})(?![0-9]|[.,][0-9])", re.IGNORECASE)
# "# Steps", "// all", "Steps:", "-----", "List of steps", and the name of a column.
_HEADING = re.compile(
    r"(?:#+\s*(?![\s0-9])|//).*|.*:|[\W_]*|(?:the )?(?:list of )?(?:steps?|actions?|procedure|tasks?|operations?"
    r"|activit(?:y|ies)|names?|labels?|class(?:es)?|descriptions?|behaviou?rs?|schritte?)",
    re.IGNORECASE,
)
# The first line of a list, where a phrase ends with what it lists: "Assembly steps", "step_name", "Montageschritte".
_TITLE = re.compile(
    r"(?:[^\W\d_]+[ _-])?(?:steps|(?:step|action|task|label|class)[ _-](?:list|names?|labels?|descriptions?))"
    r"|steps (?:of|for|at|in) .{1,60}|(?:(?:work|working|assembly|operating) )?(?:instructions?|process|procedures?)"
    r"|[^\W\d_]*(?:schritte|anweisung(?:en)?)|liste der [^\W\d_]+|ablauf|bezeichnung(?:en)?|t\u00e4tigkeit(?:en)?"
    r"|[^\W\d_]{0,4}\u6b65\u9aa4",
    re.IGNORECASE,
)
# Numbers of their own: "Action 0: take", "T0 take", "No. 0 take" and, behind the name, "take,0".
_OWN_NUMBER_IN_FRONT = re.compile(r"\W*([^\W\d_]{1,12})[\W_]*(?P<number>[0-9]{1,4})(?![0-9]|[.,][0-9])")
_OWN_NUMBER_BEHIND = re.compile(r".*[\s,;:=_(](?P<number>[0-9]{1,4})\)?")
_BULLET = re.compile(r"[-*\u2022]\s+(?=\S)")
_INDENTED = re.compile(r"\t|\s{2}")  # a single blank is a slip
_NUMBER_WITH_TAB = re.compile(r"\s*([0-9]{1,4})\t")
_BARE_NUMBER = re.compile(r"([0-9]{1,4})\s+(\S.*)")
# "(2); insert the fan" may be step 2 and then the fan.
_NUMBER_APART = re.compile(r"\(\s*[0-9]{1,9}\s*\)\s*[;,|][\s;,|]*[^\s;,|]")
_BRACKETED = re.compile(r"(?=\(\s*[0-9]{1,9}\s*\))")

Steps = Sequence[str]
"""The steps of a procedure. Step n is the one at n - 1."""


def read_steps(path: Path) -> Steps:
    """The steps of a text file, one a line. All lines are numbered from 1, ``(1) take the lid``, or none is.

    Raises:
        RecordError: another numbering, a step that two lines name, or none.
    """
    written = re.split("\r\n?|\n", whole_text(path))
    lines = [_NUMBER_WITH_TAB.sub(r"\1. ", line, count=1) for line in written if line.strip(" \t,;")]
    lines = [" ".join(line.split()).rstrip(" ,;") for line in lines]
    if lines and re.match(r"[{]|\[(?!\s*[0-9]+\s*\])", lines[0]):  # JSON, and not [1] take
        raise RecordError(f"{path}: expected a step a line, as plain text, got {lines[0]!r}")
    if all(_BULLET.match(line) for line in lines):
        lines = [_BULLET.sub("", line) for line in lines]
    headings = [line for line in lines if _HEADING.fullmatch(line)]
    if len(lines) > 1 and _TITLE.fullmatch(lines[0]):
        headings.insert(0, lines[0])
    if 0 < len(headings) < len(lines):  # where all lines end with a colon, none is one
        raise RecordError(f"{path}: {headings[0]!r} seems to be a heading or a comment; leave it out")
    numbering = _numbering(lines)
    if any(numbering):
        lines = _without_numbers(lines, numbering, path)
    else:
        _check_unnumbered(lines, written, path)
    if not lines:
        raise RecordError(f"{path}: expected at least one step")
    _check_each_is_one_step(lines, path)
    return lines


def _without_numbers(lines: Sequence[str], numbering: Sequence[re.Match[str] | None], path: Path) -> list[str]:
    """The names behind the numbers of lines. RecordError: they are not numbered from 1, or not all of them."""
    names = []
    for number, (line, match) in enumerate(zip(lines, numbering, strict=True), start=1):
        if match is None or int(match[1]) != number:
            advice = "number all steps from 1, as in '(1) 2 screws', or none"
            raise RecordError(f"{path}: expected step {number}, got {line!r}; {advice}")
        names.append(match[2])
    return names


def _check_unnumbered(lines: Sequence[str], written: Sequence[str], path: Path) -> None:
    """Check that lines without numbers in a form that is read have none in another one, and are a step each.

    Args:
        written: the lines of the file, with the blanks in front of them.

    Raises:
        RecordError: they have, or one is indented below another: it may be the rest of it, or a part of its step.
    """
    # The first line may be the head of a table.
    own = _line_with_own_number(lines) or _line_with_own_number(lines[1:], behind_a_head=True)
    numbered_line = _numbered_line(lines) or own
    if numbered_line is not None:
        advice = "write '(1) name', or no numbers"
        raise RecordError(f"{path}: lines seem to be numbered, as in {numbered_line!r}; {advice}")
    for line, next_line in pairwise(written):
        if line.strip() and not _INDENTED.match(line) and _INDENTED.match(next_line) and next_line.strip():
            raise RecordError(
                f"{path}: {next_line.strip()!r} is indented below {line.strip()!r}: write each step on one line, "
                "without blanks in front of it"
            )


def _check_each_is_one_step(names: Sequence[str], path: Path) -> None:
    """Check that an answer with the name of a step means this step alone.

    Raises:
        RecordError: a name is empty or that of two steps, has signs of answers, or means other steps.
    """
    plain = list(map(_plain, names))
    for i, name in enumerate(names):
        if not plain[i]:
            raise RecordError(f"{path}: step {i + 1} has no name")
        as_read = unified(name)  # rewards would read the number as that of a step, in signs of other scripts too
        if action_numbers(as_read) or "<" in as_read:
            what = "(number) and < have a meaning in answers; leave them out"
            raise RecordError(f"{path}: step {i + 1}, {name!r}: {what}")
        first = plain.index(plain[i])
        if first < i:
            raise RecordError(f"{path}: steps {first + 1} and {i + 1} have the same name, {name!r}")
        problem = _misread(name, i + 1, plain)
        if problem is not None:
            raise RecordError(f"{path}: step {i + 1}, {name!r}: answers that name it would mean {problem}; rename it")


def _numbered_line(lines: Sequence[str]) -> str | None:
    """The first line with a number, where lines begin with numbers that seem to count them. None: they do not.

    Numbers in a notation that is not read, ``1_take``, or with a title, a note or a number that is typed twice between
    them.
    """
    numbers: dict[int, int] = {}  # by the place of their lines, from 1
    for place, line in enumerate(lines, start=1):
        found = _FIRST_NUMBER.match(unicodedata.normalize("NFKC", line))  # which writes a 1 in a circle as 1
        if found is not None:
            numbers[place] = int(found[1])
    # Numbers of things, "2 bolts" and "4-pin plug", neither go on from 1 nor stand at the places of their lines.
    in_order = list(numbers.values())
    if len(set(in_order)) < 2:
        return None
    from_one = in_order[0] <= 1 and in_order == sorted(in_order)
    at_their_place = sum(place == number for place, number in numbers.items())
    if from_one or at_their_place >= max(2, len(lines) / 2):
        return lines[min(numbers) - 1]
    return None


def _line_with_own_number(lines: Sequence[str], *, behind_a_head: bool = False) -> str | None:
    """The first line, where each has another number that is not that of its place. None: they have not.

    Labels may mean these numbers.

    Args:
        behind_a_head: the lines stand behind the head of a table, and their places begin at 2.
    """
    in_front = [_OWN_NUMBER_IN_FRONT.match(line) for line in lines]
    words = {match[1].casefold() for match in in_front if match}
    behind = [_OWN_NUMBER_BEHIND.fullmatch(line) for line in lines]
    first = 2 if behind_a_head else 1
    places = list(range(first, len(lines) + first))

    def number_otherwise(matches: Sequence[re.Match[str] | None]) -> bool:
        numbers = [int(match["number"]) for match in matches if match is not None]
        differ = len(lines) > 1 and len(set(numbers)) == len(lines)
        return differ and numbers != places

    has_word_in_front = len(words) == 1  # "Action 0: take", "Action 1: put"
    is_numbered = (has_word_in_front and number_otherwise(in_front)) or number_otherwise(behind)
    return lines[0] if is_numbered else None


def _misread(name: str, own_number: int, plain: Sequence[str]) -> str | None:
    """The other steps that an answer with a step's name would mean. None: it means this one.

    Args:
        plain: the names of all steps as they are compared.
    """
    own_name = plain[own_number - 1]  # 3" is 3
    as_number = _NUMBERED.fullmatch(own_name)
    if as_number and not as_number[2] and int(as_number[1]) != own_number:
        return f"step {as_number[1]}"
    numbers = re.findall("[0-9]+", own_name)
    if len(numbers) > 1 and _NUMBERS.fullmatch(own_name):  # 1/2
        return "steps " + " and ".join(numbers)
    for sign in ";,":
        parts = [_plain(part) for part in name.split(sign)]
        if len(parts) > 1 and set(parts) <= set(plain):
            return "steps " + " and ".join(str(plain.index(part) + 1) for part in parts)
    return None


def _numbering(lines: Sequence[str]) -> list[re.Match[str] | None]:
    """The number and the name of each line. None for lines, or all of them, without a number."""
    marked = [_NUMBER_WITH_WORD.fullmatch(line) or _NUMBER_WITH_SIGN.fullmatch(line) for line in lines]
    bare = [_BARE_NUMBER.fullmatch(line) for line in lines]
    numbers = {int(match[1]) for match in bare if match is not None}
    # "1 take_cup" and "2 insert_fan" are numbered. "2 screws" is a name where other names have no such number.
    all_differ = len(lines) > 1 and len(numbers) == len(lines)
    if all_differ and not all(marked):
        return bare
    return marked


def steps_of_labels(labelled: Iterable[LabelledSpan], background: Sequence[str]) -> list[str]:
    """The steps that labels name, in the order of their first spans, where there is no file of steps.

    Raises:
        RecordError: a label is a number, or holds signs that have a meaning in answers, or labels have numbers that
            would not be those of their steps.
    """
    without = {label.strip().casefold() for label in background}
    names: dict[str, str] = {}
    for each in labelled:
        if each.step.casefold() in without:
            continue
        name = composed(" ".join(each.step.replace("_", " ").split()))
        if re.fullmatch(r"\(?[0-9]+(?:[.,][0-9]+)?\)?", name):
            raise RecordError(f"{each.where}: {each.step!r} is a number; give the names of the steps by --steps FILE")
        if re.search(r"[<;]|\(\s*[0-9]+\s*\)", unified(name)):
            raise RecordError(f"{each.where}: {each.step!r}: (number), < and ; have a meaning in answers; rename it")
        first = names.setdefault(plain_name(name.replace("-", " ")), name)
        if _with_signs(first) != _with_signs(name):
            raise RecordError(f"{each.where}: {name!r} and {first!r} would be one step; rename one of them")
    found = list(names.values())
    # "2. insert" as the first step would be (1) 2. insert, and answers by number would mean another one.
    other = _with_other_number(found)
    if other is not None:
        raise RecordError(
            f"the labels have numbers of their own, and {other!r} would be step {found.index(other) + 1}; give the "
            "names of the steps in their order by --steps FILE"
        )
    return found


def _with_signs(name: str) -> str:
    """A name without the differences that one step may have: small letters, and hyphens between words."""
    return re.sub(r"(?<=\w)-(?=\w)", " ", name.casefold())


def check_step_names(names: Sequence[str], where: str) -> None:
    """Check that an answer with the name of a step can be read again.

    Raises:
        RecordError: a name holds a range such as 2-3 or a semicolon, which have a meaning in timelines, or ends with
            another one that is like a unit.
    """
    # Rewards read answers as ``unified`` writes them, in which the signs of other scripts have a meaning too.
    all_as_read = [unified(name) for name in names]
    listed = {name: number for number, name in enumerate(all_as_read, start=1)}
    for number, (name, as_read) in enumerate(zip(names, all_as_read, strict=True), start=1):
        written = written_timeline([TimedStep(0.0, 1.0, number, as_read)])
        spans = timeline_in(written)
        if len(spans) != 1 or plain_name(spans[0].name) != plain_name(as_read):
            raise RecordError(
                f"{where}: step {number}, {name!r}: ranges such as 2-3 and semicolons have a meaning in timelines; "
                "rename it"
            )
        # With the list, a name like a unit ("min") is looked for behind times, and may be found within another name.
        if [span.number for span in timeline_in(written, listed)] != [number]:
            raise RecordError(
                f"{where}: step {number}, {name!r}: its end is the name of another step and like a unit of time; "
                "rename one of them"
            )


def _with_other_number(names: Sequence[str]) -> str | None:
    """The first name whose own number is not that of its place, where all have one: "2. take the lid" as the first."""
    for place, (name, match) in enumerate(zip(names, _numbering(names), strict=True), start=1):
        if match is None:
            return None
        if int(match[1]) != place:
            return name
    return None


def numbered(steps: Steps) -> str:
    """The list of steps as prompts show it."""
    return "\n".join(f"({number}) {name}" for number, name in enumerate(steps, start=1))


def answer_in(steps: Steps, text: str) -> str:
    """An answer in the form of the list of steps, in the order of ``text``.

    The text has numbers ("2 3", "2;3"), numbers with names ("(2) insert the fan (3) ..."), or names between
    semicolons or commas.

    Raises:
        ValueError: naming an item that is no step.

    Example:
        >>> answer_in(("take the lid", "insert the fan"), "2; take the lid")
        '(2) insert the fan (1) take the lid'
    """
    text = text.replace("<answer>", "").replace("</answer>", "").strip(" \t\r\n,;|")
    if action_numbers(text):
        items: Sequence[str] = [item for item in _BRACKETED.split(text) if item.strip(" ,;|")]
        if not _BRACKETED.match(items[0].lstrip(" ,;|")):
            raise ValueError(
                f"{text!r}: expected (2) in front of the name of step 2; behind it, a number may mean something else"
            )
        if is_range(text):
            raise ValueError(f"{text!r}: may be two steps or all between them: write each of them")
        if any(_NUMBER_APART.match(item) for item in items):
            raise ValueError(f"{text!r}: expected '(2) name', or numbers alone: a sign stands between number and name")
    elif _NUMBERS.fullmatch(text):
        items = re.findall("[0-9]+", text)
    else:
        # A name may hold commas: the text as a whole, then at semicolons, then at commas, until all items are steps.
        at_semicolons = re.split(r"[;|\n]", text)
        items = at_semicolons  # for the error
        for split in ([text], at_semicolons, text.split(",")):
            if all(_number(steps, item) is not None for item in split):
                items = split
                break
    numbers = [number_of(steps, item) for item in items]
    are_bare = [_NUMBERS.fullmatch(item.strip(" ,;|")) is not None for item in items]
    # "2, insert the fan" may be one step with its number apart, or that step twice.
    for (number, is_bare), (next_number, next_is_bare) in pairwise(zip(numbers, are_bare, strict=True)):
        if number == next_number and is_bare != next_is_bare:
            raise ValueError(f"{text!r}: a number beside its own name is one step or two: write '(2) name' for one")
    return " ".join(f"({number}) {steps[number - 1]}" for number in numbers)


def _number(steps: Steps, item: str) -> int | None:
    """The number of the step that an item of an answer names, or None."""
    names = [_plain(step) for step in steps]
    plain = _plain(item)
    if plain in names:
        return names.index(plain) + 1
    found = _NUMBERED.fullmatch(item.strip(" ,;|"))
    if found is None:
        return None
    number = int(found[1])
    if not 1 <= number <= len(names):
        return None
    name = _plain(found[2] or "")  # it may stand behind the number, and must then be that of the step
    return number if name in ("", names[number - 1]) else None


def _plain(name: str) -> str:
    """A name by which steps are compared: ``Insert_the-fan`` is ``insert the fan``."""
    # Not the sign of a number: "turn by -90" and "turn_by_-90" are not "turn by 90".
    words = re.sub(r"[\s_]+|(?<=[^\W_])-+|-+(?![0-9])", " ", name)
    return normalized(unified(words.strip(" ,;|")))


def number_of(steps: Steps, label: str) -> int:
    """The number of the step that a label names.

    Raises:
        ValueError: it names none.
    """
    number = _number(steps, label)
    if number is None:
        raise ValueError(_no_step(steps, label))
    return number


def _no_step(steps: Steps, item: str) -> str:
    """The message about an item of an answer that is no step."""
    return (
        f"{item.strip(' ,;|')!r} is no step: expected a number from 1 to {len(steps)}, a name of the "
        f"list, or both that agree{did_you_mean(_plain(item), map(_plain, steps))}"
    )
