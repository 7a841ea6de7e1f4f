"""Reads options as flags, and prints the three forms of ``--help``.

Each room has its options in a file of its own, ``options.py``, with the standard library alone. So neither ``--help``
nor a misspelt flag waits for torch.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from textwrap import fill
from types import NoneType
from typing import Any, NoReturn, get_args, get_type_hints

from qwenvl.config.other_names import unknown_flag
from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.option import Options, all_options, choices_of, did_you_mean, kinds_of

HELP_WIDTH = 100
"""Columns of the texts of a short help."""


def describe(group: type[Options]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, kind of value, default and help text of each option of a group."""
    hints = get_type_hints(group)
    for each in all_options(group):
        yield each.name, kind_of(each, hints[each.name]), each.default, help_of(each)


def kind_of(each: Field, hint: Any) -> str:
    """The values of an option in words: its choices or rows, or the name of its type."""
    rows = each.metadata.get("rows") or ()
    kinds = kinds_of(hint)
    if None in rows and bool in kinds:  # a row of the user's own has the key None
        return "bool|NAME"
    choices = [str(choice or "NAME") for choice in rows or choices_of(hint)]
    if choices:
        return "|".join(choices)
    return next(kind for kind in kinds if kind is not NoneType).__name__


def help_of(each: Field) -> str:
    """The help of an option, with the names of the arguments of its rows."""
    shown: list[str] = []
    for rows, kind in arguments(each).items():
        names = ", ".join(part.name for part in fields(kind))
        shown.append(f"{rows}: {names}")
    text = each.metadata["help"]
    return f"{text} Arguments of {'; of '.join(shown)}." if shown else text


def arguments(each: Field) -> dict[str, type[Options]]:
    """The arguments of the rows of an option, by the names of the rows that share them."""
    named: dict[type[Options], list[str]] = {}
    for name, kind in (each.metadata.get("rows") or {}).items():
        named.setdefault(kind, []).append(name or "NAME")
    return {", ".join(names): kind for kind, names in named.items() if fields(kind)}


class FlagParser(argparse.ArgumentParser):
    """A parser of flags. ``--learning-rate`` is ``--learning_rate``, and ``-1e-6`` a number.

    An error exits with status 2, or with ``raises`` is a ValueError.
    """

    def __init__(self, *, raises: bool = False, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._negative_number_matcher = re.compile(r"-(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
        self.raises = raises
        self.where = ""  # the beginning of an error's message, such as the name of a file

    def parse_known_args(  # type: ignore[override]  # the library has an overload for each namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        following = [*words[1:], ""]
        known = [self._as_known(word, after) for word, after in zip(words, following, strict=False)]
        return super().parse_known_args(known, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown and not unknown[0].startswith("-"):
            self.error(f"stray word {unknown[0]}: one more than there may be; leave it out")
        if unknown:
            self.error(unknown_flag(unknown[0], self._names(found)))
        return found

    def _names(self, found: argparse.Namespace) -> set[str]:
        """The names of all flags, with those of the command that was found."""
        names = {flag.lstrip("-") for flag in self._option_string_actions}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                names |= action.choices[getattr(found, action.dest)]._names(found)
        return names

    def _as_known(self, word: str, following: str) -> str:
        """A flag with underscores, and with the value True where it is a switch that stands alone.

        argparse would take the word behind such a switch for its value, as ``nargs="?"`` allows one.
        """
        flag, equals, value = word.partition("=")
        underscored = "--" + flag[2:].replace("-", "_")
        action = self._option_string_actions.get(underscored) if word.startswith("--") else None
        if action is None:
            return word
        alone = action.type is truth and not equals and following.lower() not in (*TRUE, *FALSE)
        return underscored + ("=True" if alone else equals + value)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices or ())
            raise

    def error(self, message: str) -> NoReturn:
        if self.raises:
            raise ValueError(self.where + message)
        super().error(message)

    def add_options(self, kind: type, without: Collection[str] = (), group: argparse._ActionsContainer | None = None):
        """Add a flag for each field of a dataclass, except those of the names ``without``.

        Args:
            group: the section of the help for these flags.
        """
        hints = get_type_hints(kind)
        for each in fields(kind):
            if each.init and each.name not in without:
                _add_option(group or self, each, hints[each.name])


def _add_option(parser: argparse._ActionsContainer, each: Field, hint: Any) -> None:
    """Add the flag of a field, read by its type."""
    default = each.default if each.default_factory is MISSING else each.default_factory()
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    choices = choices_of(hint) if str not in kinds else None
    named: dict[str, Any] = {"default": default, "help": argparse.SUPPRESS}
    if "help" in each.metadata:
        shown = "" if default is None else " [%(default)s]"  # a command may set another
        named |= {"help": help_of(each).replace("%", "%%") + shown, "metavar": kind_of(each, hint)}
    if bool in kinds:
        named |= {"nargs": "?", "const": True, "type": truth_or_text if str in kinds else truth}
    elif list in kinds:
        # The list is the hint itself, or a part of a union such as `list[str] | None`.
        of_list = next(part for part in (hint, *get_args(hint)) if kinds_of(part) == (list,))
        item = get_args(of_list)[0]
        named |= {"nargs": "+", "type": item if item in (int, float) else str}
    elif choices:
        named |= {"choices": choices}
    else:
        named |= {"type": kinds[0] if kinds[0] in (int, float) else str}
    named |= {key: each.metadata[key] for key in ("nargs", "const", "choices") if key in each.metadata}
    parser.add_argument(f"--{each.name}", **named)
    if bool in kinds and default is True:
        parser.add_argument(f"--no_{each.name}", dest=each.name, action="store_false", help=argparse.SUPPRESS)


TRUE = ("true", "yes", "1", "t", "y")
FALSE = ("false", "no", "0", "f", "n")


def truth(text: str) -> bool:
    """True or False, as people write it."""
    if text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    raise ValueError(text)


def truth_or_text(text: str) -> bool | str:
    """True, False, or any other text."""
    try:
        return truth(text)
    except ValueError:
        return text


# ---- --help

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


def _wrapped(text: str) -> str:
    """The paragraphs of a text in lines for a terminal."""
    return "\n\n".join(fill(paragraph, HELP_WIDTH) for paragraph in text.split("\n\n"))


def wants_help(
    argv: Sequence[str],
    usage: str,
    purpose: str,
    groups: Sequence[type[Options]],
    shown: dict[str, str],
    *,
    trains: bool = True,
    without: Collection[str] = (),
) -> bool:
    """Whether a command line requests help, which is then printed.

    ``--help`` prints the flags of ``shown``, ``--help all`` every flag, and ``--help WORD`` those with the word.

    Args:
        groups: the options by topic. An option in two of them is shown in the first.
        trains: the command has the settings of the Trainer and reads files of settings.
        without: names of options that the command does not have.
    """
    if not {"-h", "--help"} & set(argv):
        return False
    place = min(argv.index(each) for each in ("-h", "--help") if each in argv)
    following = argv[place + 1] if place + 1 < len(argv) else ""
    word = "" if following.startswith("-") else following.lower()
    every: tuple[type, ...] = (*groups, TrainerSettings) if trains else tuple(groups)
    head = f"usage: {usage}\n\n{_wrapped(purpose)}"
    if not word:
        more = "--help all lists every flag, --help WORD those with the word in their names or texts."
        if trains:
            more = f"A YAML or JSON file sets the same names. {more}"
        print("\n".join([head, "", *_usual_lines(every, shown), "", _wrapped(more)]))
        return True
    parser = FlagParser(usage=usage, add_help=False, description=purpose)
    listed = set(without)  # names that are not shown again
    for group in every:
        own = {each.name: each for each in fields(group) if "help" in each.metadata and each.name not in listed}
        found = {name for name, each in own.items() if word == "all" or word in f"{name} {help_of(each)}".lower()}
        if found:
            hidden = {each.name for each in fields(group)} - found
            topic = parser.add_argument_group(str(group.__doc__).rstrip("."))
            parser.add_options(group, without=hidden, group=topic)
        listed |= own.keys()
    print(parser.format_help() if parser._option_string_actions else f"{head}\n\nno flag has the word {word}")
    return True


def _usual_lines(groups: Sequence[type], shown: dict[str, str]) -> Iterator[str]:
    """A line for each usual flag of a command: its name, its text and its default."""
    defaults: dict[str, object] = {}
    for group in reversed(groups):  # the first group of an option has its default
        defaults |= {each.name: each.default for each in fields(group)}
    for name, text in shown.items():
        if name not in defaults and name != "dry_run":
            continue
        default = defaults.get(name)
        ending = "" if default in (None, False) else f" [{default}]"
        yield f"  --{name:<28}{text}{ending}"
