"""The options of what a run shows while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qwenvl.option import Options, option, was_set

LIVE_COMPLETIONS_EVERY = 20


@dataclass
class CompletionOptions(Options):
    """Which completions a run shows while it goes on."""

    log_completions_every: int | None = option(
        None,
        "Optimizer steps between two prompts that are shown with all their completions, rewards and advantages, at "
        "least 0. The first step is shown too, and of each step the group whose rewards differ most. 0: none.",
        unset=f"{LIVE_COMPLETIONS_EVERY} with the display rich, else 0",
        least=0,
    )


@dataclass
class DisplayOptions(CompletionOptions):
    """What a run shows while it goes on."""

    display: Literal["bar", "rich", "plain", "none"] | None = option(
        None,
        "How progress is shown. rich: a board of a few lines at the foot of the terminal, with curves of reward, KL, "
        "entropy, equal groups and lengths, the seconds of a step by phase, and memory. bar: one line. plain: lines "
        "that stay, which a file or a pipe always gets. none: nothing. A step that takes long says what it is at: "
        "a plain line each minute, a field of the others. Warnings and the summary are shown in any case.",
        unset="rich on a terminal, else plain; with --disable_tqdm the Trainer's own lines",
    )


def display_problems(config: Any) -> Iterator[str]:
    """What contradicts between the options of the display and the Trainer's own."""
    if config.display is not None and config.disable_tqdm:
        yield "--disable_tqdm has no effect with --display: leave it out; --display none shows no progress"
    silent = "--display none" if config.display == "none" else "--disable_tqdm" if config.disable_tqdm else None
    if silent is not None and was_set(config, "log_completions_every"):
        yield f"--log_completions_every has no effect with {silent}, which shows no progress: leave one of the two out"
