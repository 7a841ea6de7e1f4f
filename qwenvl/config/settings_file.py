"""Reads a settings file: names and values, JSON or YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from qwenvl.files import plain_file
from qwenvl.yaml_text import PlainLoader, read_yaml, without_repeats


def read_settings(file: Path) -> Any:
    """What a JSON or YAML file holds. Scalars of YAML stay strings, but for null.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON or YAML, or gives a name twice.
    """
    text = plain_file(file).read_text(encoding="utf-8-sig")
    if file.suffix == ".json":
        return json.loads(text, object_pairs_hook=without_repeats)
    return read_yaml(text, StringLoader)


def typed(value: Any) -> Any:
    """A mapping or list with its numbers, truth values and nulls, written as in JSON, in place of their strings.

    For settings that are mappings themselves, such as ``lr_scheduler_kwargs``: no flag knows the types inside.

    Example:
        >>> typed({"min_lr": "1e-7", "name": "one"})
        {'min_lr': 1e-07, 'name': 'one'}
    """
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


class StringLoader(PlainLoader):
    """YAML without guesses: ``1e-6``, ``no`` and ``2026-01-31`` are strings, for the flag they set to interpret."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (read by PyYAML from the class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
