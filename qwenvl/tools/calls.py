"""Calls of tools in the text of a completion: how models write them, and what of them can be done.

Qwen3-VL writes JSON, Qwen3.5 XML, between ``<tool_call>`` and ``</tool_call>``. Both are read from every model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from qwenvl.tools.functions import Tool
from qwenvl.tools.video import ToolError

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\s*(.*?)\s*</parameter>", re.DOTALL)


class WrittenCall(NamedTuple):
    """A call as a completion has it. ``name`` is empty where it has neither of the two forms."""

    name: str
    arguments: dict[str, Any]


def calls_in(text: str) -> list[WrittenCall]:
    """The calls in a text, in order.

    Example:
        >>> calls_in('<tool_call>{"name": "look", "arguments": {"start": 1, "end": 2}}</tool_call>')
        [WrittenCall(name='look', arguments={'start': 1, 'end': 2})]
    """
    return [_call(body) for body in _CALL.findall(text)]


def _call(body: str) -> WrittenCall:
    if written := _FUNCTION.search(body):
        return WrittenCall(written[1], dict(_PARAMETER.findall(written[2])))
    try:
        read = json.loads(body)
        return WrittenCall(str(read["name"]), dict(read.get("arguments") or {}))
    except (ValueError, KeyError, TypeError):
        return WrittenCall("", {})


def checked(call: WrittenCall, tools: Mapping[str, Tool]) -> tuple[Tool, dict[str, Any]]:
    """The tool of a call, and its arguments in their types.

    Raises:
        ToolError: for the model to read.
    """
    if not call.name:
        raise ToolError("this call could not be read")
    if call.name not in tools:
        raise ToolError(f"there is no tool {call.name[:40]!r}, only {', '.join(tools)}")
    tool = tools[call.name]
    if missing := [name for name in tool.required if name not in call.arguments]:
        raise ToolError(f"{tool.name} lacks {', '.join(missing)}")
    if unknown := sorted(call.arguments.keys() - tool.parameters.keys()):
        raise ToolError(f"{tool.name} takes {', '.join(tool.parameters)}, and no {unknown[0][:40]!r}")
    return tool, {name: _typed(name, value, tool.parameters[name]["type"]) for name, value in call.arguments.items()}


def _typed(name: str, value: Any, kind: str) -> Any:
    try:
        if kind == "string":
            return str(value)
        if kind == "boolean":
            return {"true": True, "false": False}[str(value).lower()]
        number = float(value)
        if not math.isfinite(number) or (kind == "integer" and number != int(number)):
            raise ValueError
        return int(number) if kind == "integer" else number
    except (KeyError, TypeError, ValueError):
        raise ToolError(f"{name} must be of type {kind}, got {str(value)[:40]!r}") from None
