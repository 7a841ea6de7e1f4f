"""The reward for multiple choice: which letters an answer chooses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qwenvl.characters import CJK
from qwenvl.rewards.functions.text import alike, solution_of, unreadable, without_commands

_SPLIT = re.compile(r"[\s,;/&+\u3001和与或及]+")
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
_CHOICE = r"[(\[]?([A-H])[)\]]?(?!\w)"
# In front of a choice, in words and in Chinese.
# "The incorrect option is A" answers "which option is incorrect", and "the incorrect answer is A" rejects A.
_ANNOUNCED = (
    r"\b(?i:(?<!\bwrong )(?<!\bincorrect )(?<!\bworst )(?<!\bleast likely )answer|option|choice|antwort)s?"
    r"(?: is| are| (?:should|would|must) be)?"
)
_ANNOUNCED_IN_CHINESE = "答案[是为為]?|选[择項项]?[是为為]?"
# A small letter must end what is said: "the answer is a man" chooses nothing.
_SAID = re.compile(
    # "Option A, not option B" chooses one.
    rf"(?:(?<!\bnot ){_ANNOUNCED}|(?<!错误){_ANNOUNCED_IN_CHINESE}):? ?"
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
# "The answer is AC."
_SAID_RUN = re.compile(rf"(?:{_ANNOUNCED}|{_ANNOUNCED_IN_CHINESE}):? ?([A-H]{{2,8}})(?!\w)")
# The letters are on the lines behind: "The correct answer is:".
_SAID_BELOW = re.compile(
    r"^(.*(?:\b(?i:answers?|(?:correct|right|best)\s(?:option|choice)s?)(?: is| are)?"
    rf"|{_ANNOUNCED_IN_CHINESE})):?[ \t]{{0,4}}\n\s{{0,9}}",
    re.MULTILINE,
)
_NO_CHOICE = re.compile(
    r"\b(?i:not|cannot|wrong|incorrect|false|impossible|eliminate|exclude|reject|ruled?\sout|either|neither|between"
    r"|unsure|or|least|worst|less)\b|n't|错误"
)
# The last one of "Option A is wrong. The answer is B." decides, and not "if it rains, the answer is C".
_ANSWER_IS = re.compile(
    r"(?:\A|(?<=[.!?:\n])\s{0,4}|(?<=[,;])\s{0,4}(?=(?i:so|thus|hence|therefore|but)\b))"
    r"(?:(?i:so|thus|hence|therefore|wait|no|hmm|actually|but|however)[,:]?\s){0,3}"
    r"(?i:(?:the|my)\s(?:(?:final|correct|best)\s)?answer\s(?:is|would be|should be):? ?"
    rf"|(?:final |correct )?answer: ?){_CHOICE}"
    r"(?!(?<=A) (?!(?:as|and|because|but|for|if|or|since)\b)[a-z])"  # a man
)
_NEXT_SENTENCE = re.compile(r"[.;]\s+(?=[A-Z][a-z])")
_SAYS_ANOTHER = re.compile(
    rf"(?i:answer|option|choice)s?(?:(?:\s(?:is|are|would be|should be):?|:)\s{_CHOICE}"
    rf"|\s{_CHOICE}(?=\s*(?:[.!,;]|\Z)|\s(?:is|would be)\s(?:the\s)?(?:correct|right|best)))"
)
# "D. A and B": a letter with the text of its option, and no list.
_WITH_A_TEXT = re.compile(r"[(\[]?([A-Za-z])[).:\]][ \t]{1,8}(?!(?:and|or)\b)\w")
# A letter that may be another choice: "A. left C. up".
_LONE_MARK = re.compile(r"(?<![\w(\[])([A-H])[).:\]](?=\s{1,9}\S)|[,;]\s{0,4}([A-H])[).:\]]\s{0,4}\Z")
# A solution that accepts several letters, and not all of them together: "B or C".
_OR_ANOTHER = re.compile(r"(?<!\w)[A-Z][)\]]?,? or [(\[]?[A-Z](?!\w)")
_AROUND_CHOICE = "()[]{}.:\u3002\u3001"

# What a text is cleaned of, in this order.
_QUOTES_AND_BRACKETS = str.maketrans("\u2018\u2019\u201c\u201d\u300c\u300d\u3010\u3011", "''\"\"\"\"[]")
_OBJECT = re.compile(r"\{\s*\"(?:answers?|choices?|options?)\"\s*:([^{}]*)\}")  # {"answer": "B"}
_QUOTED_LETTER = re.compile(r"(['\"])([A-Z])\1")
# Of Markdown and LaTeX: **B**, $B$, \(B\), _B_, #### B, and the items of a list.
_MARKUP = re.compile(r"[*`$]|\\[()\[\]]|^#+\s|^[-\u2022]\s+(?=[(\[]?[A-H]\b)", re.MULTILINE)
_UNDERLINED = re.compile(r"(?<!\w)_([A-H])_(?!\w)")
_BEFORE_IN_CHINESE = re.compile(
    r"\A(?:故|所以|因此)?我?(?:应该?)?(?:选[择項项]?|\[?(?:正确)?(?:答案|选项)\]?|正确的)[是为為:]*\s*"
)
_BEHIND_IN_CHINESE = re.compile(r"(?<=[A-H)\]])(?:选?项(?:是?正确的?|对)?|是?正确的?|对)[\u3002.]?\Z")
# "Both A and C", "I choose B", "It's B", "Therefore, B", "I think that it is B".
_BEFORE = re.compile(
    r"\A(?i:(?:so|thus|hence|therefore),?\s)?"
    r"(?i:both\s|(?:I|we)(?:'d| would| will)? (?:choose|pick|select|say|go with|think(?: that)?)\s"
    r"|(?:the |my )?(?:correct |right )?(?:letter|selected|selection)(?: is)?:?\s)?"
    r"(?i:it(?: is|'s)\s)?(?=[(\[]?[A-H]\b)"
)
# "B is correct", "A and C are the right answers."
_BEHIND = re.compile(
    r"(\b[A-H][)\]]?) (?:is|are|would be) (?:both |all )?"
    r"(?:(?:the )?(?:correct|right|best)(?: answers?| options?| choices?| ones?)?|(?:the|my) answers?)[.!]?\Z"
)
_OWN_LINE = re.compile(r"^[(\[]?[A-H][)\]]?[.:]?\s*$", re.MULTILINE)
_OPTION = r"(?i:option|answer|choice)s?"
_ONE = r"[(\[]?[A-H][)\]]?(?!\w)"
_SOME = rf"{_ONE}(?:(?:,\s?(?:and\s|or\s)?|\s(?:and|or)\s|/){_ONE}){{0,7}}"
_REJECTED = re.compile(
    rf"(?i:\b(?:not|than|except(?: for)?|eliminate|exclude|reject|rule out)|n't)\s(?i:the\s)?{_OPTION}\s{_SOME}"
    rf"|{_OPTION}\s{_SOME}\s(?i:can't|cannot|(?:do|does|is|are|was|were)(?:n't| not))\b"
    # "B, not A or C", "not A but B", "B instead of option A", and in Chinese.
    rf"|(?:,\s?)?(?i:\bnot|\brather than|\binstead of)\s(?:{_OPTION}\s)?{_SOME}(?=[^\S\n]*(?:\Z|[.,;)\n]|but\b))"
    rf"|[,\u3001]?不[选是]{_ONE}"
    # "A is wrong, B is right", "Options A and B are wrong"
    rf"|(?:{_OPTION}\s)?{_SOME}\s(?:is|are|was|were)\s(?:clearly\s)?(?:wrong|incorrect|false|ruled out)\b"
)
_BEHIND_A_REJECTED_ONE = re.compile(r"\A[\s,;.()]{0,8}(?:but|and)?[\s,;]{1,8}")
_IN_FRONT_OF_A_REJECTED_ONE = re.compile(r"[\s,;(]{0,8}(?:\bbut)?[\s,;(.)]{0,8}\Z")
# What follows gives reasons, and may name other options.
_REASON = re.compile(r",?[^\S\n](?:because|since)\b[^\n]*", re.IGNORECASE)

# A letter and its text: "B - left", "B (left)", "B.left", "(B)left".
_BEFORE_ITS_TEXT = rf"{_CHOICE}\s{{1,4}}[-\u2010-\u2015\u2192]\s{{1,4}}\w{{2,}}"
_WITH_ITS_TEXT = (
    re.compile(rf"{_BEFORE_ITS_TEXT}(?!(?s:.){{0,2000}}[\s,;]{_BEFORE_ITS_TEXT})"),
    re.compile(r"([A-H])\s{1,4}\((?!(?:and|or)\b)[^()]{2,}\)\Z"),
    re.compile(rf"{_CHOICE},?\s{{1,4}}as\b(?! well)"),
    re.compile(r"[(\[]?([A-H])[)\].:](?=[^\W\d_]{2})(?!(?s:.){0,2000}(?<!\w)[A-H][)\].:])"),
    # "B The man", "B, The man". "A Man" may be the text alone.
    re.compile(
        r"(?:([B-H]),? |A(?:, | (?=(?:The|An?|He|She|It|They|To|In|On|At|There|This|Because|Yes|No)\b)))"
        r"(?=[A-Z][a-z]{1,20}\b)(?!(?s:.){0,2000}(?:(?<!\w)[B-H](?!\w)|[\n,] ?A |\band A\b))"
    ),
)


def multiple_choice(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    r"""1 if the answer chooses the same letters as the solution, else 0.

    Several letters compare as sets. Read as letters: "B", "b", "(B)", "B. some text", "b) some text", "A, C", "A and
    C", "AC" (A to H, rising), "the answer is B", "I choose B", "B is correct", "B because it moves", and each of these
    in quotes, in Markdown, "**B**", or in a LaTeX box, "\boxed{B}". Of several "the answer is" the last one counts.
    Rejected options, "not option B", are not chosen.
    """
    return alike(letters, completions, solution)


def letters(text: str) -> set[str]:
    """The choices that a text makes, as capital letters.

    Example:
        >>> sorted(letters("(A), C")), sorted(letters("B. a cat")), sorted(letters("a cat"))
        (['A', 'C'], ['B'], [])
        >>> sorted(letters("The answer is A or B.")), sorted(letters("The answer is B."))
        (['A', 'B'], ['B'])
    """
    text = _deciding_part(_cleaned(text))
    return _chosen(_REASON.sub("", text)) or _chosen(text)


def _chosen(text: str) -> set[str]:
    """The letters of a text that is cleaned."""
    text = _BEHIND.sub(r"\1", text)
    for pattern in _WITH_ITS_TEXT:
        found = pattern.match(text)
        if found is not None:
            return {found[1] or "A"}
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
        if len(words) == 1 and _RUN.fullmatch(words[0]) and _is_rising(words[0]):
            return set(words[0])
    run = _SAID_RUN.search(text)
    if run is not None and _is_rising(run[1]):
        return set(run[1])
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


def _cleaned(text: str) -> str:
    """A text without boxes, markup, quotes, and rejected options."""
    text = without_commands(text).translate(_QUOTES_AND_BRACKETS).strip()
    found = _OBJECT.fullmatch(text)
    if found is not None:
        text = found[1].strip()
    # Before outer quotes go: 'The answer is "B"' would lose one of a pair.
    text = _QUOTED_LETTER.sub(r"\2", text)
    text = _MARKUP.sub("", text)
    text = _UNDERLINED.sub(r"\1", text).strip()
    text = text.strip("\"'").rstrip("!")
    text = text.replace(")(", ") (")  # (A)(C)
    text = text.replace("):", ")")  # (B): cat
    text = _BEFORE_IN_CHINESE.sub("", text)
    text = _BEHIND_IN_CHINESE.sub("", text)
    # Before "I choose" goes, so that "not option B" is still whole.
    without = _REJECTED.sub("", text)
    if without != text:
        text = _IN_FRONT_OF_A_REJECTED_ONE.sub("", _BEHIND_A_REJECTED_ONE.sub("", without))
    return _BEFORE.sub("", text)


def _deciding_part(text: str) -> str:
    """The part of a text that decides: below or behind the last "the answer is", or a letter on a line of its own."""
    announced = [found for found in _SAID_BELOW.finditer(text) if not _NO_CHOICE.search(found[1])]
    if announced and _OWN_LINE.match(text, announced[-1].end()):  # and no list of the options
        text = text[announced[-1].end() :]
    said = list(_ANSWER_IS.finditer(text))
    if said:
        decision, *others = _NEXT_SENTENCE.split(text[said[-1].start() :], maxsplit=1)
        is_last_word = not any(map(_SAYS_ANOTHER.search, others))
        return decision if is_last_word else text
    return _lone_line(text) or text


def _lone_line(text: str) -> str | None:
    """The last or the first line where it is a letter, and the others are an explanation or its text. Else None."""
    before, _, last_line = text.rpartition("\n")
    *_, line_before = before.strip().splitlines() or [""]
    is_whole = line_before.endswith((".", "!", ":", "\u3002")) or before.endswith("\n")  # no "I eliminate", and then B
    is_last_alone = _OWN_LINE.fullmatch(last_line) is not None and not _OWN_LINE.search(before)
    if is_last_alone and is_whole and not _NO_CHOICE.search(line_before) and not _chosen(before):
        return last_line
    first_line, _, behind = text.partition("\n")
    is_first_alone = _OWN_LINE.fullmatch(first_line) is not None and not _OWN_LINE.search(behind)
    is_text_behind = re.match(r"\s*(?!(?:and|or|option|answer|choice)\b)[^\W\d_]{2}", behind) is not None
    return first_line if is_first_alone and is_text_behind else None


def _is_rising(run: str) -> bool:
    """Whether letters are in the order of the alphabet, each once: AC, and not BED."""
    return list(run) == sorted(set(run))


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
    """The letters of a text that may be choices, too, beside the chosen ones."""
    return {mark or last for mark, last in _LONE_MARK.findall(text)} - set(chosen)


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
