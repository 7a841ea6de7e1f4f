"""From settings to parts: the policy, the data sets, the collator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers import set_seed

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model.families import family_of
from qwenvl.model.four_bit import four_bit_settings, require_four_bit
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.loading import apply_tuning, load_model, lora_config, settle_router, unwrap
from qwenvl.model.lock_step import LockStep
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
from qwenvl.train.log.meter import Meter


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
    set_seed(args.seed)  # loading the model may have drawn numbers: with ZeRO-3 it does for experts
    return get_peft_model(model, peft_config)


def loaded_model(path: str | Path, args: GRPOConfig, *, frozen: bool) -> nn.Module:
    """The model of a checkpoint, in the type and with the attention that the flags ask for.

    Args:
        frozen: these weights do not learn.
    """
    say(f"loading the model {path}")
    attention = "sdpa" if args.use_cpu and args.attn_implementation == "auto" else args.attn_implementation
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
        lock_step=None if args.ds3_gather_for_generation else LockStep(args.device),
    )
