"""Rewards for procedures: which actions a clip shows, and in what order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from qwenvl.files import require
from qwenvl.rewards.functions.text import normalized, pairs, solution_of, unified, unmarked, unreadable

_NUMBER = re.compile(r"\(\s*([0-9]{1,9})\s*\)")
_SEPARATOR = re.compile(r"[,;\n\u3001]")
_ITEM = re.compile(r"\A\s*(?:[*\u2022]\s|\u2022|-\s?(?!\s*[0-9]))")  # "- 5 V" may be below 0
_NUMBER_OF_ITEM = re.compile(r"\A[0-9]{1,3}[.)](?:\s|(?=[^\W\d_]))")
_CHINESE_NUMBER_OF_ITEM = re.compile(r"^[ \t]*([0-9]{1,3})\u3001", re.MULTILINE)
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_ONE_OR_TWO = re.compile(r"[0-9]+,[0-9]+(?:\s?[^\W\d_]{1,5})?")  # 3,5 and 3,5 Nm
# A range: (2)-(4) may leave out step 3, or mean it. Items of a list, each with a dash on its line, are none.
_FROM_TO = re.compile(r"\)[ \t]*(?:[-\u2010-\u2015~]+|\.{2,3}|\u2026|(?:to|through|until|till|bis)\b)\s*\(\s*[0-9]")
# No dash and no dot: 2-5 may be four steps, and 2.5 is none.
_BETWEEN_NUMBERS = re.compile(r"(?:[\s,;|&+/#>(){}\[\]\u2022\u2192\u21d2\u3001和与及]|[-=]>)+")
# Around numbers: Markdown, LaTeX, the quotes of JSON, and the dashes of a list.
_MARKUP = re.compile(r"(?<![0-9])[*`$\"']+|[*`$\"']+(?![0-9])|\\boxed\b|^[^\S\n]*-\s", re.MULTILINE)
# Of a column with gaps tables write 2.0.
_BARE_NUMBER = re.compile(r"(?:steps?|actions?|步[骤驟]|第)?([0-9]{1,9})(?:\.0)?步?")
_NUMBER_OF_STEPS = re.compile(r"[0-9]\s{1,4}(?:steps?|actions?)\b", re.IGNORECASE)  # "2 steps", and not step 2
_WORDS_BESIDE_NUMBERS = frozenset(
    ("", "and", "then", "first", "next", "finally", "step", "steps", "action", "actions")
)
# A list may begin where its clip stands.
_LINE = re.compile(r"[ \t]*(?:<(?:video|image)>[ \t]*)*\(\s*([0-9]{1,9})\s*\)(.*)")
# Around a name on its line: "(1): take the lid", "(1) - take the lid", "(2) insert the fan; and", a clip behind it.
_BEFORE_A_NAME = re.compile(r"\A\s{0,4}[:.\u2013\u2014-]\s")
_BEHIND_A_NAME = re.compile(r"(?:\s?[,;](?:\s?(?:and|or))?|\s?<(?:video|image)>){1,9}\Z")
# Chinese has no spaces between words.
_CONNECTIVES_IN_CHINESE = "然后|接着|最后|首先|以及|和|再|先"
# Not between two letters or digits.
_WORD_ENDS = rf"(?:(?<![^\W_])|(?![^\W_])|(?={_CONNECTIVES_IN_CHINESE}))"
# One at a time: a name may begin as a separator does, "first screw".
# Signs are listed: marks on letters, such as the vowel signs of Devanagari, are none.
_SIGNS = (
    r"[\s!-/:-@\[-^`{-~\u00a1\u00ab\u00b7\u00bb\u00bf"  # those of ASCII, but for _, and of Latin languages
    r"\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u27bf\u3001-\u301f]"  # dashes, arrows, symbols, Chinese ones
)
_BETWEEN = (
    rf"{_SIGNS}|[0-9]{{1,3}}(?:[.)](?=\s|[^\W\d_])|\u3001)|\b(?:and|then|first|next|finally)\b"
    rf"|{_CONNECTIVES_IN_CHINESE}"
)
# In front of a name its number in the list, "step 2: insert the fan". That of "2. insert the fan" may count items.
_OWN_NUMBER = r"(?:(?:step|action)\s|步[骤驟]|第)?\[?([0-9]{1,9})步?\]?(?:\s?[:-]\s?|\s|(?<=step [0-9])[.)]\s?)"
_ENDS_A_PHRASE = frozenset(",;>\u2192\u21d2|\u3001\u3002")


def action_numbers(text: str) -> list[int]:
    """The ``(k)`` numbers of a text, in order, repetitions kept.

    Example:
        >>> action_numbers("(2) insert the fan (3) fasten the screw (2)")
        [2, 3, 2]
    """
    return [int(number) for number in _NUMBER.findall(text)]


def action_phrases(text: str) -> list[str]:
    """The phrases between commas, semicolons and new lines, normalized (see ``text.normalized``).

    Without the dashes, stars and bullets that the items of a list begin with, Markdown, and boxes of LaTeX.

    Example:
        >>> action_phrases("Insert the  fan, fasten the screw."), action_phrases("- insert\\n- fasten")
        (['insert the fan', 'fasten the screw'], ['insert', 'fasten'])
    """
    text = _CHINESE_NUMBER_OF_ITEM.sub(r"\1. ", unmarked(text))
    phrases = (normalized(unmarked(_ITEM.sub("", part))) for part in _SEPARATOR.split(text))
    return [phrase for phrase in phrases if phrase]


def _is_numbered_list(phrases: Sequence[str]) -> bool:
    """Whether phrases are items, "1. insert", "2. turn". "1. stage", "2. stage" are names."""
    without = _without_numbers(phrases)
    return len(phrases) > 1 and all(map(_NUMBER_OF_ITEM.match, phrases)) and len(without) == len(phrases)


def _without_numbers(phrases: Iterable[str]) -> frozenset[str]:
    return frozenset(_NUMBER_OF_ITEM.sub("", phrase, count=1) for phrase in phrases)


def accuracy(
    completions: list[str], solution: list[str], prompts: list[Any] | None = None, **columns: Any
) -> list[float]:
    """Overlap (intersection over union) of the actions that the answer names with the solution's.

    It compares the ``(k)`` numbers in the answer block with those of the solution, as sets. Where the prompt has
    a list of steps, bare numbers alone, ``2, 3``, and names of the list mean these numbers too, in both. Where a name
    of the list is made of numbers itself, as ``1/2``, bare numbers are read as names alone. Without an answer block, or
    with no action in it, the score is 0.

    A solution without numbers that has more than names of the list, or whose prompt has none, is compared as a set of
    phrases: the text between commas, semicolons and new lines, which may be items of a list ("- ", "1. "). So is one
    with a number behind a name, ``bolt (2)``, where the prompt has no list, unless the answer has numbers alone. The
    same set scores 1.

    The list is the lines of the last user turn that begin with ``(k)``. It must be unambiguous: no number and no name
    occurs twice, and none has a second number. A name counts only to the letter, upper and lower case, spaces and final
    dots aside. It may have its own number in front, ``Step 2: fasten the screw``. Signs, arrows, numbers of a list
    ("1.", "1)"), "and", "then", "first", "next" and "finally" may separate names, and so may 和, 然后, 先 and the like.
    Any other words, up to the next comma, semicolon, arrow, line or name, count as one wrong action. With the list
    ``(1) insert the fan``, ``(2) fasten the screw`` and the solution ``(1) (2)``:

    - ``Insert the fan, then fasten the screw.`` scores 1, as ``(1) (2)`` does
    - ``insert the fan`` scores 1/2, and ``insert the fan, take the lid`` 1/3: one of two, and one that is wrong
    - ``inserts a fan`` scores 0: it is no name of the list
    - ``(1) insert the fan, fasten the screw`` scores 1/2: it has a number, so numbers alone count
    """
    scores = []
    rows = zip(pairs(completions, solution), prompts or [None] * len(completions), strict=True)
    for (answer, truth), prompt in rows:
        listed = list_of(prompt)
        phrases = action_phrases(truth)
        expected: frozenset[Any] = frozenset(phrases)
        named: frozenset[Any] = frozenset(action_phrases(answer or ""))
        if _is_numbered_list(phrases):
            expected = _without_numbers(expected)
            named = _without_numbers(named)
        elif not any(map(_NUMBER_OF_ITEM.match, expected)):
            named = _without_numbers(named)
        unknown = 0
        numbers = numbers_to_compare(truth, answer or "", listed)
        if numbers:
            expected = numbers
            named, unknown = named_actions(answer or "", listed)
        scores.append(len(named & expected) / (len(named | expected) + unknown) if named and expected else 0.0)
    return scores


def action_order(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 - edit distance / longer length between the sequences of ``(k)`` numbers of answer and solution.

    Insertions, deletions and substitutions cost 1 each (Levenshtein). Without an answer block, or with no number in
    it, 0.
    """
    levenshtein = require("rapidfuzz.distance", "rewards").Levenshtein
    numbers = [(action_numbers(answer or ""), action_numbers(truth)) for answer, truth in pairs(completions, solution)]
    return [levenshtein.normalized_similarity(*each) if all(each) else 0.0 for each in numbers]


def check_action_numbers(solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
    """The reason why a record cannot be scored by the order of its numbers: it has none, or a range. Else None."""
    expected = 'names no action: expected "(1) ... (2) ..." numbers'
    return unreadable(action_numbers, expected, solution) or _range_problem(solution)


def check_actions(solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
    """The reason why a record cannot be scored by its actions, else None.

    It names none, 3,5 may be one or two, or (1)-(3) two or three.
    """
    if _ONE_OR_TWO.fullmatch(solution_of(solution)):
        return f"the solution {solution[:80]!r} may be one number or two: write 3.5, or 3, 5 with a blank"
    expected = 'names no action: expected "(1) ..." numbers or phrases'
    return unreadable(action_phrases, expected, solution) or _range_problem(solution)


def _range_problem(solution: str) -> str | None:
    """A sentence about a solution with a range of steps, else None."""
    if not is_range(solution_of(solution)):
        return None
    return f"the solution {solution[:80]!r} may be two steps or all between them: write each of them"


def is_range(text: str) -> bool:
    """Whether a text has two ``(k)`` numbers with a dash, dots or "to" between them."""
    return _FROM_TO.search(text) is not None


def numbers_to_compare(truth: str, answer: str, listed: Mapping[str, int]) -> frozenset[int]:
    """The numbers of a solution that an answer is compared with. Empty where both are compared by phrases.

    Without a list a number behind a name is a part of it: "bolt (2)" and "nut (2)" are two labels. With one a solution
    may name its steps otherwise, see ``steps_of_list``.

    Example:
        >>> [sorted(numbers_to_compare("bolt (2)", answer, {})) for answer in ("nut (2)", "(2)")]
        [[], [2]]
    """
    numbers = frozenset(action_numbers(truth))
    if not numbers:
        return steps_of_list(truth, listed)
    has_numbers_alone = bool(action_numbers(answer)) and not _LETTER.search(answer)
    if listed or has_numbers_alone or not has_number_behind(truth):
        return numbers
    return frozenset()


def steps_of_list(text: str, listed: Mapping[str, int]) -> frozenset[int]:
    """The numbers of the steps that a text without ``(k)`` numbers names: by names of the list, or by bare numbers.

    Empty for a text with more than these.

    Example:
        >>> steps = {"insert the fan": 1, "fasten the screw": 2}
        >>> sorted(steps_of_list("steps 1 and 2", steps)), sorted(steps_of_list("fasten the screw", steps))
        ([1, 2], [2])
    """
    named, unknown = named_actions(text, listed)
    return frozenset() if unknown else named


def has_number_behind(text: str) -> bool:
    """Whether all ``(k)`` numbers of a text stand behind names, as in "bolt (2), nut (1)".

    Not those of "(2) insert", "step (2)" and "he performs (2) and (3)": there one has no name in front of it.
    """
    has_one = False
    for phrase in _SEPARATOR.split(text):
        # The pieces in front of its numbers. With a group, split has the numbers between them.
        *in_front, _ = _NUMBER.split(phrase)[::2]
        for piece in in_front:
            if _WORDS_BESIDE_NUMBERS.issuperset(_WORD.findall(piece.casefold())):
                return False
            has_one = True
    return has_one


def bare_numbers(text: str) -> frozenset[int]:
    """The numbers of a text that has nothing else: ``2, 3``, ``steps 2 and 3``, ``[2, 3]``. Empty where it has more.

    Not those of ``2-3``, which may mean more steps.
    """
    if _NUMBER_OF_STEPS.search(text):
        return frozenset()
    words = [word.rstrip(".:") for word in _BETWEEN_NUMBERS.split(_MARKUP.sub(" ", text.casefold()))]
    numbers = [_BARE_NUMBER.fullmatch(word) for word in words if word not in _WORDS_BESIDE_NUMBERS]
    return frozenset(int(number[1]) for number in numbers if number) if all(numbers) else frozenset()


def list_of(prompt: Sequence[Mapping[str, Any]] | None) -> dict[str, int]:
    """The numbers of the actions by name: the lines of the last user turn that begin with ``(k)``.

    Args:
        prompt: messages, as reward functions get them.

    Returns:
        Names as ``text.normalized`` writes them. Empty where there is no such list of two actions or more, or where it
        is ambiguous: a number or a name occurs twice, a number has no name, or a line holds two numbers.
    """
    asked = [message["content"] for message in prompt or () if message.get("role") == "user"]
    return list_in(asked[-1]) if asked and isinstance(asked[-1], str) else {}


def list_of_turns(prompt: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """The same for messages with ``role`` and ``text``, as completions of a run or an evaluation have them."""
    return {normalized(name): number for number, name in listed_names(prompt).items()}


def listed_names(prompt: Sequence[Mapping[str, str]]) -> Mapping[int, str]:
    """The names of the actions by number, as the last user turn of such messages writes them."""
    asked = [message["text"] for message in prompt if message["role"] == "user"]
    return names_in(asked[-1]) if asked else {}


def list_in(text: str) -> dict[str, int]:
    """The numbers of the actions by name that a user turn lists."""
    return {normalized(name): number for number, name in names_in(text).items()}


@lru_cache(maxsize=256)
def names_in(text: str) -> dict[int, str]:
    """The names of the actions as a user turn lists them, by number. Empty where the list is ambiguous."""
    found = _lines_of_list(text)
    names = {int(match[1]): _name_on_line(match[2]) for match in found}
    different = {normalized(name) for name in names.values()}
    whole = all(different) and len(different) == len(names) == len(found) > 1
    return names if whole and not any(_NUMBER.search(match[2]) for match in found) else {}


def _name_on_line(text: str) -> str:
    """The name behind its number on a line of a list. Lists have commas or semicolons behind their items."""
    name = " ".join(_BEFORE_A_NAME.sub("", text).split())
    return _BEHIND_A_NAME.sub("", name)


def has_ambiguous_list(text: str) -> bool:
    """Whether a user turn has lines that begin with ``(k)`` and are no list that is read."""
    return not names_in(text) and len(_lines_of_list(text)) > 1


def _lines_of_list(text: str) -> list[re.Match[str]]:
    """The lines of a user turn that begin with ``(k)``."""
    matches = map(_LINE.match, unified(text).splitlines())
    return [match for match in matches if match is not None]


def named_actions(answer: str, listed: Mapping[str, int]) -> tuple[frozenset[int], int]:
    """The numbers of the actions that an answer names, and how many of its phrases name no listed action.

    An answer without ``(k)`` numbers is read by its bare numbers if it has nothing else, and otherwise by the names of
    the list, from left to right, the longest name first.

    Example:
        >>> named_actions("Insert the fan, then fasten the screw; wait", {"insert the fan": 1, "fasten the screw": 2})
        (frozenset({1, 2}), 1)
    """
    numbers = set(action_numbers(answer))
    if numbers or not listed:
        return frozenset(numbers), 0
    bare = bare_numbers(answer)
    may_be_a_name = any(map(bare_numbers, listed))  # "1/2" may be steps 1 and 2, and the step that is called so
    if bare and not may_be_a_name:
        known = bare & set(listed.values())
        return known, len(bare - known)
    unknown = 0
    names = "|".join(map(re.escape, sorted(listed, key=len, reverse=True)))
    part = re.compile(
        rf"({names}){_WORD_ENDS}|{_OWN_NUMBER}({names}){_WORD_ENDS}|({_BETWEEN})|\S[^\s,;|\u3001\u3002]*"
    )
    for line in answer.splitlines():
        in_unknown = False
        for name, own_number, numbered_name, between in part.findall(" ".join(line.casefold().split())):
            if numbered_name and int(own_number) != listed[numbered_name]:
                unknown += not in_unknown  # which of the two is meant?
            if name or numbered_name:
                numbers.add(listed[name or numbered_name])
                in_unknown = False
            elif between:
                in_unknown = in_unknown and not _ENDS_A_PHRASE & set(between)
            else:
                unknown += not in_unknown
                in_unknown = True
    return frozenset(numbers), unknown
