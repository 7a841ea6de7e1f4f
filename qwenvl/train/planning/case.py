"""From settings, a policy and the length of a prompt to what an estimate is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.model.four_bit import BYTES
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.sharing.linear_attention import state_tokens
from qwenvl.model.sharing.shared_prefix import supports_shared_prefix
from qwenvl.model.vision.tower import supports_encode_once
from qwenvl.model.waiting_media import LARGE
from qwenvl.plan.job import Engine, Job, Precision, ReferenceKind
from qwenvl.plan.remedies import Case
from qwenvl.plan.shapes import Shapes
from qwenvl.plan.weights import Weights
from qwenvl.train.assemble import weight_dtype


class Taught(NamedTuple):
    """What a warm-up says to a prompt: the most targets that one has, and the tokens of the longest."""

    targets: int
    tokens: int


def case_of(
    args: GRPOConfig,
    policy: nn.Module,
    prompt: PromptLength,
    *,
    on_host: bool,
    engine: Engine = "none",
    processes: int = 1,
    optimizer: str | None = None,
    taught: Taught | None = None,
) -> Case:
    """What one process does with prompts of a length.

    Args:
        policy: the model with its adapter and what learns set, with weights or without (on the meta device).
        on_host: it computes on a CPU.
        engine, processes: what splits the model, among how many.
        optimizer: in place of that of ``args``.
        taught: the targets of a warm-up. None for training by rewards.
    """
    bare = unwrap(policy)
    shapes = Shapes.of(bare.config)
    kept_elsewhere = engine in ("zero2", "zero3")  # DeepSpeed keeps float32 copies of what learns
    base = torch.empty(0, dtype=weight_dtype(args, args.lora_enable or kept_elsewhere)).element_size()
    sizes = list(_parameters(policy, base, args.load_in_4bit))
    learning = {part_of(name) for name, _, _, learns in sizes if learns}
    shares = args.shared_prefix == "auto"
    patches = prompt.vision * shapes.vision.merged
    job = Job(
        tokens=prompt.tokens,
        patches=patches,
        prompts=args.per_device_train_batch_size,
        micro_batches=args.gradient_accumulation_steps,
        group=args.grpo_sample_size if taught is None else taught.targets,
        length=args.generation_max_length if taught is None else taught.tokens,
        token_budget=args.rollout_token_budget,
        state_tokens=state_tokens(bare),
        logit_bytes=int(args.logit_memory_gb * 1e9),
        shared=shares and supports_shared_prefix(policy) is None,
        encoded=shares and supports_encode_once(policy) is None,
        checkpointing=args.gradient_checkpointing,
        precision=Precision(base, 2 if args.bf16 or args.fp16 else 4),
        rank=args.lora_r if args.lora_enable else 0,
        four_bit=args.load_in_4bit,
        activation_offload=args.activation_offload,
        tower_learns="vision" in learning,
        mergers_learn="mlp" in learning,
        reference=_reference(args, policy) if taught is None else "none",
        reference_offload=args.ref_offload,
        optimizer=optimizer or str(getattr(args.optim, "value", args.optim)),
        narrows=args.generation_top_p < 1,
        engine=engine,
        processes=processes,
        gathers=args.ds3_gather_for_generation,
        samples=taught is None and not args.engine_has_own_weights,
        taught=taught is not None,
        on_host=on_host,
        in_files=args.per_device_train_batch_size * patches * shapes.vision.patch_values > LARGE,
    )
    return Case(shapes, Weights.of(sizes, len(shapes.text.layers)), job)


def _parameters(policy: nn.Module, base: int, four_bit: bool) -> Iterator[tuple[str, tuple[int, ...], float, bool]]:
    """Name, shape, bytes of a number, and whether it learns. Weights that are not there have the type of a run."""
    for name, each in policy.named_parameters():
        width: float = each.element_size()
        if each.is_meta:
            packed = four_bit and "language_model.layers." in name and each.dim() == 2
            width = 4 if ".lora_" in name else BYTES if packed else base
        yield name, tuple(getattr(each, "ds_shape", each.shape)), width, each.requires_grad  # ZeRO-3 takes the shape


def _reference(args: Any, policy: nn.Module) -> ReferenceKind:
    if args.grpo_beta == 0:
        return "none"
    if args.ref_model_name_or_path is not None:
        return "other"
    return "adapter" if unwrap(policy) is not policy else "copy"
