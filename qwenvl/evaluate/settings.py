"""Command lines of ``qwenvl probe``, ``evaluate`` and ``try``, and the flags of training that they read."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qwenvl.config.command_line import config_from, split_file, tell_otherwise, tokens_of
from qwenvl.config.flags import FlagParser
from qwenvl.config.other_names import unknown_flag
from qwenvl.config.own_options import DeviceOptions, LoaderOptions
from qwenvl.config.settings import TrainingSettings
from qwenvl.console import say
from qwenvl.data.options import DecodingOptions, FrameOptions, ReadingOptions, SizeOptions, TurnOptions
from qwenvl.data.prompt_settings import as_said
from qwenvl.data.records.framing import Framing, asked_record
from qwenvl.data.records.parse import ReadOptions, text_or_file
from qwenvl.data.tool_options import ToolOptions
from qwenvl.evaluate.options import EvaluateOptions, ProbeOptions, TryOptions
from qwenvl.evaluate.run_code import tell_of_code
from qwenvl.evaluate.words import is_text, kind_of_medium, require_medium
from qwenvl.grpo.options import TeacherOptions
from qwenvl.model.options import KernelOptions
from qwenvl.option import Options, all_options
from qwenvl.rewards.options import ContrastOptions, RewardOptions
from qwenvl.rollout.options import DRAWING, DecodingSpeedOptions, EngineOptions, GenerationOptions, GroupOptions
from qwenvl.run_log.log import read_config

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.data.prompt_settings import PromptSettings
    from qwenvl.types import Record

# ---- the flags of training that the commands read

EVALUATION_GROUPS: tuple[type[Options], ...] = (
    KernelOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    SizeOptions,
    ToolOptions,
    RewardOptions,
    GenerationOptions,
    EngineOptions,
    DecodingSpeedOptions,
    DeviceOptions,
    LoaderOptions,
)
"""What ``qwenvl evaluate`` and ``label`` read of the options of training."""
PROBE_GROUPS = (*EVALUATION_GROUPS, ContrastOptions, GroupOptions, TeacherOptions)
"""What ``qwenvl probe`` reads: all that shapes the completions and rewards of training."""
SERVE_GROUPS: tuple[type[Options], ...] = (
    KernelOptions,
    TurnOptions,
    FrameOptions,
    DecodingOptions,
    SizeOptions,
    ToolOptions,
    GenerationOptions,
    EngineOptions,
    DeviceOptions,
)
"""What ``qwenvl serve`` reads, which answers one question at a time and scores nothing."""
TRY_GROUPS = (*SERVE_GROUPS, RewardOptions)
LMMS_GROUPS = tuple(each for each in SERVE_GROUPS if each is not ToolOptions)
"""What is read where lmms-eval brings the questions and the scores."""


def names_of(*groups: type[Options]) -> set[str]:
    """The names of all options of some groups."""
    return {each.name for group in groups for each in all_options(group)}


OF_A_RUN = {
    *names_of(ReadingOptions, FrameOptions, SizeOptions, ToolOptions, RewardOptions, GenerationOptions),
    "video_backend",
}
"""The settings whose defaults come from the run of a model: frames, prompts, sampling and scoring."""

_LEFT_OUT = "records that cannot be used are left out, counted and named"
_SAMPLES = "--samples, of qwenvl try -n, sets the number of completions"
REASONS = {
    "model_name_or_path": "give the model as MODEL",
    "start_from_weights": "give the model as MODEL",
    "dataset_use": "give the data as DATA",
    "eval_dataset_use": "give the data as DATA",
    "grpo_sample_size": _SAMPLES,
    "eval_sample_size": _SAMPLES,
    "on_bad_sample": _LEFT_OUT,
    "on_long_prompt": _LEFT_OUT,
    "temporal_contrast": "--controls shuffled compares with shuffled frames",
    "teacher_sees": "name it in --controls",
}
"""Why a command refuses a flag of training. Reason for all others: only training reads them."""


def setting_of(token: str) -> str | None:
    """The setting that a token of a command line names. None for a value."""
    if not token.startswith("--"):
        return None
    return token.removeprefix("--").split("=")[0].removeprefix("no_").replace("-", "_")


Own = TypeVar("Own", bound=Options)


def parse_words(
    argv: Sequence[str], own: type[Own], groups: Sequence[type[Options]]
) -> tuple[list[str], Own, list[str]]:
    """The words before the flags, the command's own options, and the flags of training, as typed.

    Args:
        own: the options of the command.
        groups: the options of training that it reads.

    Raises:
        ValueError: a flag that the command does not have, with the reason or the names near to it.
    """
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    parser = FlagParser(raises=True, add_help=False)
    parser.add_options(own)
    found, flags = parser.parse_known_args(argv[len(words) :])
    refuse_others(split_file(flags)[1], own, groups)
    return words, own(**vars(found)), flags


def refuse_others(flags: Sequence[str], own: type[Options], groups: Sequence[type[Options]]) -> None:
    """Raise ValueError for a flag that a command does not have, with the reason or the names near to it."""
    parser = FlagParser(raises=True, add_help=False)
    for group in groups:
        parser.add_options(group)
    _, unknown = parser.parse_known_args(flags)
    if not unknown:
        return
    known = names_of(own, *groups)
    elsewhere = {}
    for each in fields(TrainingSettings):
        reason = REASONS.get(each.name, "only training reads it")
        elsewhere[each.name] = f"--{each.name} has no effect: {reason}; leave it out"
    raise ValueError(unknown_flag(unknown[0], known, elsewhere))


def refuse_drawing(flags: Sequence[str]) -> None:
    """Raise ValueError for a flag of sampled completions where the one completion is the greedy one."""
    for name in map(setting_of, flags):
        if name in DRAWING:
            raise ValueError(f"--{name} has no effect: the one completion is greedy, several are sampled; leave it out")


def skip_bad_records(config: GRPOConfig) -> None:
    """Records that training would stop at are left out, counted and named."""
    config.on_bad_sample = "skip"
    if config.max_prompt_length is not None:
        config.on_long_prompt = "skip"


# ---- the models of a command line


@dataclass(frozen=True)
class ModelSource:
    """A model of a command line.

    Attributes:
        name: its name in tables.
        path: a folder or a name on the hub, with the weights or the adapter.
        run: the folder of the run that trained it. None if unknown.
    """

    name: str
    path: str
    run: str | None = None

    def prompt_settings(self) -> PromptSettings | None:
        """The settings of its prompts, from beside its weights or from the hub. None where none were saved."""
        from qwenvl.data.prompt_settings import SETTINGS_FILE, PromptSettings

        if Path(self.path).is_dir():
            return PromptSettings.beside(self.path)
        from transformers.utils import cached_file

        quietly = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        try:
            file = cached_file(self.path, SETTINGS_FILE, **quietly)
        except OSError:  # no such model: loading its weights reports that
            return None
        return None if file is None else PromptSettings.load(Path(file).parent)


def model_source(word: str | Path, taken: Sequence[str] = (), present: bool = False) -> ModelSource:
    """The model that a word of a command line names.

    Its name is the shortest end of its path that is not in ``taken``: at least the name of its folder, and for a
    checkpoint also that of its run.

    Args:
        word: a checkpoint, an adapter's folder, a run's folder or a name on the hub. Of a run that has not ended it is
            the newest checkpoint with whole weights.
        present: a name on the hub must be one that can be read from here.

    Raises:
        FileNotFoundError: no such folder, or one without weights.
        OSError: the hub does not answer, and its cache lacks the model.
    """
    from qwenvl.model.hub import require_model
    from qwenvl.model.weight_files import has_weights

    path = str(word)
    run = None
    folder = Path(word)
    if folder.is_dir():
        if not has_weights(folder):
            folder = _newest_checkpoint(folder)
        path = str(folder)
        # The weights are in the folder of the run, or in a checkpoint in it.
        run = next((str(each) for each in (folder, folder.parent) if (each / "run.json").is_file()), None)
    elif present or folder.is_file() or path.startswith(("/", ".", "~")):
        require_model(path)
    # Of a folder in full: a relative path may be too short to tell two folders of the same name apart.
    whole = Path(os.path.abspath(path)) if folder.is_dir() else Path(path)
    parts = whole.relative_to(whole.anchor).parts
    length = min(len(parts), 2 if parts[-1].startswith("checkpoint-") else 1)
    while length < len(parts) and "/".join(parts[-length:]) in taken:
        length += 1
    return ModelSource(name="/".join(parts[-length:]), path=path, run=run)


def named_models(words: Sequence[str], present: bool = False) -> list[ModelSource]:
    """The models of an evaluation, each with a name of its own. Names stay when further models are added.

    Args:
        words, present: as for ``model_source``.

    Raises:
        ValueError: a model is given twice.
        FileNotFoundError: no such folder, or one without weights.
    """
    models: list[ModelSource] = []
    for word in words:
        model = model_source(word, [other.name for other in models], present)
        if any(os.path.abspath(other.path) == os.path.abspath(model.path) for other in models):
            raise ValueError(f"MODEL {model.path} is given twice")
        models.append(model)
    return models


def _newest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run with whole weights.

    Raises:
        FileNotFoundError: there is none.
    """
    if any(run.glob("checkpoint-*")):  # else there is no reason to load torch, with which checkpoints are read
        from qwenvl.model.weight_files import has_weights, weights_problem
        from qwenvl.run_log.checkpoints import checkpoints_of

        for checkpoint in reversed(checkpoints_of(run)):
            if has_weights(checkpoint) and weights_problem(checkpoint) is None:
                return checkpoint
    raise FileNotFoundError(
        f"{run}: no weights in it; expected a model, an adapter, or a run's folder with a checkpoint"
    )


# ---- the commands


def check_machine(settings: Any, models: Iterable[str], data: str | None = None) -> None:
    """Raise for a model, a data set or a reward that is not there, before torch is loaded.

    Args:
        settings: of the command line, which name the catalog and the rewards.

    Raises:
        ValueError, OSError: naming it, with what to do.
    """
    from qwenvl.data.records.catalog import resolve_datasets
    from qwenvl.model.hub import require_model
    from qwenvl.rewards.resolve import check_names

    for model in models:
        require_model(model)
    if data is not None:
        resolve_datasets(data, settings.dataset_catalog)
    check_names(settings.reward_funcs or (), settings.external_plugins or ())


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


def config_for(
    model: ModelSource, flags: Sequence[str], reading: Collection[str] = (), begins: bool = False, scores: bool = True
) -> GRPOConfig:
    """The settings of a model's training, overridden by flags.

    Args:
        reading: names of the settings for reading records to take as well.
        begins: as for ``probe_request``.
        scores: the command scores answers. Else rewards of the run, and the code that they are in, are left alone.

    Raises:
        ValueError: an unknown or unfit flag.
    """
    taken = OF_A_RUN - (names_of(ReadingOptions) - set(reading))
    if not scores:
        taken = taken - names_of(RewardOptions)
    check = partial(check_machine, models=[model.path]) if begins else None
    config = config_from(None, [*training_flags(model, flags, taken), *flags], check=check)
    config.model_name_or_path = model.path
    return config


@dataclass(frozen=True)
class Asking:
    """The settings by which questions to a model are read and framed.

    Attributes:
        reading: of files of records.
        framing: what stands around a question that is in no file.
        settings_of: where the settings come from, in words.
    """

    reading: ReadOptions
    framing: Framing
    settings_of: str


def asking_of(model: ModelSource, config: GRPOConfig, flags: Sequence[str]) -> Asking:
    """The settings by which questions to a model are read and framed.

    Args:
        config: of ``config_for``.
        flags: of the command line.
    """
    reading = ReadOptions.of(config)
    framing = Framing()
    origin = "the defaults of training"
    saved = model.prompt_settings()
    if saved is not None:
        framing = saved.framing
        origin = "saved beside the weights"
        if "prompt_template" not in map(setting_of, flags):
            reading = replace(reading, prompt_template=saved.prompt_template)
    framing = framing.with_format(config.format)
    settings_of = f"of the run {model.run}" if model.run else origin
    return Asking(reading=reading, framing=framing, settings_of=settings_of + framing.in_words())


def training_flags(model: ModelSource, flags: Sequence[str], taken: Set[str] = OF_A_RUN) -> list[str]:
    """The settings by which the training of a model read, prompted, sampled and scored, as flags.

    They come from its run, and for frames and prompts from the settings saved beside its weights. Without both: none.

    Args:
        flags: of the command line.
        taken: names of settings.
    """
    known = {} if model.run is None else dict(read_config(model.run)["config"])
    saved = model.prompt_settings()
    if saved is not None:
        known |= asdict(saved.frames)
        known |= asdict(saved.prompts)
        known["system"] = saved.system  # the text: its file may be gone
        if model.run is None:
            known |= saved.flags_of_tools()
            if saved.tools_of_files and "tools" not in map(setting_of, flags):
                _tell_of_tools(model, saved)
    given = {setting_of(token) for token in flags}
    if given & {"base_interval", "video_fps"}:  # two names of one setting
        taken = taken - {"base_interval", "video_fps"}
    if "reward_funcs" in given:  # the run's weights are those of the run's rewards
        taken = taken - {"reward_weights", "format_reward_weight", "accuracy_reward_weight"}
    chosen = {}
    for name in sorted(taken & set(known)):
        if known[name] is not None and known[name] != []:
            chosen[name] = known[name]
    if model.run is not None:
        not_given = {name: value for name, value in chosen.items() if name not in given}
        tell_of_code(model.run, model.path, not_given)
    return tokens_of(chosen)


def _tell_of_tools(model: ModelSource, saved: PromptSettings) -> None:
    """Say that a model was trained with tools that are code, which runs only where a flag names it."""
    assert saved.tools is not None
    say(
        f"worth a look: {model.path} was trained with --tools {as_said(saved.tools.tools)}, and has no tools here: "
        f"{', '.join(saved.tools_of_files)} is code, which a file beside weights can't name; give the flag to have them"
    )


def record_of(
    media: Sequence[str], question: str, solution: str | None, asking: Asking, options: Sequence[str] = ()
) -> Record:
    """One question as a record of training.

    Args:
        media: paths of clips, folders of frames, and images.
        question: a text, or a file that holds it.
        solution: the same. None leaves it empty.
        options: among which the answer is.

    Raises:
        ValueError: tags and media do not match, or a file is neither a clip nor an image, or the question is meant for
            ``qwenvl data from-folder``.
        FileNotFoundError: a medium is not there.
    """
    text = text_or_file(question) or ""
    if "{steps}" in text:
        where = f"{question}: " if Path(question).is_file() else ""
        raise ValueError(
            f"{where}the question has {{steps}}, which `qwenvl data from-folder` alone replaces by the list of steps: "
            "write the list in its place, in the words of the records that the model was trained on"
        )
    return asked_record(
        text,
        [(kind_of_medium(path), path) for path in media],
        asking.framing,
        asking.reading,
        solution=text_or_file(solution),
        options=options,
    )
