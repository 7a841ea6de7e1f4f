"""An option: one field of a dataclass with its default, its bounds, its help and the other options that it needs.

The rooms keep their options beside the code that reads them, and ``qwenvl.config`` joins them to flags.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

Some = TypeVar("Some", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that an option may be. A value that is no number passes.

    Attributes:
        why: said after the bound where a value is refused.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    why: str | None = None

    def problem(self, name: str, value: Any) -> str | None:
        """A sentence if the value of option ``name`` is not finite or out of bounds, else None."""
        if not isinstance(value, int | float):
            return None
        if isinstance(value, float) and not math.isfinite(value):  # a large integer has no float
            return f"--{name} must be a finite number, got {value}"
        wanted = [
            (f"at least {self.least}", self.least is None or value >= self.least),
            (f"above {self.above}", self.above is None or value > self.above),
            (f"at most {self.most}", self.most is None or value <= self.most),
            (f"below {self.below}", self.below is None or value < self.below),
        ]
        failed = [words for words, holds in wanted if not holds]
        if not failed:
            return None
        return f"--{name} must be {' and '.join(failed)}, got {value}" + (f": {self.why}" if self.why else "")


def option(
    default: Any,
    help: str,
    *,
    unset: str | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    why: str | None = None,
    rows: Mapping[str | None, type[Options]] | None = None,
    nargs: str | None = None,
) -> Any:
    """A field of a dataclass of options. The choices of one are those of its type, a ``Literal``.

    Args:
        help: unit, range and effect, for ``--help`` and the docs.
        unset: the meaning of a default of None, appended to the help.
        least, above, most, below: bounds of a number.
        why: the reason for the bounds, part of the error.
        rows: for an option whose value is a row with arguments, such as ``cispo(bound=4)``: the rows by name, each with
            the options that are its arguments. None as a name: any name.
        nargs: how many words its flag takes, as argparse has it. None: as the type says.

    Example:
        >>> @dataclass
        ... class Window(Options):
        ...     seconds: float = option(2.0, "Seconds between frames, above 0.", above=0)
        ...     look: bool = option(False, "Look at every frame. Needs --seconds below 1.")
        ...
        ...     def problems(self):
        ...         if self.look and self.seconds >= 1:
        ...             yield no_effect("--look", without="--seconds below 1")
        >>> Window(seconds=0)
        Traceback (most recent call last):
        ...
        ValueError: --seconds must be above 0, got 0
        >>> Window(look=True)
        Traceback (most recent call last):
        ...
        ValueError: --look has no effect without --seconds below 1: change that or leave --look out
    """
    text = help if unset is None else f"{help} Unset: {unset}."
    bounds = Bounds(least=least, above=above, most=most, below=below, why=why)
    of_argparse = {} if nargs is None else {"nargs": nargs}
    return field(default=default, metadata={"help": text, "bounds": bounds, "rows": rows, **of_argparse})


@dataclass
class Options:
    """A base of all dataclasses of options: they check themselves when they are made.

    Raises:
        ValueError: naming every option that is wrong.
    """

    def __post_init__(self) -> None:
        if problems := problems_of(self):
            raise ValueError("\n".join(problems))

    def problems(self) -> Iterator[str]:
        """A sentence for each contradiction between options of this class, and for each option without effect."""
        yield from ()

    @classmethod
    def of(cls: type[Some], source: Any = None, **changes: Any) -> Some:
        """These options as ``source`` has them, an object with attributes of the same names, but for ``changes``.

        Without a source the options that are not among ``changes`` have their defaults.
        """
        names = [] if source is None else [each.name for each in fields(cls) if each.name not in changes]
        return cls(**{name: getattr(source, name) for name in names}, **changes)


def problems_of(config: Any, more: Callable[[Any], Iterable[str]] = lambda config: ()) -> list[str]:
    """Everything wrong with ``config``: its options one by one, then class by class together. Empty where all is well.

    Where a value is of a wrong type nothing else is looked at, as bounds and combinations could not be.

    Args:
        more: a further check of ``config``, made where all types are right.
    """
    hints, options = get_type_hints(type(config)), all_options(type(config))
    problems: list[str | None] = []
    for each in options:
        problem = misfit(config, each.name, hints[each.name])
        if problem is None and each.metadata["rows"]:
            try:
                row_of(config, each.name)
            except ValueError as error:
                problem = str(error)
        problems.append(problem)
    if any(problems):
        return [*filter(None, problems)]
    for each in options:
        problems.append(each.metadata["bounds"].problem(each.name, getattr(config, each.name)))
    for group in type(config).__mro__:
        if "problems" in vars(group):
            problems += vars(group)["problems"](config)
    return [*filter(None, problems), *more(config)]


class RowValue(NamedTuple):
    """A value such as ``cispo(bound=4)``: the name of the row, and its arguments with their defaults."""

    name: str
    arguments: Any


@dataclass
class NoArguments(Options):
    """The arguments of a row that has none."""


def row_of(config: Any, name: str) -> RowValue | None:
    """The row that option ``name`` holds. None where the option is unset or False; True is the row ``""``.

    Raises:
        ValueError: no such row or argument, or a value that does not fit.
    """
    value = getattr(config, name)
    rows = next(each for each in fields(config) if each.name == name).metadata["rows"]
    if value is None or isinstance(value, bool):
        return RowValue("", rows[None]()) if value else None
    try:
        called, given = parse_row(value, unnamed=True)
    except ValueError as error:
        raise ValueError(f"--{name} {value}: {error}") from None
    if called not in rows and None not in rows:
        raise ValueError(f"--{name} {wrong_choice(called, [*filter(None, rows)])}")
    kind = rows[called if called in rows else None]
    known = [each.name for each in fields(kind)]
    if "" in given and len(known) == len(given) == 1:
        given = {known[0]: given[""]}
    elif "" in given:
        raise ValueError(f"--{name} {value}: {EXPECTED_CALL}")
    for each in given:
        if each not in known:
            raise ValueError(f"--{name} {called} has no argument {each!r}: {nearest(each, known)}")
    try:
        return RowValue(called, kind(**given))
    except ValueError as error:
        text = re.sub(rf"--({'|'.join(known)})\b", r"\1", str(error))
        raise ValueError("\n".join(f"--{name}: {line}" for line in text.split("\n"))) from None


def did_you_mean(word: Any, known: Iterable[Any]) -> str:
    """The end of a message about an unknown word: the known words that are nearest to it, or nothing.

    Example:
        >>> did_you_mean("Dapoo", ["grpo", "dapo"])
        '; did you mean dapo?'
    """
    near = get_close_matches(str(word).lower(), [str(each) for each in known], n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def nearest(word: str, names: Sequence[str], there_are: str = "it has") -> str:
    """The names that a misspelt one is near to, or else all of them."""
    return did_you_mean(word, names).removeprefix("; ") or f"{there_are} {', '.join(names) or 'none'}"


def wrong_choice(value: Any, choices: Sequence[str]) -> str:
    """The reason to refuse a value that is none of the choices, as a sentence."""
    return f"must be one of {', '.join(choices)}, got {value!r}{did_you_mean(value, choices)}"


EXPECTED_CALL = "expected name(argument=value, ...) with numbers, texts in quotes, True, False or None"
_CALL = re.compile(r"(?P<name>.*?\w)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)


def parse_row(text: str, *, unnamed: bool = False) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of ``name(argument=value, ...)``. Values are literals of Python, or bare words.

    Args:
        unnamed: take ``name(value)`` too, whose argument has the name "".

    Raises:
        ValueError: the brackets hold anything else.

    Example:
        >>> parse_row("cosine(max_len=512)"), parse_row("gspo(ratio=token)"), parse_row("format")
        (('cosine', {'max_len': 512}), ('gspo', {'ratio': 'token'}), ('format', {}))
    """
    call = _CALL.fullmatch(text)
    if call is None:
        return text, {}
    given: dict[str, Any] = {}
    try:
        tree = ast.parse(f"f({call['arguments']})", mode="eval").body
        # f(a)(b) is a call of a call.
        is_one_call = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
        if not isinstance(tree, ast.Call) or not is_one_call or len(tree.args) > int(unnamed):
            raise ValueError
        for value in tree.args:
            given[""] = _literal(value)
        for keyword in tree.keywords:
            if keyword.arg is None or keyword.arg in given:  # **more, or a name that stands twice
                raise ValueError
            given[keyword.arg] = _literal(keyword.value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(EXPECTED_CALL) from None
    return call["name"], given


def _literal(node: ast.expr) -> Any:
    """The value of an expression that is a literal, or the name itself of a bare word. ValueError: it is neither."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def row_text(value: str | Mapping[str, Any]) -> str:
    """``name(argument=value)`` for ``{name: {argument: value}}``, as settings files have it. A text stays as it is.

    Raises:
        ValueError: another mapping.

    Example:
        >>> row_text({"cosine": {"max_len": 512}})
        'cosine(max_len=512)'
    """
    if not isinstance(value, Mapping):
        return str(value)
    if len(value) != 1 or not isinstance(given := next(iter(value.values())), Mapping | None):
        raise ValueError(f"expected a name, or one name with its arguments, got {dict(value)}")
    name = next(iter(value))
    return f"{name}({', '.join(f'{each}={value!r}' for each, value in given.items())})" if given else str(name)


def no_effect(subject: str, without: str, reason: str = "") -> str:
    """The sentence about an option that has no effect as the others are set.

    Args:
        subject: the option, ``--name``, or the argument of a row, ``name of --option row``.
        without: the setting that it needs, in flags.

    Example:
        >>> no_effect("--lora_r", without="--lora_enable")
        '--lora_r has no effect without --lora_enable: change that or leave --lora_r out'
    """
    return f"{subject} has no effect without {without}{_because(reason)} change that or leave {subject} out"


def not_with(subject: str, other: str, reason: str = "") -> str:
    """The sentence about two options that exclude each other. See ``no_effect``."""
    return f"{subject} cannot be used with {other}{_because(reason)} change that or leave {subject} out"


def _because(reason: str) -> str:
    return f": {reason};" if reason else ":"


def set_among(config: Any, *names: str) -> list[str]:
    """The names, among those given, of the options that differ from their defaults."""
    return [name for name in names if was_set(config, name)]


def name_of_row(config: Any, option_name: str) -> str | None:
    """The name of the row that an option holds, without its arguments. None where it is unset."""
    value = getattr(config, option_name)
    return parse_row(value, unnamed=True)[0] if isinstance(value, str) else None


def all_options(group: type) -> list[Field]:
    """The options of a class and of its bases."""
    return [each for each in fields(group) if "bounds" in each.metadata]


def misfit(config: Any, name: str, hint: Any) -> str | None:
    """A sentence if the value of option ``name`` has a wrong type or is none of its choices. None where it fits."""
    value, choices, kinds = getattr(config, name), choices_of(hint), kinds_of(hint)
    if value is None and NoneType in kinds:
        return None
    if choices:
        return None if value in choices else f"--{name} {wrong_choice(value, choices)}"
    if not _is_of(value, kinds):
        return f"--{name} must be {' or '.join(_NAMES_OF_KINDS[kind] for kind in kinds)}, got {value!r}"
    # A type hint may leave open what a list holds.
    items = next((get_args(part) for part in _parts(hint) if get_origin(part) is list), ())
    if isinstance(value, list) and items:
        wrong = [each for each in value if not _is_of(each, items)]
        if wrong:
            return f"--{name} must be a list, each of it {_NAMES_OF_KINDS[items[0]]}, got {wrong[0]!r} in it"
    return None


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of some classes. An integer is a number, and a truth value is not."""
    accepted = (*kinds, int) if float in kinds else kinds
    return isinstance(value, accepted) and (bool in kinds or not isinstance(value, bool))


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values that a type hint ``Literal``, or ``Literal | None``, allows. Empty for other types."""
    return next((get_args(part) for part in _parts(hint) if get_origin(part) is Literal), ())


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The classes of a type hint: ``list[str] | None`` gives list and NoneType."""
    return tuple(get_origin(part) or part for part in _parts(hint))


def was_set(config: Any, name: str) -> bool:
    """Whether an option differs from its default. Spelling out the default counts as leaving it out."""
    own = next((each for each in fields(config) if each.name == name), None)
    if own is None:  # a warm-up has no options of training by rewards
        return False
    default = own.default if own.default_factory is MISSING else own.default_factory()
    return getattr(config, name) != default


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


_NAMES_OF_KINDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    list: "a list",
    dict: "a mapping",
    NoneType: "None",
}
