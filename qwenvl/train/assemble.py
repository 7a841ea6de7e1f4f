"""Builds the models of a trainer from its settings: policy, reference, teacher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import ProcessorMixin, set_seed
from transformers.integrations import is_fsdp_enabled

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say, settle_output
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.views import reads_completions, view_named
from qwenvl.model.families import family_of
from qwenvl.model.loading import (
    apply_tuning,
    evaluating,
    leave_out_router_loss,
    linear_weights,
    load_model,
    load_processor,
    load_without_weights,
    lora_config,
    router_note,
    unwrap,
)
from qwenvl.model.positions import position_rule
from qwenvl.model.reference import Reference, matched, outside_engine
from qwenvl.model.sharing.shared_prefix import supports_shared_prefix
from qwenvl.model.vision_tower import accept_features, supports_encode_once
from qwenvl.option import name_of_row, row_of, was_set
from qwenvl.step.assemble import loaded_model, weight_dtype
from qwenvl.step.kernels import Kernels, build_likelihood
from qwenvl.step.sample import SampleNow
from qwenvl.step.teacher import Teacher

logger = logging.getLogger(__name__)


def build_policy(model: str | Path | nn.Module | None, args: GRPOConfig, peft_config=None) -> nn.Module:
    """The model to train, with the parts that learn set to learn.

    Args:
        model: a checkpoint, a model, or None for ``args.model_name_or_path``. A model that already has an adapter is
            taken as it is.
        peft_config: an adapter to put on it. ``args.lora_enable`` makes one from the LoRA flags.

    Raises:
        ValueError: no model, a model of another family or with an invalid generation config, or two adapters.
    """
    if peft_config is not None and args.lora_enable:
        raise ValueError("peft_config and lora_enable both ask for an adapter: give one of them")
    settle_output()
    adapted = peft_config is not None or args.lora_enable
    model = args.model_name_or_path if model is None else model
    if model is None:
        raise ValueError("no model: give --model_name_or_path, a folder or a name on the hub")
    is_checkpoint = isinstance(model, (str, Path))
    if is_checkpoint:
        if args.lora_enable and args.lora_targets is not None:
            lora_config(load_without_weights(model), args, args)  # a wrong name need not wait for the weights
        model = loaded_model(model, args, frozen=adapted)
    bare = unwrap(model)
    family_of(bare.config)
    try:
        bare.generation_config.validate(strict=True)
    except ValueError as error:  # the first checkpoint would end with it
        problems = " ".join(str(error).partition("\nIf you")[0].split())
        raise ValueError(f"{bare.name_or_path}/generation_config.json: {problems}") from None
    leave_out_router_loss(bare.config)
    note = router_note(bare.config)
    if note is not None:
        say(note)
    if bare is not model:
        if adapted:
            raise ValueError("the model already has an adapter: leave out peft_config and lora_enable, or merge it")
        return model
    if not adapted:
        apply_tuning(model, args)
        if is_checkpoint and rounds_products(args):
            # Frozen weights round to the same numbers now as in each product, and take half of the memory.
            for parameter in linear_weights(model):
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
        return model
    from peft import get_peft_model

    if peft_config is None:
        peft_config = lora_config(model, args, args)
    set_seed(args.seed)  # loading the model may have drawn numbers: with ZeRO-3 it does for experts
    return get_peft_model(model, peft_config)


def rounds_products(args: GRPOConfig) -> bool:
    """Whether autocast rounds float32 weights to bfloat16 for each product. DeepSpeed and FSDP round them before."""
    return bool(args.bf16) and not args.deepspeed and not args.fsdp


def distills_alone(args: GRPOConfig, functions: Any, weights: Any) -> bool:
    """Whether the policy learns from its teacher alone: neither flags nor a script name rewards, or a weight of it.

    Raises:
        ValueError: a flag that would have no effect then.
    """
    named = ("reward_funcs", "reward_weights", "reward_model", "format_reward_weight", "accuracy_reward_weight")
    given = functions is not None or weights is not None or any(was_set(args, each) for each in named)
    if args.teacher is None or given or args.distill_weight is not None:
        return False
    without_effect = ["advantage_estimator", "scale_rewards", "filter_groups", "temporal_contrast"]
    if name_of_row(args, "distill_kl") == "full":  # which is no advantage, so that all of these are 0
        without_effect += ["grpo_epsilon", "grpo_epsilon_high", "top_entropy_quantile"]
    for name in without_effect:
        if was_set(args, name):
            raise ValueError(f"--{name} has no effect where the teacher alone is learned from: name --reward_funcs")
    return True


def build_teacher(
    args: GRPOConfig,
    policy: nn.Module,
    *,
    kernels: Kernels,
    sample: SampleNow,
    reference: Reference | None,
    collator: GRPOCollator,
    accelerator: Accelerator,
) -> Teacher | None:
    """The teacher that the flags name. None: they name none.

    Args:
        sample: the stage that encodes prompts, and gathers weights that processes share.
        reference: the reference of the run, which may be the teacher.
        collator: makes the prompts of both models.

    Raises:
        ValueError: a checkpoint that cannot teach the policy, or a flag without effect.
        OSError: there is no such checkpoint.
    """
    teacher = row_of(args, "teacher")
    kl = row_of(args, "distill_kl")
    view = view_named(args.teacher_sees)
    if teacher is None or kl is None:
        return None
    bare = unwrap(policy)
    other = bare  # the model that computes the teacher's log-probs
    full = kl.name == "full"
    if teacher.name == "self":
        model: Callable[[], Any] = partial(_running, policy)
    elif teacher.name == "reference":
        assert reference is not None
        model = reference.model
    else:
        other = load_teacher(teacher.name, args, bare, kernels, collator.processor)
        model = partial(_running, other, args.device, offload=teacher.arguments.offload)
    if full and bare is not policy:
        head = bare.get_output_embeddings()
        if any(each.requires_grad for each in head.parameters()):
            raise ValueError("--distill_kl full cannot be used with an adapter on the head: leave one of the two out")
    return Teacher(
        encode=sample.encode,
        gather_weights=sample.processes.gather_weights,
        model=model,
        likelihood=build_likelihood(args, kernels, other, accelerator, temperature=args.generation_temperature),
        prompts_of=collator,
        view=view if reads_completions(view) else None,
        bound=None if full else kl.arguments.clip,
        weight=args.teacher_weight,
        moves=teacher.name == "self" or (teacher.name == "reference" and args.sync_ref_model),
        on_vision=args.distill_on == "vision",
    )


@contextmanager
def _running(model: nn.Module, device: torch.device | None = None, offload: bool = False) -> Iterator[nn.Module]:
    """A model in eval mode, without gradients, and on a device where that is given."""
    with torch.no_grad(), evaluating(model):
        yield model if device is None else model.to(device)
    if offload:
        model.to("cpu")


def load_teacher(
    path: str, args: GRPOConfig, policy: nn.Module, kernels: Kernels, processor: ProcessorMixin
) -> nn.Module:
    """Another checkpoint as a frozen teacher, of any size. It takes the prompts of the policy.

    Raises:
        ValueError: its family or its tokenizer is another one, or it cannot share the computations of the policy.
    """
    flag = f"--teacher {path}"
    if args.tools and kernels.encode_vision is not None:
        raise ValueError(f"{flag} sees by its own tower, and of looks there are features alone: --shared_prefix off")
    model = outside_engine(_other_model(flag, path, policy, processor, weight_dtype(args, frozen=True)))
    if position_rule(model.config) != position_rule(policy.config):
        ours = policy.config.model_type
        theirs = model.config.model_type
        raise ValueError(f"{flag}: expected a model whose prompts are those of the policy, {ours}, got {theirs}")
    accept_features(model.requires_grad_(False))
    reason = None
    if args.shared_prefix == "auto":
        reason = supports_shared_prefix(model) or supports_encode_once(model)
    if reason:
        raise ValueError(f"{flag}: {reason}; set --shared_prefix off")
    return model


def _other_model(flag: str, path: str, policy: nn.Module, processor: ProcessorMixin, dtype: torch.dtype) -> nn.Module:
    """The model of another checkpoint with the tokenizer of the policy."""
    if (Path(path) / "adapter_config.json").is_file():
        raise ValueError(f"{flag}: holds LoRA adapters; merge them into their model first")
    if is_fsdp_enabled():
        raise ValueError(f"{flag}: fsdp_cpu_ram_efficient_loading loads it in one process alone; set it to false")
    say(f"loading {flag.removeprefix('--')}")
    if load_processor(path).tokenizer.get_vocab() != processor.tokenizer.get_vocab():
        raise ValueError(f"{flag}: its tokenizer has another vocabulary than the policy's")
    return load_model(path, attn_implementation=policy.config._attn_implementation, dtype=dtype)


def build_reference(
    args: GRPOConfig, policy: nn.Module, processor: ProcessorMixin, kernels: Kernels, dtype: torch.dtype | None
) -> Reference:
    """The reference that the flags name, on the device of the run. Call it before the first update of the policy.

    Args:
        dtype: the type that the policy rounds its weights to in its forwards. None: it rounds nothing.

    Raises:
        ValueError: another checkpoint that does not fit the policy, or a flag without effect.
        OSError: there is no such checkpoint.
    """
    path = args.ref_model_name_or_path
    if args.sync_ref_model and unwrap(policy) is not policy:
        raise ValueError("--sync_ref_model has no effect with LoRA: the weights that the reference has do not learn")
    other = None
    if path is not None:
        bare = unwrap(policy)
        other = _other_model(f"--ref_model_name_or_path {path}", path, bare, processor, bare.dtype)
        other = matched(other, policy, one_tower=kernels.encode_vision is not None)
    # A reference that moves does so by less than bfloat16 resolves.
    rounded = rounds_products(args) and not args.sync_ref_model
    return Reference(policy, other=other, dtype=dtype, rounded=rounded).to(args.device)
