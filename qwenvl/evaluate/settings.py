"""From the command line of ``qwenvl probe`` to the settings of the training run that it looks ahead of."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.config.command_line import config_from, raising, split_file
from qwenvl.config.flags import FLAG_GROUPS, add_options
from qwenvl.config.trainer_options import TrainerOptions
from qwenvl.data.options import FrameOptions, PromptOptions, ReadingOptions, SampleOptions
from qwenvl.evaluate.options import ProbeOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.option import Options, all_options
from qwenvl.rewards.options import ContrastOptions, RewardOptions
from qwenvl.rollout.options import EngineOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

USAGE = (
    "qwenvl probe MODEL DATA [--samples 8] [--limit 200] [--flag of training value ...]\n       qwenvl probe run.yaml"
)

# A new option of one of these groups is of data, prompts or rewards, and so a probe's too.
_GROUPS = (ReadingOptions, SampleOptions, PromptOptions, RewardOptions)
_LEFT_OUT = ("on_bad_sample", "on_long_prompt")
READ = {
    *(each.name for group in _GROUPS for each in all_options(group) if each.name not in _LEFT_OUT),
    *("model_name_or_path", "attn_implementation", "shared_prefix", "vision_cache", "vision_cache_gb"),
    *("logit_memory_gb", "dataset_use", "frame_cache", "frame_cache_gb"),
    *("grpo_sample_size", "generation_max_length", "generation_temperature", "generation_top_p", "generation_top_k"),
    *("generation_min_p", "generation_repetition_penalty", "stop_strings", "rollout_token_budget", "compile_decoding"),
    *("bf16", "fp16", "tf32", "use_cpu", "seed", "data_seed"),
    *("dataloader_num_workers", "dataloader_prefetch_factor"),
    *(each.name for each in all_options(EngineOptions)),
}
"""The flags of training that mean the same in a probe."""

DRAWING = {f"generation_{name}" for name in ("temperature", "top_p", "top_k", "min_p")}
"""The flags that say how completions are drawn, and nothing of the greedy one."""

_NOT_OF_THE_PROMPT = {"stream_above_mb", "reward_workers", "reward_aggregation"}
OF_A_RUN = (
    {
        *(each.name for group in (ReadingOptions, FrameOptions, PromptOptions) for each in all_options(group)),
        *(each.name for each in all_options(RewardOptions)),
        *DRAWING,
        *("video_backend", "generation_max_length", "generation_repetition_penalty", "stop_strings"),
    }
    & READ
) - {*_NOT_OF_THE_PROMPT, *(each.name for each in all_options(ContrastOptions))}
"""The flags that are taken from the run of a model: those that say what is shown, asked, written and scored."""

_LEARNS = "nothing learns in a probe"
WITHOUT_EFFECT = {
    **{each.name: "a probe computes no loss" for each in all_options(ObjectiveOptions)},
    **{each.name: _LEARNS for group in (TuneOptions, LoraOptions) for each in all_options(group)},
    **dict.fromkeys(("mm_projector_lr", "vision_tower_lr"), _LEARNS),
    **dict.fromkeys(_LEFT_OUT, "a probe leaves such records out, counts and names them"),
    "start_from_weights": "give that folder as MODEL",
    "eval_dataset_use": "give the data as DATA",
    "train_sampling_strategy": "a probe takes a random sample of the records",
    "eval_sample_size": "completions are sampled as in training; --samples says how many",
    "check_parity": "a probe does not compare with the trainer's log-probs",
}
"""Why a probe does not read an option of a room. Of all others the reason is that they are of training."""


@dataclass(frozen=True)
class Words:
    """A command line in parts, from which further commands are made.

    Attributes:
        file: a settings file of training.
        model, data: the first two words. None where the file or flags name them.
        flags: flags of training, as they were typed.
        own: flags of the probe alone that further probes share, as they were typed.
    """

    file: Path | None
    model: str | None
    data: str | None
    flags: tuple[str, ...]
    own: tuple[str, ...] = ()


def settings_of(argv: Sequence[str]) -> tuple[GRPOConfig, ProbeOptions, Words]:
    """What to ask about, as training would see it, and how.

    Settings of a file that only training reads are passed over. On the command line they are refused.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    from qwenvl.config.grpo_config import GRPOConfig

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("a probe runs in one process: start it without torchrun or accelerate launch")
    named, rest = _places(argv)
    own, rest = _parser().parse_known_args(rest)
    options = ProbeOptions(**vars(own))
    file, flags = split_file(rest)
    refuse_unread(flags, READ, WITHOUT_EFFECT, "a probe")
    for name, value in named.items():
        if any(setting_of(token) == name for token in flags):
            raise ValueError(f"--{name} is given twice: leave out the flag or the word {value}")
    tokens = [f"--{name}={value}" for name, value in named.items()]
    config = config_from(file, [*tokens, *flags], GRPOConfig, only={*READ, "start_from_weights"})
    for name, word in (("model_name_or_path", "MODEL"), ("dataset_use", "DATA")):
        if getattr(config, name) is None:
            raise ValueError(f"{word} is missing: the words before the flags are MODEL DATA")
    if "model_name_or_path" not in named and config.start_from_weights is not None:  # as the run of the file begins
        config.model_name_or_path = config.start_from_weights
    # A record that training would stop at is one of several things that a probe has to tell.
    config.on_bad_sample = "skip"
    if config.max_prompt_length is not None:
        config.on_long_prompt = "skip"
    if options.samples is not None and options.samples < config.grpo_sample_size:
        raise ValueError(
            f"--samples {options.samples} is below --grpo_sample_size {config.grpo_sample_size}: what a group of "
            "training would look like can't be told from fewer completions"
        )
    words = Words(file, named.get("model_name_or_path"), named.get("dataset_use"), tuple(flags), own_words(options))
    return config, options, words


def own_words(options: ProbeOptions) -> tuple[str, ...]:
    """The flags of a probe that a further probe shares: all but where and how its numbers are shown."""
    shared = ("samples", "limit", "pass_by", "pass_at")
    set_ones = {name: value for name in shared if (value := getattr(options, name)) != getattr(ProbeOptions, name)}
    return tuple(word for name, value in set_ones.items() for word in (f"--{name}", str(value)))


def refuse_unread(flags: Sequence[str], read: Collection[str], reasons: Mapping[str, str], command: str) -> None:
    """Raise ValueError for a flag of training that a command would not read, with the reason.

    Args:
        read: names of the flags that it reads.
        command: what it is, as in "a probe".
    """
    from qwenvl.config.grpo_config import GRPOConfig

    known = {each.name for each in fields(GRPOConfig)}
    for token in flags:
        name = setting_of(token)
        if name in known and name not in read:
            reason = reasons.get(name, "it is of training, and a probe takes no step").replace("a probe", command)
            raise ValueError(f"--{name} has no effect: {reason}; leave it out")


def help_text() -> str:
    """What ``qwenvl probe --help`` prints."""
    return help_of(
        USAGE,
        "Ask a checkpoint about records before it is trained on them: does it ever answer right, do its answers "
        "differ, are they whole? Rewards compare the completions of a group, so a model that answers a question always "
        "right or always wrong learns nothing from it. DATA is what --dataset_use takes. MODEL is a checkpoint, an "
        "adapter's folder or a name on the hub.",
        "Settings of training that a probe does not read are refused as flags and passed over in a file. A completion "
        "passes where the reward --pass_by is at least --pass_at.",
        ("a probe", ProbeOptions),
        READ,
    )


def help_of(usage: str, what: str, more: str, own: tuple[str, type[Options]], read: Collection[str]) -> str:
    """The help of a command that asks models.

    Args:
        own: a title and the options of the command itself.
        read: names of the flags of training that it reads.
    """
    parser = argparse.ArgumentParser(usage=usage, add_help=False, description=what, epilog=more)
    add_options(parser.add_argument_group(own[0]), own[1])
    read_groups = [group for group in FLAG_GROUPS if group is not TrainerOptions]
    for group in read_groups:
        title = f"as in training: {str(group.__doc__).rstrip('.').lower()}"
        names = {each.name for each in all_options(group)}
        if names & set(read):
            add_options(parser.add_argument_group(title), group, without=names - set(read))
    others = sorted(set(read) - {each.name for group in read_groups for each in all_options(group)})
    parser.add_argument_group("of the Trainer", " ".join(f"--{name}" for name in others))
    return parser.format_help()


def _places(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The settings that the words before the flags name, and what follows. A settings file becomes ``--config``."""
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    rest = list(argv[len(words) :])
    files = [word for word in words[:1] if Path(word).suffix in (".yaml", ".yml", ".json")]
    if files and len(words) == 1:
        return {}, ["--config", *files, *rest]
    if len(words) not in (0, 2) or files:
        raise ValueError(f"expected MODEL DATA or a settings file before the flags, got {' '.join(words)}")
    return dict(zip(("model_name_or_path", "dataset_use"), words, strict=False)), rest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser, ProbeOptions)
    parser.error = raising("")  # type: ignore[method-assign]
    return parser


def setting_of(token: str) -> str | None:
    """The name of the setting that a word of a command line sets. None for a value."""
    if not token.startswith("--"):
        return None
    return token.removeprefix("--").split("=")[0].removeprefix("no_").replace("-", "_")
