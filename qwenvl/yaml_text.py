"""YAML as this library reads it: a name stands once, and a mistake is told in one line."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


def without_repeats(pairs: list[tuple[Hashable, Any]]) -> dict:
    """A dict of ``pairs``.

    Raises:
        ValueError: a name comes twice, of which only the last would count.
    """
    names = [name for name, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{repeated[0]} is given twice")
    return dict(pairs)


class PlainLoader(yaml.SafeLoader):
    """YAML whose mappings name each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        without_repeats([(self.construct_object(key, True), None) for key in own])
        return super().construct_mapping(node, deep=True)


def read_yaml(text: str, loader: type[yaml.SafeLoader] = PlainLoader) -> Any:
    """What a YAML text holds.

    Raises:
        ValueError: it is not YAML, or gives a name twice. The message is one line.

    Example:
        >>> read_yaml("a: {b: 1}")
        {'a': {'b': 1}}
    """
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


class StringLoader(PlainLoader):
    """YAML without guesses: ``1e-6``, ``no`` and ``2026-01-31`` are strings, for the flag they set to interpret."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (read by PyYAML from the class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
