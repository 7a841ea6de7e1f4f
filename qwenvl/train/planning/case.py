"""Makes the input of a memory estimate from settings and data: lengths of prompts, and the step of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qwenvl.config.flags import TRUE
from qwenvl.config.trainer_checks import recomputes_layers
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.frames import FrameRule
from qwenvl.data.options import FrameOptions, PromptOptions, SampleOptions
from qwenvl.data.prompt_length import LengthEstimate, PromptLength
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.seeds import stable_random
from qwenvl.model.inputs import LARGE
from qwenvl.model.loading import FOUR_BIT_BYTES, linear_weights, load_processor, load_without_weights, part_of, unwrap
from qwenvl.model.sharing.linear_attention import state_tokens
from qwenvl.model.sharing.shared_prefix import supports_shared_prefix
from qwenvl.model.vision_tower import supports_encode_once
from qwenvl.option import row_of
from qwenvl.plan.sizes import Engine, Job, ModelWeights, ReferenceKind, Shapes
from qwenvl.step.assemble import weight_dtype
from qwenvl.tools.functions import schemas_of
from qwenvl.train.assemble import build_policy

RECORDS = 1000
"""Most records whose prompts are measured: a random sample, the same for a seed."""


def lengths_of(args: Any) -> tuple[list[PromptLength], int, int]:
    """The lengths of the prompts of at most ``RECORDS`` records. Nothing is decoded.

    Returns:
        The lengths, the shortest first, the number of prompts above ``max_prompt_length``, and that of all records.

    Raises:
        ValueError, OSError: all prompts are too long, or the data or the processor can't be used.
    """
    dataset = load_dataset(
        args.dataset_use,
        SampleOptions.of(args),
        catalog_path=args.dataset_catalog,
        **vars(ReadOptions.of(args)),
        seed=args.seed,
    )
    options = PromptOptions.of(args)
    limit = args.max_prompt_length
    processor = load_processor(str(args.model_name_or_path))
    ruler = GRPOCollator(processor, options, tools=schemas_of(args)).ruler
    rule = FrameRule(FrameOptions.of(args), args.seed)
    measure = LengthEstimate(dataset.records, rule, ruler, limit if args.fit_frames else None)
    numbers: Sequence[int] = range(len(dataset.records))
    if len(numbers) > RECORDS:
        numbers = stable_random(args.seed, "plan").sample(numbers, RECORDS)
    found = sorted(measure.measured((0, number)) for number in numbers)
    kept = [length for length in found if limit is None or length.tokens <= limit]
    if not kept:
        raise ValueError(
            f"all {len(found)} prompts are above --max_prompt_length {limit}: the shortest has {found[0].tokens} "
            "tokens; raise it, or show less (--fit_frames, --video_max_frames, --video_max_frame_pixels, --max_pixels)"
        )
    return kept, len(found) - len(kept), len(dataset.records)


def policy_without_weights(args: Any) -> nn.Module:
    """The policy on the meta device: its shapes, with ``requires_grad`` of each weight.

    Raises:
        OSError: the model is no folder, and the hub can't be reached or has none of this name.
    """
    path = str(args.model_name_or_path)
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"--model {path}: no tokenizer.json in it; a plan needs the model's files but for its weights: copy those "
            "of the processor there too"
        )
    return build_policy(load_without_weights(path), args)


def case_of(
    args: Any,
    policy: nn.Module,
    prompt: PromptLength,
    *,
    engine: Engine = "none",
    processes: int = 1,
) -> tuple[Shapes, ModelWeights, Job]:
    """The step of one process with prompts of this length.

    Args:
        policy: the model with its adapter and ``requires_grad`` set, also on the meta device.
        engine: the way in which processes share the model.
        processes: their number.
    """
    bare = unwrap(policy)
    shapes = Shapes.of(bare.config)
    copied = engine in ("zero2", "zero3")  # DeepSpeed has float32 copies of trainable weights
    base = torch.empty(0, dtype=weight_dtype(args, args.lora_enable or copied)).element_size()
    rounds = bool(args.bf16) and engine in ("none", "ddp") and bare is policy
    sizes = list(_parameters(policy, base, args.load_in_4bit, rounds))
    learning = {part_of(name) for name, _, _, learns in sizes if learns}
    shares = args.shared_prefix == "auto"
    reference = _reference_kind(args, has_adapter=bare is not policy)
    patches = prompt.vision * shapes.vision.merged
    pixels = args.per_device_train_batch_size * patches * shapes.vision.patch_values
    teacher = None
    named = row_of(args, "teacher")
    if args.teacher_path is not None:
        other = load_without_weights(args.teacher_path)
        width = weight_dtype(args, frozen=True).itemsize
        teacher = Shapes.of(other.config), width * sum(each.numel() for each in other.parameters())
    job = Job(
        tokens=prompt.tokens,
        patches=patches,
        prompts=args.per_device_train_batch_size,
        micro_batches=args.gradient_accumulation_steps,
        group=args.grpo_sample_size,
        length=args.generation_max_length + (args.look_tokens if args.tools else 0),
        state_tokens=state_tokens(bare),
        logit_bytes=int(args.logit_memory_gb * 1e9),
        shared=shares and supports_shared_prefix(policy) is None,
        encoded=shares and supports_encode_once(policy) is None,
        checkpointing=recomputes_layers(args),
        stream=base,
        products=2 if args.bf16 or args.fp16 else 4,
        rank=args.lora_r if args.lora_enable else 0,
        activation_offload=args.activation_offload,
        tower_learns="vision" in learning,
        mergers_learn="mlp" in learning,
        optimizer=str(getattr(args.optim, "value", args.optim) or "adamw_torch_fused"),
        further_moments=_further_moments(args),
        engine=engine,
        processes=processes,
        waits_on_host=not args.use_cpu and pixels > LARGE,
        reference=reference,
        reference_rounded=rounds and not args.sync_ref_model,
        teacher=teacher,
        teacher_leaves=getattr(named and named.arguments, "offload", False),
        token_budget=args.rollout_token_budget,
        narrows=args.generation_top_p < 1,
        samples=not args.engine_has_own_weights,
    )
    return shapes, ModelWeights.of(sizes, len(shapes.text.layers)), job


def _further_moments(args: Any) -> int:
    """The numbers for each weight that ``--optim_args`` add to the state of PyTorch's SGD and RMSprop.

    They are the momentum, and the mean gradient of a centered RMSprop.
    """
    optimizer = str(getattr(args.optim, "value", args.optim))
    if not args.optim_args or optimizer not in ("sgd", "rmsprop"):
        return 0
    given = dict(part.split("=") for part in args.optim_args.replace(" ", "").split(","))
    has_momentum = float(given.get("momentum", 0)) > 0
    is_centered = given.get("centered", "").lower() in TRUE
    return int(has_momentum) + int(is_centered)


def _reference_kind(args: Any, *, has_adapter: bool) -> ReferenceKind:
    """The model that is the reference of a run."""
    if not args.needs_reference:
        return "none"
    if args.ref_model_name_or_path is not None:
        return "other"
    return "adapter" if has_adapter else "copy"


def _parameters(
    policy: nn.Module, base: int, four_bit: bool, rounds: bool
) -> Iterator[tuple[str, tuple[int, ...], float, bool]]:
    """Name, shape, bytes of a number, and ``requires_grad``. Weights on the meta device get the type of the run."""
    rounded = {id(each) for each in linear_weights(policy) if not each.requires_grad} if rounds else set()
    for name, each in policy.named_parameters():
        width: float = each.element_size()
        if each.is_meta:
            is_packed = four_bit and "language_model.layers." in name and each.dim() == 2
            if ".lora_" in name:
                width = 4
            elif is_packed:
                width = FOUR_BIT_BYTES
            else:
                width = 2 if id(each) in rounded else base
        shape = getattr(each, "ds_shape", each.shape)  # ZeRO-3 empties the shape of the parameter itself
        yield name, tuple(shape), width, each.requires_grad
