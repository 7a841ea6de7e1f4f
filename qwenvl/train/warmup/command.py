"""``qwenvl warmup``: teach a checkpoint to answer in the right form, so that GRPO finds rewards to compare."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from qwenvl.config.command_line import FILES_AND_FLAGS, read_command, without_dry_run
from qwenvl.config.flags import WARMUP_GROUPS
from qwenvl.config.help import USUAL, USUAL_OF_A_WARMUP, wants_help
from qwenvl.failure import counted, tells_errors_once
from qwenvl.train.display.console import ends_at_ctrl_c, say
from qwenvl.train.run.signals import ends_at_signals

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import WarmupConfig
    from qwenvl.train.warmup.trainer import WarmupTrainer

COMMAND = "qwenvl warmup"
PURPOSE = (
    "Teach Qwen-VL by cross-entropy to give the records' solutions, or the best completions of a run, before GRPO.\n"
    "Settings that only training by rewards reads are refused as flags, and passed over in a file."
)


def main(argv: list[str] | None = None) -> None:
    """Trains, evaluates if there is data for it, saves model and processor. See ``--help`` for the flags."""
    with tells_errors_once(), ends_at_ctrl_c(COMMAND), ends_at_signals(COMMAND):
        start(sys.argv[1:] if argv is None else argv)


def start(argv: list[str]) -> None:
    """Reads the settings, looks for the data, and runs what they describe, alone in its folder."""
    shown = {name: text for names in (USUAL_OF_A_WARMUP, USUAL) for name, text in names.items()}
    if wants_help(argv, f"{COMMAND} {FILES_AND_FLAGS}", PURPOSE, WARMUP_GROUPS, shown):
        return
    argv, dry = without_dry_run(argv)
    args = read_command(COMMAND, argv, begins=True)
    from qwenvl.train.run.command import alone_in_its_folder

    with alone_in_its_folder(COMMAND, args, bool(dry)):
        run(args, dry)


def run(args: WarmupConfig, dry: str) -> None:
    """Trains, evaluates and saves, or says why there is nothing to do."""
    from qwenvl.train.display.summary import collected_warnings, findings_of, run_summary
    from qwenvl.train.run.command import beginning_of, carry_out, told_of_settings
    from qwenvl.train.warmup.trainer import WarmupTrainer

    with told_of_settings(COMMAND), collected_warnings() as early:
        beginning = beginning_of(COMMAND, args)
        if beginning.finished:
            return
        if dry:
            plan = dry_run(args, dry)
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


def dry_run(args: WarmupConfig, what: str) -> str:
    """The settings, parameters, first prompts and first targets of a warm-up. See ``display.dry_run``."""
    from qwenvl.data.options import PromptOptions
    from qwenvl.model.loading import load_processor, load_without_weights
    from qwenvl.train.assemble import build_policy, weight_dtype
    from qwenvl.train.data_sets import build_dataset
    from qwenvl.train.display import dry_run as shown
    from qwenvl.train.warmup.targets import TargetCollator, narrowed, shown_targets, targets_of

    policy = build_policy(load_without_weights(str(args.model_name_or_path)), args)
    targets = targets_of(args)
    collator = TargetCollator(load_processor(str(args.model_name_or_path)), PromptOptions.of(args), targets, args)
    uses = ((args.dataset_use, True, "--dataset_use"), (args.eval_dataset_use, False, "--eval_dataset_use"))
    dataset, held_out = (
        narrowed(build_dataset(use, args, targets, collator, training=training), targets, flag)
        for use, training, flag in uses
    )
    shown.say_sizes(args, dataset, held_out)
    return shown.sections_text(
        {
            **shown.settings_section(args, WARMUP_GROUPS, what),
            "parameters that learn": shown.parameter_lines(policy, weight_dtype(args, args.lora_enable)),
            "one step": [counted(shown.prompts_of_a_step(args), "prompt")],
            f"prompts of the first of {counted(len(dataset), 'record')}": shown.prompt_lines(dataset, collator),
            "their targets": shown_targets(dataset, collator, shown.RECORDS),
        }
    )


def next_step(args: WarmupConfig) -> str:
    """What to type after a warm-up."""
    folder = str(args.output_dir).rstrip("/")
    command = ["qwenvl", "train", "--model_name_or_path", folder, "--dataset_use", str(args.dataset_use)]
    return shlex.join([*command, "--output_dir", f"{folder}-grpo"]) + "   (with the same flags for frames and prompts)"


if __name__ == "__main__":
    main()
