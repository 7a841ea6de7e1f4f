"""What a trainer is put together from: the policy and its paths, the processor, the data sets and the collator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset
from transformers import ProcessorMixin, set_seed

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.options import PromptOptions
from qwenvl.data.saved_processor import PromptSettings
from qwenvl.model.loading import load_processor, unwrap
from qwenvl.train.assemble import build_policy
from qwenvl.train.data_sets import ChecksRecords, build_dataset, build_frame_cache
from qwenvl.train.display.first_look import first_look
from qwenvl.train.fast_paths import Paths, build_paths


@dataclass(frozen=True)
class Parts:
    """The parts of a trainer.

    Attributes:
        policy: the model to train, with its adapter if it has one.
        processor: as it was loaded.
        paths: which computations the policy takes.
        collator: from samples to prompts.
        train_dataset, eval_dataset: None where there is nothing to train on, or to evaluate on.
        prompt_settings: what is saved with the model.
        learned_by: the rewards or targets of the run.
    """

    policy: nn.Module
    processor: ProcessorMixin
    paths: Paths
    collator: GRPOCollator
    train_dataset: Dataset | None
    eval_dataset: Dataset | dict[str, Dataset] | None
    prompt_settings: PromptSettings
    learned_by: ChecksRecords


def build_parts(
    args: GRPOConfig,
    checker: ChecksRecords,
    model: str | Path | nn.Module | None = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    processor: ProcessorMixin | None = None,
    peft_config: Any = None,
) -> Parts:
    """The parts that the flags ask for. What is handed over takes the place of what the flags name.

    Args:
        checker: says of each record whether training can use it.
        model, train_dataset, eval_dataset, processor, peft_config: as ``GRPOTrainer`` takes them.

    Raises:
        RecordError, ValueError, OSError: what is wrong with the model, the data or the flags.
    """
    if args.auto_fit and args.auto_fitted is None:
        raise ValueError(
            "auto_fit is what the command does before it makes the trainer: call "
            "qwenvl.train.planning.auto_fit.fit_to_memory(args) first, or leave it out"
        )
    if args.activation_offload and args.device.type == "cpu":
        raise ValueError(
            "--activation_offload has no effect on a CPU: activations are in its memory anyway; leave it out"
        )
    args._n_gpu = min(args.n_gpu, 1)  # several GPUs in one process would mean DataParallel; torchrun is for those
    set_seed(args.seed)
    policy = build_policy(model, args, peft_config)
    bare = unwrap(policy)
    processor = processor or load_processor(bare.name_or_path)
    paths = build_paths(args, policy, processor.tokenizer)
    collator = GRPOCollator(processor, PromptOptions.of(args))
    frame_cache = build_frame_cache(args, collator)
    build = partial(
        build_dataset,
        args=args,
        checker=checker,
        collator=collator,
        frame_cache=frame_cache,
    )
    trained_on: Any = build(args.dataset_use if train_dataset is None else train_dataset, training=True)
    first_look(trained_on, collator, checker, args.accuracy_by_name)
    return Parts(
        policy=policy,
        processor=processor,
        paths=paths,
        collator=collator,
        train_dataset=trained_on,
        eval_dataset=build(args.eval_dataset_use if eval_dataset is None else eval_dataset, training=False),
        prompt_settings=PromptSettings.of(args, trained_on, bare.name_or_path),
        learned_by=checker,
    )
