"""The options of the data: which records, and what is seen of their media."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qwenvl.option import Options, no_effect, option, was_set

RUN_SEED = 42
"""The default of ``--seed``. Commands without that flag take the rows of ``name%NN`` that such a run takes."""


@dataclass
class FileOptions(Options):
    """Files of records."""

    dataset_catalog: str | None = option(
        None,
        "YAML file that gives data sets their names: annotation file and media root of each.",
        unset="data/datasets.yaml of the repository",
    )
    allow_outside_media: bool = option(False, "Let records name media outside of their media root.")
    columns: str | None = option(
        None, "Renames keys of the rows: names in the file and names here, such as question=prompt,answer=solution."
    )


@dataclass
class TurnOptions(Options):
    """Formats of records, and what stands around their questions."""

    format: str | None = option(
        None,
        "Format of the rows, such as video-r1 or videomme; docs/data.md lists all. qwenvl: a format of this library. "
        "The format in the catalog entry of a data set takes precedence.",
        unset="detected from the first row of each file, and printed",
    )
    prompt_template: str | None = option(
        None, "File that replaces each prompt's last user turn; {prompt} in it is that turn."
    )
    system: str | None = option(
        None, "System turn of every prompt, in place of its own: a text, or a file that holds it."
    )


@dataclass
class ReadingOptions(TurnOptions, FileOptions):
    """Files and formats of records."""


@dataclass
class FrameOptions(Options):
    """Frames that are sampled from clips, by default."""

    base_interval: float = option(2.0, "Seconds between the frames taken from a clip, above 0.", above=0)
    video_fps: float | None = option(
        None,
        "Frames taken per second of a clip, above 0; replaces --base_interval.",
        unset="not used",
        above=0,
    )
    video_min_frames: int = option(
        4, "Fewest frames of a clip, at least 1. A record's meta may set another number.", least=1
    )
    video_max_frames: int = option(
        8, "Most frames of a clip, at least --video_min_frames. An odd number is made even: temporal patches are pairs."
    )

    frame_counts: str | None = option(
        None,
        "Numbers of frames such as 4,8,16: each record shows one of them, evenly spaced, drawn by --seed and its id. "
        "They replace the interval and the bounds; a record whose meta has bounds of its own keeps those. For models "
        "that may look again (--tools): an overview that always shows enough teaches them not to.",
        unset="the interval and the bounds",
    )

    @property
    def counts(self) -> list[int]:
        """The numbers of ``frame_counts``."""
        return [int(word) for word in (self.frame_counts or "").split(",") if word.strip()]

    @property
    def frame_bounds(self) -> tuple[int, int]:
        """The fewest and the most frames of a clip whose record has no bounds."""
        counts = self.counts or [self.video_min_frames, self.video_max_frames]
        return min(counts), max(counts)

    def problems(self) -> Iterator[str]:
        if self.frame_counts is not None:
            if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.frame_counts):
                yield f"--frame_counts must be whole numbers and commas, such as 4,8,16, got {self.frame_counts!r}"
            for name in ("base_interval", "video_fps", "video_min_frames", "video_max_frames"):
                if was_set(self, name):
                    yield f"--{name} has no effect with --frame_counts: leave one of them out"
        if self.video_fps is not None and was_set(self, "base_interval"):
            yield "--video_fps and --base_interval say the same thing twice: give one of them"
        yield from crossed(self, "video_min_frames", "video_max_frames")


@dataclass
class DecodingOptions(Options):
    """Decoding of clips and images."""

    video_backend: Literal["auto", "pyav", "decord"] = option(
        "auto", "Video decoder. auto: PyAV, the fastest of the decoders with correct frames."
    )
    decode_check: Literal["fast", "strict"] = option(
        "fast",
        "How damage of clips is detected. fast: by the decoder's own errors on the frames that it decodes, at no "
        "cost. strict: also read the whole container, and stop at errors that the decoder would conceal; only decoded "
        "frames are checked, the shown ones and those they are predicted from. Needs --video_backend auto or pyav.",
    )
    decode_timeout: float = option(
        60.0,
        "Seconds after which the decoder of a clip or an image is killed, at least 0; 0 decodes without bounds.",
        least=0,
    )
    decode_memory_gb: float = option(
        8.0, "Memory that the decoder may take for one clip or image, in GB, above 0.", above=0
    )

    def problems(self) -> Iterator[str]:
        if self.decode_check == "strict" and self.video_backend == "decord":
            yield no_effect(
                "--decode_check", without="--video_backend auto or pyav", reason="only PyAV reports errors"
            )


@dataclass
class BadSampleOptions(Options):
    """Records that cannot be used."""

    on_bad_sample: Literal["error", "skip"] = option(
        "error",
        "A row that cannot be read, or whose media cannot. error: stop, naming file and record. skip: leave it out, "
        "count it and list it at the end; nothing takes its place.",
    )


@dataclass
class SampleOptions(FrameOptions, DecodingOptions, BadSampleOptions):
    """The choice and decoding of frames, as a data set reads them."""


@dataclass
class SizeOptions(Options):
    """Sizes of media, and the length of prompts."""

    video_min_frame_pixels: int = option(
        4 * 28 * 28, "Fewest pixels of a video frame; smaller frames are scaled up.", least=1
    )
    video_max_frame_pixels: int = option(32 * 28 * 28, "Most pixels of a video frame; larger frames are scaled down.")
    min_pixels: int = option(16 * 28 * 28, "Fewest pixels of an image; smaller images are scaled up.", least=1)
    max_pixels: int = option(576 * 28 * 28, "Most pixels of an image; larger images are scaled down.")
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None,
        "Arguments of the model's chat template, as a JSON mapping. Hybrid thinking checkpoints, for example, read "
        '{"enable_thinking": false}. An argument that the template does not read is refused.',
        unset="the template's own defaults",
    )
    max_prompt_length: int | None = option(
        None, "Longest prompt in tokens, vision tokens included, at least 1.", unset="no limit", least=1
    )
    fit_frames: bool = option(
        False,
        "Take fewer frames of the clips of a prompt above --max_prompt_length until it fits, down to "
        "--video_min_frames. The rollouts have both numbers. --on_long_prompt handles a prompt that is still too "
        "long. Needs --max_prompt_length.",
    )

    @property
    def fit_to(self) -> int | None:
        """The tokens that frames are fitted to, or None where they are not."""
        return self.max_prompt_length if self.fit_frames else None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The arguments of the chat template by name."""
        given = self.chat_template_kwargs
        return json.loads(given) if isinstance(given, str) else dict(given or {})

    def problems(self) -> Iterator[str]:
        yield from template_problems(self.chat_template_kwargs)
        yield from crossed(self, "video_min_frame_pixels", "video_max_frame_pixels")
        yield from crossed(self, "min_pixels", "max_pixels")
        if self.max_prompt_length is None and self.fit_frames:
            yield no_effect("--fit_frames", without="--max_prompt_length")


@dataclass
class PromptOptions(SizeOptions):
    """Sizes of media, and the length of prompts."""

    on_long_prompt: Literal["error", "skip"] = option(
        "error",
        "A prompt above --max_prompt_length. error: stop, naming the record. skip: leave it out and count it. Needs "
        "--max_prompt_length.",
    )

    def problems(self) -> Iterator[str]:
        if self.max_prompt_length is None and self.on_long_prompt != "error":
            yield no_effect("--on_long_prompt", without="--max_prompt_length")


@dataclass
class DataOptions(Options):
    """Data sets and their order."""

    dataset_use: str | None = option(
        None,
        "Training data: comma-separated names of the catalog, paths of annotation files (formats: docs/data.md) or "
        "hf:name:split; %NN after one takes a seeded NN percent of it, :W draws from it by weight W (a:0.3,b%50:0.7).",
    )
    eval_dataset_use: str | None = option(None, "Data for evaluation, written like --dataset_use, without weights.")
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = option(
        "random",
        "Order of the prompts. random: shuffled anew each epoch. sequential: as the data sets have them. "
        "group_by_length: prompts of similar length in each optimizer step, over all processes, for less padding and "
        "less waiting between processes; lengths are estimated from text and media headers.",
    )


def template_problems(given: dict[str, Any] | str | None) -> Iterator[str]:
    """Problems of the arguments of the chat template."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            given = f"{given} ({error})"
    if given is not None and not isinstance(given, dict):
        yield f'--chat_template_kwargs must be a JSON mapping such as {{"enable_thinking": false}}, got {given}'
        return
    reserved = {"messages", "add_generation_prompt"} & set(given or {})
    if reserved:
        yield f"--chat_template_kwargs: {min(reserved)} is what a prompt is made with, not an option: leave it out"


def crossed(options: Any, low: str, high: str) -> Iterator[str]:
    """A problem where the lower bound is above the upper one."""
    if getattr(options, low) > getattr(options, high):
        yield f"--{low} {getattr(options, low)} is above --{high} {getattr(options, high)}"
