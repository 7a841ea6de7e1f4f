"""From settings and data to the input of an estimate: lengths of prompts and targets, and the step of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import load_dataset
from qwenvl.data.frames import FrameRule
from qwenvl.data.options import FrameOptions, PromptOptions, SampleOptions
from qwenvl.data.prompt_length import LengthEstimate, PromptLength, Ruler
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.seeds import stable_random
from qwenvl.model.inputs import LARGE
from qwenvl.model.loading import BYTES, linear_weights, load_processor, load_without_weights, part_of, unwrap
from qwenvl.model.sharing.linear_attention import state_tokens
from qwenvl.model.sharing.shared_prefix import supports_shared_prefix
from qwenvl.model.vision_tower import supports_encode_once
from qwenvl.plan.remedies import Case
from qwenvl.plan.sizes import Engine, Job, ModelWeights, Precision, ReferenceKind, Shapes
from qwenvl.train.assemble import build_policy, weight_dtype
from qwenvl.train.warmup.config import WarmupConfig
from qwenvl.train.warmup.targets import Targets
from qwenvl.train.warmup.trainer import narrowed, targets_of
from qwenvl.types import Record

SHARE = 0.9
"""The share of a GPU's memory that a run may take. The driver and gaps between allocations take the remainder."""


class TargetSizes(NamedTuple):
    """The targets of a warm-up: the most that one prompt has, and the tokens of the longest."""

    targets: int
    tokens: int


@dataclass(frozen=True)
class Lengths:
    """The lengths of measured prompts."""

    each: tuple[PromptLength, ...]  # the shortest first
    left_out: int = 0  # records above ``max_prompt_length``, which the run leaves out
    targets: TargetSizes | None = None  # in a warm-up

    def at(self, share: float) -> PromptLength:
        """The quantile of this share, 1.0 for the longest prompt."""
        return self.each[min(len(self.each) - 1, int(share * len(self.each)))]


def lengths_of(
    args: GRPOConfig, records: Sequence[Record], ruler: Ruler, most: int, targets: Targets | None = None
) -> Lengths:
    """The lengths of a random sample of ``most`` records, the same for the same seed. Nothing is decoded.

    Raises:
        ValueError: all prompts are too long.
        RecordError: a record has no target.
    """
    limit = args.max_prompt_length
    rule = FrameRule(FrameOptions.of(args), args.seed)
    measure = LengthEstimate(records, rule, ruler, limit if args.fit_frames else None)
    numbers = list(range(len(records)))
    if len(numbers) > most:
        numbers = stable_random(args.seed, "plan").sample(numbers, most)
    found = sorted(measure.measured((0, number)) for number in numbers)
    kept = [length for length in found if limit is None or length.tokens <= limit]
    if not kept:
        raise ValueError(
            f"all {len(found)} prompts are above --max_prompt_length {limit}: the shortest has {found[0].tokens} tokens"
        )
    sizes = None if targets is None else target_sizes((records[number] for number in numbers), targets, ruler)
    return Lengths(tuple(kept), len(found) - len(kept), sizes)


def lengths_of_data(args: GRPOConfig, most: int) -> Lengths:
    """The lengths of the prompts that ``dataset_use`` names, in a warm-up of those with targets. See ``lengths_of``.

    Raises:
        ValueError, OSError: what is wrong with the data or the processor.
    """
    targets = targets_of(args) if isinstance(args, WarmupConfig) else None
    dataset = load_dataset(
        args.dataset_use,
        SampleOptions.of(args),
        catalog_path=args.dataset_catalog,
        **vars(ReadOptions.of(args)),
        seed=args.seed,
        check_record=None if targets is None else targets.check_record,
    )
    records = dataset.records if targets is None else narrowed(dataset, targets, "--dataset_use").records
    return lengths_of(args, records, ruler_of(args), most, targets)


def ruler_of(args: GRPOConfig) -> Ruler:
    """The ruler that measures prompts with the model's processor.

    Raises:
        FileNotFoundError: the folder of the model has no tokenizer.
    """
    options, path = PromptOptions.of(args), str(args.model_name_or_path)
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"--model {path}: no tokenizer.json beside its config.json; a plan needs the model's files but for its "
            "weights: copy those of the processor there too"
        )
    frames = (options.video_min_frame_pixels, options.video_max_frame_pixels)
    images = (options.min_pixels, options.max_pixels)
    return Ruler(load_processor(path), frames, images, options.template_arguments)


def target_sizes(records: Iterable[Record], targets: Targets, ruler: Ruler) -> TargetSizes:
    """The most targets of a record, and the tokens of the longest."""
    tokenizer = ruler.processor.tokenizer
    texts = [targets.of(record, False) for record in records]
    lengths = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for own in texts for text in own)
    return TargetSizes(max(map(len, texts)), 1 + max(lengths))  # with the end token


def policy_without_weights(args: GRPOConfig) -> nn.Module:
    """The policy on the meta device: shapes, and which weights learn.

    Raises:
        OSError: the model is no folder, and the hub can't be reached or has none of this name.
    """
    path = str(args.model_name_or_path)
    try:
        return build_policy(load_without_weights(path), args)
    except OSError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise OSError(
            f"--model {path}: no folder of this name with a config.json, and the hub gave none ({reason}); a plan "
            "needs the model's config.json and its processor's files: copy them into a folder, and give that"
        ) from None


def case_of(
    args: GRPOConfig,
    policy: nn.Module,
    prompt: PromptLength,
    *,
    on_host: bool,
    engine: Engine = "none",
    processes: int = 1,
    optimizer: str | None = None,
    targets: TargetSizes | None = None,
) -> Case:
    """The step of one process with prompts of a length.

    Args:
        policy: the model with its adapter and ``requires_grad`` set, also on the meta device.
        on_host: the device is a CPU.
        engine, processes: what splits the model, among how many.
        optimizer: in place of that of ``args``.
        targets: of a warm-up. None for training by rewards.
    """
    bare = unwrap(policy)
    shapes = Shapes.of(bare.config)
    copied = engine in ("zero2", "zero3")  # DeepSpeed has float32 copies of trainable weights
    base = torch.empty(0, dtype=weight_dtype(args, args.lora_enable or copied)).element_size()
    rounds = bool(args.bf16) and engine in ("none", "ddp") and bare is policy
    sizes = list(_parameters(policy, base, args.load_in_4bit, rounds))
    learning = {part_of(name) for name, _, _, learns in sizes if learns}
    shares = args.shared_prefix == "auto"
    patches = prompt.vision * shapes.vision.merged
    pixels = args.per_device_train_batch_size * patches * shapes.vision.patch_values
    job = Job(
        tokens=prompt.tokens,
        patches=patches,
        prompts=args.per_device_train_batch_size,
        micro_batches=args.gradient_accumulation_steps,
        group=args.grpo_sample_size if targets is None else targets.targets,
        length=args.generation_max_length if targets is None else targets.tokens,
        token_budget=args.rollout_token_budget,
        state_tokens=state_tokens(bare),
        logit_bytes=int(args.logit_memory_gb * 1e9),
        shared=shares and supports_shared_prefix(policy) is None,
        encoded=shares and supports_encode_once(policy) is None,
        checkpointing=args.gradient_checkpointing,
        precision=Precision(base, 2 if args.bf16 or args.fp16 else 4),
        rank=args.lora_r if args.lora_enable else 0,
        activation_offload=args.activation_offload,
        tower_learns="vision" in learning,
        mergers_learn="mlp" in learning,
        reference=_reference(args, policy) if targets is None else "none",
        reference_rounded=rounds and not args.sync_ref_model,
        optimizer=optimizer or str(getattr(args.optim, "value", args.optim)),
        narrows=args.generation_top_p < 1,
        engine=engine,
        processes=processes,
        gathers=args.ds3_gather_for_generation,
        samples=targets is None and not args.engine_has_own_weights,
        warmup=targets is not None,
        on_host=on_host,
        waits_on_host=not on_host and pixels > LARGE,
    )
    return Case(shapes, ModelWeights.of(sizes, len(shapes.text.layers)), job)


def _parameters(
    policy: nn.Module, base: int, four_bit: bool, rounds: bool
) -> Iterator[tuple[str, tuple[int, ...], float, bool]]:
    """Name, shape, bytes of a number, and ``requires_grad``. Weights on the meta device get the type of the run."""
    rounded = {id(each) for each in linear_weights(policy) if not each.requires_grad} if rounds else ()
    for name, each in policy.named_parameters():
        width: float = each.element_size()
        if each.is_meta:
            packed = four_bit and "language_model.layers." in name and each.dim() == 2
            width = 4 if ".lora_" in name else BYTES if packed else 2 if id(each) in rounded else base
        yield name, tuple(getattr(each, "ds_shape", each.shape)), width, each.requires_grad  # ZeRO-3 empties the shape


def _reference(args: Any, policy: nn.Module) -> ReferenceKind:
    if args.grpo_beta == 0:
        return "none"
    if args.ref_model_name_or_path is not None:
        return "other"
    return "adapter" if unwrap(policy) is not policy else "copy"
