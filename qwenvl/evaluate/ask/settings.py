"""From the command line of ``qwenvl try`` to a question and the settings that it is asked with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.config.command_line import config_from, raising, tokens_of
from qwenvl.config.flags import add_options
from qwenvl.data.errors import BadMediaError
from qwenvl.data.options import PromptOptions, SampleOptions
from qwenvl.data.records.parse import ReadOptions, parse_row, text_or_file
from qwenvl.data.records.rows import Row
from qwenvl.data.records.schemas import MEDIA_TAG
from qwenvl.evaluate.ask.options import TryOptions
from qwenvl.evaluate.settings import DRAWING, help_of, refuse_unread, setting_of
from qwenvl.option import all_options
from qwenvl.rewards.options import ContrastOptions, RewardOptions
from qwenvl.rollout.options import EngineOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.evaluate.trained import Trained
    from qwenvl.types import Record

USAGE = 'qwenvl try MODEL [CLIP or IMAGE ...] "question" [-n 4] [--solution TEXT] [--flag of training value ...]'
_PURPOSE = (
    "Ask a model about clips and images, and see what it saw: the frames with their times, the prompt as it is read, "
    "the answers, and with --solution their rewards. Frames, prompts, sampling and rewards are those of training. "
    "MODEL is a checkpoint, an adapter's folder, a run's folder or a name on the hub. The question may be a file that "
    "holds it. Where it has no <video> or <image> tags, each clip and image comes before it on a line of its own."
)
_EPILOG = (
    "What no flag sets is as in the run that trained the model, where that is known, else the default of training."
)

_LEFT_OUT = {"on_bad_sample", "on_long_prompt", *(each.name for each in all_options(ContrastOptions))}
_REWARDS = {each.name for each in all_options(RewardOptions)} - _LEFT_OUT
READ = {
    *(
        each.name
        for group in (SampleOptions, PromptOptions)
        for each in all_options(group)
        if each.name not in _LEFT_OUT
    ),
    *_REWARDS,
    *DRAWING,
    *("generation_max_length", "generation_repetition_penalty", "stop_strings", "system", "prompt_template"),
    *(each.name for each in all_options(EngineOptions)),
    *("allow_remote_media", "attn_implementation", "bf16", "fp16", "tf32", "use_cpu", "seed"),
}
"""The flags of training that mean the same here."""
ASKED_BY_LMMS = READ - _REWARDS - DRAWING
"""Those that mean something where lmms-eval asks and scores."""

WITHOUT_EFFECT = {
    "model_name_or_path": "give the model as the first word",
    "dataset_use": "give the clip and the question as words; qwenvl evaluate asks about a data set",
    "grpo_sample_size": "-n says how many answers are sampled",
    "on_bad_sample": "a clip that can't be read ends the command",
    "on_long_prompt": "a prompt that is too long ends the command",
}


@dataclass(frozen=True)
class Asked:
    """One question.

    Attributes:
        model: what is asked, and what is known of its training.
        config: the settings, as training would have them.
        record: the question with its media. Its solution is empty where none was given.
        options: of the command itself.
    """

    model: Trained
    config: GRPOConfig
    record: Record
    options: TryOptions


def asked_of(argv: Sequence[str]) -> Asked:
    """What a command line asks.

    Raises:
        ValueError, OSError: an unknown, unfit or meaningless flag, no question, no such model or file.
    """
    from qwenvl.evaluate.trained import trained

    argv = ["--n" if word == "-n" else re.sub(r"^-n(\d+)$", r"--n=\1", word) for word in argv]
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    own, flags = _parser().parse_known_args(argv[len(words) :])
    options = TryOptions(**vars(own))
    if len(words) < 2 or not _is_question(words[-1]):
        raise ValueError("expected MODEL, clips or images, and a question in quotes, in this order, before the flags")
    names = {name for token in flags if (name := setting_of(token))}
    refuse_unread(flags, READ, WITHOUT_EFFECT, "a question")
    _refuse_without_effect(names, options)
    model = trained(words[0])
    config = config_for(model, flags)
    reading = ReadOptions.of(config)
    if model.prompts is not None:
        saved = {name: getattr(model.prompts, name) for name in ("system", "prompt_template") if name not in names}
        reading = replace(reading, **saved)
    return Asked(model, config, record_of(words[1:-1], words[-1], options.solution, reading), options)


def config_for(model: Trained, flags: Sequence[str]) -> GRPOConfig:
    """The settings of the run of a model, overridden by flags.

    Raises:
        ValueError: an unknown or unfit flag.
    """
    from qwenvl.config.grpo_config import GRPOConfig

    known = model.flags()
    if {"base_interval", "video_fps"} & {setting_of(token) for token in flags}:  # one thing said in two ways
        known = {name: value for name, value in known.items() if name not in ("base_interval", "video_fps")}
    config = config_from(None, [*tokens_of(known), *flags], GRPOConfig)
    config.model_name_or_path = model.model
    return config


def record_of(media: Sequence[str], question: str, solution: str | None, options: ReadOptions) -> Record:
    """The record that training would have been given.

    Args:
        media: paths of clips, folders of frames, and images. With ``allow_remote_media`` also URLs.
        question: a text, or a file that holds it.
        solution: the same. None leaves it empty.

    Raises:
        ValueError: tags and media do not match, or a file is neither a clip nor an image.
        FileNotFoundError: a medium is not there.
    """
    kinds = [kind_of_medium(path) for path in media]
    text = text_or_file(question) or ""
    if not MEDIA_TAG.search(text):
        text = "".join(f"<{kind}>\n" for kind in kinds) + text
    by_kind = {
        kind: [path for path, own in zip(media, kinds, strict=True) if own == kind] for kind in ("video", "image")
    }
    truth = text_or_file(solution)
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": truth or "unknown"}]
    row = Row("the question", "question", lambda: {"conversations": turns, **by_kind})
    record = parse_row(row, Path.cwd(), replace(options, allow_outside_media=True))
    return record if solution is not None else replace(record, solution="")


def kind_of_medium(path: str) -> str:
    """``video`` or ``image``, by what a file holds and not by its name. Of a URL by its name alone.

    Raises:
        FileNotFoundError: there is no such file.
        BadMediaError: it is neither.
    """
    from qwenvl.data.media.images import image_size
    from qwenvl.data.media.mediafile import video_format

    if path.startswith(("http://", "https://")):
        return "image" if path.lower().endswith((".png", ".jpg", ".jpeg", ".webp", ".bmp")) else "video"
    if not Path(path).exists():
        raise FileNotFoundError(
            f"{path}: no such file; expected a clip or an image (the question comes last, in quotes)"
        )
    if Path(path).is_dir():
        return "video"
    try:
        video_format(path)
    except BadMediaError as no_video:
        try:
            image_size(path)
        except BadMediaError:
            raise no_video from None
        return "image"
    return "video"


def help_text() -> str:
    """What ``qwenvl try --help`` prints."""
    return help_of(USAGE, _PURPOSE, _EPILOG, ("a question", TryOptions), READ)


def _refuse_without_effect(names: set[str], options: TryOptions) -> None:
    if options.solution is None and (given := names & _REWARDS):
        raise ValueError(f"--{min(given)} has no effect without --solution: there is nothing to score an answer by")
    if options.n == 1 and (given := names & DRAWING):
        raise ValueError(f"--{min(given)} has no effect on the greedy answer: add -n 2 or more, or leave it out")


def _is_question(word: str) -> bool:
    """Whether it is a text or a file of text, and not one more clip."""
    try:
        path = Path(word)
        return not path.is_dir() and (not path.is_file() or b"\0" not in path.read_bytes()[:4096])
    except OSError:  # too long for a name
        return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser, TryOptions)
    parser.error = raising("")  # type: ignore[method-assign]
    return parser
