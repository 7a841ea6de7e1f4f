"""The options of tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwenvl.option import Options, nearest, option

BUILT_IN = ("look", "zoom")


@dataclass
class ToolOptions(Options):
    """Tools that a completion can call to look at its video again."""

    tools: list[str] | None = option(
        None,
        "Tools that completions may call: look (frames of a span of the first clip), zoom (an enlarged part of a "
        "picture), file.py:name (a function marked with @tool), trl:file.py:Class (as TRL's environment_factory).",
        unset="no tools",
        needs=(
            "async_rollouts == 0 or not fsdp: the vision tower is copied for looks that are sampled ahead",
            "not temporal_contrast: its second group would look at frames in the right order",
            "generation_repetition_penalty == 1: it would count what tools append",
        ),
    )
    max_turns: int = option(
        3,
        "Turns of a completion, at least 2. One that calls tools, at most 16 times, is answered by them and followed "
        "by another one; the last one has to answer, and calls in it are not executed.",
        least=2,
        needs="tools",
    )
    look_frames: int = option(16, "Frames that a look shows at most, at least 2.", least=2, needs="tools")
    look_fps: float | None = option(
        None, "Frames per second of a look, above 0.", unset="--look_frames, evenly spaced", above=0, needs="tools"
    )
    look_tokens: int = option(
        4096,
        "Tokens that tools may append to a completion, at least 1, beside the --generation_max_length that it samples. "
        "What does not fit is refused in words that the model reads, and where these do not fit, the completion ends.",
        least=1,
        needs="tools",
    )

    def problems(self) -> Iterator[str]:
        if self.tools is not None and not self.tools:
            yield "--tools: expected at least one tool, such as look"
        for name in self.tools or []:
            if isinstance(name, str) and ":" not in name and name not in BUILT_IN:
                yield f"--tools {name}: {nearest(name, BUILT_IN, 'there are')}, or file.py:name, or trl:file.py:Class"
