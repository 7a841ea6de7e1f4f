"""Tools: functions that a completion can call. Their schemas come from their annotations and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from qwenvl.rewards.resolve import load_file
from qwenvl.tools.options import BUILT_IN
from qwenvl.tools.video import Still, Video
from qwenvl.types import VideoClip

KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}
"""Types of arguments by their names in a schema."""
_ARGUMENT = re.compile(r"^\s+(\w+(?:, \w+)*): (.*)$")


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        schema: of its name and arguments, as chat templates take it.
        environment: the class of which each completion has an object, whose method this is. None: a plain function.
    """

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    environment: type | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of its arguments by their names."""
        return self.schema["function"]["parameters"]["properties"]

    @property
    def required(self) -> list[str]:
        """The arguments that have no default."""
        return self.schema["function"]["parameters"]["required"]


def tool(function: Callable[..., Any]) -> Tool:
    """Makes a function a tool. Its argument ``video`` (a ``Video``), if it has one, is passed in.

    It returns frames (``Video.frames``), a ``Still``, text, or a list of these.

    Raises:
        TypeError: an argument without a type, or a function without a docstring.

    Example:
        >>> @tool
        ... def half(time: float):
        ...     '''Halve a time.
        ...
        ...     Args:
        ...         time: seconds.
        ...     '''
        ...     return f"{time / 2} s"
        >>> half.schema["function"]["parameters"]["properties"]
        {'time': {'type': 'number', 'description': 'seconds.'}}
    """
    return Tool(function.__name__, function, schema_of(function))


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function as chat templates take it, in the form of OpenAI's tools."""
    name, described = function.__name__, inspect.getdoc(function)
    if not described:
        raise TypeError(f"tool {name}: expected a docstring, which tells the model what it is for")
    purpose, _, arguments = described.partition("\nArgs:\n")
    texts = {each: text for names, text in _described(arguments) for each in names.split(", ")}
    hints, properties, required = get_type_hints(function), {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "video"):
            continue
        if hints.get(parameter.name) not in KINDS:
            expected = ", ".join(kind.__name__ for kind in KINDS)
            raise TypeError(f"tool {name}: expected a type for the argument {parameter.name}, one of {expected}")
        properties[parameter.name] = {"type": KINDS[hints[parameter.name]]}
        if parameter.name in texts:
            properties[parameter.name]["description"] = texts[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": " ".join(purpose.split()), "parameters": parameters},
    }


def _described(arguments: str) -> list[tuple[str, str]]:
    """The names and texts of the section ``Args`` of a docstring."""
    found: list[tuple[str, str]] = []
    for line in arguments.splitlines():
        if start := _ARGUMENT.match(line):
            found.append((start[1], start[2]))
        elif not line.strip() or not line.startswith(" "):
            break
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


@tool
def look(video: Video, start: float, end: float) -> list[str | VideoClip]:
    """Look at a span of the video again, in more frames.

    Args:
        start, end: the span, in seconds.
    """
    clip = video.frames(start, end)
    return [f"{clip.info.times[0]:.1f} to {clip.info.times[-1]:.1f} seconds:", clip]


@tool
def zoom(video: Video, time: float, x1: float, y1: float, x2: float, y2: float) -> Still:
    """Enlarge a part of the picture at a time.

    Args:
        time: seconds.
        x1, y1, x2, y2: the corners of the part, in thousandths of the width and height.
    """
    return video.frame(time).crop(x1, y1, x2, y2)


_OWN = dict(zip(BUILT_IN, (look, zoom), strict=True))


def resolve_tools(names: Sequence[str | Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by name.

    Args:
        names: of the built-in ones, ``file.py:name``, ``trl:file.py:Class`` (a class with ``reset`` and public methods,
            as TRL's ``environment_factory``), or tools themselves.

    Raises:
        ValueError: there is no such tool, or two have one name.
    """
    found: dict[str, Tool] = {}
    for each in names:
        for made in _resolved(each):
            if made.name in found:
                raise ValueError(f"--tools: two tools are named {made.name}: rename one")
            found[made.name] = made
    return found


def schemas_of(flags: Any) -> list[dict[str, Any]]:
    """The schemas of the tools that flags name."""
    return [each.schema for each in resolve_tools(flags.tools or ()).values()]


def _resolved(each: str | Tool | Callable[..., Any]) -> list[Tool]:
    if not isinstance(each, str):
        return [each if isinstance(each, Tool) else tool(each)]
    if each in _OWN:
        return [_OWN[each]]
    file, _, name = each.removeprefix("trl:").rpartition(":")
    made = getattr(load_file(file), name, None)
    if made is None:
        raise ValueError(f"--tools {each}: {file} has no {name}")
    if not each.startswith("trl:"):
        return [made if isinstance(made, Tool) else tool(made)]
    methods = inspect.getmembers(made, inspect.isfunction)
    public = [(name, method) for name, method in methods if not name.startswith("_") and name != "reset"]
    if not inspect.isclass(made) or not public or not hasattr(made, "reset"):
        raise ValueError(f"--tools {each}: expected a class with reset and at least one other public method")
    return [Tool(name, method, schema_of(method), environment=made) for name, method in public]
