"""What an answer states in words: behind "the answer is", in "the value of x is 10", or on its first line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qwenvl.rewards.mathematics.expressions import has_words
from qwenvl.rewards.mathematics.units import split_unit

BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
FINAL_DOT = re.compile(r"(?<=[^.\s])\s{0,4}[.\u3002](?=[\s$]{0,8}$)")
# Between expressions: "2 or 3", "x = 2 and x = 3".
AND_OR = re.compile(
    r"(?:(?<=[0-9)}\]$%])|(?<=[^A-Za-z][A-Za-z])|(?<=^[A-Za-z])|(?<=\\pi)|(?<=\\circ)|(?<=[0-9] [a-z]{2}))"
    r"\s{0,4},?\s{0,4}(?:\\text\s?\{\s{0,4}(?:and|or)\s{0,4}\}\s{0,4}|(?<=[\s,$])(?:and|or)\s{1,4}|[和或与]\s{0,4})"
    r"(?=[-+$0-9\\(\[{.]|[^\W\d_](?:_\{?\w{1,3}\}?)?\s{0,4}(?:[-+*/^=<>]|\\(?:le|ge)(?![a-z])))"
)

_SO = re.compile(r"\A(?:(?:so|thus|hence|therefore)[,:]?\s|[\u2234\u2235]|所以|因此)\s{0,4}", re.IGNORECASE)
# "So the final answer is", in a text or in front of it, a heading over it, and in Chinese.
_ANNOUNCED = re.compile(
    r"(?:\A|(?<=[\n.!?,;:\u3002])|\b(?:so|thus|hence|therefore|think|believe)\b)[\s,$#]{0,9}(?:that\s)?"
    r"(?:(?:the|my)\s)?(?:final\s|correct\s)?(?:answer|result)"
    r"(?:\s?[:=]\s|\s?\n|\s(?:is|are|(?:should|would|must)\sbe)(?:\s(?:about|approximately))?:?(?!\s(?:not|to|that)\b)\s)"
    r"(?:option\s(?=[A-H]\b))?"
    r"|\Aoption\s(?=[A-H]\b)"
    r"|(?<!错误)(?<!错误的)(?:答案|结果)[是为為:=]{1,2}\s{0,4}|(?:\A|(?<=[\n\u3002]))答:",
    re.IGNORECASE,
)
_ONLY_SUPPOSES = re.compile(r"\b(?:if|unless|suppose|assume|assuming)\b", re.IGNORECASE)
_SENTENCE_ENDS = re.compile(r"[.!?\n\u3002]")
_LONGEST_CONDITION = 200  # characters
_EXPLAINS = re.compile(r"\W*(?:explanation|reasoning|because|since|here(?:'s| is) (?:why|how))\b", re.IGNORECASE)
_CORRECTS = re.compile(r"[0-9]|\b(?:no|not|wrong|wait|actually|or)\b|n't", re.IGNORECASE)
# "The value of x is 10": what is asked for, and not "the square of x is 10".
_QUANTITIES = (
    r"(?:values?|number|total|sum|length|width|height|distance|area|perimeter|circumference|volume|radius|diameter"
    r"|angles?|measure|probability|speed|velocity|time|cost|price|ratio|average|mean|median|slope"
    r"|difference|product|quotient|remainder|derivative|integral|limit|maximum|minimum|expression|function|equation"
    r"|roots?|solutions?|points?|coordinates|cent(?:er|re)|vertex)"
)
_STATES = re.compile(
    r"(?:(?:so|thus|hence|therefore|then),?\s)?"
    rf"(?:there|it|(?:the|its)\s(?:(?:total|exact|shaded|shortest|smallest|largest)\s)?{_QUANTITIES}"
    r"(?:\sof\s(?![^.;]{0,60}\b(?:squared|cubed|minus|plus|times|over|divided)\b)[^.;]{1,60}?)?)"
    r"\s(?:is|are|equals)\s(?:about\s|approximately\s)?",
    re.IGNORECASE,
)


def stated_in(text: str) -> str:
    """The part of a text that states its answer, or all of it.

    It is the line behind the last "the answer is", a first line that later ones explain, or the end of a sentence on
    what is asked for. A box counts before all of them.

    Example:
        >>> stated_in("It is 4. No: the answer is 5."), stated_in("The area is 10 cm^2."), stated_in("Twice x is 10")
        ('5.', '10 cm^2', 'Twice x is 10')
    """
    announced = [found for found in _ANNOUNCED.finditer(text) if not _is_supposed(text, found.start())]
    boxes = list(BOX.finditer(text))
    if boxes:
        return _stated_beside_boxes(text, announced, boxes[-1])
    if announced:
        first_line, *others = text[announced[-1].end() :].strip().splitlines() or [""]
        return first_line if first_line and not _have_another_value(others) else text
    text = _SO.sub("", text)
    first_line, *others = text.strip().splitlines() or [""]
    if any(map(_EXPLAINS.match, others)) and _is_value(first_line):
        return first_line
    stated = _STATES.match(text)
    if stated is None:
        return text
    without_dot = FINAL_DOT.sub("", text[stated.end() :])
    value = AND_OR.sub(", ", without_dot)
    return value if _is_value(value) else text


def _stated_beside_boxes(text: str, announced: Sequence[re.Match[str]], last_box: re.Match[str]) -> str:
    """A text with boxes, without "the answer is" in front, or the value that another one has behind the last box."""
    if not announced:
        return text
    behind = text[announced[-1].end() :].strip()
    if announced[-1].start() > last_box.end() and _is_value(FINAL_DOT.sub("", behind)):
        return behind
    begins_so = announced[0].start() == 0 and announced[0][0].isascii()
    return text[announced[0].end() :] if begins_so else text


def _is_supposed(text: str, place: int) -> bool:
    """Whether the sentence around a place begins with a condition: "if x = 3, the answer is 7"."""
    *_, begun = _SENTENCE_ENDS.split(text[max(0, place - _LONGEST_CONDITION) : place])
    return _ONLY_SUPPOSES.search(begun) is not None


def _have_another_value(lines: Sequence[str]) -> bool:
    """Whether lines behind an answer may correct it: they have a number or a "no", and do not explain it."""
    text = "\n".join(lines).strip()
    is_explanation = _EXPLAINS.match(text) is not None
    return not is_explanation and _CORRECTS.search(text) is not None


def _is_value(text: str) -> bool:
    """Whether a text has no words but those of a unit."""
    return not has_words(split_unit(text).value)
