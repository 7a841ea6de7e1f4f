"""Checks on the fields of a dataclass of flags. Each yields messages that name the flag, what was expected and got."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def misfits(config: Any, group: type) -> Iterator[str]:
    """A problem for each field of ``group`` whose value is not of its type or among its choices."""
    for name, hint in get_type_hints(group).items():
        value, choices, kinds = getattr(config, name), choices_of(hint), kinds_of(hint)
        if value is None and NoneType in kinds:
            continue
        if choices and value not in choices:
            yield f"--{name} must be one of {', '.join(choices)}, got {value!r}"
        elif not choices:
            accepted = (*kinds, int) if float in kinds else kinds
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
                yield f"--{name} must be {' or '.join(_NAMES_OF_KINDS[kind] for kind in kinds)}, got {value!r}"


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values that a type hint ``Literal``, or ``Literal | None``, allows; empty for other types."""
    return next((get_args(part) for part in _parts(hint) if get_origin(part) is Literal), ())


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The classes of a type hint: ``list[str] | None`` gives list and NoneType."""
    return tuple(get_origin(part) or part for part in _parts(hint))


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


_NAMES_OF_KINDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    list: "a list",
    NoneType: "None",
}


def was_set(config: Any, name: str) -> bool:
    """Whether a flag differs from its default; spelling out the default counts as leaving it out."""
    flag = next(each for each in fields(config) if each.name == name)
    default = flag.default if flag.default_factory is MISSING else flag.default_factory()
    return getattr(config, name) != default


def out_of_range(
    config: Any,
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Iterator[str]:
    """A problem if flag ``name`` is not finite or is outside of the bounds given; None is always fine."""
    value = getattr(config, name)
    if value is None:
        return
    wanted = [
        (f"at least {least}", least is None or value >= least),
        (f"above {above}", above is None or value > above),
        (f"at most {most}", most is None or value <= most),
        (f"below {below}", below is None or value < below),
    ]
    if not math.isfinite(value):
        yield f"--{name} must be a finite number, got {value}"
    elif failed := [words for words, holds in wanted if not holds]:
        yield f"--{name} must be {' and '.join(failed)}, got {value}"
