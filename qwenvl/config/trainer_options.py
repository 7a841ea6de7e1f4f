"""The options that are the Trainer's own, with other defaults or bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwenvl.option import Options, option

FULL_LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5


@dataclass
class TrainerOptions(Options):
    """Settings of the Trainer that have another default here. All its others keep theirs."""

    learning_rate: float | None = option(
        None, "Peak learning rate, above 0.", unset=f"{FULL_LEARNING_RATE:g}, with LoRA {LORA_LEARNING_RATE:g}", above=0
    )
    bf16: bool | None = option(None, "Compute in bfloat16.", unset="where a CUDA device has it, never on a CPU")
    num_train_epochs: float = option(1.0, "Passes over the data, above 0; --max_steps overrides it.", above=0)
    per_device_train_batch_size: int = option(
        1, "Prompts per process and micro-batch, at least 1; each has --grpo_sample_size completions.", least=1
    )
    per_device_eval_batch_size: int | None = option(
        None,
        "Prompts per process that evaluation samples together, at least 1. More: less time, more memory.",
        unset="as many as --rollout_token_budget holds",
        least=1,
    )
    dataloader_num_workers: int | None = option(
        None,
        "Processes for each training process that decode clips while a step runs, at least 0; 0 decodes between steps. "
        "Each has a decoder with --decode_memory_gb.",
        unset="2 on a CUDA device with 3 cores and 2 GB of free /dev/shm for each process, else fewer or 0",
        least=0,
    )
    logging_steps: float = option(
        1, "Optimizer steps between log entries, above 0. A step takes seconds, so each is logged.", above=0
    )
    logging_nan_inf_filter: bool = option(
        False, "Hide losses that are not numbers from the log, where they should show."
    )
    save_steps: float = option(100, "Optimizer steps between checkpoints, above 0.", above=0)
    remove_unused_columns: bool = option(False, "Must stay False: reward functions see every field of a record.")
    ddp_find_unused_parameters: bool | None = option(
        False,
        "Search each forward for trained parameters without gradient. All have one here, that of prompts without "
        "images or videos being 0 in the merger and the vision tower.",
    )
    ddp_broadcast_buffers: bool | None = option(
        False,
        "Send buffers to all processes before each forward. They never change here, and processes may run different "
        "numbers of forwards.",
    )

    def problems(self) -> Iterator[str]:
        if self.remove_unused_columns:
            yield "--remove_unused_columns must stay False: it would strip the prompts from the batch"
