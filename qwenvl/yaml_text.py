"""YAML as this library reads it: a name stands once, and a mistake is told in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

import yaml

from qwenvl.files import is_utf8

Some = TypeVar("Some", bound=Hashable)


def first_repeated(names: Iterable[Some]) -> Some | None:
    """The first name that comes again. None where each comes once."""
    counts = Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


def without_repeats(pairs: list[tuple[Hashable, Any]]) -> dict:
    """A dict of ``pairs``.

    Raises:
        ValueError: a name comes twice, of which only the last would count.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"{first_repeated(name for name, _ in pairs)} is given twice")
    return value


MOST_VALUES = 100_000
"""Of one text. Eight lines of anchors can stand for billions of values (a "YAML bomb")."""


class PlainLoader(yaml.SafeLoader):
    """YAML whose mappings name each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        without_repeats([(self.construct_object(key, True), None) for key in own])
        return super().construct_mapping(node, deep=True)


def read_yaml(text: str, loader: type[yaml.SafeLoader] = PlainLoader) -> Any:
    """The value that a YAML text holds.

    Raises:
        ValueError: it is not YAML, gives a name twice, or stands for more than ``MOST_VALUES`` values. The message is
            one line.

    Example:
        >>> read_yaml("a: {b: 1}")
        {'a': {'b': 1}}
    """
    try:
        value = yaml.load(text, loader)
    except ValueError:  # a name that is given twice
        raise
    except RecursionError:
        raise ValueError("not valid YAML: its values are nested too deep") from None
    except Exception as error:  # PyYAML's own for a mistake, and whatever its constructors of tags run into
        what = str(error) if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"not valid YAML: {' '.join(what.split())}") from None
    _check_values(value)
    return value


def _check_values(value: Any) -> None:
    """Count the values, those of anchors as often as they stand there, and refuse text that is no text.

    Raises:
        ValueError: there are too many, or a string has half a character.
    """
    left = [value]
    count = 0
    while left:
        each = left.pop()
        count += 1
        if count > MOST_VALUES:
            raise ValueError(f"stands for more than {MOST_VALUES:,} values: write out fewer, and use anchors less")
        if isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str) and not is_utf8(each):
            raise ValueError(f"{each[:80]!r} has half of a character (a surrogate); write the whole one")


class Bare(str):
    """A text that stands in YAML without quotes, and may be meant as a truth value or a number."""


class StringLoader(PlainLoader):
    """YAML without guesses: ``1e-6``, ``no`` and ``2026-01-31`` are strings, for the flag they set to interpret."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (read by PyYAML from the class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """The text of a scalar, which remembers whether it has quotes."""
        text = self.construct_scalar(node)
        return Bare(text) if node.style is None else text


StringLoader.add_constructor("tag:yaml.org,2002:str", StringLoader.construct_text)
