"""From settings to parts: the policy, the data sets, the collator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import Dataset

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.difficulty import Difficulty
from qwenvl.data.errors import RecordError
from qwenvl.data.fit import PromptLimit
from qwenvl.data.media.frame_cache import FrameCache
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import EpochSampler, Grouping, Part, RepeatedSteps
from qwenvl.data.prompt_length import LengthEstimate
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.presets.table import how_read
from qwenvl.model.families import family_of
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.loading import apply_tuning, load_model, lora_config, settle_router, unwrap
from qwenvl.model.positions import position_rule
from qwenvl.option import was_set
from qwenvl.rewards import RewardSettings, Rubric, build_rubric
from qwenvl.rewards.named import resolve
from qwenvl.rewards.options import FunctionSettings
from qwenvl.rewards.plugins import plugin_functions
from qwenvl.rewards.table import readers_of
from qwenvl.rollout.engine import SamplingParams
from qwenvl.train.collect.collector import Collector
from qwenvl.train.collect.contrast import TemporalContrast
from qwenvl.train.collect.penalty import KlPenalty
from qwenvl.train.display.console import say, settle_output
from qwenvl.train.fast_paths import Paths
from qwenvl.train.meter import Meter
from qwenvl.types import Record


class ChecksRecords(Protocol):
    """What a run learns by: rewards, or targets."""

    def check_record(self, record: Record) -> str | None:
        """Why a record is of no use to the run, or None if it is."""


def build_policy(model: str | Path | nn.Module | None, args: GRPOConfig, peft_config=None) -> nn.Module:
    """The model to train, with the parts that learn set to learn.

    Args:
        model: a checkpoint, a model, or None for ``args.model_name_or_path``. A model that already has an adapter is
            taken as it is.
        peft_config: an adapter to put on it. ``args.lora_enable`` makes one from the LoRA flags.

    Raises:
        ValueError: no model, a model of another family, or two adapters asked for.
    """
    if peft_config is not None and args.lora_enable:
        raise ValueError("peft_config and lora_enable both ask for an adapter: give one of them")
    settle_output()
    adapted = peft_config is not None or args.lora_enable
    model = args.model_name_or_path if model is None else model
    if model is None:
        raise ValueError("no model: give --model_name_or_path, a folder or a name on the hub")
    if isinstance(model, (str, Path)):
        model = loaded_model(model, args, frozen=adapted)
    bare = unwrap(model)
    family_of(bare.config)
    if note := settle_router(bare.config):
        say(note)
    if bare is not model:
        if adapted:
            raise ValueError("the model already has an adapter: leave out peft_config and lora_enable, or merge it")
        return model
    if not adapted:
        apply_tuning(model, args)
        return model
    from peft import get_peft_model

    if peft_config is None:
        peft_config = lora_config(model, args, args)
    return get_peft_model(model, peft_config)


def loaded_model(path: str | Path, args: GRPOConfig, *, frozen: bool) -> nn.Module:
    """The model of a checkpoint, in the type and with the attention that the flags ask for.

    Args:
        frozen: these weights do not learn.
    """
    say(f"loading the model {path}")
    attention = "sdpa" if args.use_cpu and args.attn_implementation == "auto" else args.attn_implementation
    return load_model(path, attn_implementation=attention, dtype=weight_dtype(args, frozen))


def weight_dtype(args: GRPOConfig, frozen: bool) -> torch.dtype:
    """The type in which weights are kept: bfloat16 where they are frozen or an engine keeps float32 copies of them.

    A step of 1e-6 is less than half the spacing of most bfloat16 weights: kept in it and trained by a plain optimizer
    they would not move. Matrix products run in bfloat16 either way with ``bf16``.
    """
    return torch.bfloat16 if args.bf16 and (frozen or args.deepspeed) else torch.float32


def build_rewards(
    args: GRPOConfig, functions: Sequence[str | Callable] | None, weights: Sequence[float] | None
) -> Rubric:
    """The rubric of a run: ``functions`` with ``weights``, or what the flags name."""
    functions = args.reward_funcs if functions is None else functions
    weights = args.reward_weights if weights is None else weights
    default_pair = functions is None and weights is None and not args.reward_model
    named = ("format_reward_weight", "accuracy_reward_weight")
    rubric = build_rubric(
        functions,
        weights,
        *(getattr(args, name) if default_pair or was_set(args, name) else None for name in named),
        external_plugins=args.external_plugins or (),
        reward_models=args.reward_model or (),
        settings=RewardSettings.of(args),
        aggregation=args.reward_aggregation,
        on_error=args.on_reward_error,
        timeout=args.reward_timeout,
    )
    for setting in fields(FunctionSettings):
        readers = readers_of(setting.name)
        if setting.name == "correctness_func" and args.temporal_contrast:
            continue
        if readers and was_set(args, setting.name) and not set(readers) & {*rubric.names, args.correctness_func}:
            raise ValueError(f"--{setting.name} has no effect: only {', '.join(readers)} read it")
    return rubric


def build_contrast(args: GRPOConfig, temporal_patch_size: int) -> TemporalContrast | None:
    """The bonus for answers that need the order of the frames, if the flags ask for it."""
    if not args.temporal_contrast:
        return None
    plugins = plugin_functions(args.external_plugins or ())
    correctness = resolve(args.correctness_func, RewardSettings.of(args).values(), plugins)
    return TemporalContrast(
        share=args.temporal_contrast_share,
        margin=args.temporal_contrast_margin,
        bonus=args.temporal_contrast_bonus,
        correctness=Rubric(
            [correctness],
            [1.0],
            on_error=args.on_reward_error,
            timeout=args.reward_timeout,
            workers=args.reward_workers,
        ),
        temporal_patch_size=temporal_patch_size,
    )


def build_collector(
    args: GRPOConfig,
    paths: Paths,
    bare: nn.Module,
    processor,
    rubric: Rubric,
    accelerator: Accelerator,
    meter: Meter,
    penalty: KlPenalty | None = None,
) -> Collector:
    """What samples, scores and compares completions, in training and in evaluation.

    Args:
        bare: the model without adapter or engine.
        penalty: what takes the KL off rewards. None where nothing does.
    """
    return Collector(
        engine=paths.engine,
        build_inputs=InputBuilder.of(position_rule(bare.config), processor),
        encode=paths.encode,
        rubric=rubric,
        params=SamplingParams.of(args, entropies=args.reads_sampled_entropies),
        group_size=args.grpo_sample_size,
        advantage_estimator=args.advantage_estimator,
        scale_rewards=args.scale_rewards,
        penalty=penalty,
        contrast=build_contrast(args, bare.config.vision_config.temporal_patch_size),
        device=args.device,
        seed=args.seed,
        process=args.process_index,
        autocast=accelerator.autocast,
        clock=meter.time,
    )


def build_dataset(
    dataset: Dataset | str | Path | dict[str, Dataset | str | Path] | None,
    args: GRPOConfig,
    checker: ChecksRecords,
    limit: PromptLimit | None = None,
    frame_cache: FrameCache | None = None,
    *,
    training: bool,
) -> Dataset | dict[str, Dataset] | None:
    """The data set that ``dataset`` names, every record checked by the rewards or targets of the run.

    Args:
        dataset: what ``dataset_use`` takes. A data set is checked and returned as it is, None gives None. For
            evaluation also several of them by name.
        limit: of the collator: what becomes of prompts that are too long.
        frame_cache: as ``build_frame_cache`` makes it.

    Raises:
        RecordError: naming the first record that the run can't learn from.
        TypeError: rows, or a data set of another library.
        ValueError: a flag that has no effect on this data set.
    """
    if dataset is None:
        return None
    if isinstance(dataset, dict) and not training:
        build = partial(build_dataset, args=args, checker=checker, limit=limit, frame_cache=frame_cache, training=False)
        return {name: build(each) for name, each in dataset.items()}
    if isinstance(dataset, (str, Path)):
        say(f"reading the records {'to train on' if training else 'to evaluate on'}: {dataset}")
        dataset = load_dataset(
            str(dataset),
            SampleOptions.of(args),
            catalog_path=args.dataset_catalog,
            **vars(ReadOptions.of(args)),
            check_record=checker.check_record,
            stream_above=int(args.stream_above_mb * 2**20),
            stream_above_records=args.stream_above_records,
            seed=args.seed,
            training=training,
            limit=limit,
            frame_cache=frame_cache,
        )
        for part in dataset.parts:
            if part.read_as is not None:
                say(how_read(part.name, part.read_as))
    elif not isinstance(dataset, Dataset):
        raise TypeError(
            "expected a data set of qwenvl.data or what --dataset_use takes, the path of a file of records for one, "
            f"got {type(dataset).__name__}"
        )
    else:
        if args.fit_frames and getattr(dataset, "limit", None) is None:
            raise ValueError("--fit_frames has no effect on a data set made without: load_dataset takes a limit")
        if frame_cache is not None and getattr(dataset, "frame_cache", None) is None:
            raise ValueError("--frame_cache has no effect on a data set made without: load_dataset takes a FrameCache")
        for record in getattr(dataset, "records", ()):
            if problem := checker.check_record(record):
                raise RecordError(f"{record.where}: {problem}")
    if not training and any(part.weight is not None for part in getattr(dataset, "parts", ())):
        raise ValueError("--eval_dataset_use: weights have no effect: evaluation takes every record once")
    if training and frame_cache is not None and args.eval_dataset_use is None and not _has_fixed_frames(dataset):
        raise ValueError("--frame_cache has no effect: no clip keeps its frames from epoch to epoch (dynamic_sample)")
    return dataset


def _has_fixed_frames(dataset: Dataset) -> bool:
    """Whether training takes the same frames of some clip in every epoch."""
    metas = (meta for record in dataset.records for meta in record.clip_meta)
    return any(meta is None or not meta.dynamic_sample for meta in metas)


def build_frame_cache(args: GRPOConfig, collator: GRPOCollator) -> FrameCache | None:
    """The cache of decoded frames, if the flags ask for one, for frames of the collator's sizes."""
    if args.frame_cache is None:
        return None
    return FrameCache(args.frame_cache, int(args.frame_cache_gb * 1e9), collator.ruler)


def build_sampler(
    dataset: Dataset,
    args: GRPOConfig,
    batch_size: int,
    collator: GRPOCollator,
    difficulty: Difficulty | None = None,
) -> EpochSampler | RepeatedSteps:
    """The order in which training draws from a data set.

    Args:
        batch_size: prompts of a micro-batch in one process.
        difficulty: which records are drawn less. None: all are drawn alike.

    Raises:
        ValueError: a strategy that this data set can't be ordered by, or several steps on each of its samples.
    """
    processes = 1 if args.accelerator_config.split_batches else args.world_size
    step = batch_size * args.gradient_accumulation_steps * processes
    grouping = None
    if args.train_sampling_strategy == "group_by_length":
        if not isinstance(dataset, GRPODataset):
            raise ValueError("--train_sampling_strategy group_by_length: it can't measure this data set")
        longest = args.max_prompt_length if args.fit_frames else None
        grouping = Grouping(step, LengthEstimate(dataset.records, dataset.rule, collator.ruler, longest))
    sampler = EpochSampler(
        getattr(dataset, "parts", None) or [Part("", len(dataset))],
        seed=args.seed if args.data_seed is None else args.data_seed,
        shuffle=args.train_sampling_strategy != "sequential",
        grouping=grouping,
        difficulty=difficulty,
    )
    if args.num_iterations > 1 and not isinstance(dataset, GRPODataset):
        raise ValueError("--num_iterations above 1 needs a GRPODataset, as load_dataset makes it")
    # Several processes would draw an epoch's first records again to have as many each in its last step.
    shared = args.world_size > 1 and not args.dataloader_drop_last and isinstance(dataset, GRPODataset)
    if args.num_iterations == 1 and not shared:
        return sampler
    return RepeatedSteps(sampler, step, args.num_iterations)
