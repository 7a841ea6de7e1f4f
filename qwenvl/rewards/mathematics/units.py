r"""The unit behind a mathematical expression: ``5 m/s``, ``24 cm^2``, ``\frac{1}{2} \text{ m}``.

They are split off and compared as names. math-verify would leave them out, so that 5 m is 5 s, or read them as products
of variables, so that 5 cm is 5 mc.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from qwenvl.characters import CJK
from qwenvl.rewards.functions.numeric import only_number
from qwenvl.rewards.functions.text import normalized
from qwenvl.rewards.mathematics.expressions import (
    COMMAND,
    FUNCTION,
    PLAIN_NUMBER,
    WRAPPED_TEXT,
    WRAPPER,
    plain,
    unwrapped,
)

_UNITS_OF_TWO_LETTERS = {"mm", "cm", "dm", "km", "nm", "um", "ft", "in", "yd", "mi", "ha", "ml", "cl", "dl", "mg", "kg"}
_UNITS_OF_TWO_LETTERS |= {"lb", "oz", "ms", "ns", "us", "hr", "am", "pm", "hz", "pa", "ma", "mv", "kv", "mw", "kw"}
_UNITS_OF_TWO_LETTERS |= {"gw", "mj", "kj", "kn", "ev", "db", "kb", "mb", "gb", "tb", "px"}
# These mean something else with other capitals: 5 mW and 5 MW, 5 mm and 5 mM. 5 CM and 5 Cm are 5 cm.
_WITH_CASE = {"mm", "nm", "pm", "mM", "nM", "pM", "mg", "Mg", "mW", "MW", "mWh", "MWh", "mV", "MV", "mA", "MA", "pA"}
_WITH_CASE |= {"Pa", "mPa", "MPa", "mJ", "MJ", "mN", "MN", "mHz", "MHz", "meV", "MeV", "mmol", "Mmol"}
_WITH_CASE |= {"Mb", "MB", "Gb", "GB", "kb", "kB"}
_LETTER_OF_UNIT = rf"[msghdctVAKNJWLl{CJK}]"
_SHORT_UNIT = re.compile(rf"{_LETTER_OF_UNIT}|min|sec")  # min and sec are also functions
_UNITS_OF_PRODUCTS = set("msNJWVAK")  # of single letters. In 2 g t^2 they are variables.
_LENGTHS = {"mm", "cm", "dm", "km", "nm", "um", "ft", "in", "yd", "mi", "px"}

_NAMES = {
    "m": "meter metre",
    "cm": "centimeter centimetre",
    "mm": "millimeter millimetre",
    "km": "kilometer kilometre",
    "g": "gram",
    "kg": "kilogram",
    "mg": "milligram",
    "s": "sec second",
    "min": "minute",
    "h": "hr hour",
    "L": "liter litre",
    "mL": "milliliter millilitre",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "V": "volt",
    "in": "inch inche",
    "ft": "foot feet",
    "mi": "mile",
}
_SYMBOLS: dict[str, str] = {}  # by names in singular
for _symbol, _names in _NAMES.items():
    _SYMBOLS |= dict.fromkeys(_names.split(), _symbol)

# A number that a unit may follow: 5, 3e8, 3 \times 10^8.
_POWER_OF_TEN = r"(?:\\times|\\cdot|[*\u00d7\u22c5])10(?:\^|\*\*)(?:-?[0-9]{1,3}|\{-?[0-9]{1,3}\})"
_NUMBER = re.compile(rf"{PLAIN_NUMBER.pattern}(?:{_POWER_OF_TEN})?")
_UNIT_IN_WORDS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}|/[^\W\d_]+)*")  # cm, square metres, km/h
_AFTER_NUMBER = re.compile(r"[^0-9}\])°%]*$")

# m/s^2, N m, square metres: words, and letters that are units, with powers.
_EXPONENT = r"\^(?:\{-?[0-9]\}|-?[0-9])"
_POWER = rf"(?:{_EXPONENT})?"
_SIMPLE_UNIT = rf"(?:[^\W\d_]{{2,}}|{_LETTER_OF_UNIT}){_POWER}"  # one way for each word, or failing takes 2^n steps
_TIMES = r"\s*(?:\*|·|\\cdot)\s*"
_COMPOUND_UNIT = re.compile(rf"{_SIMPLE_UNIT}(?:(?:\s*/\s*|{_TIMES}|\s+){_SIMPLE_UNIT})*")
_NUMBER_AND_UNIT = re.compile(rf"(.*?[0-9]\}}?)\s*({_COMPOUND_UNIT.pattern})\s*")
_EXPRESSION_AND_UNIT = re.compile(rf"(.*?(?:[0-9}})\]]|\\pi))\s*({_COMPOUND_UNIT.pattern})\s*")

# The unit of 24 cm^2, which would be words beside mathematics. A lone letter, 24 x^2, may be a variable.
_UNIT_WITH_POWER = re.compile(r"(?<=[0-9}]) ?([^\W\d_]{2,}) ?\^ ?\{?([0-9])\}?$")

# The unit at the end of 5 \text{kg}\cdot\text{m}^2, in a text of single spaces. Without the atomic group a text that
# does not end so would take 2^n steps.
_WRAPPED_UNIT = re.compile(rf"(?>{WRAPPER}\{{[^{{}}]*\}}(?: ?{_EXPONENT})?(?: ?(?:/|\*|\\cdot))? ?)+$")
_ENDS_AS_A_NUMBER = re.compile(r"(?:[0-9}\])°%]|\\pi)$")
# Units that a value may lack have a symbol, or are counted in English or Chinese. Other words may say more about the
# number: 3 quarters, 5 or more, 2 squared, 5 point two.
_COUNTED = re.compile(r"[a-z]{2,20}s|people|men|women|children", re.IGNORECASE)
_NOT_COUNTED = re.compile(
    r"(?!months|lengths|widths|depths|paths)\w{0,12}ths|hal(?:ve|f)s|thirds|quarters|tens|dozens|ones|twos|scores"
    r"|pairs|couples|triples|doubles|multiples|powers|roots|logs|digits|zeros|decimals|places|others|times|plus|minus"
    r"|less|versus|gross|previous|false|does|this|was|has|its|as|is|us",
    re.IGNORECASE,
)
# Behind a box other words on -s may be verbs: "works".
_COMMONLY_COUNTED = {"dollars", "cents", "degrees", "years", "months", "weeks", "days", "people", "units", "points"}
_SHORT_NAMES = {"mph", "rpm", "fps", "usd", "eur", "mol", "rad"}  # that are no two letters
_CHINESE = re.compile(f"[{CJK}]")
_COUNTED_IN_CHINESE = set("个個元米克秒分天年月岁歲人只隻次本块塊台张張条條件支度升层層颗顆")
_COUNTED_IN_CHINESE |= {"厘米", "毫米", "千米", "公里", "千克", "公斤", "毫升", "分钟", "分鐘", "小时", "小時", "美元"}
_COUNTED_IN_CHINESE |= {"平方米", "平方厘米", "立方米", "立方厘米"}
_PER = re.compile(r"\s?(?:/|\b(?:per|an?|each)\b)\s?")  # dollars per day
# Joined to a number these may be two variables: 3mg, 2mv.
_MAY_BE_A_PRODUCT = {"mv", "mg", "ms", "ma", "mw", "mj", "in", "mi", "pa", "ha", "us"}
_SET_APART = re.compile(rf"\s|[{CJK}]")  # Chinese letters are no variables
_LETTER = re.compile(r"[^\W\d_]")

# Spellings of one unit.
_THIN_SPACE = re.compile(r"\\[,;: ]")
_POWER_OF_WORD = re.compile(r"\^\{?-?[0-9]\}?")
_SQUARE_OR_CUBIC = re.compile(r"\b(square|cubic) ([^\W\d_]+)")
_NEGATIVE_POWER = re.compile(r"\s?([^\W\d_]+)\^-([0-9])")


class Measure(NamedTuple):
    """A value and the unit behind it.

    Attributes:
        unit: its name in one notation, see ``_name_of_unit``. Empty where nothing or something else follows the value.
    """

    value: str
    unit: str = ""


def is_unit(text: str) -> bool:
    r"""Whether a text is a unit that has a symbol, ``m``, ``km/h`` or ``\text{cm}^2``, and not any word.

    Example:
        >>> [is_unit(text) for text in ("cm^2", "ways", "m/s.")]
        [True, False, True]
    """
    shown = unwrapped(_THIN_SPACE.sub(" ", text)).replace(" ^", "^").rstrip(". ")
    letters = re.findall(r"[^\W\d_]+", shown)
    are_known = all(_SHORT_UNIT.fullmatch(each) or each.lower() in _UNITS_OF_TWO_LETTERS for each in letters)
    return are_known and _COMPOUND_UNIT.fullmatch(shown) is not None


def leading_unit(text: str) -> str:
    """The unit that a text begins with, of the words behind a box, or an empty text.

    Example:
        >>> leading_unit(" square metres of wood."), leading_unit(" as its root")
        ('square metres', '')
    """
    words = unwrapped(_THIN_SPACE.sub(" ", text)).split()
    for count in (3, 2, 1):
        unit = " ".join(words[:count]).rstrip(".,;:!\u3002")
        is_named = unit == "percent" or (_is_known(unit) and not _may_be_a_verb(unit))
        if len(words) >= count and is_named:
            return unit
    return ""


def _may_be_a_verb(word: str) -> bool:
    return _is_counted(word) and _in_short(word) not in _NAMES and word not in _COMMONLY_COUNTED


def are_one_unit(name: str, other: str) -> bool:
    """Whether two names of units, as ``split_unit`` has them, are the same.

    Example:
        >>> are_one_unit("CM", "cm"), are_one_unit("mW", "MW"), are_one_unit("m", "M")
        (True, False, False)
        >>> are_one_unit("clips", "clip"), are_one_unit("km/h", "kilometres/hour")
        (True, True)
    """
    parts = re.split(r"([^\W\d_]+)", name)
    others = re.split(r"([^\W\d_]+)", other)
    return len(parts) == len(others) and all(map(_are_one_word, parts, others))


def _are_one_word(word: str, other: str) -> bool:
    word = _in_short(word)
    other = _in_short(other)
    if word == other:
        return True
    have_case = len(word) == 1 or (word in _WITH_CASE and other in _WITH_CASE)
    return not have_case and word.casefold() == other.casefold()


def _in_short(word: str) -> str:
    """A word of a unit as its symbol, or without the s of a plural where it has none."""
    singular = word[:-1] if len(word) > 2 and word.endswith("s") else word  # ms is a unit
    return _SYMBOLS.get(singular.casefold(), singular)


def split_units(gold: str, answer: str) -> tuple[Measure, Measure]:
    r"""``split_unit`` of two expressions that are compared, which may help to read each other.

    Letters behind more than a plain number may be variables. They are a unit where the other expression has that unit,
    and none where the other one has them elsewhere. A unit that one of the two lacks is left out where it is surely
    one.

    Example:
        >>> [each.unit for each in split_units(r"\frac{3}{2} m", "1.5 m")]
        ['m', 'm']
        >>> [each.value for each in split_units(r"\frac{3}{2}mg", r"\frac{3mg}{2}")]
        ['\\frac{3}{2}mg', '\\frac{3mg}{2}']
        >>> [[each.unit for each in split_units(gold, "72")] for gold in ("72 clips", "72abc")]
        [['', ''], ['abc', '']]
    """
    golden = split_unit(gold)
    answered = split_unit(answer)
    if not golden.unit:
        golden = _known_unit(gold, answered.unit) or golden
    elif not answered.unit:
        answered = _known_unit(answer, golden.unit) or answered
    if are_one_unit(golden.unit, answered.unit):
        return golden, answered
    if _are_variables(gold, golden, answer) or _are_variables(answer, answered, gold):
        return Measure(gold), Measure(answer)
    if not answered.unit and _is_surely_a_unit(gold, golden):
        return Measure(golden.value), answered
    if not golden.unit and _is_surely_a_unit(answer, answered):
        return golden, Measure(answered.value)
    return golden, answered


def _known_unit(text: str, unit: str) -> Measure | None:
    """An expression and the letters behind it that are known to be a unit."""
    found = _EXPRESSION_AND_UNIT.fullmatch(unwrapped(text))
    if found is None or not are_one_unit(_name_of_unit(found[2]), unit):
        return None
    return Measure(found[1], unit)


def _are_variables(text: str, measure: Measure, other: str) -> bool:
    """Whether the letters that were taken for a unit are variables, as the other expression has them, too."""
    if not measure.unit or _unit_in_latex(text) is not None:
        return False
    letters = set(_LETTER.findall(measure.unit))
    return letters <= set(_LETTER.findall(COMMAND.sub(" ", WRAPPED_TEXT.sub(" ", other))))


def _is_surely_a_unit(text: str, measure: Measure) -> bool:
    """Whether what is behind a value is a unit, ``5 \\text{m}`` and ``5 m``, and neither variables nor words on it."""
    is_in_latex = _unit_in_latex(text) is not None
    may_be_a_variable = len(measure.unit) == 1 and measure.unit.isascii() and not is_in_latex  # 3 t
    if may_be_a_variable or not _is_known(measure.unit):
        return False
    behind = unwrapped(text).removeprefix(measure.value)
    is_joined = measure.unit.lower() in _UNITS_OF_TWO_LETTERS - _MAY_BE_A_PRODUCT  # 5cm
    return is_joined or is_in_latex or _SET_APART.match(behind) is not None


def _is_known(unit: str) -> bool:
    """Whether words are a unit that has a symbol, or what is counted: ``km/h``, ``dollars per day``, and not ``dozen``.

    Example:
        >>> [_is_known(unit) for unit in ("km/h", "dollars per day", "square inches", "dozen", "or more")]
        [True, True, True, False, False]
    """
    makes_another_number = only_number(f"1 {_POWER_OF_WORD.sub('', unit)}") != 1  # 5 million
    if makes_another_number or unit.lower() in ("am", "pm"):
        return False
    if _CHINESE.search(unit):
        return unit in _COUNTED_IN_CHINESE
    if is_unit(unit):
        return True
    counted, *per = _PER.split(_POWER_OF_WORD.sub("", _name_of_unit(unit)))
    is_rate_at_most = len(per) < 2 and all(map(str.isalpha, per))
    return is_rate_at_most and (is_unit(counted) or _is_counted(counted))


def _is_counted(word: str) -> bool:
    """Whether a word is the name of a unit or a plural: ``meter``, ``clips``."""
    has_a_name = _in_short(word) in _NAMES or word.lower() in _SHORT_NAMES
    return has_a_name or (_COUNTED.fullmatch(word) is not None and not _NOT_COUNTED.fullmatch(word))


def split_unit(text: str) -> Measure:
    r"""An expression and the unit behind it.

    Example:
        >>> split_unit("2.5 Cars"), split_unit(r"\frac{1}{2} \text{ m}^2"), split_unit("x + 1").unit
        (Measure(value='2.5', unit='Cars'), Measure(value='\\frac{1}{2}', unit='m^2'), '')
    """
    found = _unit_in_latex(text)
    if found is not None:
        return found
    shown = unwrapped(text)
    for find in (_compound_unit, _unit_with_power, _short_unit, _unit_in_words):
        found = find(shown)
        if found is not None:
            return found
    return Measure(text)


def _unit_in_latex(text: str) -> Measure | None:
    r"""That of ``5 \text{m}^2``."""
    shown = " ".join(text.replace("$", " ").split())
    found = _WRAPPED_UNIT.search(shown)
    if found is None:
        return None
    number = shown[: found.start()].rstrip()
    unit = unwrapped(found[0]).replace(" ^", "^")
    is_named = _COMPOUND_UNIT.fullmatch(unit) is not None and (unit == "sec" or not FUNCTION.fullmatch(unit))
    if not (is_named and _ENDS_AS_A_NUMBER.search(number)):
        return None
    return Measure(number, _name_of_unit(unit))


def _compound_unit(text: str) -> Measure | None:
    """That of ``5 m/s`` and ``5 kg m^2``, behind a plain number alone: elsewhere letters may be variables."""
    found = _NUMBER_AND_UNIT.fullmatch(text)
    if found is None or not _is_number(found[1]):
        return None
    words = [word for word in re.findall(r"[^\W\d_]+", found[2]) if word != "cdot"]
    is_product = len(words) > 1 and re.search(r"\^|\\cdot|\*", found[2]) is not None
    has_units = any(len(word) > 1 for word in words) or set(words) <= _UNITS_OF_PRODUCTS
    if "/" not in found[2] and not (is_product and has_units):
        return None
    return Measure(found[1], _name_of_unit(found[2]))


def _unit_with_power(text: str) -> Measure | None:
    """That of ``24 cm^2``. ``2mv^2`` is a product."""
    found = _UNIT_WITH_POWER.search(text)
    if found is None or FUNCTION.fullmatch(found[1]):
        return None
    if len(found[1]) == 2 and found[1].lower() not in _LENGTHS:
        return None
    return Measure(text[: found.start()], f"{found[1]}^{found[2]}")


def _short_unit(text: str) -> Measure | None:
    """That of ``5 m``, behind a plain number alone: in ``2 x m`` the letter may be a variable."""
    number, tail = _split_tail(text)
    unit = tail.strip()
    if not (_SHORT_UNIT.fullmatch(unit) and _is_number(number)):
        return None
    return Measure(number, unit)


def _unit_in_words(text: str) -> Measure | None:
    """That of ``2.5 cars``."""
    number, tail = _split_tail(text)
    unit = tail.strip(" .")
    shown = normalized(tail)
    if not number or not _UNIT_IN_WORDS.fullmatch(shown) or FUNCTION.search(shown) or _may_be_a_product(shown):
        return None
    return Measure(number, _name_of_unit(unit))


def _is_number(text: str) -> bool:
    """Whether a text is a number, perhaps with a name in front: ``v = 5``."""
    return _NUMBER.fullmatch(plain(text.rpartition("=")[2])) is not None


def _may_be_a_product(letters: str) -> bool:
    """Whether letters behind a number are no known unit, as in ``2ab``."""
    return len(letters) == 2 and letters.isascii() and letters.lower() not in _UNITS_OF_TWO_LETTERS


def _split_tail(text: str) -> tuple[str, str]:
    """A text up to its last digit, bracket or sign of a unit, and what follows that."""
    tail: Any = _AFTER_NUMBER.search(text)  # it always matches, at the end at the latest
    return text[: tail.start()], tail[0]


def _name_of_unit(text: str) -> str:
    r"""A unit in one notation.

    Example:
        >>> _name_of_unit("km / h"), _name_of_unit(r"N \cdot m^{2}"), _name_of_unit("m s^{-2}")
        ('km/h', 'N m^2', 'm/s^2')
    """
    name = re.sub(_TIMES, " ", text).replace("{", "").replace("}", "")
    name = re.sub(r"\s*/\s*|\sper\s", "/", name)
    name = _SQUARE_OR_CUBIC.sub(_with_power, name)
    name = _NEGATIVE_POWER.sub(_divided, name)
    return " ".join(name.split())


def _with_power(found: re.Match[str]) -> str:
    """Square metres as metres^2."""
    return f"{found[2]}^2" if found[1] == "square" else f"{found[2]}^3"


def _divided(found: re.Match[str]) -> str:
    """s^-2 as /s^2."""
    return f"/{found[1]}" if found[2] == "1" else f"/{found[1]}^{found[2]}"
