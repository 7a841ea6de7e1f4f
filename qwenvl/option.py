"""An option: one field of a dataclass with its default, its bounds and its help, in one place.

The rooms keep their options beside the code that reads them, and ``qwenvl.config`` joins them to flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Some = TypeVar("Some", bound="Options")


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option may be. None, the value of an option that is not set, is always fine.

    Attributes:
        why: said after the bound where a value is refused.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    why: str | None = None

    def problem(self, name: str, value: float | None) -> str | None:
        """What is wrong with option ``name``, or None: it is not finite, or out of bounds."""
        if value is None:
            return None
        if not math.isfinite(value):
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
) -> Any:
    """A field of a dataclass of options. The choices of one are those of its type, a ``Literal``.

    Args:
        help: unit, range and effect, for ``--help`` and the docs.
        unset: what a default of None comes to mean. The help then ends with it.
        least, above, most, below: bounds of a number.
        why: the reason for the bounds, said where a value is refused.

    Example:
        >>> @dataclass
        ... class Window(Options):
        ...     seconds: float = option(2.0, "Seconds between frames, above 0.", above=0)
        >>> Window(seconds=0)
        Traceback (most recent call last):
        ...
        ValueError: --seconds must be above 0, got 0
    """
    text = help if unset is None else f"{help} Unset: {unset}."
    return field(default=default, metadata={"help": text, "bounds": Bounds(least, above, most, below, why)})


@dataclass
class Options:
    """What all dataclasses of options have in common: they check themselves when they are made.

    Raises:
        ValueError: naming every option that is wrong.
    """

    def __post_init__(self) -> None:
        if problems := problems_of(self):
            raise ValueError("\n".join(problems))

    def problems(self) -> Iterator[str]:
        """What is wrong with the options of this class together: contradictions, and options without effect."""
        yield from ()

    @classmethod
    def of(cls: type[Some], source: Any = None, **changes: Any) -> Some:
        """These options as ``source`` has them, an object with attributes of the same names, but for ``changes``.

        Without a source the options that are not among ``changes`` have their defaults.
        """
        names = [] if source is None else [each.name for each in fields(cls) if each.name not in changes]
        return cls(**{name: getattr(source, name) for name in names}, **changes)


def problems_of(config: Options, more: Callable[[Any], Iterable[str]] = lambda config: ()) -> list[str]:
    """Everything wrong with ``config``, class by class from the first base on. Empty where all is well.

    Where a value is of a wrong type nothing else is looked at, as bounds and combinations could not be.

    Args:
        more: a further check of ``config``, made where all types are right.
    """
    hints = get_type_hints(type(config))
    problems: list[str] = []
    groups = [base for base in type(config).__mro__ if issubclass(base, Options)]
    misfits = [misfit(config, each.name, hints[each.name]) for group in groups for each in own_options(group)]
    if wrong := [problem for problem in misfits if problem]:
        return wrong
    for group in groups:
        numbers = [each for each in own_options(group) if is_number(hints[each.name])]
        problems += filter(
            None, (each.metadata["bounds"].problem(each.name, getattr(config, each.name)) for each in numbers)
        )
        if "problems" in vars(group):
            problems += vars(group)["problems"](config)
    return list(dict.fromkeys([*problems, *more(config)]))  # an option may stand in two classes


def own_options(group: type[Options]) -> list[Field]:
    """The options that a class has itself, without those of its bases."""
    return [each for each in fields(group) if each.name in get_annotations(group) and "bounds" in each.metadata]


def all_options(group: type[Options]) -> list[Field]:
    """The options of a class: its own first, then those of its bases from the first on."""
    return [each for base in group.__mro__ if issubclass(base, Options) for each in own_options(base)]


def misfit(config: Any, name: str, hint: Any) -> str | None:
    """What is wrong with the type of option ``name``, or that its value is no choice of it. None where it fits."""
    value, choices, kinds = getattr(config, name), choices_of(hint), kinds_of(hint)
    if value is None and NoneType in kinds:
        return None
    if choices:
        return None if value in choices else f"--{name} must be one of {', '.join(choices)}, got {value!r}"
    accepted = (*kinds, int) if float in kinds else kinds
    if isinstance(value, accepted) and (bool in kinds or not isinstance(value, bool)):
        return None
    return f"--{name} must be {' or '.join(_NAMES_OF_KINDS[kind] for kind in kinds)}, got {value!r}"


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values that a type hint ``Literal``, or ``Literal | None``, allows. Empty for other types."""
    return next((get_args(part) for part in _parts(hint) if get_origin(part) is Literal), ())


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The classes of a type hint: ``list[str] | None`` gives list and NoneType."""
    return tuple(get_origin(part) or part for part in _parts(hint))


def is_number(hint: Any) -> bool:
    """Whether the values of a type hint are numbers, which bounds can hold."""
    return bool({int, float} & set(kinds_of(hint)))


def was_set(config: Any, name: str) -> bool:
    """Whether an option differs from its default. Spelling out the default counts as leaving it out."""
    own = next(each for each in fields(config) if each.name == name)
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
