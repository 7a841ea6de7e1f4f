"""The result of an answer or a worked solution as an expression: in a box of LaTeX, behind ####, or all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qwenvl.rewards.mathematics.equations import is_equation
from qwenvl.rewards.mathematics.expressions import FUNCTION_NAMES, WRAPPED_TEXT, closing_brackets, has_words, unwrapped
from qwenvl.rewards.mathematics.notation import in_latex
from qwenvl.rewards.mathematics.statements import AND_OR, BOX, FINAL_DOT, stated_in
from qwenvl.rewards.mathematics.units import is_unit, leading_unit, split_unit

# What stands around an expression: Markdown, an equals sign in front of it, and a dot, perhaps within the dollar signs.
_MARKDOWN = re.compile(
    r"(?<![\w)\]}*])(?:(\*{1,3}|`)(?!\s)(?P<text>[^*`\n]+)(?<!\s)\1|__(?!\s)(?P<underlined>[^_\n]+)(?<!\s)__)(?![\w(*])"
)
_EQUALS = re.compile(r"^[\s$]*(?:=|\u2248|\\approx(?![a-z]))")
_BARE_BOX = re.compile(r"\\boxed\s{1,4}([0-9]{1,30}|[A-Za-z])(?![\w.])")
_BETWEEN_STEPS = re.compile(
    r"[.:](?=[\s$])|[,;\n\u2192\u21d2\u2234]|\\\\|\\(?:Rightarrow|implies|therefore)(?![a-zA-Z])"
)
_BEGINS_A_STEP = re.compile(r"[\s$&\\\[(]*(?:[^.:]{0,60}=[\s$]*)?")  # x =
_EQUALS_SIGN = re.compile(r"(?<![<>!:])=")
_BRACE = re.compile(r"\\?[{}]")  # one behind a backslash is that of a set
_NEXT_SENTENCE = re.compile(r"[\s$]*(?:[.,;:!]$|[.;:!]\s|,\s+[^\W\d_]{2})")  # behind a box
_NAME = r"[^\W\d_](?:_\{?\w{1,3}\}?)?\s?=\s?"
_CONNECTIVE = re.compile(r"\\text\s?\{\s{0,4}(?:and|or)\s{0,4}\}|\b(?:and|or)\b|[和或与]|\\q?quad(?![a-z])")
_ENDS_A_STEP = re.compile(r"(?<![0-9])[.!?\u3002](?=[\s$]|\Z)|=|\u2192|\u21d2|\\(?:Rightarrow|implies)(?![a-z])")
_NAME_BEFORE = re.compile(rf"(?<![^\W_]){_NAME}\Z")  # of the first box: x = \boxed{1}, y = \boxed{2}
# Area = 6, \angle ABC = 30, but no functions of something.
_NAME_IN_WORDS = re.compile(
    r"[\s$]*(?:m?\\(?:angle|triangle)\s?[A-Z]{1,4}|\\text\s?\{[^{}=]{1,60}\}"
    rf"|(?!(?:{FUNCTION_NAMES}|sqrt)(?![A-Za-z]))[A-Za-z]{{4,20}}(?: [A-Za-z]{{1,20}}){{0,4}})\s{{0,4}}=(?!=)"
)
# A box in a sentence that is a part of its expression: minus \boxed{5}, \boxed{5} thousand, \boxed{5}\pi.
_ENDS_IN_A_SIGN = re.compile(r"(?:[=(]\s{0,2}-|[0-9)}]\s{0,2}[-+*/]|\bminus)[\s$]*\Z")
_SCALE = re.compile(r"[\s$]*(?:(?:hundred|thousand|million|billion|dozen)s?\b|[万萬亿億])")
_CONTINUES = re.compile(r"[\s$]*(?:\\(?:pi|cdot|times)|\u03c0|[*/^]\s?[0-9])")
_SIGN_BEHIND = re.compile(r"[\s$]*(?:\\?%|\^\{?\\circ\}?|\u00b0C?|\u2103)")
_ENDS_AS_A_NUMBER = re.compile(r"(?:[0-9}\])]|\\pi)\s*\Z")
_NOT = re.compile(r"\bnot[\s$]*\Z", re.IGNORECASE)
_REJECTED = re.compile(r"[\s$]*(?:is|was)(?: not|n't)\b", re.IGNORECASE)
_IMPLIES = re.compile(r"\\(?:Rightarrow|implies)(?![a-zA-Z])|\u21d2")  # 2x = 6 \Rightarrow x = 3
_RESULT = "####"  # in front of the result of a worked solution, as in GSM8K
_OR = re.compile("or|或")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")


def unboxed(text: str) -> str:
    r"""A text with what its boxes of LaTeX hold in their places, and without the sentence around a single one.

    A unit behind the box stays.

    Example:
        >>> unboxed(r"It is $\boxed{\frac{1}{2}}$ m"), unboxed(r"x = \boxed{3}"), unboxed(r"It is \boxed{3}. Done")
        ('\\frac{1}{2} \\text{m}', 'x = 3', '3')
    """
    boxes = _boxes_in(text)
    if len(boxes) != 1:
        return _without_boxes(text, boxes)
    [(start, inside, end)] = boxes
    before = _last_step(text[:start])
    behind = text[end:]
    is_in_sentence = has_words(before)
    is_alone = is_in_sentence or not before.strip("$ ")
    is_sentence = (is_in_sentence or len(behind.split()) > 2) and has_words(behind) and not is_unit(behind)
    is_part = is_in_sentence and (_ENDS_IN_A_SIGN.search(before) or _SCALE.match(behind))
    if is_part or (is_sentence and _CONTINUES.match(behind)) or _NOT.search(before) or _REJECTED.match(behind):
        return text
    if is_sentence or _NEXT_SENTENCE.match(behind) or (is_in_sentence and is_unit(behind)):
        may_have_a_unit = _ENDS_AS_A_NUMBER.search(inside) and not split_unit(inside).unit
        behind = _unit_behind(behind) if may_have_a_unit else ""
    # The space keeps numbers apart, which text alone compares then: 2\boxed{3} is not 23.
    result = f"{'' if is_alone else before.rstrip()} {inside}".lstrip() + behind
    # Of "$\\boxed{5}$ m" the dollar sign in front is gone with the box.
    has_half_a_pair = result.replace(r"\$", "").count("$") % 2
    return result.replace("$", "") if has_half_a_pair else result


def _unit_behind(text: str) -> str:
    """The unit that words behind a box begin with, in LaTeX, or an empty text."""
    sign = _SIGN_BEHIND.match(text)
    if sign is not None:
        return sign[0].replace("$", "")
    unit = leading_unit(text)
    return rf" \text{{{unit}}}" if unit else ""


def _last_step(before: str) -> str:
    r"""What belongs to a box of the text in front of it: of ``2x = 24, x = \boxed{12}`` the part behind the comma."""
    for sign in reversed(list(_BETWEEN_STEPS.finditer(before))):
        earlier = before[: sign.start()]
        if earlier.count("(") > earlier.count(")"):
            continue
        behind = before[sign.end() :]
        is_alone = _BEGINS_A_STEP.fullmatch(behind) is not None
        # "x = 1, \\boxed{2}" are two roots.
        is_worked = is_equation(earlier) if sign[0] == "," else _EQUALS_SIGN.search(earlier) is not None
        return behind if is_alone and is_worked else before
    return before


def _without_boxes(text: str, boxes: Sequence[tuple[int, str, int]]) -> str:
    """A text with what several boxes hold in their places."""
    pieces: list[str] = []
    place = 0
    for start, inside, end in boxes:
        if start < place:
            return text  # a box in another one
        between = text[place:start]
        if pieces and not _CONNECTIVE.sub("", between).strip(" $,"):
            between = ", "
        pieces += [between, f" {inside} "]
        place = end
    return "".join([*pieces, text[place:]])


def _boxes_in(text: str) -> list[tuple[int, str, int]]:
    """The boxes of a text that are closed: where each begins, what it holds, and where it has ended."""
    closing = closing_brackets(text, _BRACE)
    boxes = []
    for box in BOX.finditer(text):
        end = closing.get(box.end() - 1)
        if end is not None:
            boxes.append((box.start(), text[box.end() : end], end + 1))
    return boxes


def result_of(solution: str) -> str:
    r"""The part of a solution that is its result: behind ####, the last box, or all of it.

    Boxes that only commas or "and" part from the last one belong to it: the equation has several roots.

    Example:
        >>> result_of("48 / 2 = 24 clips. #### 72"), result_of(r"Let $x=\boxed{4}$. So $x+1=\boxed{5}$. Done.")
        ('72', '\\boxed{5}')
        >>> result_of(r"The roots are $\boxed{1}$ and $\boxed{2}$.")
        '\\boxed{1}$ and $\\boxed{2}'
    """
    solution = _BARE_BOX.sub(r"\\boxed{\1}", solution)
    _, mark, behind = solution.rpartition(_RESULT)
    lines = behind.strip().splitlines()
    boxes = _boxes_in(solution)
    # Behind a heading of Markdown there are words, and more lines or a box in front.
    may_be_a_heading = len(lines) > 1 or bool(boxes)
    if mark and lines and not (may_be_a_heading and has_words(split_unit(lines[0]).value)):
        return behind.strip()
    if len(boxes) > 1:
        first = len(boxes) - 1
        while first and _are_together(solution[boxes[first - 1][2] : boxes[first][0]]):
            first -= 1
        before = solution[: boxes[first][0]]
        if _NOT.search(before):
            return solution
        if first or has_words(before):
            name = _NAME_BEFORE.search(before)
            return (name[0] if name else "") + solution[boxes[first][0] : boxes[-1][2]]
    return solution


def _are_together(between: str) -> bool:
    """Whether two boxes with a text between them are one result: no sentence ends in it, and its words are and, or."""
    rest = _CONNECTIVE.sub(" ", _NAME_BEFORE.sub("", between))
    return not has_words(rest) and _ENDS_A_STEP.search(rest) is None


def expression_in(text: str, *, has_thousands: bool = True) -> str:
    r"""The expression that an answer writes, in LaTeX: without Markdown, box, equals sign in front, and final dot.

    Several expressions have commas between them.

    Example:
        >>> [expression_in(text) for text in ("**½**", r"$\frac{1}{2}$.", "= 3", r"\boxed{\text{yes}}", "2 or 3")]
        ['1/2', '$\\frac{1}{2}$', '3', 'yes', '2, 3']
    """
    text = _BARE_BOX.sub(r"\\boxed{\1}", text)
    text = _MARKDOWN.sub(lambda found: found["text"] or found["underlined"], text)
    text = in_latex(unboxed(stated_in(text)), has_thousands=has_thousands)
    *_, implied = _IMPLIES.split(text)
    if "=" in implied:
        text = implied
    name = _NAME_IN_WORDS.match(text)
    if name is not None and "=" not in text[name.end() :]:  # as a letter with an index, which is no word
        index = "".join(character for character in unwrapped(name[0]).lower() if character.isalpha())
        text = f"N_{{{index}}} = {text[name.end() :]}"
    text = _EQUALS.sub("", FINAL_DOT.sub("", text)).strip()
    wrapped = WRAPPED_TEXT.fullmatch(text.strip("$"))
    if wrapped is not None:
        return wrapped[1]
    if not _INEQUALITY.search(text):
        return AND_OR.sub(", ", text)
    # x < 2 or x > 5 is not x < 2 and x > 5
    return AND_OR.sub(lambda found: r" \lor " if _OR.search(found[0]) else r" \land ", text)
