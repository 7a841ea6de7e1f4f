"""From settings to what training and evaluation share: records and their order, a model, rewards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import Dataset

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import EpochSampler, Grouping, Part, RepeatedSteps
from qwenvl.data.prompt_length import LengthEstimate
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.presets import how_counted, how_read
from qwenvl.data.records.record_file import all_or_spot_checked, check_together, without_bad_rows
from qwenvl.data.records.sources import EXPECTED, given_rows
from qwenvl.data.views import SHOWN, View, changed_by, reads_completions, unchanged, view_named
from qwenvl.failure import counted
from qwenvl.grpo.options import TeacherOptions
from qwenvl.model.loading import four_bit_settings, load_model, require_four_bit, resolve_attention
from qwenvl.option import name_of_row, row_of, was_set
from qwenvl.rewards import Rubric
from qwenvl.step.contrast import NAME as TEMPORAL_CONTRAST
from qwenvl.step.pipeline import correctness_of, rubric_of
from qwenvl.types import TOTAL, Record

logger = logging.getLogger(__name__)


class ChecksRecords(Protocol):
    """A rubric, or the targets of a warm-up."""

    def check_record(self, record: Record) -> str | None:
        """The reason why a record is of no use to the run. None: it is of use."""
        ...

    def check_records(self, records: Collection[Record]) -> str | None:
        """The reason why records are of no use to the run together. None: they are of use."""
        ...


def build_dataset(
    dataset: Any,
    args: GRPOConfig,
    checker: ChecksRecords,
    collator: GRPOCollator,
    *,
    training: bool,
    name: str | None = None,
    tells: bool = True,
) -> Any:
    """The data set that ``dataset`` names or holds, every record checked by the rewards or targets of the run.

    Args:
        dataset: what ``dataset_use`` takes, or rows that ``given_rows`` takes. A data set of samples is checked and
            returned as it is, None gives None. For evaluation also several of them by name.
        checker: says which records are of no use to the run.
        collator: of the run. It says how large clips become, and what length their frames are fitted to.
        name: what rows are called that have no file.
        tells: print what is read and how.

    Returns:
        A ``Dataset``, a dict of them for several, or None.

    Raises:
        RecordError: naming the first record that the run can't learn from.
        TypeError: something else.
        ValueError: a flag that has no effect on this data set.
    """
    if dataset is None:
        return None
    name = name or ("train_dataset" if training else "eval_dataset")
    if isinstance(dataset, dict) and not training:
        build = partial(build_dataset, args=args, checker=checker, collator=collator, tells=tells)
        return {key: build(each, training=False, name=f"{name}.{key}") for key, each in dataset.items()}
    is_named = isinstance(dataset, str | Path)
    place = str(dataset) if is_named else name
    has_samples = isinstance(dataset, GRPODataset) or (not is_named and given_rows(dataset, name) is None)
    if has_samples:
        _check_samples(dataset, args, checker, name)
    else:
        named = dataset if is_named else f"the rows of {name}"
        if tells:
            say(f"reading the records {'to train on' if training else 'to evaluate on'}: {named}")
        dataset = load_dataset(
            dataset,
            SampleOptions.of(args),
            name=name,
            catalog_path=args.dataset_catalog,
            **vars(ReadOptions.of(args)),
            check_record=checker.check_record,
            seed=args.seed,
            training=training,
            ruler=collator.ruler,
            fit_to=collator.options.fit_to,
        )
        for part in dataset.parts if tells else ():
            if part.read_as is not None:
                say(how_read(part.name, part.read_as))
            if part.first_number is not None:
                say(how_counted(part.name, part.first_number))
    check_together(getattr(dataset, "records", ()), checker.check_records, place)
    if not training and any(part.weight is not None for part in getattr(dataset, "parts", ())):
        raise ValueError("--eval_dataset_use: weights have no effect: evaluation takes every record once")
    return dataset


def _check_samples(dataset: Any, args: GRPOConfig, checker: ChecksRecords, name: str) -> None:
    """Check a data set of samples, which a script has made. See ``build_dataset`` for the errors."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{name}: {EXPECTED}, got {type(dataset).__name__}")
    if args.fit_frames and getattr(dataset, "fit_to", None) is None:
        raise ValueError(
            "--fit_frames has no effect on a data set made without it: give load_dataset its arguments ruler and "
            "fit_to, or leave the flag out"
        )
    for record in without_bad_rows(getattr(dataset, "records", ())):
        problem = checker.check_record(record)
        if problem:
            raise RecordError(f"{record.where}: {problem}")


def build_sampler(
    dataset: Dataset,
    args: GRPOConfig,
    batch_size: int,
    collator: GRPOCollator,
) -> EpochSampler | RepeatedSteps:
    """The order in which training draws from a data set.

    Args:
        batch_size: prompts of a micro-batch in one process.

    Raises:
        ValueError: a strategy that this data set can't be ordered by, or several steps on each of its samples.
    """
    processes = 1 if args.accelerator_config.split_batches else args.world_size
    step = batch_size * args.gradient_accumulation_steps * processes  # prompts of all processes
    grouping = None
    if args.train_sampling_strategy == "group_by_length":
        if not isinstance(dataset, GRPODataset):
            raise ValueError(
                "--train_sampling_strategy group_by_length needs a GRPODataset, as load_dataset makes it, got "
                f"{type(dataset).__name__}: its records cannot be measured; leave the flag out"
            )
        estimate = LengthEstimate(dataset.records, dataset.rule, collator.ruler, collator.options.fit_to)
        grouping = Grouping(step, estimate)
    sampler = EpochSampler(
        getattr(dataset, "parts", None) or [Part("", len(dataset))],
        seed=args.seed if args.data_seed is None else args.data_seed,
        shuffle=args.train_sampling_strategy != "sequential",
        grouping=grouping,
    )
    if args.num_iterations > 1 and not isinstance(dataset, GRPODataset):
        raise ValueError("--num_iterations above 1 needs a GRPODataset, as load_dataset makes it")
    # Several processes would draw an epoch's first records again to have as many each in its last step.
    shared = args.world_size > 1 and not args.dataloader_drop_last and isinstance(dataset, GRPODataset)
    if args.num_iterations == 1 and not shared:
        return sampler
    return RepeatedSteps(sampler, step, args.num_iterations)


@cache  # said once, whatever the number of models
def _warn_of_the_cpu() -> None:
    logger.warning(
        f"torch {torch.__version__} finds no CUDA device: the model runs on the CPU, many times slower; see what "
        "nvidia-smi prints and whether torch is a CUDA build, or set --use_cpu"
    )


def loaded_model(path: str | Path, args: GRPOConfig, *, frozen: bool) -> nn.Module:
    """The model of a checkpoint, in the type and with the attention that the flags ask for.

    Args:
        frozen: these weights do not learn.
    """
    attention = resolve_attention(args.attn_implementation, args.device, args.bf16 or args.fp16)
    precision = "float32"
    if args.bf16:
        precision = "bf16"
    elif args.fp16:
        precision = "fp16"
    on_cuda = args.device.type == "cuda"
    device = torch.cuda.get_device_name(args.device) if on_cuda else args.device.type
    say(f"loading the model {path} on {device} in {precision} with {attention}, torch {torch.__version__}")
    if args.device.type == "cpu" and not args.use_cpu:
        _warn_of_the_cpu()
    quantization = None
    if args.load_in_4bit:
        require_four_bit(args.device)
        quantization = four_bit_settings(torch.bfloat16 if args.bf16 else torch.float32)
    return load_model(path, attn_implementation=attention, dtype=weight_dtype(args, frozen), quantization=quantization)


def weight_dtype(args: GRPOConfig, frozen: bool) -> torch.dtype:
    """The type in which weights are kept: bfloat16 where they are frozen or an engine keeps float32 copies of them.

    A step of 1e-6 is less than half the spacing of most bfloat16 weights: kept in it and trained by a plain optimizer
    they would not move. Matrix products run in bfloat16 either way with ``bf16``.
    """
    return torch.bfloat16 if args.bf16 and (frozen or args.deepspeed) else torch.float32


def build_rewards(
    args: GRPOConfig, functions: str | Callable | Sequence[str | Callable] | None, weights: Sequence[float] | None
) -> Rubric:
    """The rubric of a run: ``functions`` with ``weights``, or what the flags name.

    Raises:
        ValueError: a flag names a reward that the rubric does not have, or has no effect on those that it has.
    """
    functions = args.reward_funcs if functions is None else functions
    weights = args.reward_weights if weights is None else weights
    default_pair = functions is None and weights is None and not args.reward_model
    # Where other rewards are named, a weight of the pair is handed on only if it was set, to be refused there.
    pair_weights = {}
    for name in ("format_reward_weight", "accuracy_reward_weight"):
        if default_pair or was_set(args, name):
            pair_weights[name] = getattr(args, name)
    rubric = rubric_of(
        args, functions=functions, weights=weights, reward_models=args.reward_model or (), **pair_weights
    )
    asked = {*rubric.names, correctness_of(args)}
    if was_set(args, "response_format") and asked.isdisjoint({"format", "strict_format"}):
        raise ValueError("--response_format has no effect: only format and strict_format read it")
    chosen = row_of(args, "filter_groups")
    if chosen is not None and chosen.name:
        known = [TOTAL, *rubric.names]
        if args.temporal_contrast:
            known.append(TEMPORAL_CONTRAST)
        if chosen.name not in known:
            expected = f"give one of {', '.join(known)}"
            raise ValueError(f"--filter_groups {chosen.name}: no such reward in this run; {expected}")
    return rubric


def dataset_view(args: TeacherOptions) -> View | None:
    """The view that makes the teacher's prompts of records.

    None: the teacher has the policy's prompt, or the policy's prompt with a sentence for each completion.
    """
    view = view_named(args.teacher_sees)
    if reads_completions(view):
        view = unchanged
    # A tower of its own needs pixels, which the policy's prompts have no more.
    return None if view is unchanged and args.teacher_path is None else view


def check_view(args: TeacherOptions, view: View, records: Sequence[Record]) -> None:
    """Check that the teacher sees more than the policy of some records. Says how many it does not see more of.

    Raises:
        ValueError: it sees the same of all of them.
    """
    if view is unchanged:  # another model may teach by the same prompt
        return
    read = all_or_spot_checked(records)
    changed, looked = changed_by(view, read)
    needs = SHOWN.get(name_of_row(args, "teacher_sees") or "", "what the function adds")
    if not changed:
        raise ValueError(
            f"--teacher_sees {args.teacher_sees} has no effect: none of {counted(looked, 'record')} has {needs}"
        )
    if changed < looked:
        lack = f"{looked - changed} of {counted(looked, 'record')} lack {needs}"
        say(f"--teacher_sees {args.teacher_sees}: {lack}; there the teacher sees what the policy sees")
