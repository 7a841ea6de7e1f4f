"""Mathematical expressions as text: what Unicode, LaTeX and plain writing have in common before one is computed."""

from __future__ import annotations

import re
from fractions import Fraction

from qwenvl.rewards.functions.notation import FUNCTION_NAMES, closing_brackets, in_latex
from qwenvl.rewards.functions.text import normalized

FUNCTION = re.compile(rf"(?<![^\W\d_])(?:{FUNCTION_NAMES}|sqrt|lim|max|min|mod)(?![^\W\d_])")
PLAIN_NUMBER = re.compile(r"[-+]?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,2}|/[0-9]{1,30})?")
LONE_LETTER = re.compile(r"[\s().]*[^\W\d_]?[\s().]*")
WRAPPED_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s{0,4}\{([^{}]*)\}")

# What stands around an expression: Markdown, an equals sign in front of it, and a dot, perhaps within the dollar signs.
_MARKDOWN = re.compile(r"\*\*([^*]*)\*\*|`([^`]*)`")
_EQUALS = re.compile(r"^[\s$]*(?:=|\u2248|\\approx(?![a-z]))")
_FINAL_DOT = re.compile(r"(?<=[^.\s])\s{0,4}[.\u3002](?=[\s$]{0,8}$)")
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
_BRACE = re.compile(r"\\?[{}]")
_NEXT_SENTENCE = re.compile(r"[\s$]*[.,;:!](?:\s|$)")  # behind a box
_BETWEEN_BOXES = re.compile(r"[\s$,;]{0,8}(?:and|or)?[\s$,;]{0,8}(?:[^\W\d_]\s?=)?\s{0,4}")
_RESULT = "####"  # in front of the result of a worked solution, as in GSM8K
# Between expressions: "2 or 3", "x = 2 and x = 3".
_AND_OR = re.compile(
    r"(?<=[0-9)}\]$])\s{0,4},?\s{0,4}(?:\\text\s?\{\s{0,4})?(?:and|or)(?:\s{0,4}\})?\s{1,4}"
    r"(?=[-+$0-9\\(\[{.]|[^\W\d_]\s{0,4}=)"
)

_NO_ZERO = re.compile(r"(?<![\w.])\.(?=[0-9])")  # the point of .5
_SHORT_SCRIPT = re.compile(r"([\^_])\{([0-9]{1,2})\}")  # x^{2} is x^2, and 17_{8} is 17_8
_THOUSANDS = re.compile(r"(?<![\w.])[0-9]{1,3}(?: [0-9]{3})+(?![\w/])")  # 10 000
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])(?<!log_[0-9]) (?=[0-9])")
_OTHER_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_MIXED = re.compile(r"([-+]?)([0-9]{1,30}) ([0-9]{1,30})/([0-9]{1,30})")  # 1 1/2
# 0.1\overline{6}
_REPEATING = re.compile(r"([-+]?)([0-9]{0,12})\.([0-9]{0,12})\\(?:overline|bar|dot)\{([0-9]{1,12})\}")
_ASSIGNMENT = re.compile(r"\s*([^\W\d_])\s*=\s*([^=]+)")
_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s?\{[a-z]{1,12}\*?\}")  # \begin{pmatrix}
# Two letters that are a word: "2 or 10" would be "4 or 5".
_NO_PRODUCTS = {"an", "as", "at", "be", "by", "do", "go", "he", "if", "is", "it", "me", "my"}
_NO_PRODUCTS |= {"no", "of", "on", "or", "so", "to", "up", "we"}
_NO_MORE_LETTERS = re.compile(r"\s*(?![\s\w])")
_SIGN = re.compile(r"[0-9+=*/^<>]|\\(?:frac|sqrt|cdot|times|pi|le|ge|ne|in)")
_WORD = re.compile(r"[^\W\d_]{2,}")


def plain(text: str) -> str:
    """Normalized text without dollar signs, and without spaces but those between two numbers.

    Example:
        >>> [plain(text) for text in ("$x + 1$", ".5", "10 000", "1 1/2", "1 2")]
        ['x+1', '0.5', '10000', '1 1/2', '1 2']
    """
    shown = normalized(_NO_ZERO.sub("0.", text.replace("$", "")))
    shown = _SHORT_SCRIPT.sub(r"\1\2", shown)
    joined = _THOUSANDS.sub(lambda found: found[0].replace(" ", ""), shown)
    return _OTHER_SPACE.sub("", joined)


def unboxed(text: str) -> str:
    r"""A text with what its only box of LaTeX holds in the place of the box, and without words in front of it.

    Example:
        >>> unboxed(r"The answer is $\boxed{\frac{1}{2}}$ m"), unboxed(r"x = \boxed{3}")
        ('\\frac{1}{2}$ m', 'x = 3')
    """
    boxes = _boxes_in(text)
    if len(boxes) != 1:
        return text
    [(start, inside, end)] = boxes
    before = text[:start]
    behind = text[end:]
    if not before.strip("$ ") or _has_words(before):
        before = ""
    if _NEXT_SENTENCE.match(behind):
        behind = ""
    # The space keeps numbers apart, which text alone compares then: 2\boxed{3} is not 23.
    return f"{before.rstrip()} {inside}".lstrip() + behind


def _boxes_in(text: str) -> list[tuple[int, str, int]]:
    """The boxes of a text that are closed: where each begins, what it holds, and where it has ended."""
    # One pass: to look for the end of each box anew would take the square of the length where many are not closed.
    closing: dict[int, int] = {}  # the place of the brace that closes the one at another place
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:  # a brace behind a backslash is that of a set
            closing[opened.pop()] = brace.start()
    boxes = []
    for box in _BOX.finditer(text):
        end = closing.get(box.end() - 1)
        if end is not None:
            boxes.append((box.start(), text[box.end() : end], end + 1))
    return boxes


def result_of(solution: str) -> str:
    r"""The expression that a solution has as its result: behind ####, in its last box, or all of it.

    Boxes that only commas or "and" part from the last one belong to it: the equation has several roots.

    Example:
        >>> result_of("48 / 2 = 24 clips. #### 72"), result_of(r"Let $x=\boxed{4}$. So $x+1=\boxed{5}$. Done.")
        ('72', '5')
        >>> result_of(r"The roots are $\boxed{1}$ and $\boxed{2}$.")
        '\\boxed{1}$, $\\boxed{2}'
    """
    _, mark, behind = solution.rpartition(_RESULT)
    if mark:
        return expression_in(behind)
    boxes = _boxes_in(solution)
    if len(boxes) > 1:
        first = len(boxes) - 1
        while first and _BETWEEN_BOXES.fullmatch(solution[boxes[first - 1][2] : boxes[first][0]]):
            first -= 1
        if first or _has_words(solution[: boxes[0][0]]):
            solution = solution[boxes[first][0] : boxes[-1][2]]
    return expression_in(solution)


def expression_in(text: str) -> str:
    r"""The expression that an answer writes, in LaTeX: without Markdown, box, equals sign in front, and final dot.

    Several expressions have commas between them.

    Example:
        >>> [expression_in(text) for text in ("**½**", r"$\frac{1}{2}$.", "= 3", r"\boxed{\text{yes}}", "2 or 3")]
        ['1/2', '$\\frac{1}{2}$', '3', 'yes', '2, 3']
    """
    marked = _MARKDOWN.fullmatch(text.strip())
    if marked is not None:
        text = marked[1] or marked[2] or ""
    text = unboxed(in_latex(text))
    text = _EQUALS.sub("", _FINAL_DOT.sub("", text)).strip()
    wrapped = WRAPPED_TEXT.fullmatch(text.strip("$"))
    return wrapped[1] if wrapped else _AND_OR.sub(", ", text)


def unwrapped(text: str) -> str:
    r"""A text without the dollar signs, the ties and the ``\text{}`` of LaTeX."""
    return " ".join(WRAPPED_TEXT.sub(r" \1 ", text.replace("$", " ").replace("~", " ")).split())


def improper(text: str) -> str:
    r"""A mixed number or a repeating decimal as a fraction, and any other text as it is.

    Example:
        >>> improper("1 1/2"), improper("-2 1/3"), improper(r"0.1\overline{6}"), improper("11/2")
        ('3/2', '-7/3', '15/90', '11/2')
    """
    shown = plain(text)
    mixed = _MIXED.fullmatch(shown)
    if mixed is not None:
        sign, whole, numerator, denominator = mixed.groups()
        return f"{sign}{int(whole) * int(denominator) + int(numerator)}/{denominator}"
    repeating = _REPEATING.fullmatch(shown)
    if repeating is not None:
        sign, whole, fixed, period = repeating.groups()
        # 0.1666... is (16.666... - 1.666...) / 90, and the numerator is 16 - 1.
        numerator = int(whole + fixed + period) - int(whole + fixed or "0")
        denominator = 10 ** len(fixed) * (10 ** len(period) - 1)
        return f"{sign}{numerator}/{denominator}"
    return text


def in_order(text: str, other: str) -> tuple[str, str]:
    """Two expressions, both as tuples where one of them is one or assigns values, and the other lists them.

    math-verify compares lists in any order.

    Example:
        >>> in_order("(2, -1)", "y = -1, x = 2"), in_order("x=2, y=-1", "2, -1"), in_order("2, 3", "3, 2")
        (('(2, -1)', '(2,-1)'), ('(2,-1)', '(2, -1)'), ('2, 3', '3, 2'))
    """
    tuples = [_as_tuple(each) for each in (text, other)]
    values = [_assigned(each) for each in (text, other)]
    if all(values) or not (any(tuples) or any(values)):
        return text, other
    first, second = (
        ordered or assigned or (f"({each})" if _is_list(each) else each)
        for each, ordered, assigned in zip((text, other), tuples, values, strict=True)
    )
    return first, second


def _as_tuple(text: str) -> str | None:
    """The text of a tuple, ``(1, 2)``. None: it is none."""
    shown = text.replace(r"\left", "").replace(r"\right", "").strip("$ ")
    is_one = shown.startswith("(") and closing_brackets(shown).get(0) == len(shown) - 1 and "," in shown
    return shown if is_one else None


def _assigned(text: str) -> str | None:
    """The values of ``y = 1, x = 2`` as a tuple, in the order of their names. None: it assigns no values."""
    found = [_ASSIGNMENT.fullmatch(part) for part in text.replace("$", " ").split(",")]
    values = {each[1]: each[2].strip() for each in found if each is not None}
    if len(values) < max(2, len(found)):
        return None
    return f"({','.join(values[name] for name in sorted(values))})"


def _is_list(text: str) -> bool:
    """Whether a text has commas that stand in no brackets."""
    parts = 1
    while parts:
        text, parts = _BRACKETS.subn("", text)
    return "," in text


def is_mathematical(text: str, other: str = "") -> bool:
    """Whether a text can be compared as mathematics: no words, no colon, and more than a single letter.

    Args:
        other: what it is compared with. Beside ``a * b`` the text ``ab`` is a product.

    Example:
        >>> [is_mathematical(text) for text in ("x + 1", "3", "two", "12:30", "(A)")]
        [True, True, False, False, False]
    """
    text = text.replace("$", " ")
    return not (":" in text or _has_words(text, other) or LONE_LETTER.fullmatch(text))


def _has_words(text: str, other: str = "") -> bool:
    """Whether a text has words that are no commands of LaTeX and no functions.

    Two letters in front of a sign or at the end of an expression are a product: ``xy + 1``, and not ``4 of 5``.
    """
    bare = FUNCTION.sub(" ", _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text)))
    # Letters in \text{} are meant as words, however few they are.
    has_wrapped_words = any(map(_WORD.search, WRAPPED_TEXT.findall(text)))
    may_have_products = not has_wrapped_words and _SIGN.search(f"{text} {other}") is not None
    for word in _WORD.finditer(bare):
        may_be_one = len(word[0]) == 2 and word[0].casefold() not in _NO_PRODUCTS
        is_power = bare.startswith("^", word.end())  # at^2
        is_product = may_have_products and (may_be_one or is_power) and _NO_MORE_LETTERS.match(bare, word.end())
        if not is_product:
            return True
    return False


def has_several_numbers(text: str) -> bool:
    """Whether numbers of a ``plain`` text stand beside each other, and are no arguments of LaTeX: ``\\log_2 8``."""
    return _BETWEEN_DIGITS.search(text) is not None and "\\" not in text


def fraction_of(number: str) -> Fraction | None:
    """The value of a text that is a ``PLAIN_NUMBER``. None: it divides by 0.

    Example:
        >>> fraction_of("2/4"), fraction_of("1e2"), fraction_of("1/0")
        (Fraction(1, 2), Fraction(100, 1), None)
    """
    numerator, _, denominator = number.partition("/")
    divisor = Fraction(denominator or 1)
    return Fraction(numerator) / divisor if divisor else None
