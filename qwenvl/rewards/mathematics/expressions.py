"""Mathematical expressions as text: what Unicode, LaTeX and plain writing have in common before one is computed."""

from __future__ import annotations

import re
from fractions import Fraction

from qwenvl.rewards.functions.text import TEXT_COMMANDS, normalized

FUNCTION_NAMES = "(?:arc)?(?:sin|cos|tan|cot|sec|csc)|(?:sin|cos|tan)h|log|ln|exp|pi"
FUNCTION = re.compile(rf"(?<![^\W\d_])(?:{FUNCTION_NAMES}|sqrt|lim|max|min|mod)(?![^\W\d_])")
GREEK_NAME = (
    r"\\(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi"
    r"|chi|psi|omega|angle)(?![a-z])"
)
PLAIN_NUMBER = re.compile(r"[-+]?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,2}|/[0-9]{1,30})?")
# 3 \times 10^8
_TIMES_TEN = re.compile(r"(?:\\times|\\cdot|\*)10(?:\^|\*\*)(?:\{(-?[0-9]{1,2})\}|(-?[0-9]{1,2}))\Z")
LONE_LETTER = re.compile(r"[\s().]*[^\W\d_]?[\s().]*")
WRAPPER = rf"\\(?:{TEXT_COMMANDS})\s{{0,4}}"
WRAPPED_TEXT = re.compile(rf"{WRAPPER}\{{([^{{}}]*)\}}")

_NO_ZERO = re.compile(r"(?<![\w.])\.(?=[0-9])")  # the point of .5
_SHORT_SCRIPT = re.compile(r"([\^_])\{([0-9]{1,2})\}")  # x^{2} is x^2, and 17_{8} is 17_8
_THOUSANDS = re.compile(r"(?<![\w.])[0-9]{1,3}(?: [0-9]{3})+(?![\w/])")  # 10 000
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])(?<!log_[0-9]) (?=[0-9])")
_OTHER_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_MIXED = re.compile(r"([-+]?)([0-9]{1,30}) ([0-9]{1,30})/([0-9]{1,30})")  # 1 1/2
# 0.1\overline{6}
_REPEATING = re.compile(r"([-+]?)([0-9]{0,12})\.([0-9]{0,12})\\(?:overline|bar|dot)\{([0-9]{1,12})\}")
_ROUND_BRACKET = re.compile(r"[()]")
COMMAND = re.compile(r"\\[a-zA-Z]+")
# F_{net}, v_1, v_{\text{max}}, v_\text{max}
SUBSCRIPT = re.compile(r"_(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\(?:text|mathrm)\s?\{[^{}]*\}|\w)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s?\{[a-z]{1,12}\*?\}")  # \begin{pmatrix}
# Two letters that are a word: "2 or 10" would be "4 or 5".
_NO_PRODUCTS = {"an", "as", "at", "be", "by", "do", "go", "he", "if", "is", "it", "me", "my"}
_NO_PRODUCTS |= {"in", "no", "of", "on", "or", "so", "to", "up", "we"}
_NO_MORE_LETTERS = re.compile(r"\s*(?!\s|[^\W_])")
_UP_TO_TWO_LETTERS = re.compile(r"(?<![^\W\d_])[^\W\d_]{1,2}(?![^\W\d_])")
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


def unwrapped(text: str) -> str:
    r"""A text without the dollar signs, the ties and the ``\text{}`` of LaTeX."""
    return " ".join(WRAPPED_TEXT.sub(r" \1 ", text.replace("$", " ").replace("~", " ")).split())


def closing_brackets(text: str, bracket: re.Pattern[str] = _ROUND_BRACKET) -> dict[int, int]:
    """The place of the bracket that closes the one at another place.

    Args:
        bracket: finds them. What it finds besides, such as a brace behind a backslash, opens and closes nothing.
    """
    # One pass: to look for the end of each anew would take the square of the length where many are not closed.
    closing: dict[int, int] = {}
    opened: list[int] = []
    for found in bracket.finditer(text):
        if found[0] in ("(", "{"):
            opened.append(found.start())
        elif found[0] in (")", "}") and opened:
            closing[opened.pop()] = found.start()
    return closing


def improper(text: str) -> str:
    r"""A number as ``PLAIN_NUMBER`` has it, where it is mixed, a repeating decimal or times a power of ten.

    Any other text as it is.

    Example:
        >>> improper("1 1/2"), improper("-2 1/3"), improper(r"0.1\overline{6}"), improper(r"3 \times 10^{8}")
        ('3/2', '-7/3', '15/90', '3e8')
    """
    shown = plain(text)
    scientific = _TIMES_TEN.sub(r"e\1\2", shown)
    if scientific != shown and PLAIN_NUMBER.fullmatch(scientific):
        return scientific
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


def is_mathematical(text: str, other: str = "") -> bool:
    """Whether a text can be compared as mathematics: no words, no colon, and more than a single letter.

    Args:
        other: what it is compared with. Beside ``a * b`` the text ``ab`` is a product.

    Example:
        >>> [is_mathematical(text) for text in ("x + 1", "3", "two", "12:30", "(A)")]
        [True, True, False, False, False]
    """
    text = text.replace("$", " ")
    return not (":" in text or has_words(text, other) or LONE_LETTER.fullmatch(text))


def has_words(text: str, other: str = "") -> bool:
    """Whether a text has words that are no commands of LaTeX, no functions and no products of letters."""
    bare = FUNCTION.sub("*", COMMAND.sub("*", SUBSCRIPT.sub("*", _ENVIRONMENT.sub(" ", text))))
    words = list(_WORD.finditer(bare))
    # Letters in \text{} are meant as words, however few they are.
    if any(map(_WORD.search, WRAPPED_TEXT.findall(SUBSCRIPT.sub("", text)))):
        return True
    both = f"{text} {other}"
    if words and not (_SIGN.search(both) or FUNCTION.search(both)):
        return True
    return not all(_is_product(word, bare, other) for word in words)


def _is_product(word: re.Match[str], text: str, other: str) -> bool:
    """Whether letters are a product: in front of a sign or at the end, ``xy + 1``, and not ``4 of 5``.

    Three letters and more are one beside the same letters in the other expression, together in any order or as factors.
    """
    if not _NO_MORE_LETTERS.match(text, word.end()):
        return False
    if text.startswith("^", word.end()):  # at^2
        return True
    is_behind_a_digit = text[: word.start()][-1:].isdecimal()  # 2as
    if len(word[0]) == 2:
        return is_behind_a_digit or word[0].casefold() not in _NO_PRODUCTS
    factors = set("".join(_UP_TO_TWO_LETTERS.findall(other)))
    words = _WORD.findall(other)
    is_in_other_order = is_behind_a_digit and any(sorted(word[0]) == sorted(each) for each in words)  # 2abc and 2bca
    return word[0] in words or is_in_other_order or factors.issuperset(word[0])


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
