"""The arguments of a call in the types that the schema of its tool declares.

A completion may write anything in the place of a number or a list. A tool gets what it declares, or is not called.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qwenvl.tools.calls import read_json
from qwenvl.tools.errors import ToolError, quoted

LARGEST_INTEGER = 2**63 - 1  # what arrays and other languages hold
_DIGITS = re.compile(r"\s*[+-]?\d{1,19}\s*", re.ASCII)
_OF_PYTHON = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list, "object": dict}
# Types whose values in XML are read from their text, so that "null" is none of them.
_NO_TEXTS = ("boolean", "integer", "number", "array", "object")

Schema = Mapping[str, Any]


def typed_arguments(tool: str, parameters: Schema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call in their types.

    Args:
        tool: its name.
        parameters: of the schema of the tool.

    Raises:
        ToolError: one is missing, unknown, or not of its type.
    """
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    if missing:
        raise ToolError(f"{tool} lacks {', '.join(missing)}")
    known = parameters["properties"]
    unknown = sorted(arguments.keys() - known.keys())
    if unknown:
        takes = f"takes {', '.join(known)}, and" if known else "has"
        raise ToolError(f"{tool} {takes} no {quoted(unknown[0])}")
    return {name: _typed(name, value, known[name]) for name, value in arguments.items()}


def _typed(name: str, value: Any, schema: Schema) -> Any:
    try:
        return _converted(value, schema)
    except (TypeError, ValueError, OverflowError):
        raise ToolError(f"{name} must be {_expected(schema)}, got {quoted(value)}") from None


def _expected(schema: Schema) -> str:
    """What a schema takes, for a message."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(_expected(each) for each in schema["anyOf"])
    kinds = schema.get("type", "JSON")
    expected = f"of type {kinds if isinstance(kinds, str) else ' or '.join(kinds)}"
    inner = schema.get("items") or schema.get("additionalProperties")
    return f"{expected}, each {_expected(inner)}" if isinstance(inner, dict) and "enum" in inner else expected


def _converted(value: Any, schema: Schema) -> Any:
    """A value of JSON, or a text, in the type of a schema.

    Raises:
        TypeError, ValueError, OverflowError: it is of another type, or none of those that the schema lists.
    """
    made = _of_kind(value, schema)
    allowed = schema.get("enum")
    if allowed is None or made is None:
        return made
    same = [each for each in allowed if str(each) == str(made)]
    if not same:
        raise ValueError
    # Calls in XML have texts alone: "1" stands for the 1 of a list that has no "1".
    return made if made in same else same[0]


def _of_kind(value: Any, schema: Schema) -> Any:
    # Calls in XML have texts alone, and "null" may be a text.
    is_null = value is None or (value == "null" and schema.get("type") in _NO_TEXTS)
    if is_null and schema.get("nullable"):
        return None
    if "anyOf" in schema:
        return _first_of(value, schema["anyOf"])
    kind = schema.get("type")
    if kind is None:  # of any type
        json.dumps(value, allow_nan=False)
        return value
    if not isinstance(kind, str):
        return _first_of(value, [{"type": each} for each in kind])
    if kind == "null":
        if value is not None:
            raise TypeError
        return None
    if kind == "string":
        return _text(value)
    if kind == "boolean":
        return _boolean(value)
    if kind == "number":
        return _number(value)
    if kind == "integer":
        return _integer(value)
    if isinstance(value, str):  # calls in XML have texts alone
        value = read_json(value)
    if kind == "array":
        return _array(value, schema)
    return _object(value, schema)


def _first_of(value: Any, schemas: Sequence[Schema]) -> Any:
    """A value in the first type that it is of, or else can be converted to."""

    def is_exact(schema: Schema) -> bool:
        kind = str(schema.get("type"))
        return isinstance(value, _OF_PYTHON.get(kind, object))

    for schema in sorted(schemas, key=is_exact, reverse=True):  # exact ones first
        try:
            return _converted(value, schema)
        except (TypeError, ValueError, OverflowError):
            continue
    raise ValueError


def _boolean(value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError
    return word == "true"


def _text(value: Any) -> str:
    if value is None or isinstance(value, list | dict):
        raise TypeError
    return str(value)


def _number(value: Any) -> float:
    # Python reads 1_0 as 10, and true as 1.
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(value: Any) -> int:
    # Not by way of a float, which holds 53 bits.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    exact = is_number or (isinstance(value, str) and _DIGITS.fullmatch(value))
    number = int(value) if exact else _number(value)
    if number != int(number) or abs(number) > LARGEST_INTEGER:
        raise ValueError
    return int(number)


def _array(value: Any, schema: Schema) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError
    if "prefixItems" in schema:  # of a tuple
        return tuple(_converted(each, own) for each, own in zip(value, schema["prefixItems"], strict=True))
    return [_converted(each, schema.get("items", {})) for each in value]


def _object(value: Any, schema: Schema) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return {name: _converted(each, schema.get("additionalProperties", {})) for name, each in value.items()}
