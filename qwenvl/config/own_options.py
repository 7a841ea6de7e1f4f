"""Options of a run, of its display and of memory, and those of the Trainer with other defaults or bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option

FULL_LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5
SPLITTERS = ("deepspeed", "fsdp")


@dataclass
class TrainerOptions(Options):
    """Settings of the Trainer with another default. All others keep theirs."""

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
        1,
        "Optimizer steps between log entries, above 0. A step takes seconds, so each is logged.",
        above=0,
        needs="logging_strategy == 'steps' or (eval_strategy == 'steps' and not eval_steps)",
    )
    save_steps: float = option(
        100, "Optimizer steps between checkpoints, above 0.", above=0, needs="save_strategy == 'steps'"
    )
    # Set, not offered: ``FIXED`` of ``trainer_checks`` has the reasons, and other values are refused.
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    ddp_broadcast_buffers: bool | None = False
    logging_nan_inf_filter: bool = False


@dataclass
class RunOptions(Options):
    """Start, end and display of a run."""

    resume: str = option(
        "never",
        "What the run goes on from. never: it is a new one, and an --output_dir with checkpoints is refused. auto: the "
        "newest whole checkpoint of --output_dir, or the beginning where there is none, so that a queue system can "
        "start the same command again. Else the folder of a checkpoint.",
    )
    overwrite_output_dir: bool = option(
        False,
        "Let a new run replace the model and the rows of an earlier one in --output_dir. Checkpoints are never "
        "replaced: delete them, or give another folder.",
        needs="resume == 'never'",
    )
    save_on_signal: float = option(
        600,
        "Seconds that the run has, after SIGTERM, SIGHUP or SIGUSR1, to finish its step and to save a checkpoint. It "
        "then ends with status 0. 0: a signal ends it at once, without a checkpoint.",
        least=0,
    )
    stall_timeout: float = option(
        60,
        "Minutes without progress after which the run ends, and says where each of its threads stands. Progress is a "
        "phase of a step that begins, a token that is drawn, a micro-batch, a batch of evaluation or a checkpoint. 0: "
        "it waits for ever.",
        least=0,
    )
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop",
        "What becomes of an optimizer step whose loss or gradients are NaN or infinite. stop: the run ends. skip: the "
        "step changes no weight and is counted, and after three in a row the run ends. Either way nonfinite/ in the "
        "run folder has its records, completions and seed.",
        needs=(
            "not deepspeed: it updates before gradients can be looked at",
            "optim not in ('lomo', 'adalomo'): it updates during the backward pass",
        ),
    )

    display: Literal["rich", "plain", "none"] | None = option(
        None,
        "How progress is shown. rich: a board of a few lines at the foot of the terminal, with curves of reward, KL, "
        "entropy, equal groups and lengths, the seconds of a step by phase, and memory. plain: lines that stay, "
        "which a file or a pipe always gets. none: nothing. During a long step the board shows its phase, and plain "
        "lines show it each minute. Warnings and the summary are shown in any case.",
        unset="rich on a terminal, else plain; with --disable_tqdm the Trainer's own lines",
        needs="not disable_tqdm: --display none shows no progress",
    )

    def problems(self) -> Iterator[str]:
        if self.resume != "never" and getattr(self, "resume_from_checkpoint", None):
            yield "--resume and --resume_from_checkpoint name what the run goes on from twice: leave one of them out"


@dataclass
class FitOptions(Options):
    """Fitting a run into memory."""

    auto_fit: bool = option(
        False,
        "Before the run, compute what a step with the longest prompts takes, and where that is too much take the "
        "remedies that change nothing of what is learned: smaller micro-batches with more accumulation, a lower "
        "--logit_memory_gb or --rollout_token_budget, --gradient_checkpointing. It says what it took, run.json has it, "
        "and a run that would not fit even so is refused.",
        needs=tuple(f"not {name}: it reads the batch sizes before; qwenvl plan names flags" for name in SPLITTERS),
    )
    fit_memory_gb: float | None = option(
        None,
        "Memory in GB that --auto_fit fits the run into, above 0. On a CPU it counts tensors alone, not the program.",
        unset="nine tenths of the device's memory, on a CPU of what is free",
        above=0,
        needs="auto_fit",
    )
