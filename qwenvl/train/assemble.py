"""From settings to the components of a trainer: records and their order, policy, rewards, reference, teacher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import Dataset
from transformers import ProcessorMixin, set_seed
from transformers.integrations import is_fsdp_enabled

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say, settle_output
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.options import SampleOptions
from qwenvl.data.order import EpochSampler, Part, RepeatedSteps
from qwenvl.data.prompt_length import LengthEstimate
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.presets import how_read
from qwenvl.data.records.sources import EXPECTED, given_rows
from qwenvl.data.views import View, reads_completions, unchanged, view_named
from qwenvl.model.families import family_of
from qwenvl.model.loading import (
    apply_tuning,
    evaluating,
    four_bit_settings,
    linear_weights,
    load_model,
    load_processor,
    lora_config,
    require_four_bit,
    resolve_attention,
    settle_router,
    unwrap,
)
from qwenvl.model.positions import position_rule
from qwenvl.model.reference import Reference, matched, outside_engine
from qwenvl.model.sharing.shared_prefix import supports_shared_prefix
from qwenvl.model.vision_tower import accept_features, supports_encode_once
from qwenvl.option import row_of, was_set
from qwenvl.rewards import Rubric
from qwenvl.step.kernels import Kernels, build_likelihood
from qwenvl.step.pipeline import correctness_of, rubric_of
from qwenvl.step.sample import Sample
from qwenvl.step.teacher import Teacher

logger = logging.getLogger(__name__)


def build_dataset(
    dataset: Any,
    args: GRPOConfig,
    checker: Any,
    collator: GRPOCollator,
    *,
    training: bool,
    name: str | None = None,
) -> Any:
    """The data set that ``dataset`` names or holds, every record checked by the rewards or targets of the run.

    Args:
        dataset: what ``dataset_use`` takes, or rows that ``given_rows`` takes. A data set of samples is checked and
            returned as it is, None gives None. For evaluation also several of them by name.
        checker: has ``check_record``, which says why a record is of no use to the run, or None.
        collator: of the run. It says how large clips become, and what length their frames are fitted to.
        name: what rows are called that have no file.

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
        build = partial(build_dataset, args=args, checker=checker, collator=collator)
        return {key: build(each, training=False, name=f"{name}.{key}") for key, each in dataset.items()}
    rows = not isinstance(dataset, GRPODataset) and (
        isinstance(dataset, str | Path) or given_rows(dataset, name) is not None
    )
    if not rows:  # samples
        if not isinstance(dataset, Dataset):
            raise TypeError(f"{name}: {EXPECTED}, got {type(dataset).__name__}")
        if args.fit_frames and getattr(dataset, "fit_to", None) is None:
            raise ValueError("--fit_frames has no effect on a data set made without: load_dataset takes ruler, fit_to")
        for record in getattr(dataset, "records", ()):
            if problem := checker.check_record(record):
                raise RecordError(f"{record.where}: {problem}")
    else:
        named = dataset if isinstance(dataset, str | Path) else f"the rows of {name}"
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
        for part in dataset.parts:
            if part.read_as is not None:
                say(how_read(part.name, part.read_as))
    if not training and any(part.weight is not None for part in getattr(dataset, "parts", ())):
        raise ValueError("--eval_dataset_use: weights have no effect: evaluation takes every record once")
    return dataset


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
    step = batch_size * args.gradient_accumulation_steps * processes
    grouping = None
    if args.train_sampling_strategy == "group_by_length":
        if not isinstance(dataset, GRPODataset):
            raise ValueError("--train_sampling_strategy group_by_length: it can't measure this data set")
        estimate = LengthEstimate(dataset.records, dataset.rule, collator.ruler, collator.options.fit_to)
        grouping = step, estimate
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
    if loaded := isinstance(model, (str, Path)):
        model = loaded_model(model, args, frozen=adapted)
    bare = unwrap(model)
    family_of(bare.config)
    try:
        bare.generation_config.validate(strict=True)
    except ValueError as error:  # the first checkpoint would end with it
        problems = " ".join(str(error).partition("\nIf you")[0].split())
        raise ValueError(f"{bare.name_or_path}/generation_config.json: {problems}") from None
    if note := settle_router(bare.config):
        say(note)
    if bare is not model:
        if adapted:
            raise ValueError("the model already has an adapter: leave out peft_config and lora_enable, or merge it")
        return model
    if not adapted:
        apply_tuning(model, args)
        if loaded and rounds_products(args):
            for parameter in linear_weights(model):
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
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
    attention = resolve_attention(args.attn_implementation, args.device, args.bf16 or args.fp16)
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
    on_cuda = args.device.type == "cuda"
    device = torch.cuda.get_device_name(args.device) if on_cuda else args.device.type
    say(f"loading the model {path} on {device} in {precision} with {attention}, torch {torch.__version__}")
    if args.device.type == "cpu" and not args.use_cpu:
        logger.warning(
            f"torch {torch.__version__} finds no CUDA device: the model runs on the CPU, many times slower; see what "
            "nvidia-smi prints and whether torch is a CUDA build, or set --use_cpu"
        )
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


def rounds_products(args: GRPOConfig) -> bool:
    """Whether autocast rounds float32 weights to bfloat16 for each product. DeepSpeed and FSDP round them before."""
    return bool(args.bf16) and not args.deepspeed and not args.fsdp


def build_rewards(
    args: GRPOConfig, functions: str | Callable | Sequence[str | Callable] | None, weights: Sequence[float] | None
) -> Rubric:
    """The rubric of a run: ``functions`` with ``weights``, or what the flags name."""
    functions = args.reward_funcs if functions is None else functions
    weights = args.reward_weights if weights is None else weights
    default_pair = functions is None and weights is None and not args.reward_model
    named = ("format_reward_weight", "accuracy_reward_weight")
    if args.temporal_contrast and args.async_rollouts:
        raise ValueError("--temporal_contrast: its second group cannot be sampled ahead; leave out --async_rollouts")
    # Where other rewards are named, a weight of the pair is handed on only if it was set, to be refused there.
    own = {name: getattr(args, name) for name in named if default_pair or was_set(args, name)}
    rubric = rubric_of(args, functions=functions, weights=weights, reward_models=args.reward_model or (), **own)
    if was_set(args, "response_format") and not {"format", "strict_format"} & {*rubric.names, correctness_of(args)}:
        raise ValueError("--response_format has no effect: only format and strict_format read it")
    return rubric


def distills_alone(args: GRPOConfig, functions: Any, weights: Any) -> bool:
    """Whether the policy learns from its teacher alone: neither flags nor a script name rewards, or its weight.

    Raises:
        ValueError: a flag that would have no effect then.
    """
    named = ("reward_funcs", "reward_weights", "reward_model", "format_reward_weight", "accuracy_reward_weight")
    given = functions is not None or weights is not None or any(was_set(args, each) for each in named)
    if args.teacher is None or given or args.distill_weight is not None:
        return False
    for name in ("advantage_estimator", "scale_rewards", "filter_groups", "temporal_contrast"):
        if was_set(args, name):
            raise ValueError(f"--{name} has no effect where the teacher alone is learned from: name --reward_funcs")
    return True


def dataset_view(args: GRPOConfig) -> View | None:
    """What the teacher sees of a record. None: the prompt of the policy, or that with a sentence for a completion."""
    view = view_named(args.teacher_sees)
    if reads_completions(view):
        view = unchanged
    # A tower of its own needs pixels, which the policy's prompts have no more.
    return None if view is unchanged and args.teacher_path is None else view


def build_teacher(
    args: GRPOConfig,
    policy: nn.Module,
    *,
    kernels: Kernels,
    sample: Sample,
    reference: Reference | None,
    processor: ProcessorMixin,
    accelerator: Accelerator,
) -> Teacher | None:
    """The teacher that the flags ask for. None without.

    Args:
        sample: how prompts become model inputs, and processes gather weights that they share.
        reference: of the run, which may be the teacher.

    Raises:
        ValueError: a checkpoint that cannot teach the policy, or a flag without effect.
        OSError: there is no such checkpoint.
    """
    teacher, kl, view = row_of(args, "teacher"), row_of(args, "distill_kl"), view_named(args.teacher_sees)
    if teacher is None or kl is None:
        return None
    bare = other = unwrap(policy)
    full = kl.name == "full"
    if teacher.name == "self":
        model: Callable[[], Any] = partial(_running, policy)
    elif teacher.name == "reference":
        assert reference is not None
        model = reference.model
    else:
        other = load_teacher(teacher.name, args, bare, kernels, processor)
        model = partial(_running, other, args.device, offload=teacher.arguments.offload)
    if full and bare is not policy and any(each.requires_grad for each in bare.get_output_embeddings().parameters()):
        raise ValueError("--distill_kl full cannot be used with an adapter on the head: leave one of the two out")
    return Teacher(
        encode=sample.encode,
        gather_weights=sample.processes.gather_weights,
        model=model,
        likelihood=build_likelihood(args, kernels, other, accelerator, temperature=args.generation_temperature),
        tokenizer=processor.tokenizer,
        view=view if reads_completions(view) else None,
        bound=None if full else kl.arguments.clip,
        weight=args.teacher_weight,
        moves=teacher.name == "self",
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
    """Another checkpoint as a frozen teacher: of any size, with the prompts of the policy."""
    flag = f"--teacher {path}"
    if args.tools and kernels.encode_vision is not None:
        raise ValueError(f"{flag} sees by its own tower, and of looks there are features alone: --shared_prefix off")
    model = outside_engine(_other_model(flag, path, policy, processor, weight_dtype(args, frozen=True)))
    if position_rule(model.config) != position_rule(policy.config):
        ours, theirs = policy.config.model_type, model.config.model_type
        raise ValueError(f"{flag}: expected a model whose prompts are those of the policy, {ours}, got {theirs}")
    accept_features(model.requires_grad_(False))
    if args.shared_prefix == "auto" and (reason := supports_shared_prefix(model) or supports_encode_once(model)):
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
    """The reference that the flags ask for, on the device of the run. Call it before the first update of the policy.

    Args:
        dtype: what the policy rounds its weights to in its forwards. None: to nothing.

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
    rounded = rounds_products(args) and not args.sync_ref_model  # which moves by less than bfloat16 resolves
    return Reference(policy, other=other, dtype=dtype, rounded=rounded).to(args.device)
