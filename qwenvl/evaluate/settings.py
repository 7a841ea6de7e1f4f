"""The flags of training that evaluations, probes and questions read, and the settings of a model's own training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qwenvl.config.command_line import config_from, split_file, tokens_of
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
from qwenvl.evaluate.models import ModelSource
from qwenvl.evaluate.run_code import tell_of_code
from qwenvl.evaluate.words import kind_of_medium
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


# ---- the settings of a model's training


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


_IN_PLACE_OF_EACH_OTHER = (
    ({"base_interval"}, {"video_fps"}),
    ({"frame_counts"}, {"base_interval", "video_fps", "video_min_frames", "video_max_frames"}),
)
"""Settings of the number of frames, in pairs that exclude each other: a flag takes the place of the run's."""


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
    for one, other in _IN_PLACE_OF_EACH_OTHER:
        if given & one:
            taken = taken - other
        if given & other:
            taken = taken - one
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
