"""Options of a run and its display, of a warm-up, and those of the Trainer with other defaults or bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, no_effect, not_with, option, set_among

STOP_STEPS = 10
"""Optimizer steps whose mean loss ``stop_below_loss`` is compared with."""


@dataclass
class DeviceOptions(Options):
    """Device, precision and seed."""

    bf16: bool | None = option(None, "Compute in bfloat16.", unset="where a CUDA device has it, never on a CPU")
    fp16: bool = option(False, "Compute in float16, in training with a scale on the loss.")
    tf32: bool | None = option(None, "Products of float32 in TF32 on a GPU.", unset="as PyTorch has it")
    use_cpu: bool = option(False, "Compute on the CPU, whatever else there is.")
    seed: int = option(42, "Seed of everything that is drawn, 0 to 4294967295.", least=0, most=2**32 - 1)


@dataclass
class LoaderOptions(Options):
    """Loading of data."""

    dataloader_num_workers: int | None = option(
        None,
        "Processes for each training process that decode clips while a step runs, at least 0; 0 decodes between steps. "
        "Each has a decoder with --decode_memory_gb.",
        unset="2 on a CUDA device with 3 cores and 2 GB of free /dev/shm for each process; 1 with 2 cores; else 0",
        least=0,
    )
    dataloader_prefetch_factor: int | None = option(
        None,
        "Micro-batches that each of these processes loads ahead, at least 1. Needs --dataloader_num_workers.",
        unset="2",
        least=1,
    )
    data_seed: int | None = option(None, "Seed of the order of the records.", unset="that of --seed")


@dataclass
class TrainerOptions(Options):
    """Settings of the Trainer with another default. All others keep theirs."""

    learning_rate: float | None = option(None, "Peak learning rate, above 0.", unset="1e-06, with LoRA 1e-05", above=0)
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
    logging_steps: float = option(
        1,
        "Optimizer steps between log entries, above 0. A step takes seconds, so each is logged. Needs "
        "--logging_strategy steps or (--eval_strategy steps and no --eval_steps).",
        above=0,
    )
    save_steps: float = option(
        100, "Optimizer steps between checkpoints, above 0. Needs --save_strategy steps.", above=0
    )
    # Set, not offered: ``NOT_OF_OURS`` of ``trainer_checks`` has the reasons, and other values are refused.
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    ddp_broadcast_buffers: bool | None = False
    logging_nan_inf_filter: bool = False


@dataclass
class RunOptions(Options):
    """Start, end and display of a run."""

    resume: str = option(
        "never",
        "What the run resumes. never: nothing, it is a new one, and an --output_dir with checkpoints is refused. auto: "
        "the newest whole checkpoint of --output_dir, or the beginning where there is none, so that a queue system can "
        "start the same command again. Else the folder of a checkpoint.",
    )
    overwrite_output_dir: bool = option(
        False,
        "Let a new run replace the model and the rows of an earlier one in --output_dir. Checkpoints are never "
        "replaced: delete them, or give another folder. Needs --resume never.",
    )
    save_on_signal: float = option(
        600,
        "Seconds that the run has, after SIGTERM, SIGHUP or SIGUSR1, to finish its step and to save a checkpoint. It "
        "then ends with status 0. 0: a signal ends it at once, without a checkpoint.",
        least=0,
    )
    stall_timeout: float = option(
        60,
        "Minutes without progress after which the run ends and prints the stacks of its threads. Progress is the "
        "beginning of a phase of a step, a sampled token, a micro-batch, a batch of evaluation or a checkpoint. 0: no "
        "limit.",
        least=0,
    )
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop",
        "Treatment of an optimizer step whose loss or gradients are NaN or infinite. stop: the run ends. skip: the "
        "step changes no weight and is counted, and after three in a row the run ends. The message names its records. "
        "Not with --deepspeed. Not with --optim lomo or adalomo.",
    )

    display: Literal["rich", "plain", "none"] | None = option(
        None,
        "How progress is shown. rich: a board of a few lines at the foot of the terminal, with curves of reward, KL, "
        "entropy, equal groups and lengths, the seconds of a step by phase, and memory. plain: lines that stay, which "
        "a file or a pipe always gets. none: nothing. During a long step the board shows its phase, and plain lines "
        "show it each minute. Warnings and the summary are shown in any case. Not with --disable_tqdm.",
        unset="rich on a terminal, else plain; with --disable_tqdm the Trainer's own lines",
    )

    def problems(self) -> Iterator[str]:
        if self.resume != "never" and self.overwrite_output_dir:
            yield no_effect("--overwrite_output_dir", without="--resume never")
        if self.resume != "never" and getattr(self, "resume_from_checkpoint", None):
            yield "--resume and --resume_from_checkpoint name what the run goes on from twice: leave one of them out"


@dataclass
class WarmupOptions(Options):
    """Targets and end of a warm-up."""

    target_template: str | None = option(
        None,
        "Text of a target. {solution} becomes what the record's answer block holds, or its whole solution where it "
        "has no such block. {thinking} becomes the record's field `thinking`, or the think block of its solution: "
        "'<think>{thinking}</think><answer>{solution}</answer>'. Not with --from_rollouts.",
        unset="the solution as it stands, in <answer> tags where it has none, after the record's `thinking` in <think> "
        "tags where it has one",
    )
    from_rollouts: str | None = option(
        None,
        "Folder of a run whose best completions are the targets, in the place of solutions (rejection sampling). "
        "Records of --dataset_use without such a completion are left out.",
        unset="the records' solutions",
    )
    min_reward: float | None = option(
        None,
        "Least total reward of a completion of --from_rollouts to learn from. Required there: total rewards have no "
        "fixed scale. Needs --from_rollouts.",
        unset="none",
    )
    max_per_prompt: int = option(
        4,
        "Most completions of --from_rollouts to learn from for each prompt, at least 1; equal texts count once. Those "
        "with the highest reward are taken, and of equal ones the latest. Needs --from_rollouts.",
        least=1,
    )
    stop_below_loss: float | None = option(
        None,
        f"End when the mean loss of the last {STOP_STEPS} optimizer steps is below this, in nats per target token, "
        "above 0. A low value leaves a policy whose completions of a prompt are all the same, which GRPO cannot "
        "learn from. Needs --logging_steps 1.",
        unset="the run ends with --max_steps or --num_train_epochs",
        above=0,
    )
    learning_rate: float | None = option(None, "Peak learning rate, above 0.", unset="1e-05, with LoRA 0.0001", above=0)
    per_device_eval_batch_size: int | None = option(
        None,
        "Prompts per process that evaluation computes together, at least 1. More: less time, more memory.",
        unset="that of training",
        least=1,
    )

    def problems(self) -> Iterator[str]:
        if self.from_rollouts is None:
            for name in set_among(self, "min_reward", "max_per_prompt"):
                yield no_effect(f"--{name}", without="--from_rollouts")
        elif self.target_template is not None:
            yield not_with("--target_template", "--from_rollouts", "a completion is taught as it was written")
        if self.target_template is not None and "{solution}" not in self.target_template:
            yield f"--target_template must hold {{solution}}, got {self.target_template!r}"
        if self.from_rollouts is not None and self.min_reward is None:
            yield "--from_rollouts needs --min_reward: the least total reward of a completion to learn from"
