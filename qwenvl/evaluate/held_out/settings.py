"""From the command line of ``qwenvl evaluate`` to the models, and to settings as training has them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.config.command_line import config_from, raising, split_file, tokens_of
from qwenvl.config.flags import add_options
from qwenvl.evaluate.held_out.models import NamedModel, named_models
from qwenvl.evaluate.held_out.options import EvaluateOptions
from qwenvl.evaluate.settings import DRAWING, OF_A_RUN, help_of, refuse_unread, setting_of
from qwenvl.evaluate.settings import READ as READ_BY_PROBE
from qwenvl.evaluate.settings import WITHOUT_EFFECT as WITHOUT_EFFECT_IN_PROBE
from qwenvl.option import all_options
from qwenvl.rewards.options import ContrastOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

USAGE = "qwenvl evaluate MODEL [MODEL2 ...] DATA [--controls all] [--samples 8] [--flag of training value ...]"

_CONTRAST = {each.name: "--controls shuffled compares with shuffled frames" for each in all_options(ContrastOptions)}
_NOT_READ = {
    **_CONTRAST,
    "grpo_sample_size": "--samples says how many completions there are",
    "reward_aggregation": "an evaluation compares no group: totals are weighted sums",
    "logit_memory_gb": "an evaluation computes no log-probs",
    "model_name_or_path": "give the models as MODEL",
    "dataset_use": "give the data as DATA",
}
READ = READ_BY_PROBE - set(_NOT_READ)
"""The flags of training that an evaluation reads."""


@dataclass(frozen=True)
class Asked:
    """What to evaluate.

    Attributes:
        config: as training would have it, but for the model.
        settings_of: the run folder or file that settings were taken from, or None.
        command: as it can be typed again.
    """

    models: list[NamedModel]
    config: GRPOConfig
    options: EvaluateOptions
    output_dir: Path
    settings_of: str | None
    command: str


def settings_of(argv: Sequence[str]) -> Asked:
    """What to ask, and how.

    Settings come from the flags, then from ``--config FILE``, or without one from the run of the last MODEL that comes
    from one.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    from qwenvl.config.grpo_config import GRPOConfig

    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    if len(words) < 2:
        raise ValueError(f"expected MODEL DATA before the flags, got {' '.join(words) or 'nothing'}")
    own, rest = _parser().parse_known_args(argv[len(words) :])
    options = EvaluateOptions(**vars(own))
    file, flags = split_file(rest)
    refuse_unread(flags, READ, {**WITHOUT_EFFECT_IN_PROBE, **_NOT_READ}, "an evaluation")
    if options.samples == 1:
        greedy = dict.fromkeys(DRAWING, "with --samples 1 the greedy completion is taken")
        refuse_unread(flags, READ - set(DRAWING), greedy, "an evaluation")
    models = named_models(words[:-1])
    of_run = [model for model in models if model.run is not None]
    tokens: list[str] = []
    if file is None and of_run:
        given = {setting_of(token) for token in flags}
        taken = OF_A_RUN - ({"base_interval"} if "video_fps" in given else set())
        settings = of_run[-1].run_settings()
        tokens = tokens_of({name: settings[name] for name in sorted(taken & set(settings)) if settings[name] != []})
    data = f"--dataset_use={words[-1]}"
    config = config_from(file, [*tokens, data, *flags], GRPOConfig, only=READ)
    if config.engine_has_own_weights and config.world_size > 1:
        raise ValueError(
            f"--rollout_engine {config.rollout_engine} evaluates in one process: start it without torchrun or "
            "accelerate launch, and give several servers by --vllm_server"
        )
    config.on_bad_sample = "skip"  # counted and named, as in a probe
    if config.max_prompt_length is not None:
        config.on_long_prompt = "skip"
    source = None if file is None and not of_run else str(file or of_run[-1].run)
    folder = Path(options.output_dir or _folder(models, words[-1]))
    return Asked(models, config, options, folder, source, shlex.join(["qwenvl", "evaluate", *argv]))


def help_text() -> str:
    """What ``qwenvl evaluate --help`` prints."""
    return help_of(
        USAGE,
        "Ask models about records that they did not learn from, with the frames, prompts, parsers and rewards of "
        "training. MODEL is the folder of a run, a checkpoint or an adapter, or a name on the hub. DATA is what "
        "--dataset_use takes, without weights. Two models are compared record by record.",
        "The settings of the run that the last such MODEL comes from are taken, and those of --config FILE in their "
        "place. Flags override both. A completion passes where the reward --pass_by is at least --pass_at.",
        ("an evaluation", EvaluateOptions),
        READ,
    )


def _folder(models: Sequence[NamedModel], data: str) -> Path:
    stem = "+".join(Path(part).stem for part in data.split(","))
    name = "-".join([*(model.name for model in models), "on", stem])
    return Path("runs") / "evaluate" / re.sub(r"[^\w.+-]+", "-", name)[:120]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser, EvaluateOptions)
    parser.error = raising("")  # type: ignore[method-assign]
    return parser
