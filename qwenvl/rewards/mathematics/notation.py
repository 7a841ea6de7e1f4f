r"""Mathematics as people type it, in LaTeX, which math-verify reads.

The signs that Unicode has (x², ½, √2, θ, ≤), plain writing (``sqrt(2)``, ``3 x 10^8``, ``25 degrees``), and spellings
that LaTeX has several of. ``grouped`` says besides what belongs together in plain writing, and differs in LaTeX.
"""

from __future__ import annotations

import re
import unicodedata

from qwenvl.rewards.mathematics.expressions import FUNCTION_NAMES, GREEK_NAME, WRAPPER, closing_brackets

# ---- spellings of LaTeX, and plain writing

_DEGREES = r"(?:\u5ea6|deg(?:rees?)?(?![a-z]))"
_WRAPPED = rf"{WRAPPER}\{{[^{{}}]*\}}(?:\^\{{?[0-9]\}}?)?"
_ANGLE = rf"[α-ω]|{GREEK_NAME}"
# In this order.
_REPLACED = (
    (re.compile(r"(?<!\\)\\[\[\]()]"), " "),  # \[5\] and \(5\)
    (re.compile(r"(?<=[0-9])(?:,?\\[,;:!]\s?|\{,\})(?=[0-9]{3}(?![0-9]))"), ""),  # 10\,000, 10,\!000, 10{,}000
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\q?quad(?![a-zA-Z])(?=[^=,]{1,20}=)"), ", "),  # x = 4 \quad x = 3
    (re.compile(r"(?<=[0-9])(?:[\u00ba\u02da]|\^o(?![a-zA-Z]))"), r"^{\\circ}"),  # 120º, 120^o
    (re.compile(r"\s{0,4}\\text\s?\{\s{0,4}degrees?\s{0,4}\}|\^?\{?\\degree\}?(?![a-zA-Z])"), r"^{\\circ}"),
    (re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])"), " "),
    (re.compile(r"\{\\rm\s([^{}]*)\}"), r"\\text{\1}"),  # {\rm m}
    (re.compile(r"\\(?:begin|end)\s?\{(?:cases|aligned|align\*?)\}"), " "),  # around several equations
    (re.compile(r"\\text\s?\{\s*\}"), " "),
    (re.compile(rf"\\[dt]?frac\s?\{{({_WRAPPED})\}}\s?\{{({_WRAPPED})\}}"), r"\1/\2"),  # metres over seconds
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\var(phi|epsilon)(?![a-zA-Z])"), r"\\\1"),
    (re.compile("\u3001"), ","),
    (re.compile(r"\\pmod\s?([0-9]{1,9})"), r"\\pmod{\1}"),
    (re.compile(r"(?<![^\W_])d([A-Za-z]?)/d([A-Za-z])(?![^\W_])"), r"\\frac{d\1}{d\2}"),  # dy/dx
    (re.compile(r"(?<=[0-9])\s{0,4}[xX]\s{0,4}(?=10\s{0,4}(?:\^|\*\*))"), r"\\times "),  # 3 x 10^8
    (re.compile(rf"(?<=[0-9])\s{{0,4}}{_DEGREES}\s{{1,4}}(?:C(?![a-z])|Celsius)"), r"^{\\circ}C"),
    (re.compile(rf"(?<=[0-9])\s{{0,4}}{_DEGREES}\s{{1,4}}(?:F(?![a-z])|Fahrenheit)"), r"^{\\circ}F"),
    (re.compile(rf"(?<=[0-9])\s{{0,4}}{_DEGREES}"), r"^{\\circ}"),
    (re.compile(r"(?<=[0-9])\s{0,4}(?:percent(?![a-z])|\\text\s?\{\s{0,4}percent\s{0,4}\})"), r"\\%"),
    (re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|ln|log)x(?![A-Za-z])"), r"\1 x"),
    # mgsinθ, and not asin(x)
    (re.compile(rf"(?<![\\A-Za-z])(?!a[sct])([A-Za-z]{{1,2}})(sin|cos|tan)(?=\s?(?:\(|{_ANGLE}))"), r"\1 \2 "),
    (re.compile(rf"\\[dt]?frac\s?(\\pi|{GREEK_NAME})\s?([0-9A-Za-z])"), r"\\frac{\1}{\2}"),  # \frac\pi2
    (re.compile(r"\\leq(?:slant)?(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\geq(?:slant)?(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\neq(?![a-zA-Z])|!="), r"\\ne "),
)
_COMMAS_OF_THOUSANDS = re.compile(r"(?<![\w.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_BRACKET = re.compile(r"\\\{|\\\}|[()\[\]]")

# ---- signs of Unicode

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹ⁿˣʸ"
_SUPERSCRIPTS = re.compile(f"[⁺⁻]?[{_RAISED}](?:[⁺⁻]?[{_RAISED}])*")
_SUBSCRIPTS = re.compile("[₀-₉ₙₓ]+")
_FRACTION = re.compile(
    r"(?P<sign>[\^√/])?(?P<whole>(?<![0-9.])[0-9]{1,9})?\s?"
    r"(?P<fraction>[¼½¾⅐-⅞]|[⁰¹²³⁴-⁹]{1,9}\u2044[₀-₉]{1,9})"
    r"(?=(?P<power>\s?[\^⁻⁰¹²³⁴-⁹])|(?P<factor>\s?[(√]|\s?[^\W0-9])|)"
)
_NAME_OF_ROOT = r"(?P<root>(?<![\\A-Za-z])(?:sqrt|cbrt)|(?<![\w)}\]])\^\{(?P<degree>[0-9])\}√|[√∛])"
_RADICAND = r"[0-9]{1,30}(?:\.[0-9]{1,30})?|\\[A-Za-z]{2,10}|[^\W\d_](?![^\W\d_])"
_ROOT = re.compile(rf"{_NAME_OF_ROOT} ?(?P<radicand>{_RADICAND})")
_ROOT_OF_BRACKETS = re.compile(rf"{_NAME_OF_ROOT} ?\(")
_BARE_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s?(?=\{)")
_GREEK_LETTERS = "αβγδεζηθικλμµνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"  # with commands of LaTeX; one is the sign of micro
_GREEK = re.compile(rf"(?<![\u0370-\u03ff])[{_GREEK_LETTERS}]{{1,2}}(?![\u0370-\u03ff])")  # more of them are a word
# – and — stand between numbers in a range, and in front of one or behind a letter they are a minus sign.
_DASH_AS_MINUS = re.compile(r"(?<![0-9)}\]])[\u2012-\u2014](?=\s?[0-9.])")
_COMMANDS = {
    "cdot": "·⋅",
    "times": "×",
    "div": "÷",
    "pm": "±",
    "infty": "∞",
    "le": "≤⩽",
    "ge": "≥⩾",
    "ne": "≠",
    "in": "∈",
    "cup": "∪",
    "cap": "∩",
    "emptyset": "∅",
    "angle": "∠",
    "triangle": "△",
    "mathbb{R}": "ℝ",
    "mathbb{Z}": "ℤ",
    "mathbb{N}": "ℕ",
    "mathbb{Q}": "ℚ",
    "mathbb{C}": "ℂ",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lceil": "⌈",
    "rceil": "⌉",
}
_SYMBOLS = str.maketrans({"°": r"^{\circ}", "\u2044": "/", "\u2032": "'", "\u2033": '"'})  # a slash and primes
for _command, _signs in _COMMANDS.items():
    _SYMBOLS |= str.maketrans(dict.fromkeys(_signs, f"\\{_command} "))


def in_latex(text: str, *, has_thousands: bool = True) -> str:
    """A text with the signs of mathematics and the words of plain writing in LaTeX.

    Thin spaces of LaTeX between thousands are left out, and so is what LaTeX has around mathematics.

    Args:
        has_thousands: 1,000 is one number. Else it is a list of two.

    Example:
        >>> [in_latex(text) for text in ("10³", "1½", "90°", "–3", "3 x 10^8", "25 degrees Celsius")]
        ['10^{3}', '3/2', '90^{\\\\circ}', '-3', '3\\\\times 10^8', '25^{\\\\circ}C']
        >>> [in_latex(text) for text in ("√2 x", "sqrt((x+1)^2)")]
        ['\\\\sqrt{2} x', '\\\\sqrt{(x+1)^2}']
    """
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    if has_thousands:
        text = _without_commas_of_thousands(text)
    if not text.isascii():
        text = _signs_in_latex(text)
    return _roots_in_latex(text)


def _without_commas_of_thousands(text: str) -> str:
    """A text with 1000 for 1,000, but within brackets, where (100,200) is a pair."""
    if text.strip("$ ").startswith("{"):  # a set
        return text
    pieces = []
    place = 0
    depth = 0
    for bracket in [*_BRACKET.finditer(text), None]:
        end = len(text) if bracket is None else bracket.end()
        piece = text[place:end]
        pieces.append(piece if depth else _COMMAS_OF_THOUSANDS.sub(lambda found: found[0].replace(",", ""), piece))
        place = end
        if bracket is not None:
            depth = max(0, depth + (1 if bracket[0][-1] in "([{" else -1))
    return "".join(pieces)


def _signs_in_latex(text: str) -> str:
    text = _FRACTION.sub(_fraction_in_digits, text).strip()
    text = _SUPERSCRIPTS.sub(lambda found: f"^{{{_compatible(found[0])}}}", text)
    text = _SUBSCRIPTS.sub(lambda found: f"_{{{_compatible(found[0])}}}", text)
    text = text.replace("\u2212", "-").replace("\u2010", "-").replace("\u2011", "-")  # a minus sign and two hyphens
    text = _GREEK.sub(_greek_in_latex, text)
    # Last: a dash behind a letter is a minus sign, and the letters are known by now.
    return _DASH_AS_MINUS.sub("-", text).translate(_SYMBOLS)


def _compatible(text: str) -> str:
    """A text in the usual characters: ² is 2."""
    return unicodedata.normalize("NFKC", text)


def _fraction_in_digits(found: re.Match[str]) -> str:
    """½ as 1/2, and with a whole number in front as an improper one: 1½ is 3/2."""
    numerator, denominator = map(int, _compatible(found["fraction"]).split("\u2044"))
    shown = f"{int(found['whole'] or 0) * denominator + numerator}/{denominator}"
    if found["sign"] or found["power"]:
        return f"{found['sign'] or ''}({shown})"
    # The space parts it from its factor: ½x is 1/2 x, while 1/2x may be 1/(2x).
    return f" {shown} " if found["factor"] else f" {shown}"


def _greek_in_latex(found: re.Match[str]) -> str:
    commands = []
    for letter in _compatible(found[0]):
        name = unicodedata.name(letter).split()[-1].replace("LAMDA", "LAMBDA")
        commands.append(f"\\{name.capitalize() if letter.isupper() else name.lower()} ")
    return "".join(commands)


def _roots_in_latex(text: str) -> str:
    """A text with ``sqrt(x + 1)``, ``sqrt2`` and the signs of roots as LaTeX has them."""
    text = _BARE_ROOT.sub(r"\\sqrt", text)
    closing = closing_brackets(text)
    characters = list(text)
    for found in _ROOT_OF_BRACKETS.finditer(text):
        bracket = found.end() - 1
        if bracket in closing:
            characters[found.start() : found.end()] = [_root(found), *[""] * (len(found[0]) - 1)]
            characters[closing[bracket]] = "}"
    return _ROOT.sub(lambda found: f"{_root(found)}{found['radicand']}}}", "".join(characters))


def _root(found: re.Match[str]) -> str:
    degree = "3" if found["root"] in ("cbrt", "∛") else found["degree"]
    return rf"\sqrt[{degree}]{{" if degree else r"\sqrt{"


# ---- grouping

_SCIENTIFIC = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)[eE]\+?(-?[0-9]{1,2})(?![\w.])")
# 1/2 x and π/2 x: what follows the fraction is its factor. Without the space, x/2y is x/(2y).
_FACTOR = r"(?=[A-Za-z(]|\\(?!%|times|cdot|div|pm|le|ge|ne|in|cup|cap))"
_FRACTION_OF_NUMBERS = re.compile(rf"(?<![\w.)}}/^])([0-9]{{1,30}})/([0-9]{{1,30}})(\s*){_FACTOR}")
_NUMERATOR = r"(?:[0-9]{1,9}\s?)?(?:\\pi|\\sqrt\{[^{}]*\}|[A-Za-z](?:_\{?\w{1,3}\}?)?|\([^()]*\))|[0-9]{1,9}"
_FRACTION_AND_FACTOR = re.compile(
    rf"(?<![\w.)}}/^\\])({_NUMERATOR})\s?/(?:([0-9]{{1,30}}|[A-Za-z])\s+|\(([^()]*)\)\s*){_FACTOR}"
)
_POWER_SIGN = re.compile(r"\s?(?:\^|\*\*)\s?")
_DEGREES_OF_FUNCTION = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc))\s*\(?\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*\^\s?\{?\\circ\s?\}?\s*\)?"
)
_POWER_IN_BRACKETS = re.compile(r"\^\(([^()]*)\)")
_SIGNED_POWER = re.compile(r"\^(-(?:[0-9]+|[A-Za-z]))")
_BARE_NAME = re.compile(rf"(?<![\\A-Za-z])({FUNCTION_NAMES})(?![A-Za-z])")
# \sin 2\theta, \log_2 8: a function and an argument that has no brackets.
_FUNCTION_OF = (
    rf"\\((?!pi)(?:{FUNCTION_NAMES}))(\^\{{?[0-9]\}}?|_\{{?[0-9a-z]{{1,3}}\}}?)?"
    rf"(?:\s{{1,4}}|(?=\\|[0-9]))([0-9]{{0,9}}\s?(?:[A-Za-z](?![A-Za-z(])|{GREEK_NAME})(?:_\{{?\w{{1,3}}\}}?)?|[0-9]{{1,9}})"
)
_FUNCTION_OVER = re.compile(rf"{_FUNCTION_OF}\s{{1,4}}/")
_FUNCTION_OVER_JOINED = re.compile(rf"{_FUNCTION_OF}/")
_FUNCTION_OVER_ANY = re.compile(rf"{_FUNCTION_OF}\s{{0,4}}/")
_FUNCTION_TIMES = re.compile(rf"{_FUNCTION_OF}\s{{0,4}}(?=\\cdot|\\times|\*(?!\*))")


# 5(2) and \pi(3)^2, which would be sums and functions. \log_2(8) has no factor in front, and 3 (mod 5) none behind.
_TIMES_IN_BRACKETS = re.compile(
    r"((?<![\w^.])[0-9]{1,30}(?:\.[0-9]{1,30})?|\)|\\pi|\\frac\{[^{}]{1,60}\}\{[^{}]{1,60}\})\s?"
    r"(?=(?:\\left\s?)?\((?!\\?mod))"
)


def has_two_readings(text: str) -> bool:
    """Whether a text is like 1/2x, which is half of x or 1/(2x), or like sin x/2, which is sin(x)/2 or sin(x/2)."""
    has_joined_factor = any(not found[3] for found in _FRACTION_OF_NUMBERS.finditer(text))
    return has_joined_factor or _FUNCTION_OVER_JOINED.search(_BARE_NAME.sub(r"\\\1 ", text)) is not None


def grouped(text: str, *, joined_below: bool = False) -> str:
    r"""An expression with that in groups which LaTeX would part or join.

    Args:
        joined_below: 1/2x is 1/(2x), and sin x/2 is sin(x/2). Else they are half of x and half of sin(x).

    Example:
        >>> [grouped(text) for text in ("3e5", "1/2 x", "10^-3", "2pi", "x**(n+1)", "ln 2 / 3")]
        ['3 \\times 10^{5}', '\\frac{1}{2} x', '10^{-3}', '2\\pi ', 'x^{n+1}', '\\ln (2) / 3']
    """
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)  # no product with e
    if not joined_below:
        text = _FRACTION_OF_NUMBERS.sub(r"\\frac{\1}{\2} ", text)  # not 1/(2x)
    text = _FRACTION_AND_FACTOR.sub(r"\\frac{\1}{\2\3} ", text)
    text = _POWER_IN_BRACKETS.sub(r"^{\1}", _POWER_SIGN.sub("^", text))
    text = _SIGNED_POWER.sub(r"^{\1}", text)
    text = text.replace("&", " & ")  # of matrices
    text = _BARE_NAME.sub(r"\\\1 ", text)  # no product of letters
    text = _DEGREES_OF_FUNCTION.sub(r"\1(\\frac{\2\\pi}{180})", text)
    text = _TIMES_IN_BRACKETS.sub(r"\1 \\cdot ", text)
    text = _FUNCTION_TIMES.sub(r"\\\1\2 (\3) ", text)  # not sin(x * y)
    return (_FUNCTION_OVER if joined_below else _FUNCTION_OVER_ANY).sub(r"\\\1\2 (\3) /", text)  # not ln(2/3)
