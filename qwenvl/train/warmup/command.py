"""``qwenvl warmup``: teach a checkpoint to answer in the right form, so that GRPO finds rewards to compare."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from qwenvl.config.command_line import FILES_AND_FLAGS, help_text, settings_from, wants_help
from qwenvl.failure import tells_errors_once
from qwenvl.train.display.console import ends_at_ctrl_c, say
from qwenvl.train.run.signals import ends_at_signals

if TYPE_CHECKING:
    from qwenvl.train.warmup.config import WarmupConfig
    from qwenvl.train.warmup.trainer import WarmupTrainer

COMMAND = "qwenvl warmup"
USAGE = f"{COMMAND} {FILES_AND_FLAGS}"
PURPOSE = (
    "Teach Qwen-VL by cross-entropy to give the records' solutions, or the best completions of a run, before GRPO. "
    "--dry_run shows what a run would do (settings, parameters that learn, first prompts and targets) and ends. "
    "Settings that only training by rewards reads are refused as flags, and passed over in a file."
)


def main(argv: list[str] | None = None) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags."""
    with tells_errors_once(), ends_at_ctrl_c(COMMAND), ends_at_signals(COMMAND):
        start(sys.argv[1:] if argv is None else argv)


def start(argv: list[str]) -> None:
    """Reads the settings, looks for the data, and runs what they describe, alone in its folder."""
    say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
    from qwenvl.train.run.command import alone_in_its_folder
    from qwenvl.train.warmup.config import GROUPS, OF_TRAINING, WarmupConfig

    if wants_help(argv):
        print(help_text(USAGE, PURPOSE, GROUPS))
        raise SystemExit(0)
    dry = "--dry_run" in argv
    flags = [argument for argument in argv if argument != "--dry_run"]
    args = settings_from(flags, WarmupConfig, USAGE, ignored=OF_TRAINING)
    with alone_in_its_folder(COMMAND, args, dry):
        run(args, dry)


def run(args: WarmupConfig, dry: bool) -> None:
    """Trains, evaluates and saves, or says why there is nothing to do."""
    from qwenvl.train.display.summary import collected_warnings, findings_of, run_summary
    from qwenvl.train.run.command import beginning_of, carry_out, told_of_settings
    from qwenvl.train.warmup.dry_run import dry_run
    from qwenvl.train.warmup.trainer import WarmupTrainer

    with told_of_settings(COMMAND), collected_warnings() as early:
        beginning = beginning_of(COMMAND, args)
        if beginning.finished:
            return
        if dry:
            plan = dry_run(args)
            if args.process_index == 0:
                print(plan)
            return
        trainer = WarmupTrainer(args=args)
        say(first_target(trainer))
    warnings = [*carry_out(COMMAND, trainer, beginning), *early]
    if trainer.is_world_process_zero():
        say(run_summary(args.output_dir, warnings, findings_of(args.output_dir), [next_step(args)]))


def first_target(trainer: WarmupTrainer) -> str:
    """The target of the first record, as the model reads it: what the run teaches.

    Raises:
        RecordError, BadMediaError: as in training.
    """
    from qwenvl.train.warmup.targets import shown_targets

    shown = list(shown_targets(trainer.train_dataset, trainer.data_collator, 1))
    if not any("</think>" in line for line in shown):
        shown.append("without thinking: where rewards want a <think> block, give the records a `thinking`")
    return "\n".join(["the first target:", *(f"  {line}" for line in shown)])


def next_step(args: WarmupConfig) -> str:
    """What to type after a warm-up."""
    folder = str(args.output_dir).rstrip("/")
    command = ["qwenvl", "train", "--model_name_or_path", folder, "--dataset_use", str(args.dataset_use)]
    return shlex.join([*command, "--output_dir", f"{folder}-grpo"]) + "   (with the same flags for frames and prompts)"


if __name__ == "__main__":
    main()
