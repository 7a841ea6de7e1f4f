"""The reward for mathematical answers, checked by math-verify in a worker process."""

from __future__ import annotations

import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qwenvl.child import Child, ChildDied, ChildFailed, ChildTimeout
from qwenvl.files import check_installed, require
from qwenvl.rewards.function import Unfinished
from qwenvl.rewards.functions.text import answer_of, normalized, solution_of

LONGEST = 500  # characters of an expression
CPU_SECONDS = 2.0  # of computing that a pair may take, whatever else the machine does
HANGING_SECONDS = 300.0  # after which a pair that neither computes nor ends is given up
MEMORY = 3 * 2**30
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of a child process

_PLAIN = re.compile(r"[-+]?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,2}|/[0-9]{1,30})?")
_MIXED = re.compile(r"([-+]?)([0-9]{1,30}) ([0-9]{1,30})/([0-9]{1,30})")  # 1 1/2
_NO_ZERO = re.compile(r"(?<![\w.])\.(?=[0-9])")  # the point of .5
_THOUSANDS = re.compile(r"(?<![\w.])[0-9]{1,3}(?: [0-9]{3})+(?![\w/])")  # 10 000
_THOUSANDS_OF_LATEX = re.compile(r"(?<=[0-9])\\[,;:!](?=[0-9]{3}(?![0-9]))")  # 10\,000
_DELIMITER = re.compile(r"(?<!\\)\\[\[\]()]")  # \[5\] and \(5\)
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9]) (?=[0-9])")
_OTHER_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s{0,4}\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_NAMES = "sin|cos|tan|cot|sec|csc|log|ln|exp|pi"
_FUNCTION = re.compile(rf"(?<![^\W\d_])(?:{_NAMES}|sqrt|lim|max|min|mod)(?![^\W\d_])")
_WORD = re.compile(r"[^\W\d_]{2,}")
_LONE_LETTER = re.compile(r"[\s().]*[^\W\d_]?[\s().]*")
_SUPERSCRIPTS = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_FRACTION = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"√ ?([0-9]+(?:\.[0-9]+)?|[^\W\d_]|\([^()]*\))")
_DASH_AS_MINUS = re.compile(r"(?<![\w)}\]])[\u2012-\u2014](?=[0-9.])")  # – and — stand between numbers in a range
_SYMBOLS = str.maketrans({"π": r"\pi ", "∞": r"\infty ", "°": r"^{\circ}", "\u2044": "/"})
_AFTER_NUMBER = re.compile(r"[^0-9}\])°%]*$")
_SHORT_EXPONENT = re.compile(r"\^\{([0-9])\}")  # x^{2} is x^2
_BOXED = re.compile(r"\\(?:boxed|text|textbf|mathrm)\s{0,4}\{([^{}]*)\}")
_SHORT_UNIT = re.compile("[msghdctVAKNJWLl]|min")
_UNIT = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}|/[^\W\d_]+)*")  # cm, square metres, km/h
# m/s^2, N m, square metres: words, and letters that are units, with powers.
_SIMPLE_UNIT = rf"(?:[^\W\d_]{{2,}}|{_SHORT_UNIT.pattern})(?:\^\{{?-?[0-9]\}}?)?"
_TIMES = r"\s*(?:\*|·|\\cdot)\s*"
_COMPOUND_UNIT = re.compile(rf"{_SIMPLE_UNIT}(?:(?:\s*/\s*|{_TIMES}|\s+){_SIMPLE_UNIT})*")
_NUMBER_AND_UNIT = re.compile(rf"(.*?[0-9])\s*({_COMPOUND_UNIT.pattern})\s*")
# The unit at the end of 5\,\text{ m}^2, and what may part it from its number.
_WRAPPED_UNIT = re.compile(rf"{_WRAPPED.pattern}\s*(\^\{{?-?[0-9]\}}?)?\s*$")
_SPACES_OF_LATEX = re.compile(r"(?:\s|\\[,;:!> ]|\\quad)+$")
_ENDS_AS_A_NUMBER = re.compile(r"[0-9}\])°%]$")
# Names and powers as people write them without LaTeX: 2pi, ln(2), x**2, 10^-3.
_BARE_NAME = re.compile(rf"(?<![\\A-Za-z])({_NAMES})(?![A-Za-z])")
_SIGNED_POWER = re.compile(r"\^(-[0-9]+)")
_SCIENTIFIC = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)[eE]\+?(-?[0-9]{1,2})(?![\w.])")  # 3e5, which is not 3 e 5

# The unit of 24 cm^2, which would be words beside mathematics. A lone letter, 24 x^2, may be a variable.
_POWER_OF_UNIT = re.compile(r"(?<=[0-9}]) ?([^\W\d_]{2,}) ?\^ ?\{?([0-9])\}?$")


class MathReward:
    """1 if the answer and the solution are the same mathematically, else 0.

    The answer block of the completion, the first behind its thinking, is compared with the answer block of the
    solution, or with all of it where it has no block. Texts that are equal once normalized are equal. Other pairs are
    parsed as LaTeX, plain writing such as ``ln(2)``, ``x**2`` and ``3e5`` too, and verified by math-verify, gold first:
    1/2 is 0.5, and the square root of 8 is twice that of 2. Signs that Unicode has (x², ½, √2, π, 90°) are read as
    their LaTeX. Words, single letters and what holds a colon ("A", "yes", "12:30") compare as text. A unit in words or
    text of LaTeX must be the same, and is not converted. An answer longer than 500 characters scores 0. A pair that
    takes more than 2 s of computing, or 3 GiB of memory, gets no value: it is named in the log and counted as
    ``reward/math_accuracy/skipped``.
    """

    def __init__(self) -> None:
        check_installed("math_verify", "rewards")
        self._child: Child | None = None
        self._lock = threading.Lock()  # records may be checked by several threads

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float | Unfinished]:
        verdicts = [
            compare_as_text(solution_of(truth), answer_of(text))
            for text, truth in zip(completions, solution, strict=True)
        ]
        # Equal completions are verified once: one that takes all its time would take it again for each of a group.
        pairs = dict.fromkeys(each for each in verdicts if isinstance(each, tuple))
        verified = {pair: self._verify(*pair) for pair in pairs}
        return [verified[each] if isinstance(each, tuple) else float(each) for each in verdicts]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """The reason why a record cannot be scored: its solution is empty or cannot be parsed. None: it can."""
        gold = in_latex(solution_of(solution))
        if not normalized(gold):
            return "the solution is empty"
        if len(gold) > LONGEST:
            return f"the solution has {len(gold)} characters; at most {LONGEST} can be verified"
        part, _ = split_unit(gold)
        expression = improper(part)
        in_plain = plain(expression)
        if not is_mathematical(expression) or _PLAIN.fullmatch(in_plain):
            return None
        if _has_several_numbers(in_plain):
            return None  # several numbers, which compare as text
        value = self._verify(expression, expression)
        if isinstance(value, Unfinished):
            return f"{value}: choose a simpler solution than {gold!r}"
        if value:
            return None
        return f"the solution cannot be parsed as mathematics: {gold!r}"

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _verify(self, gold: str, answer: str) -> float | Unfinished:
        """``equivalent`` in the child process, which is replaced when it has died.

        An expression that math-verify fails on is not equal.
        """
        with self._lock:
            if self._child is None or not self._child.alive:
                self._child = Child(f"{__name__}:serve", memory_bytes=MEMORY, environment=ENVIRONMENT)
            try:
                return float(self._child.ask((gold, answer), HANGING_SECONDS, CPU_SECONDS))
            except ChildFailed as error:
                return Unfinished("a pair took more than 3 GiB") if "MemoryError" in str(error) else 0.0
            except (ChildTimeout, ChildDied) as error:
                return Unfinished(f"a pair could not be verified: {error}")
            except BaseException:  # interrupted: the child's answer would be taken for that of the next pair
                self.close()
                raise


def compare_as_text(gold: str, answer: str | None) -> bool | tuple[str, str]:
    """Whether a pair is equal, where text can tell, else the two expressions to be compared as mathematics."""
    if answer is None or len(answer) > LONGEST:
        return False
    gold = _unboxed(in_latex(gold))
    answer = _unboxed(in_latex(answer))
    gold_text = plain(_unwrapped(gold))
    answer_text = plain(_unwrapped(answer))
    if gold_text == answer_text:
        return True
    # (B) and B. are the option B, and no mathematics.
    if _LONE_LETTER.fullmatch(gold_text) and _LONE_LETTER.fullmatch(answer_text):
        return gold_text.strip("().") == answer_text.strip("().")
    gold_part, gold_unit = split_unit(gold)
    answer_part, answer_unit = split_unit(answer)
    gold_part = improper(gold_part)
    answer_part = improper(answer_part)
    if gold_unit != answer_unit or not (is_mathematical(gold_part) and is_mathematical(answer_part)):
        return False
    gold_plain = plain(gold_part)
    answer_plain = plain(answer_part)
    if _PLAIN.fullmatch(gold_plain) and _PLAIN.fullmatch(answer_plain):
        number = _fraction(gold_plain)
        return number is not None and number == _fraction(answer_plain)
    if _has_several_numbers(gold_plain) or _has_several_numbers(answer_plain):
        return False  # several numbers: math-verify would read 1 2 as 12
    return gold_part, answer_part


def _has_several_numbers(text: str) -> bool:
    """Whether numbers stand beside each other, and are no arguments of LaTeX: ``\\log_2 8``."""
    return _BETWEEN_DIGITS.search(text) is not None and "\\" not in text


def _unboxed(text: str) -> str:
    """What boxes of LaTeX around a whole text hold."""
    found = _BOXED.fullmatch(text.strip().strip("$"))
    if found is None:  # \boxed{\text{yes}}, from the inside out
        inside = _BOXED.sub(r"\1", text, count=1)
        found = _BOXED.fullmatch(inside.strip().strip("$"))
    return found[1] if found else text


def plain(text: str) -> str:
    """Normalized text without dollar signs, and without spaces but those between two numbers.

    Example:
        >>> [plain(text) for text in ("$x + 1$", ".5", "10 000", "1 1/2", "1 2")]
        ['x+1', '0.5', '10000', '1 1/2', '1 2']
    """
    shown = normalized(_NO_ZERO.sub("0.", text.replace("$", "")))
    shown = _SHORT_EXPONENT.sub(r"^\1", shown)
    joined = _THOUSANDS.sub(lambda found: found[0].replace(" ", ""), shown)
    return _OTHER_SPACE.sub("", joined)


def in_latex(text: str) -> str:
    """A text with the signs of mathematics that Unicode has in the words of LaTeX, which math-verify reads.

    Thin spaces of LaTeX between thousands are left out, and so is what LaTeX has around mathematics.

    Example:
        >>> [in_latex(text) for text in ("10³", "1½", "√2 x", "90°", "–3")]
        ['10^{3}', '1 1/2', '\\\\sqrt{2} x', '90^{\\\\circ}', '-3']
    """
    text = _THOUSANDS_OF_LATEX.sub("", _DELIMITER.sub(" ", text))
    if text.isascii():
        return text
    text = _SUPERSCRIPTS.sub(_exponent, text)
    text = text.replace("\u2212", "-")  # the minus sign, also that of a superscript
    text = _FRACTION.sub(_fraction_in_digits, text).strip()
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    return _DASH_AS_MINUS.sub("-", text).translate(_SYMBOLS)


def _exponent(found: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", found[0])
    return f"^{{{digits}}}"


def _fraction_in_digits(found: re.Match[str]) -> str:
    # The space parts the whole of a mixed number from its fraction: 1½ is 1 1/2, and not 11/2.
    return " " + unicodedata.normalize("NFKC", found[0])


def improper(text: str) -> str:
    """A mixed number as a fraction, and any other text as it is.

    Example:
        >>> improper("1 1/2"), improper("-2 1/3"), improper("11/2")
        ('3/2', '-7/3', '11/2')
    """
    found = _MIXED.fullmatch(plain(text))
    if found is None:
        return text
    sign, whole, numerator, denominator = found.groups()
    return f"{sign}{int(whole) * int(denominator) + int(numerator)}/{denominator}"


def is_mathematical(text: str) -> bool:
    """Whether a text can be compared as mathematics: no words, no colon, and more than a single letter.

    Example:
        >>> [is_mathematical(text) for text in ("x + 1", "3", "two", "12:30", "(A)")]
        [True, True, False, False, False]
    """
    text = text.replace("$", " ")
    bare = _FUNCTION.sub(" ", _COMMAND.sub(" ", text))
    return not (":" in text or _WORD.search(bare) or _LONE_LETTER.fullmatch(text))


def _unwrapped(text: str) -> str:
    r"""A text without the dollar signs, the ties and the ``\text{}`` of LaTeX."""
    return " ".join(_WRAPPED.sub(r" \1 ", text.replace("$", " ").replace("~", " ")).split())


def split_unit(text: str) -> tuple[str, str]:
    r"""An expression and the words after its last number, or no words where something else follows it.

    Example:
        >>> split_unit("2.5 Cars"), split_unit(r"\frac{1}{2} \text{ m}^2"), split_unit("x + 1")
        (('2.5', 'cars'), ('\\frac{1}{2}', 'm^2'), ('x + 1', ''))
    """
    shown = text.replace("$", " ").replace("~", " ")
    wrapped = _WRAPPED_UNIT.search(shown)
    if wrapped is not None:
        # math-verify leaves it out: 5 \text{ m/h} would be 5 \text{ m/s}.
        number = _SPACES_OF_LATEX.sub("", shown[: wrapped.start()])
        words = wrapped[1].strip()
        if _ENDS_AS_A_NUMBER.search(number) and _COMPOUND_UNIT.fullmatch(words) and not _FUNCTION.fullmatch(words):
            return number, _name_of_unit(words + (wrapped[2] or ""))
    unwrapped = _unwrapped(text)
    # Behind a plain number alone: elsewhere letters on both sides of a slash may be variables.
    rate = _NUMBER_AND_UNIT.fullmatch(unwrapped)
    if rate is not None and "/" in rate[2] and _PLAIN.fullmatch(plain(rate[1])):
        return rate[1], _name_of_unit(rate[2])
    power = _POWER_OF_UNIT.search(unwrapped)
    if power is not None and not _FUNCTION.fullmatch(power[1]):
        return unwrapped[: power.start()], f"{normalized(power[1])}^{power[2]}"
    tail: Any = _AFTER_NUMBER.search(unwrapped)  # it always matches, at the end at the latest
    unit = normalized(tail[0])
    # math-verify leaves such units out: 5 m would be 5 s, and 3 min, which is also a function, 3 h.
    short = tail[0].strip()
    if _SHORT_UNIT.fullmatch(short) and _PLAIN.fullmatch(plain(unwrapped[: tail.start()])):
        return unwrapped[: tail.start()], short
    if tail.start() == 0 or not _UNIT.fullmatch(unit) or _FUNCTION.search(unit):
        return text, ""
    return unwrapped[: tail.start()], unit


def _name_of_unit(text: str) -> str:
    r"""A unit in one notation. Words have small letters; of lone letters these are other units.

    Example:
        >>> _name_of_unit("KM / h"), _name_of_unit(r"N \cdot m^{2}")
        ('km/h', 'N m^2')
    """
    name = re.sub(r"[^\W\d_]{2,}", lambda word: word[0].lower(), re.sub(_TIMES, " ", text))
    name = re.sub(r"\s*/\s*", "/", name.replace("{", "").replace("}", ""))
    return " ".join(name.split())


def equivalent(gold: str, answer: str) -> bool:
    """Whether math-verify finds two expressions equal. A worker runs this, because it may never end."""
    parsed_gold = _parsed(gold)
    parsed_answer = _parsed(answer)
    if not parsed_gold or not parsed_answer:
        return False
    return bool(require("math_verify", "rewards").verify(parsed_gold, parsed_answer, timeout_seconds=None))


def serve() -> Callable[[tuple[str, str]], bool]:
    """The child's side. Loading what ``equivalent`` needs takes longer than most pairs do."""
    equivalent(r"\frac{1}{2}", "0.5")
    return lambda pair: equivalent(*pair)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> list[Any]:
    library = require("math_verify", "rewards")
    # As LaTeX these would be products of letters, or powers of a sign.
    expression = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", expression)
    expression = _SIGNED_POWER.sub(r"^{\1}", expression.replace("**", "^"))
    expression = _BARE_NAME.sub(r"\\\1 ", expression)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it sets no deadline: the worker has one
    return library.parse(
        f"${expression.replace('$', ' ').strip()}$",
        extraction_config=[library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )


def _fraction(text: str) -> Fraction | None:
    numerator, _, denominator = text.partition("/")
    return Fraction(numerator) / Fraction(denominator or 1) if Fraction(denominator or 1) else None
