"""The command lines of ``qwenvl label`` and ``qwenvl serve``, and the parameters of a request to a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.evaluate.models import ModelSource, model_source
from qwenvl.evaluate.settings import Asking, asking_of, config_for, parse_words, refuse_drawing
from qwenvl.failure import beginning
from qwenvl.option import Options, no_effect, option, was_set
from qwenvl.rewards.options import RewardOptions
from qwenvl.types import SamplingParams

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

KEY_VARIABLE = "QWENVL_API_KEY"
OWNER = "qwenvl"
"""The owner of the models of our own server, in its list of models."""
MOST_STOPS = 16
LONGEST_STOP = 200  # characters
LEAST_TEMPERATURE = 0.01  # logits that are divided by much less overflow


@dataclass
class LabelOptions(Options):
    """The options of ``qwenvl label`` itself."""

    question: str | None = option(
        None,
        "What is asked about every clip: a text, or a file that holds it. CLIPS are then clips, images, folders of "
        "clips and patterns such as 'cam1/*.mp4'.",
        unset="CLIPS is what --dataset_use takes, and each record has its own prompt; solutions are not read",
    )
    choices: list[str] | None = option(
        None,
        "Options of the question, each a text: they stand below it with letters, as training has them, and the answer "
        "is a letter. Needs --question.",
        unset="the question has none, or holds them itself",
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

    def problems(self) -> Iterator[str]:
        if self.question is None and self.choices is not None:
            yield no_effect("--choices", without="--question")


@dataclass
class ServeOptions(Options):
    """The options of ``qwenvl serve`` itself."""

    host: str = option("127.0.0.1", "Address to listen at. 0.0.0.0: all of this machine's.")
    port: int = option(8000, "Port to listen at, 1 to 65535.", least=1, most=65535)
    api_key: str | None = option(
        None,
        "Key that requests must have as Authorization: Bearer, as OpenAI's client sends it. On a command line other "
        f"users of the machine can read it: ${KEY_VARIABLE} is read too.",
        unset="no key is asked for",
    )
    allowed_hosts: list[str] | None = option(
        None,
        "Names under which clients may address the server, as their Host says, besides localhost, --host and addresses "
        "in numbers.",
        unset="none",
    )
    media_root: str | None = option(
        None,
        "Folder whose clips and images requests may name, as file:///PATH or as a path below it.",
        unset="requests hold their media as data URLs",
    )
    allow_http: bool = option(
        False,
        "Fetch media from http and https addresses that requests name, within 60 seconds, if all addresses of their "
        "host are public.",
    )
    allow_private_http: bool = option(
        False, "Fetch them from this machine and its network as well. Needs --allow_http."
    )
    max_waiting: int = option(256, "Requests that are read or wait, at least 1; others get status 429.", least=1)
    max_body_mb: float = option(64.0, "Largest request, and most that is fetched for one, in MB, above 0.", above=0)
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
    allow_outside_media: bool = option(
        False, "With --check: let records of DATA name media outside of their media root; they are sent to the server."
    )

    @property
    def key(self) -> str | None:
        """The key that requests must have, if they must have one."""
        return self.api_key or os.environ.get(KEY_VARIABLE) or None

    def problems(self) -> Iterator[str]:
        for name, key in (("--api_key", self.api_key), (f"${KEY_VARIABLE}", os.environ.get(KEY_VARIABLE) or None)):
            if key is None:
                continue
            fits_in_a_header = key.isascii() and key.isprintable() and key.strip() and " " not in key
            if not fits_in_a_header:
                yield f"{name} must be visible ASCII characters without spaces"
        if self.allow_private_http and not self.allow_http:
            yield no_effect("--allow_private_http", without="--allow_http")
        if self.allow_outside_media and not self.check:
            yield no_effect("--allow_outside_media", without="--check", reason="requests name files by --media_root")
        of_check = ("check", "allow_outside_media")
        others = [each for each in vars(self) if each not in of_check and was_set(self, each)]
        if self.check and others:
            yield f"--{others[0]} has no effect with --check, which compares and does not serve: leave it out"


@dataclass(frozen=True)
class UseRequest:
    """A command line: the model, the words behind it, the settings, and how questions are read and framed."""

    model: ModelSource
    words: Sequence[str]
    config: GRPOConfig
    options: Any
    asking: Asking


def use_request(
    argv: Sequence[str], own: type[Options], groups: Sequence[type[Options]], usage: str, begins: bool = False
) -> UseRequest:
    """The model and the settings of a command line.

    Args:
        own, groups: the options of the command, and those of training that it reads.
        usage: its words. With "..." there are several.
        begins: the command begins on this machine: check the model before torch is loaded.

    Raises:
        ValueError, OSError: an unknown, unfit or meaningless flag, other words, no such model.
    """
    words, options, flags = parse_words(argv, own, groups)
    if "..." in usage:
        fits = len(words) >= 2
    else:
        fits = len(words) == (2 if getattr(options, "check", None) else 1)
    if not fits:
        raise ValueError(f"expected {usage} before the flags, got {' '.join(words) or 'nothing'}")
    if getattr(options, "samples", None) == 1:
        refuse_drawing(flags)
    root = getattr(options, "media_root", None)
    if root is not None and not Path(root).is_dir():
        raise FileNotFoundError(f"--media_root {root}: no such folder")
    model = model_source(words[0], present=begins)
    config = config_for(model, flags, reading={"system"}, begins=begins, scores=RewardOptions in groups)
    return UseRequest(
        model=model,
        words=words[1:],
        config=config,
        options=options,
        asking=asking_of(model, config, flags),
    )


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
    seed: int | None = option(
        None, "Of the draws: the same request has the same answer.", least=-(2**63), most=2**63 - 1
    )
    stream: bool = option(False, "Send the answer as it is written.")
    logprobs: bool = option(False, "Add the log-probs of the answer's tokens, at the sampling temperature.")

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts of ``stop``."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def problems(self) -> Iterator[str]:
        if not all(isinstance(each, str) and each for each in self.stops):
            yield f"--stop must be texts of at least one character, got {beginning(repr(self.stop))}"
        elif len(self.stops) > MOST_STOPS or any(len(each) > LONGEST_STOP for each in self.stops):
            yield f"--stop must be at most {MOST_STOPS} texts of at most {LONGEST_STOP} characters"
        if self.model is not None and not isinstance(self.model, str):
            yield f"--model must be a string or None, got {beginning(repr(self.model))}"
        if self.temperature and 0 < self.temperature < LEAST_TEMPERATURE:
            yield f"--temperature must be 0, or at least {LEAST_TEMPERATURE:g}, got {self.temperature:g}"
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and self.max_tokens != self.max_completion_tokens:
            yield "--max_tokens and its newer name max_completion_tokens differ: send one of them"
        if self.stream and self.logprobs:
            yield "--logprobs are not offered with stream: leave one of them out"

    def params(self, trained: SamplingParams) -> SamplingParams:
        """The settings of sampling for the answers, given those of training.

        Raises:
            ValueError: the answers would be longer than in training.
        """
        most = self.max_completion_tokens or self.max_tokens or trained.max_new_tokens
        if most > trained.max_new_tokens:
            raise ValueError(f"max_tokens must be at most {trained.max_new_tokens} (--generation_max_length)")
        given: dict[str, Any] = {"temperature": 0.0} if self.n == 1 else {}
        if self.temperature is not None:
            given["temperature"] = self.temperature
        if self.top_p is not None:
            given["top_p"] = self.top_p
        # Its own stop strings are found in its text: those of the engine are matched against the whole vocabulary.
        return replace(trained, **given, max_new_tokens=most)
