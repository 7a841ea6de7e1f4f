"""The options of ``qwenvl try`` itself. Those of frames, prompts, sampling and rewards are training's."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.option import Options, option


@dataclass
class TryOptions(Options):
    """What is asked for, and where the frames are shown."""

    n: int = option(
        1, "Answers, at least 1. 1: the greedy one. More: sampled as in training, at --generation_temperature.", least=1
    )
    solution: str | None = option(
        None,
        "What the rewards compare the answers with: a text, or a file that holds it.",
        unset="no rewards are shown",
    )
    picture: str = option("try.png", "File for the frames and images as the model sees them, a PNG picture.")
    json: bool = option(False, "Print all of it as JSON in place of text.")
