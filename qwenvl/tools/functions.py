"""Tools: functions that a completion can call, and what they see of a clip.

Their schemas come from their annotations and docstrings.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from torch import Tensor
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import place_of
from qwenvl.data.frames import FramePlan, Timeline, evenly_spaced, made_even
from qwenvl.data.media.resize import resize
from qwenvl.data.media.shape import MAX_ASPECT_RATIO, is_too_thin
from qwenvl.data.tool_options import BUILT_IN, ToolOptions
from qwenvl.rewards.resolve import load_file
from qwenvl.timeline import time_text
from qwenvl.tools.arguments import typed_arguments
from qwenvl.tools.errors import ToolError
from qwenvl.types import ClipMeta, Record, VideoClip

# An entry of a docstring that describes several arguments, as "x, y: corners", with the lines that continue it.
_SEVERAL = re.compile(r"^(\s+)(\w+(?:, \w+)+): (.*(?:\n\1\s+.*)*)$", re.MULTILINE)
_NOT_BY_NAME = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)
_NOT_SHOWN = ("self", "video", "return")  # what the schema of a tool leaves out of its annotations
THOUSANDTHS = 1000
"""The unit of boxes: thousandths of the width and of the height, as Qwen-VL writes places in pictures."""


@dataclass(frozen=True)
class Still:
    """A picture that a tool shows.

    Attributes:
        pixels: 3 x H x W, uint8.
        resample: the interpolation by which it is enlarged, by its number in Pillow.
    """

    pixels: Tensor
    resample: int

    def crop(self, x1: float, y1: float, x2: float, y2: float) -> Still:
        """A part of the picture, enlarged until it has as many pixels as the whole.

        Args:
            x1, y1, x2, y2: the corners of the part, in thousandths of width and height.

        Raises:
            ToolError: they bound no part of the picture.
        """
        box = f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g}"
        if not (0 <= x1 < x2 <= THOUSANDTHS and 0 <= y1 < y2 <= THOUSANDTHS):
            raise ToolError(f"{box} is empty or not within 0 to {THOUSANDTHS}")
        height, width = self.pixels.shape[1:]
        left, right = _bounds(x1, x2, width)
        top, bottom = _bounds(y1, y2, height)
        part = self.pixels[:, top:bottom, left:right]
        part_height, part_width = part.shape[1:]
        scale = math.sqrt(height * width / (part_height * part_width))
        enlarged = (max(1, round(part_height * scale)), max(1, round(part_width * scale)))
        if is_too_thin(enlarged):
            raise ToolError(f"{box} is too thin: one side may be at most {MAX_ASPECT_RATIO} times as long as the other")
        return replace(self, pixels=resize(part, enlarged, self))


def _bounds(low: float, high: float, pixels: int) -> tuple[int, int]:
    """The first pixel of an interval in thousandths, and the one behind its last. Rounding leaves at least one."""
    first = min(int(low * pixels / THOUSANDTHS), pixels - 1)
    return first, max(math.ceil(high * pixels / THOUSANDTHS), first + 1)


@dataclass(frozen=True)
class Video:
    """The first clip of a prompt, as tools see it. Times are those of the file, in seconds.

    Attributes:
        dataset: opens and decodes clips as those of prompts.
        record: whose clip it is.
        options: how many frames a look shows.
        elsewhere: show another span of the same length, for a control of an evaluation.
    """

    dataset: GRPODataset
    record: Record
    options: ToolOptions
    elsewhere: bool = False

    def frames(self, start: float, end: float) -> VideoClip:
        """The frames from ``start`` to ``end``, at the clip's size in prompts.

        Raises:
            ToolError: there is no such span in the clip.
            BadMediaError: the clip can't be read.
        """
        look = _Look(self, start, end)
        clip = self.dataset.load_clip(self.record, 0, look.plan)
        return replace(clip, info=replace(clip.info, looked_at=look.shown))

    def frame(self, time: float) -> Still:
        """The picture that is shown at a time, as it is in the file.

        Raises:
            ToolError: the clip is over by then.
            BadMediaError: the clip can't be read.
        """
        with self.dataset.open(self.record, 0) as clip:
            first, _, _ = self.span(Timeline(clip.frame_times, clip.duration), time, time)
            pixels = clip.read([first])[0]
        assert self.dataset.ruler is not None  # which sizes the clips of prompts
        return Still(pixels, self.dataset.ruler.resample)

    def span(self, timeline: Timeline, start: float, end: float) -> tuple[int, int, tuple[float, float]]:
        """The first frame shown in a span, the one behind the last, and the span within the bounds of the clip.

        Raises:
            ToolError: there is no such span in the clip.
        """
        meta = self.record.clip_meta[0] or ClipMeta()
        times = timeline.times
        earliest = meta.video_start or 0.0
        latest = max(timeline.duration, times[-1]) if meta.video_end is None else meta.video_end
        if not start <= end:
            raise ToolError(f"start {start:g} is after end {end:g}")
        if end < earliest or start > latest:
            whole = f"from {earliest:g} to {time_text(latest).removesuffix('.0')}"
            raise ToolError(f"{start:g} to {end:g} is not in the video, which goes {whole}")
        start = max(start, earliest)
        end = min(end, latest)
        if self.elsewhere and latest > earliest:
            start, end = _elsewhere(start, end, earliest, latest)
        stop = bisect_right(times, end)
        first = min(bisect_left(times, start), max(stop - 1, 0))
        # The picture that is shown at the start of the bounds may have begun before them.
        first = max(first, min(bisect_left(times, earliest), len(times) - 1))
        return first, max(stop, first + 1), (start, end)


class _Look:
    """The frames of a look, which are chosen once the clip is open.

    Attributes:
        shown: the span that is shown, in seconds, once the frames are chosen.
    """

    def __init__(self, video: Video, start: float, end: float) -> None:
        self._video = video
        self._start = start
        self._end = end
        self.shown: tuple[float, float] | None = None

    def plan(self, timeline: Timeline) -> FramePlan:
        """The frames of the look. ToolError: there is no such span in the clip."""
        first, stop, self.shown = self._video.span(timeline, self._start, self._end)
        options = self._video.options
        wanted = options.look_frames
        if options.look_fps is not None:
            # Of what is shown: the model may ask for seconds beyond the clip.
            start, end = self.shown
            wanted = max(round(min((end - start) * options.look_fps, options.look_frames)), 1)
        indices = [first + index for index in evenly_spaced(timeline.times[first:stop], wanted)]
        return FramePlan(tuple(made_even(indices)))


def _elsewhere(start: float, end: float, earliest: float, latest: float) -> tuple[float, float]:
    """Another span of the same length within the bounds: half of the clip away, or on the side with more room.

    Example:
        >>> _elsewhere(1, 2, 0, 6), _elsewhere(1.5, 3, 0, 4)
        ((4.0, 5.0), (0, 1.5))
    """
    own = end - start
    half = (latest - earliest) / 2
    moved = start + half if start < earliest + half else start - half
    if moved + own > latest:  # it would not fit there, and at the end it might overlap the span that was asked for
        moved = earliest if start - earliest >= latest - end else latest - own
    return moved, moved + own


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        schema: of its name and arguments, as chat templates take it.
        environment: the class of which each completion has an object, whose method this is. None: a plain function.
        source: as ``--tools`` names it. Empty for one that a script has given.
    """

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    environment: type | None = None
    source: str = ""

    @property
    def is_built_in(self) -> bool:
        """Whether it is a tool of this library: a function of the clip and its arguments, and of nothing else."""
        return _OWN.get(self.name) is self

    @property
    def sees_video(self) -> bool:
        """Whether it takes the clip as its argument ``video``."""
        return "video" in inspect.signature(self.function).parameters

    def place(self, record: Record) -> str:
        """The tool and a record, with which errors of the tool begin."""
        return f"--tools {self.source or self.name}, called for {place_of(record)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call in their types.

        Raises:
            ToolError: for the model to read.
        """
        return typed_arguments(self.name, self.schema["function"]["parameters"], arguments)


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
    try:
        named = get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"tool {function.__name__}: a type is not known when the tool is called: {error}; import it outside of "
            "`if TYPE_CHECKING`"
        ) from None
    hints = {name: kind for name, kind in named.items() if name not in _NOT_SHOWN}
    signature = inspect.signature(function)
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"tool {function.__name__}: expected a plain function, not an async one")
    shown = [parameter for name, parameter in signature.parameters.items() if name not in _NOT_SHOWN]
    for parameter in shown:
        if parameter.kind in _NOT_BY_NAME:
            raise TypeError(f"tool {function.__name__}: arguments are given by name, and {parameter} takes none")
        own_enum = _enum_in(hints.get(parameter.name))
        if own_enum is not None:
            values = ", ".join(repr(member.value) for member in own_enum)
            raise TypeError(
                f"tool {function.__name__}: calls give values and no members of {own_enum.__name__}; write Literal["
                f"{values}] as the type of {parameter.name}"
            )

    def empty() -> None: ...

    # get_json_schema describes a function by these four attributes. The function itself has arguments that a model
    # does not give, so this one stands in for it.
    stand_in: Any = empty
    stand_in.__name__ = function.__name__
    stand_in.__doc__ = _SEVERAL.sub(_one_entry_each, inspect.getdoc(function) or "")
    stand_in.__annotations__ = hints
    stand_in.__signature__ = signature.replace(parameters=shown)
    try:
        return get_json_schema(stand_in)
    except (TypeHintParsingException, DocstringParsingException) as error:
        raise TypeError(f"tool {function.__name__}: {error}") from None


def _enum_in(hint: Any) -> type[enum.Enum] | None:
    """The enumeration in a type, such as that of the items of a list."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return next(filter(None, map(_enum_in, get_args(hint))), None)


def _one_entry_each(found: re.Match[str]) -> str:
    """An entry of several arguments (``_SEVERAL``) as one entry for each of them, with the same text."""
    indent, names, text = found.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))


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
        ValueError: there is no such tool, two have one name, or one of a file has no types or descriptions.
        TypeError: a function given itself has none.
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
        if not callable(each):
            raise ValueError(f"--tools: expected names, functions or tools, got {each!r}")
        return [each if isinstance(each, Tool) else tool(each)]
    if each in _OWN:
        return [_OWN[each]]
    try:
        return _in_a_file(each)
    except TypeError as error:  # of schema_of: the command line names a file, and its user reads one line
        raise ValueError(f"--tools {each}: {error}") from error


def _in_a_file(each: str) -> list[Tool]:
    """The tools of ``file.py:name`` or ``trl:file.py:Class``."""
    file, _, name = each.removeprefix("trl:").rpartition(":")
    made = getattr(load_file(file, named_by=f"--tools {each}"), name, None)
    if made is None:
        raise ValueError(f"--tools {each}: {file} has no {name}")
    if not each.startswith("trl:"):
        return [replace(made if isinstance(made, Tool) else tool(made), source=each)]
    public = {}
    for name, method in inspect.getmembers(made, inspect.isfunction):
        takes_self = not isinstance(inspect.getattr_static(made, name), staticmethod)
        if takes_self and not name.startswith("_") and name != "reset":
            public[name] = method
    if not inspect.isclass(made) or not public or not hasattr(made, "reset"):
        raise ValueError(f"--tools {each}: expected a class with reset and at least one other public method")
    tools = []
    for name, method in public.items():
        tools.append(Tool(name, method, schema_of(method), environment=made, source=f"{each}.{name}"))
    return tools
