"""Reads the calls of tools in a text that a model has written, in time that is linear in its length."""

from __future__ import annotations

import json
import re
from typing import Any

BEGIN = "<tool_call>"
END = "</tool_call>"
DEEPEST = 32
"""Levels of brackets in a call. The parser, the log and the templates read nested values by recursion."""
# Without "<" in names: a name that never ends is not searched to the end of the text from each of its beginnings.
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>")
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
_MOST_DIGITS = 20  # with a sign; what has more does not fit into 64 bits
_SURROGATE = re.compile("[\ud800-\udfff]")

Call = tuple[str, dict[str, Any]]
"""The name of a tool and its arguments. The name is empty where the call could not be read."""


def calls_in(text: str) -> list[Call]:
    """The calls in a text, in order. A call that cannot be read has no name.

    Qwen3-VL writes JSON, Qwen3.5 XML. Both are read from every model.

    Example:
        >>> calls_in('<tool_call>{"name": "look", "arguments": {"start": 1, "end": 2}}</tool_call>')
        [('look', {'start': 1, 'end': 2})]
    """
    # A call that is not closed ends where the next one begins.
    bodies = [each.partition(END)[0] for each in text.split(BEGIN)[1:]]
    return [_call_of(body) for body in bodies]


def _call_of(body: str) -> Call:
    is_json = body.lstrip().startswith("{")  # in whose texts a function of XML is no call
    written = None if is_json else _FUNCTION.search(body)
    if written is not None:
        inner = body[written.end() :].partition("</function>")[0]
        return written[1], _parameters_of(inner)
    try:
        read = read_json(body)
    except ValueError:
        return "", {}
    if not isinstance(read, dict) or "name" not in read:
        return "", {}
    arguments = read.get("arguments") or {}
    if not isinstance(arguments, dict):
        return "", {}
    return str(read["name"]), arguments


def read_json(text: str) -> Any:
    """The value of a text of JSON. Integers of more than 20 digits are floats.

    Raises:
        ValueError: it is not JSON, too deep, or has half a surrogate pair, which is no text.
    """
    if not _is_shallow(text):
        raise ValueError
    value = json.loads(text, parse_int=_integer_or_float)
    # No tokenizer and no file takes half a pair, and JSON can spell it.
    if "\\u" in text and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError
    return value


def _integer_or_float(digits: str) -> int | float:
    # A float is read in linear time, and overflows to infinity.
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _parameters_of(inner: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for piece in inner.split("</parameter>")[:-1]:
        begun = _PARAMETER.search(piece)
        if begun is not None:
            parameters[begun[1]] = piece[begun.end() :].strip()
    return parameters


def _is_shallow(body: str) -> bool:
    """Whether brackets outside of strings are nested at most ``DEEPEST`` deep."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(body):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth -= 1
        if depth > DEEPEST:
            return False
    return True
