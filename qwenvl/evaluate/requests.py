"""The command lines of ``qwenvl probe``, ``evaluate`` and ``try``, read and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from qwenvl.config.command_line import config_from, split_file, tell_otherwise
from qwenvl.evaluate.models import ModelSource, model_source, named_models
from qwenvl.evaluate.options import EvaluateOptions, ProbeOptions, TryOptions
from qwenvl.evaluate.settings import (
    EVALUATION_GROUPS,
    PROBE_GROUPS,
    TRY_GROUPS,
    Own,
    asking_of,
    check_machine,
    config_for,
    names_of,
    parse_words,
    record_of,
    refuse_drawing,
    setting_of,
    skip_bad_records,
    training_flags,
)
from qwenvl.evaluate.words import is_text, require_medium
from qwenvl.rewards.options import RewardOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.types import Record


@dataclass(frozen=True, kw_only=True)
class Request(Generic[Own]):
    """A command line of ``qwenvl probe``, ``evaluate`` or ``try``.

    Attributes:
        argv: as typed.
        config: as training would have it. Its model is that of a probe or a question.
        options: of the command itself.
        words: before the flags.
        flags: flags of training, as typed.
    """

    argv: Sequence[str]
    config: GRPOConfig
    options: Own
    words: Sequence[str]
    flags: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request[ProbeOptions]):
    """A command line of ``qwenvl probe``.

    Attributes:
        file: a settings file of training. None: the flags say all.
    """

    file: Path | None


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(Request[EvaluateOptions]):
    """A command line of ``qwenvl evaluate``.

    Attributes:
        models: at least one.
        settings_of: the origin of the settings that no flag sets. None: the defaults.
        folder: of what is written: ``--output_dir``, or one that is named by models and data.
    """

    models: Sequence[ModelSource]
    settings_of: str | None
    folder: str


@dataclass(frozen=True, kw_only=True)
class TryRequest(Request[TryOptions]):
    """A command line of ``qwenvl try``.

    Attributes:
        settings_of: as of an ``EvaluationRequest``.
        record: the question with its media. Its solution is empty without ``--solution``.
    """

    model: ModelSource
    settings_of: str | None
    record: Record


def probe_request(argv: Sequence[str], begins: bool = False) -> ProbeRequest:
    """The settings of a probe. Those of a file that only training reads are ignored; as flags they are refused.

    Args:
        begins: the command begins on this machine: check the model, the data and the rewards before torch is loaded.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("a probe runs in one process: start it without torchrun or accelerate launch")
    file, rest = split_file(argv)
    words, options, flags = parse_words(rest, ProbeOptions, PROBE_GROUPS)
    file_names_both = file is not None and not words
    if len(words) != 2 and not file_names_both:
        raise ValueError(f"expected MODEL DATA or a settings file before the flags, got {' '.join(words) or 'nothing'}")
    named = ("model_name_or_path", "dataset_use")
    tokens = [f"--{name}={word}" for name, word in zip(named, words, strict=True)] if words else []

    def check(settings: Any) -> None:
        for name in named:
            if getattr(settings, name) is None:
                raise ValueError(f"{file}: {name} is missing; set it there, or give MODEL DATA before the flags")
        if begins:
            check_machine(settings, [settings.model_name_or_path], settings.dataset_use)
            tell_otherwise(settings.model_name_or_path, settings)

    only = {*names_of(*PROBE_GROUPS), *named, "start_from_weights"}
    config = config_from(file, [*tokens, *flags], only=only, check=check)
    if not words and config.start_from_weights is not None:  # as the run of the file begins
        config.model_name_or_path = config.start_from_weights
    skip_bad_records(config)
    if options.samples is not None and options.samples < config.grpo_sample_size:
        raise ValueError(
            f"--samples {options.samples} is below --grpo_sample_size {config.grpo_sample_size}: what a group of "
            "training would look like can't be told from fewer completions"
        )
    return ProbeRequest(argv=argv, config=config, options=options, words=words, file=file, flags=flags)


def evaluation_request(argv: Sequence[str], begins: bool = False) -> EvaluationRequest:
    """The models and settings of an evaluation.

    Settings come from the flags, then from ``--config FILE``, or without one from the run of the last MODEL that comes
    from one.

    Args:
        begins: as for ``probe_request``.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    words, options, rest = parse_words(argv, EvaluateOptions, EVALUATION_GROUPS)
    if len(words) < 2:
        raise ValueError(f"expected MODEL DATA before the flags, got {' '.join(words) or 'nothing'}")
    file, flags = split_file(rest)
    if options.samples == 1:
        refuse_drawing(flags)
    *model_words, data = words
    models = named_models(model_words, present=begins)
    of_run = [model for model in models if model.run is not None]
    tokens: list[str] = []
    source = None
    if file is not None:
        source = str(file)
    elif of_run:
        source = str(of_run[-1].run)
        tokens = training_flags(of_run[-1], flags)
    check = partial(check_machine, models=[model.path for model in models], data=data) if begins else None
    only = names_of(*EVALUATION_GROUPS)
    # Of a setting that stands twice the last one counts: flags override those of the run.
    config = config_from(file, [*tokens, f"--dataset_use={data}", *flags], only=only, check=check)
    if config.engine_has_own_weights and config.world_size > 1:
        raise ValueError(
            f"--rollout_engine {config.rollout_engine} evaluates in one process: start it without torchrun or "
            "accelerate launch, and give several servers by --vllm_server"
        )
    skip_bad_records(config)
    return EvaluationRequest(
        argv=argv,
        config=config,
        options=options,
        words=words,
        models=models,
        flags=flags,
        settings_of=source,
        folder=options.output_dir or str(_evaluation_folder(models, data)),
    )


def _evaluation_folder(models: Sequence[ModelSource], data: str) -> Path:
    """The default ``--output_dir`` of an evaluation, named by its models and data sets."""
    datasets = "+".join(Path(part).stem for part in data.split(","))
    name = "-".join([*(model.name for model in models), "on", datasets])
    return Path("runs", "evaluate", re.sub(r"[^\w.+-]+", "-", name)[:120])


def try_request(argv: Sequence[str], begins: bool = False) -> TryRequest:
    """The question of a command line, and the settings to ask it with.

    Args:
        begins: as for ``probe_request``.

    Raises:
        ValueError, OSError: an unknown, unfit or meaningless flag, no question, no such model or file.
    """
    # ``-n 4`` and ``-n4``, as users write them, for the parser that knows long names alone.
    argv = ["--n" if word == "-n" else re.sub(r"^-n(\d+)$", r"--n=\1", word) for word in argv]
    words, options, flags = parse_words(argv, TryOptions, TRY_GROUPS)
    if len(words) < 2 or not is_text(words[-1]):
        raise ValueError("expected MODEL, clips or images, and a question in quotes, in this order, before the flags")
    if options.n == 1:
        refuse_drawing(flags)
    scoring = names_of(RewardOptions).intersection(map(setting_of, flags))
    if options.solution is None and scoring:
        raise ValueError(f"--{min(scoring)} has no effect without --solution: there is nothing to score an answer by")
    model_word, *media, question = words
    for path in media:
        require_medium(path)
    model = model_source(model_word, present=begins)
    config = config_for(model, flags, reading={"system"}, begins=begins, scores=options.solution is not None)
    asking = asking_of(model, config, flags)
    record = record_of(media, question, options.solution, asking, options=options.choices or ())
    return TryRequest(
        argv=argv,
        config=config,
        options=options,
        words=words,
        flags=flags,
        model=model,
        settings_of=asking.settings_of,
        record=record,
    )
