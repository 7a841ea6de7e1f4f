"""The flags: the options of all rooms by topic, those of the Trainer, their parser, their help, and unknown ones.

Each room has its options in a file of its own, ``options.py``, with the standard library alone. Those of the Trainer
are read from the source of transformers. So neither ``--help`` nor a misspelt flag waits for torch.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_type_hints

from qwenvl.config.checks import problems_of_run
from qwenvl.config.own_options import RunOptions, TrainerOptions, WarmupOptions
from qwenvl.data.options import DataOptions, DecodingOptions, FrameOptions, PromptOptions, ReadingOptions
from qwenvl.grpo.options import ObjectiveOptions, TeacherOptions
from qwenvl.model.options import LoraOptions, ModelOptions, ReferenceOptions, TuneOptions
from qwenvl.option import Options, all_options, choices_of, did_you_mean, kinds_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions
from qwenvl.tools.options import ToolOptions

SHARED_GROUPS: tuple[type[Options], ...] = (
    ModelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    PromptOptions,
    ToolOptions,
    RunOptions,
    TrainerOptions,
)
"""The options that a warm-up reads too."""
_NOT_OF_A_WARMUP: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: "a warm-up scores nothing",
    SamplingOptions: "a warm-up samples nothing",
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
    TeacherOptions: "a warm-up learns from its targets",
}
FLAG_GROUPS: tuple[type[Options], ...] = (*SHARED_GROUPS, *_NOT_OF_A_WARMUP)
WARMUP_GROUPS: tuple[type[Options], ...] = (WarmupOptions, *SHARED_GROUPS)
OF_TRAINING = {each.name: reason for group, reason in _NOT_OF_A_WARMUP.items() for each in fields(group)}
"""The flags of training that a warm-up does not have, each with the reason. A settings file may have them."""


@cache
def trainer_settings() -> type:
    """A dataclass of the settings of transformers' ``TrainingArguments``, from its source: the import takes seconds.

    An enumeration is a ``Literal`` of its values. A default that is no literal is None.
    """
    found = find_spec("transformers")
    folder = Path(next(iter(found.submodule_search_locations or ()))) if found else Path()
    known = {"Any": Any, "Literal": Literal, **{kind.__name__: kind for kind in (dict, list, int, float, bool)}}
    names: Any = defaultdict(lambda: str, known)  # a name that is not known is taken for text
    settings: list[Any] = []
    for file in ("trainer_utils.py", "training_args.py"):
        tree: Any = ast.parse((folder / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                values: Any = [each.value for each in node.body if isinstance(each, ast.Assign)]
                names[node.name] = Literal[tuple(each.value for each in values)]
            if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments":
                settings = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    about = {"__doc__": "Settings of transformers' TrainingArguments."}
    return make_dataclass("TrainerSettings", [_setting(each, names) for each in settings], namespace=about)


def _setting(row: Any, names: Any) -> tuple[str, Any, Any]:
    """Name, type and field of a setting, by its assignment in the source."""
    given = {each.arg: each.value for each in row.value.keywords}
    metadata = given.get("metadata", ast.Dict([], []))
    texts = {key.value: _literal(value) for key, value in zip(metadata.keys, metadata.values, strict=True)}
    made: Any = field(
        **({"default_factory": list} if "default_factory" in given else {"default": _literal(given["default"])}),
        metadata={key: value for key, value in texts.items() if value is not None},
    )
    hint = eval(ast.unparse(row.annotation), {"__builtins__": {}}, names)
    if any(isinstance(each, str) for each in choices_of(hint)):  # the Trainer takes enumerations as any text
        hint = next(part for part in (*get_args(hint), hint) if choices_of(part))
    return row.target.id, hint, made


def _literal(node: Any) -> Any:
    """The value of a literal. None for other expressions."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


@cache
def settings_class(groups: tuple[type[Options], ...]) -> Any:
    """A dataclass of all settings of a run, which checks itself as its config does, without torch and its machine."""

    def check(self: Any) -> None:
        if problems := problems_of_run(self):
            raise ValueError("\n".join(problems))

    return make_dataclass("Settings", [], bases=(*groups, trainer_settings()), namespace={"__post_init__": check})


def describe(group: type[Options]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, kind of value, default and help text of each option of a group."""
    hints = get_type_hints(group)
    for each in all_options(group):
        yield each.name, kind_of(each, hints[each.name]), each.default, help_of(each)


def kind_of(each: Field, hint: Any) -> str:
    """The values of an option in words: its choices or rows, or the name of its type."""
    rows = each.metadata.get("rows") or ()
    if None in rows and bool in kinds_of(hint):
        return "bool|NAME"
    choices = [str(each or "NAME") for each in rows or choices_of(hint)]
    return "|".join(choices) or next(each for each in kinds_of(hint) if each is not NoneType).__name__


def help_of(each: Field) -> str:
    """The help of an option, with the names of the arguments of its rows."""
    shown = [f"{names}: {', '.join(part.name for part in fields(kind))}" for names, kind in arguments(each).items()]
    return each.metadata["help"] + (f" Arguments of {'; of '.join(shown)}." if shown else "")


def arguments(each: Field) -> dict[str, type[Options]]:
    """The arguments of the rows of an option, by the names of the rows that share them."""
    named: dict[type[Options], list[str]] = {}
    for name, kind in (each.metadata.get("rows") or {}).items():
        named.setdefault(kind, []).append(name or "NAME")
    return {", ".join(names): kind for kind, names in named.items() if fields(kind)}


class FlagParser(argparse.ArgumentParser):
    """A parser of flags. ``--learning-rate`` is ``--learning_rate``, and ``-1e-6`` a number.

    An error exits with status 2, or with ``raises`` is a ValueError.
    """

    def __init__(self, *, raises: bool = False, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._negative_number_matcher = re.compile(r"-(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
        self.raises = raises
        self.where = ""  # named before an error, such as a file

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        args = [*(sys.argv[1:] if args is None else args)]
        return super().parse_known_args(list(map(self._as_known, args, [*args[1:], ""])), namespace)

    def _as_known(self, word: str, following: str) -> str:
        """A flag with underscores, and with its value where it is a switch that stands alone."""
        flag, equals, value = word.partition("=")
        underscored = "--" + flag[2:].replace("-", "_")
        action = self._option_string_actions.get(underscored) if word.startswith("--") else None
        if action is None:
            return word
        alone = action.type is truth and not equals and following.lower() not in (*TRUE, *FALSE)
        return underscored + ("=True" if alone else equals + value)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices or ())
            raise

    def error(self, message: str) -> NoReturn:
        if self.raises:
            raise ValueError(self.where + message)
        super().error(message)

    def add_options(self, kind: type, without: Collection[str] = (), group: argparse._ActionsContainer | None = None):
        """A flag for each field of a dataclass but those of the names ``without``.

        Args:
            group: the section of the help that they stand in.
        """
        hints = get_type_hints(kind)
        for each in fields(kind):
            if each.init and each.name not in without:
                _add_option(group or self, each, hints[each.name])


def _add_option(parser: argparse._ActionsContainer, each: Field, hint: Any) -> None:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    choices = choices_of(hint) if str not in kinds else None
    named: dict[str, Any] = {"default": default, "help": argparse.SUPPRESS}
    if "help" in each.metadata:
        shown = "" if default is None else " [%(default)s]"  # a command may set another
        named |= {"help": help_of(each).replace("%", "%%") + shown, "metavar": kind_of(each, hint)}
    if bool in kinds:
        named |= {"nargs": "?", "const": True, "type": truth_or_text if str in kinds else truth}
    elif list in kinds:
        part = next(get_args(part)[0] for part in (hint, *get_args(hint)) if kinds_of(part) == (list,))
        named |= {"nargs": "+", "type": part if part in (int, float) else str}
    elif choices:
        named |= {"choices": choices}
    else:
        named |= {"type": kinds[0] if kinds[0] in (int, float) else str}
    named |= {key: each.metadata[key] for key in ("nargs", "const", "choices") if key in each.metadata}
    parser.add_argument(f"--{each.name}", **named)
    if bool in kinds and default is True:
        parser.add_argument(f"--no_{each.name}", dest=each.name, action="store_false", help=argparse.SUPPRESS)


TRUE, FALSE = ("true", "yes", "1", "t", "y"), ("false", "no", "0", "f", "n")


def truth(text: str) -> bool:
    """True or False, as people write it."""
    if text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    raise ValueError(text)


def truth_or_text(text: str) -> bool | str:
    """True, False, or any other text."""
    try:
        return truth(text)
    except ValueError:
        return text


# ---- --help

USUAL = {
    "model_name_or_path": "model: a folder or a name on the hub",
    "dataset_use": "training data: names of the catalog, files, hf:name:split",
    "output_dir": "folder of the run",
    "reward_funcs": "rewards, by name or as file.py:name",
    "external_plugins": "Python files with rewards of your own",
    "max_steps": "optimizer steps; or --num_train_epochs",
    "per_device_train_batch_size": "prompts per GPU and micro-batch",
    "gradient_accumulation_steps": "micro-batches of an optimizer step",
    "grpo_sample_size": "completions per prompt, the group",
    "generation_max_length": "longest completion in tokens",
    "video_max_frames": "most frames of a clip",
    "learning_rate": "peak learning rate",
    "grpo_beta": "weight of the KL term",
    "lora_enable": "train adapters in place of the whole model",
    "gradient_checkpointing": "less memory, about a fifth more time",
    "eval_dataset_use": "held-out data",
    "eval_strategy": "steps, epoch or no: when to evaluate",
    "eval_steps": "optimizer steps between evaluations",
    "save_steps": "optimizer steps between checkpoints",
    "resume": "auto: resume from the newest checkpoint, or begin",
    "report_to": "trackers, such as tensorboard or wandb",
    "seed": "seed of the run",
    "use_cpu": "train on the CPU",
    "dry_run": "show what the run would do, and end; all: with every setting",
}
"""The flags of a usual run in the order of their use, each with its line of help."""
USUAL_OF_A_WARMUP = {
    "target_template": "text of a target, with {solution} in it",
    "from_rollouts": "learn the best completions of this run's folder",
    "min_reward": "least reward of such a completion",
    "stop_below_loss": "end when the mean loss of ten steps is below this",
}


def wants_help(
    argv: Sequence[str],
    usage: str,
    purpose: str,
    groups: Sequence[type[Options]],
    shown: dict[str, str],
    *,
    trains: bool = True,
    without: Collection[str] = (),
) -> bool:
    """Whether a command line requests help, which is then printed.

    ``--help`` prints the flags of ``shown``, ``--help all`` every flag, and ``--help WORD`` those with the word.

    Args:
        groups: the options by topic. One that is in two of them is that of the first.
        trains: the command has the settings of the Trainer and reads files of settings.
        without: names of options that the command does not have.
    """
    if not {"-h", "--help"} & set(argv):
        return False
    following = [*argv, ""][min(argv.index(each) for each in ("-h", "--help") if each in argv) + 1]
    word = "" if following.startswith("-") else following.lstrip("-").lower()
    every = (*groups, trainer_settings()) if trains else tuple(groups)
    known: dict[str, object] = {each.name: each.default for group in reversed(every) for each in fields(group)}
    head = f"usage: {usage}\n\n{purpose}"
    if not word:
        lines = [
            f"  --{name:<28}{text}" + ("" if known.get(name) in (None, False) else f" [{known[name]}]")
            for name, text in shown.items()
            if name in known or name == "dry_run"
        ]
        more = "--help all lists every flag, --help WORD those with the word in their names or texts."
        more = f"A YAML or JSON file sets the same names. {more}" if trains else more
        print("\n".join([head, "", *lines, "", more]))
        return True
    parser = FlagParser(usage=usage, add_help=False, description=purpose)
    listed: set[str] = set()
    for group in every:
        own = {each.name: each for each in fields(group) if "help" in each.metadata and each.name not in listed}
        own = {name: each for name, each in own.items() if name not in without}
        found = {name for name, each in own.items() if word == "all" or word in f"{name} {help_of(each)}".lower()}
        if found:
            hidden = {each.name for each in fields(group)} - found
            parser.add_options(group, hidden, parser.add_argument_group(str(group.__doc__).rstrip(".")))
        listed |= own.keys()
    print(parser.format_help() if parser._option_string_actions else f"{head}\n\nno flag has the word {word}")
    return True


# ---- flags that do not exist

_ARGUMENTS = """
cosine(max_len=512) cosine(min_len_value_correct=1.0) cosine(max_len_value_correct=0.5)
cosine(min_len_value_wrong=-0.5) cosine(max_len_value_wrong=0.0) repetition(n_grams=3) repetition(max_penalty=-1.0)
soft_overlong(max_len=512) soft_overlong(cache=100) length_window(min=320) length_window(max=512)
length_window(bonus=0.2) numeric(tolerance=0.01) temporal_iou(boundary=True)
judge(base_url='http://localhost:8000/v1') judge(model='NAME') judge(prompt='prompt.txt') judge(correct=1.0)
judge(wrong=0.0) judge(bad_format=0.0) judge(timeout=60) judge(retries=4) judge(concurrency=16)
"""
"""Arguments of reward functions that had a flag each, such as ``cosine_max_len``."""
_RENAMED = """
warmup_ratio: --warmup_steps with a value below 1, which is a share of all steps
evaluation_strategy: --eval_strategy
logging_dir: the environment variable TENSORBOARD_LOGGING_DIR
no_cuda: --use_cpu
lr: --learning_rate
num_generations: --grpo_sample_size
max_completion_length: --generation_max_length
beta: --grpo_beta
temperature: --generation_temperature
top_k: --generation_top_k
top_p: --generation_top_p
min_p: --generation_min_p
repetition_penalty: --generation_repetition_penalty
num_generations_eval: --eval_sample_size
steps_per_generation generation_batch_size: --num_iterations
use_vllm vllm_mode: --rollout_engine vllm_server or vllm_colocate
vllm_server_host vllm_server_port vllm_server_base_url: --vllm_server HOST:PORT
vllm_server_timeout: --vllm_patience
vllm_gpu_memory_utilization: --vllm_gpu_memory
vllm_weights: no flag: a server on this machine reads weights from memory, another gets messages
vision_cache: no flag: the vision tower runs once per prompt and step
frame_cache cache_gb frame_cache_gb: --dataloader_num_workers: more processes decode clips while a step runs
allow_remote_media: no flag: download the files, and write the paths of the copies into the records
frame_sampler: --video_fps and --video_max_frames, or video_start and video_end in the record's `meta`
vllm_importance_sampling_mode: --importance_correction
vllm_importance_sampling_clip_max importance_correction_max: --importance_correction "token_truncate(max=3)"
vllm_importance_sampling_clip_min importance_correction_min: --importance_correction "token_truncate(min=0.5)"
multi_objective_aggregation reward_aggregation: --advantage_estimator gdpo
reward_timeout: --stall_timeout, which ends a run that hangs and says where
reward_workers: no flag: math_accuracy verifies in one process, and async functions run side by side
use_adaptive_entropy: --entropy_target
log_completions: --log_completions_every to see some; all are in the run folder
disable_dropout: --lora_dropout 0, the default
shuffle_dataset: --train_sampling_strategy
model_init_kwargs: --attn_implementation and --bf16
epsilon: --grpo_epsilon
epsilon_high: --grpo_epsilon_high
delta grpo_delta: --loss_type "grpo(delta=4)"
dual_clip: --loss_type "grpo(dual_clip=3)"
cispo_bound: --loss_type "cispo(bound=5)"
importance_sampling_level: --loss_type "grpo(ratio=sequence)"
off_policy_mask_threshold: --loss_type "grpo(off_policy_mask=0.5)"
use_bias_correction_kl kl_unbiased: --kl_estimator "k3(unbiased=True)"
kl_in_reward: --advantage_estimator "reinforce_plus_plus(kl_in_reward=True)"
ref_offload: --lora_enable, whose reference takes no memory, or --grpo_beta 0, which needs none
entropy_coef_delta entropy_coef_step: --entropy_target, which moves the weight by 0.005
filter_by max_resample_rounds max_resample_times: --filter_groups "total(max_rounds=3)"
on_unfilled_step: no flag: filter/unfilled_frac of the log is the share of groups that no round could replace
correctness_func temporal_contrast_share: --temporal_contrast "accuracy(share=0.5, margin=0, bonus=0.3)"
temporal_contrast_margin temporal_contrast_bonus: --temporal_contrast "accuracy(share=0.5, margin=0, bonus=0.3)"
update_card: no flag: quote the printed table in the model card, which has the evaluations of its run
difficulty_band difficulty_by difficulty_window difficulty_weight: --filter_groups, or the pass rates of qwenvl probe
stream_above_mb stream_above_records: no flag: files of more than 512 MB or 20,000 records are read one record at a time
model: --model_name_or_path
dataset dataset_name: --dataset_use
val_dataset: --eval_dataset_use
ref_model: --ref_model_name_or_path
lora_rank: --lora_r
freeze_llm: --tune_mm_llm, which says the opposite
freeze_vit: --tune_mm_vision, which says the opposite
freeze_aligner: --tune_mm_mlp, which says the opposite
vit_lr: --vision_tower_lr
aligner_lr: --mm_projector_lr
stop_words: --stop_strings
overlong_filter: --mask_truncated_completions
soft_max_length: --reward_funcs "soft_overlong(max_len=512)"
soft_cache_length: --reward_funcs "soft_overlong(cache=100)"
temporal: --temporal_contrast
strata: docs/evaluation.md, which computes numbers by any key of the samples in four lines
serve: qwenvl report again, which shows a running run so far; python -m http.server serves its folder
picture: qwenvl preview: its page has the frames as the model sees them
box_units: --reward_funcs "box_iou(units='thousandths')"
auto_fit: qwenvl plan, which names the flags that make a run fit
fit_memory_gb: qwenvl plan --gpu_memory
warmup: qwenvl plan with the flags of the training that follows: a warm-up needs less memory
records: no flag: qwenvl plan measures 1000 records
json: plan_of(*request_of(words)) of qwenvl.commands.plan, which gives a plan's numbers to a script
len_control: the reward length_window among --reward_funcs
"""
"""Flags of earlier versions and of other trainers, and behind the colon what to use here."""
_ROWS = [row.partition(": ") for row in _RENAMED.strip().splitlines()]
SUCCESSORS = {
    **{text.split("=")[0].replace("(", "_"): f'--reward_funcs "{text}"' for text in _ARGUMENTS.split()},
    **{old: new for names, _, new in _ROWS for old in names.split()},
}
"""What to use in place of a flag that does not exist, by its name."""
OF_A_WARMUP = {each.name for each in fields(WarmupOptions)} - {each.name for each in fields(TrainerOptions)}


def unknown_flag(token: str, known: Iterable[str]) -> str:
    """The message for a flag that does not exist, or for a word that belongs to none.

    Args:
        known: the names that there are.
    """
    known, name = set(known), token.split("=")[0].lstrip("-").replace("-", "_")
    if name in SUCCESSORS:
        return f"unknown flag {name}; use {SUCCESSORS[name]}"
    if (flag := name.removeprefix("no_")) in OF_TRAINING and flag not in known:
        return f"--{flag} has no effect in a warm-up: {OF_TRAINING[flag]}; leave it out"
    if name in OF_A_WARMUP:
        return f"unknown flag {name}; qwenvl warmup has it"
    if not token.startswith("-") and Path(token).suffix:
        return (
            f"stray word {token}; a file of settings comes first, there is one, and its name ends in .yaml, .yml or "
            ".json"
        )
    near = get_close_matches(name, sorted(known))
    return f"unknown flag {token}; " + (f"near: {', '.join(near)}" if near else "--help all lists them")
