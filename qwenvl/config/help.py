"""``--help`` of the commands that train: the flags of a usual run, all flags, or those that a word is found in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from qwenvl.config.flags import FlagParser, help_of, trainer_settings

USUAL = {
    "model_name_or_path": "model: a folder or a name on the hub",
    "dataset_use": "training data: names of the catalog, files, hf:name:split",
    "output_dir": "folder of the run",
    "reward_funcs": "rewards, by name or as file.py:name",
    "external_plugins": "Python files with rewards of your own",
    "max_steps": "optimizer steps; or --num_train_epochs",
    "per_device_train_batch_size": "prompts per GPU and micro-batch",
    "gradient_accumulation_steps": "micro-batches of an optimizer step",
    "grpo_sample_size": "completions per prompt, the group",
    "generation_max_length": "longest completion in tokens",
    "video_max_frames": "most frames of a clip",
    "learning_rate": "peak learning rate",
    "grpo_beta": "weight of the KL term",
    "lora_enable": "train adapters in place of the whole model",
    "gradient_checkpointing": "less memory, about a fifth more time",
    "eval_dataset_use": "held-out data",
    "eval_strategy": "steps, epoch or no: when to evaluate",
    "eval_steps": "optimizer steps between evaluations",
    "save_steps": "optimizer steps between checkpoints",
    "resume": "auto: resume from the newest checkpoint, or begin",
    "report_to": "trackers, such as tensorboard or wandb",
    "seed": "seed of the run",
    "use_cpu": "train on the CPU",
    "dry_run": "show what the run would do, and end; all: with every setting",
}
"""The flags of a usual run in the order of their use, each with its line of help."""
USUAL_OF_A_WARMUP = {
    "target_template": "text of a target, with {solution} in it",
    "from_rollouts": "learn the best completions of this run's folder",
    "min_reward": "least reward of such a completion",
    "stop_below_loss": "end when the mean loss of ten steps is below this",
}


def wants_help(
    argv: Sequence[str], usage: str, purpose: str, groups: Sequence[type[Any]], shown: dict[str, str]
) -> bool:
    """Whether a command line requests help, which is then printed.

    ``--help`` prints the flags of ``shown``, ``--help all`` every flag, and ``--help WORD`` those with the word.

    Args:
        groups: the options by topic. One that is in two of them is that of the first.
    """
    if not {"-h", "--help"} & set(argv):
        return False
    following = [*argv, ""][min(argv.index(each) for each in ("-h", "--help") if each in argv) + 1]
    word = "" if following.startswith("-") else following.lstrip("-").lower()
    parts = [(str(group.__doc__).rstrip("."), group) for group in groups]
    parts.append(("Settings of transformers' TrainingArguments", trainer_settings()))
    known: dict[str, object] = {}
    for _, group in parts:
        known = {each.name: each.default for each in fields(group)} | known
    head = f"usage: {usage}\n\n{purpose}"
    if not word:
        lines = [
            f"  --{name:<28}{text}" + ("" if known.get(name) in (None, False) else f" [{known[name]}]")
            for name, text in shown.items()
            if name in known or name == "dry_run"
        ]
        more = "--help all lists every flag, --help WORD those with the word in their names or texts."
        print("\n".join([head, "", *lines, "", f"A YAML or JSON file sets the same names. {more}"]))
        return True
    parser = FlagParser(usage=usage, add_help=False, description=purpose)
    listed: set[str] = set()
    for title, group in parts:
        own = {each.name: each for each in fields(group) if "help" in each.metadata and each.name not in listed}
        found = {name for name, each in own.items() if word == "all" or word in f"{name} {help_of(each)}".lower()}
        if found:
            hidden = {each.name for each in fields(group)} - found
            parser.add_options(group, hidden, parser.add_argument_group(title))
        listed |= own.keys()
    print(parser.format_help() if parser._option_string_actions else f"{head}\n\nno flag has the word {word}")
    return True
