"""Tools: functions that a completion can call. Their schemas come from their annotations and docstrings."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from qwenvl.rewards.resolve import load_file
from qwenvl.tools.options import BUILT_IN
from qwenvl.tools.video import Still, ToolError, Video
from qwenvl.types import VideoClip

_SEVERAL = re.compile(r"^(\s+)(\w+(?:, \w+)+): (.*(?:\n\1\s+.*)*)$", re.MULTILINE)


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

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call in their types.

        Raises:
            ToolError: for the model to read.
        """
        parameters = self.schema["function"]["parameters"]
        if missing := [name for name in parameters.get("required", ()) if name not in arguments]:
            raise ToolError(f"{self.name} lacks {', '.join(missing)}")
        known = parameters["properties"]
        if unknown := sorted(arguments.keys() - known.keys()):
            raise ToolError(f"{self.name} takes {', '.join(known)}, and no {unknown[0][:40]!r}")
        return {name: _typed(name, value, known[name].get("type")) for name, value in arguments.items()}


def _typed(name: str, value: Any, kind: Any) -> Any:
    try:
        if kind == "string":
            return str(value)
        if kind == "boolean":
            return {"true": True, "false": False}[str(value).lower()]
        if kind not in ("number", "integer"):
            return value
        number = float(value)
        if not math.isfinite(number) or (kind == "integer" and number != int(number)):
            raise ValueError
        return int(number) if kind == "integer" else number
    except (KeyError, TypeError, ValueError):
        raise ToolError(f"{name} must be of type {kind}, got {str(value)[:40]!r}") from None


def tool(function: Callable[..., Any]) -> Tool:
    """Makes a function a tool. Its argument ``video`` (a ``Video``), if it has one, is passed in.

    It returns frames (``Video.frames``), a ``Still``, text, or a list of these.

    Raises:
        TypeError: an argument without a type or a description, or a function without a docstring.

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
    """The schema of a function as chat templates take it. Its docstring may describe several arguments in one entry."""

    described: Any = lambda: None
    hidden = ("self", "video", "return")
    each = lambda found: "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", "))
    described.__name__, described.__doc__ = function.__name__, _SEVERAL.sub(each, inspect.getdoc(function) or "")
    described.__annotations__ = {name: kind for name, kind in get_type_hints(function).items() if name not in hidden}
    whole = inspect.signature(function)
    shown = [parameter for name, parameter in whole.parameters.items() if name not in hidden]
    described.__signature__ = whole.replace(parameters=shown)
    try:
        return get_json_schema(described)
    except (TypeHintParsingException, DocstringParsingException) as error:
        raise TypeError(f"tool {function.__name__}: {error}") from None


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
