"""The command lines of ``qwenvl label`` and ``qwenvl serve``, and the parameters of a request to a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.data.records.parse import ReadOptions
from qwenvl.evaluate.settings import ModelSource, config_for, model_source, parse_words, reading_of, refuse_unread
from qwenvl.option import Options, option, was_set
from qwenvl.types import SamplingParams

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig


@dataclass
class LabelOptions(Options):
    """The options of ``qwenvl label`` itself."""

    question: str | None = option(
        None,
        "What is asked about every clip: a text, or a file that holds it. CLIPS are then clips, images, folders of "
        "clips and patterns such as 'cam1/*.mp4'.",
        unset="CLIPS is what --dataset_use takes, and each record has its own prompt; solutions are not read",
    )
    samples: int = option(
        1,
        "Completions per clip, at least 1. 1: the greedy one. More: sampled as in training, and the answer that most "
        "of them give.",
        least=1,
    )
    output: str = option(
        "labels.csv",
        "The table, a path that ends in .csv. The folder of the same name without .csv holds all completions, from "
        "which the same command continues, and the page.",
    )
    page: bool = option(False, "Write the page of the labels, on which they are corrected and saved as records.")
    pictures: int = option(300, "Clips and images to decode for the page, at least 0, the worst first.", least=0)


@dataclass
class ServeOptions(Options):
    """The options of ``qwenvl serve`` itself."""

    host: str = option("127.0.0.1", "Address to listen at. 0.0.0.0: all of this machine's, without any password.")
    port: int = option(8000, "Port to listen at, 1 to 65535.", least=1, most=65535)
    media_root: str | None = option(
        None,
        "Folder whose clips and images requests may name, as file:///PATH or as a path below it.",
        unset="requests hold their media as data URLs",
    )
    allow_http: bool = option(False, "Fetch media from http and https addresses that requests name.")
    max_waiting: int = option(256, "Requests that are read or wait, at least 1; others get status 429.", least=1)
    max_body_mb: float = option(64.0, "Largest request, and largest file that is fetched, in MB, above 0.", above=0)
    max_media: int = option(
        8, "Most clips and images of a request, at least 0. --video_max_frames bounds each clip.", least=0
    )
    max_seconds: float = option(600.0, "Longest time from a request to its answer, in seconds, above 0.", above=0)
    check: str | None = option(
        None,
        "Address of a running OpenAI-compatible server, as http://HOST:8000/v1: compare its prompts, answers and "
        "log-probs of five records of DATA with those of MODEL here.",
        unset="serve",
    )

    def problems(self) -> Iterator[str]:
        if self.check and (others := [each for each in vars(self) if each != "check" and was_set(self, each)]):
            yield f"--{others[0]} has no effect with --check, which compares and does not serve: leave it out"


@dataclass(frozen=True)
class UseRequest:
    """A command line: the model, the words behind it, the settings, how prompts are framed, and where that is from."""

    model: ModelSource
    words: Sequence[str]
    config: GRPOConfig
    options: Any
    reading: ReadOptions
    settings_of: str


def use_request(
    argv: Sequence[str], own: type[Options], read: Set[str], usage: str, begins: bool = False
) -> UseRequest:
    """The model and the settings of a command line.

    Args:
        own, read: the options of the command, and the flags of training that it reads.
        usage: its words. With "..." there are several.
        begins: the command begins on this machine: check the model before torch is loaded.

    Raises:
        ValueError, OSError: an unknown, unfit or meaningless flag, other words, no such model.
    """
    words, options, flags = parse_words(argv, own)
    if len(words) < 2 if "..." in usage else len(words) != 1 + bool(getattr(options, "check", None)):
        raise ValueError(f"expected {usage} before the flags, got {' '.join(words) or 'nothing'}")
    refuse_unread(flags, read, greedy=getattr(options, "samples", None) == 1)
    root = getattr(options, "media_root", None)
    if root is not None and not Path(root).is_dir():
        raise FileNotFoundError(f"--media_root {root}: no such folder")
    model = model_source(words[0], present=begins)
    config = config_for(model, flags, reading={"system"}, begins=begins)
    return UseRequest(model, words[1:], config, options, *reading_of(model, config, flags))


@dataclass
class ChatOptions(Options):
    """The parameters of a request that a server reads, under their names in OpenAI's API.

    Without a temperature a single answer is greedy, and several are sampled as in training.
    """

    model: str | None = None
    n: int = option(1, "Answers.", least=1, most=64)
    temperature: float | None = option(None, "Sampling temperature.", least=0, most=2)
    top_p: float | None = option(None, "As --generation_top_p.", above=0, most=1)
    max_tokens: int | None = option(None, "Longest answer.", least=1)
    max_completion_tokens: int | None = option(None, "The newer name of max_tokens.", least=1)
    stop: list[str] | str | None = option(None, "Texts before which an answer ends.")
    seed: int | None = option(None, "Of the draws: the same request has the same answer.")
    stream: bool = option(False, "Send the answer as it is written.")
    logprobs: bool = option(False, "Add the log-probs of the answer's tokens, at the sampling temperature.")

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts of ``stop``."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def problems(self) -> Iterator[str]:
        if not all(isinstance(each, str) and each for each in self.stops):
            yield f"--stop must be texts of at least one character, got {self.stop!r}"
        if self.stream and self.logprobs:
            yield "--logprobs are not offered with stream: leave one of them out"

    def params(self, trained: SamplingParams) -> SamplingParams:
        """How the answers are sampled, given the settings of training. ValueError: they would be too long."""
        most = self.max_completion_tokens or self.max_tokens or trained.max_new_tokens
        if most > trained.max_new_tokens:
            raise ValueError(f"max_tokens must be at most {trained.max_new_tokens} (--generation_max_length)")
        given: dict[str, Any] = {"temperature": 0.0} if self.n == 1 else {}
        given |= {each: value for each in ("temperature", "top_p") if (value := getattr(self, each)) is not None}
        strings = tuple(dict.fromkeys((*trained.stop_strings, *self.stops)))
        return replace(trained, **given, max_new_tokens=most, stop_strings=strings)
