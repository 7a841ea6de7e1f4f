"""The options of tools. They stand with the data because the settings of prompts are saved with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwenvl.option import Options, nearest, no_effect, option, set_among

BUILT_IN = ("look", "zoom")


@dataclass
class ToolOptions(Options):
    """Tools that a completion can call to look at its video again."""

    tools: list[str] | None = option(
        None,
        "Tools that completions may call: look (frames of a span of the first clip), zoom (an enlarged part of a "
        "picture), file.py:name (a function marked with @tool), trl:file.py:Class (as TRL's environment_factory). "
        "Needs --async_rollouts 0 or no --fsdp. Not with --temporal_contrast. Needs --generation_repetition_penalty 1.",
        unset="no tools",
    )
    max_turns: int = option(
        3,
        "Turns of a completion, at least 2. One that calls tools, at most 16 times, is answered by them and followed "
        "by another one; the last one has to answer, and calls in it are not executed. Needs --tools.",
        least=2,
    )
    look_frames: int = option(16, "Frames that a look shows at most, at least 2. Needs --tools.", least=2)
    look_fps: float | None = option(
        None, "Frames per second of a look, above 0. Needs --tools.", unset="--look_frames, evenly spaced", above=0
    )
    look_tokens: int = option(
        4096,
        "Tokens that tools may append to a completion, at least 1, beside the --generation_max_length that it "
        "samples. What does not fit is refused in words that the model reads, and where these do not fit, the "
        "completion ends. Needs --tools.",
        least=1,
    )

    def problems(self) -> Iterator[str]:
        if not self.tools:
            for name in set_among(self, "max_turns", "look_frames", "look_fps", "look_tokens"):
                yield no_effect(f"--{name}", without="--tools")
        if self.tools is not None and not self.tools:
            yield "--tools: expected at least one tool, such as look"
        for name in self.tools or []:
            if isinstance(name, str) and ":" not in name and name not in BUILT_IN:
                yield f"--tools {name}: {nearest(name, BUILT_IN, 'there are')}, or file.py:name, or trl:file.py:Class"
