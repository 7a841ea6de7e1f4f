"""What became of a question: what the model saw and answered, as plain values and as lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A clip or an image as the model saw it.

    Attributes:
        path: of the file.
        times: of the frames, in seconds. Empty for an image.
        indices: the numbers of the frames in the file. Empty for an image.
        file_size, size: height and width in pixels, in the file and as the model sees it.
        tokens: that stand for it in the prompt.
    """

    path: str
    times: tuple[float, ...]
    indices: tuple[int, ...]
    file_size: tuple[int, int]
    size: tuple[int, int]
    tokens: int


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        text: without special tokens.
        tokens: its end token included.
        finish_reason: ``stop``, or ``length`` where it was cut.
        rewards: by function and ``total``. None for a value means that the function does not apply. Empty without a
            solution.
    """

    text: str
    tokens: int
    finish_reason: str
    rewards: dict[str, float | None]


@dataclass(frozen=True)
class Told:
    """One question with its answers.

    Attributes:
        model: the folder or name that was asked.
        base: of an adapter.
        settings: where the settings come from, in words.
        media: clips, then images.
        picture: the file with the frames. None for a question about text alone.
        prompt: as the model reads it, vision tokens folded.
        prompt_tokens: of the prompt, and how many of them are vision tokens.
        sampling: how the answers were drawn, in words.
    """

    model: str
    base: str | None
    settings: str
    media: tuple[Seen, ...]
    picture: str | None
    prompt: str
    prompt_tokens: tuple[int, int]
    sampling: str
    solution: str | None
    answers: tuple[Answer, ...]

    def lines(self) -> list[str]:
        """The text for a terminal."""
        on = f", an adapter on {self.base}" if self.base else ""
        total, vision = self.prompt_tokens
        lines = [f"{self.model}{on}", f"settings: {self.settings}", ""]
        for seen in self.media:
            lines += _seen_lines(seen)
        if self.picture is not None:
            lines += [f"what it saw: {self.picture}"]
        lines += ["", f"prompt: {total:,} tokens, {vision:,} of them vision", *_indented(self.prompt), ""]
        if self.solution is not None:
            lines += ["solution:", *_indented(self.solution), ""]
        for number, answer in enumerate(self.answers, 1):
            cut = ", cut there by --generation_max_length" if answer.finish_reason == "length" else ""
            plural = "" if answer.tokens == 1 else "s"
            count = f" {number} of {len(self.answers)}" if len(self.answers) > 1 else ""
            lines += [f"answer{count} ({self.sampling}): {answer.tokens:,} token{plural}{cut}", *_indented(answer.text)]
            if answer.rewards:
                lines.append("  rewards: " + ", ".join(map(_reward, answer.rewards, answer.rewards.values())))
            lines.append("")
        return lines[:-1]


def _seen_lines(seen: Seen) -> list[str]:
    sizes = f"{seen.file_size[1]} x {seen.file_size[0]} pixels, the model sees {seen.size[1]} x {seen.size[0]}"
    tokens = f"{seen.tokens:,} tokens"
    if not seen.times:
        return [f"{Path(seen.path).name}: an image, {sizes}, {tokens}"]
    times = " ".join(f"{time:.2f}" for time in seen.times)
    return [f"{Path(seen.path).name}: {len(seen.times)} frames, {sizes}, {tokens}", f"  at {times} s"]


def _reward(name: str, value: float | None) -> str:
    return f"{name} {'does not apply' if value is None else f'{value:.3f}'}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip("\n").splitlines() or [""]]


def as_json(told: Told) -> dict[str, Any]:
    """All of it, as JSON can hold it."""
    return {**vars(told), "media": [vars(seen) for seen in told.media], "answers": [vars(a) for a in told.answers]}
