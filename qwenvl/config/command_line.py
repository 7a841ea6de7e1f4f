"""From a command line, with or without a settings file, to a ``GRPOConfig``.

    train_grpo.py --model_name_or_path MODEL --dataset_use data.json --max_steps 100
    train_grpo.py run.yaml
    train_grpo.py --config run.yaml --max_steps 100

A file sets the same names as the flags, and flags override it. Its values are read as the command line reads them:
``1e-6`` is a number and ``no`` a word, which YAML 1.1 sees otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, field, fields, make_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints

from qwenvl.config.flags import FLAG_GROUPS, describe
from qwenvl.config.unknown import unknown_flag
from qwenvl.failure import tell
from qwenvl.option import Options, kinds_of
from qwenvl.rewards.function import written

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

Config = TypeVar("Config", bound="GRPOConfig")

FILES_AND_FLAGS = "[FILE.yaml | FILE.json] [--config FILE] [--dry_run] [--flag value ...]"
USAGE = f"qwenvl train {FILES_AND_FLAGS}"
NEGATIVE_NUMBER = re.compile(r"-(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
"""Which words are numbers and no flags. That of ``argparse`` takes ``-1e-6`` for a flag."""
PURPOSE = (
    "Train Qwen-VL by GRPO. --dry_run shows what a run would do (settings, rewards, parameters that learn, tokens of "
    "the first prompts) and ends."
)


def parse_args(argv: Sequence[str] | None = None) -> GRPOConfig:
    """The settings of a training run from ``argv``, by default those of the process.

    Wrong settings end the process with status 2 and a message that says where, what and what to do, ``--help`` with 0.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if wants_help(argv):
        print(help_text())
        raise SystemExit(0)
    from qwenvl.config.grpo_config import GRPOConfig

    return settings_from(argv, GRPOConfig, USAGE)


def wants_help(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help."""
    return bool({"-h", "--help"} & set(argv))


def settings_from(argv: Sequence[str], kind: type[Config], usage: str, only: Collection[str] | None = None) -> Config:
    """The settings of a run of some kind from a command line. Wrong ones end the process with status 2 and a message.

    Args:
        usage: shown before the message.
        only: names of the settings that are taken from a file. None for all.
    """
    try:
        config = config_from(*split_file(argv), kind, only)
        require_what_a_run_needs(config)
    except ValueError as error:
        tell(f"usage: {usage}\nerror: {error}")
        raise SystemExit(2) from None
    return config


def config_from(
    file: Path | None, argv: Sequence[str], kind: type[Config], only: Collection[str] | None = None
) -> Config:
    """The settings of ``file``, overridden by the flags in ``argv``.

    Args:
        only: names of the settings that are taken from the file. None for all.

    Raises:
        ValueError: an unknown name or unfit value, and whether it stands in the file or on the command line.
    """
    parser = make_parser(kind)
    known = {each.name: each.default for each in fields(kind)}
    namespace = argparse.Namespace()
    for where, tokens in ((f"{file}: ", file_tokens(file, known, only)), ("", list(argv))):
        parser.error = raising(where)
        _, unknown = parser.parse_known_args(tokens, namespace)
        if unknown:
            raise ValueError(unknown_flag(unknown[0], known))
    for name in ("report_to", "optim_target_modules"):
        if isinstance(value := getattr(namespace, name), list) and len(value) == 1:
            setattr(namespace, name, value[0])
    return kind(**vars(namespace))


def make_parser(kind: type[GRPOConfig]) -> argparse.ArgumentParser:
    """A parser with every field of ``kind`` as a flag."""
    from transformers import HfArgumentParser

    hints = get_type_hints(kind)
    flags = [(each.name, hints[each.name], for_parser(each, hints[each.name])) for each in fields(kind)]
    parser = HfArgumentParser(make_dataclass("Flags", flags), add_help=False, allow_abbrev=False)
    parser._negative_number_matcher = NEGATIVE_NUMBER
    for action in parser._actions:
        if action.dest in ("report_to", "optim_target_modules"):  # a string or a list; read by the parser as a string
            action.nargs = "+"
    return parser


def for_parser(each: Field, hint: Any) -> Any:
    """A field as ``HfArgumentParser`` takes it, which hands all metadata on to ``add_argument``."""
    metadata = {key: value for key, value in each.metadata.items() if key not in ("bounds", "needs")}
    if "bounds" in each.metadata:
        metadata["help"] = metadata["help"].replace("%", "%%")  # argparse expands it; transformers doubles its own
    if kinds_of(hint) == (bool, NoneType) and each.default is None:
        metadata |= {"nargs": "?", "const": True}  # the flag alone means True
    return field(default=each.default, default_factory=each.default_factory, init=each.init, metadata=metadata)


def raising(where: str) -> Any:
    """What a parser does with an error: raise it, prefixed with the place."""

    def error(message: str) -> NoReturn:
        raise ValueError(where + message)

    return error


def split_file(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The settings file of a command line, given first or by ``--config``, and the other arguments."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    finder.error = raising("")
    found, rest = finder.parse_known_args(argv)
    if rest and rest[0] == argv[0] and Path(rest[0]).suffix in (".yaml", ".yml", ".json"):
        if found.config is not None:
            raise ValueError(f"two settings files: {rest[0]} and {found.config}; give one")
        return Path(rest[0]), rest[1:]
    return found.config, rest


def file_tokens(file: Path | None, known: dict[str, Any], only: Collection[str] | None = None) -> list[str]:
    """The settings of a YAML or JSON file as a command line. Empty without a file.

    Args:
        known: names of all settings, with their defaults.
        only: names of the settings that are taken. None for all.

    Raises:
        ValueError: the file cannot be read, is not a mapping, repeats a name or has an unknown one.
    """
    if file is None:
        return []
    from qwenvl.config.settings_file import read_settings, typed

    try:
        settings = read_settings(file)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}" if error.strerror else str(error)) from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(settings, dict):
        got = "nothing: it is empty" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{file}: expected settings as `name: value`, got {got}")
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"{file}: {unknown_flag(str(name), known)}")
        if value is None and known[name] is not None:
            raise ValueError(f"{file}: {name} cannot be null; leave it out for its default, {known[name]}")
    return tokens_of(
        {
            name: typed(value) if isinstance(value, dict) or name == "reward_funcs" else value
            for name, value in settings.items()
            if only is None or name in only
        }
    )


def tokens_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings by name as a command line. None leaves one at its default."""
    tokens = []
    for name, value in settings.items():
        if isinstance(value, list):
            tokens += [f"--{name}", *map(written, value)]
        elif value is not None:
            tokens.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return tokens


def require_what_a_run_needs(config: GRPOConfig) -> None:
    """Raise ValueError where the command lacks something that a script may do with the trainer itself."""
    if config.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: a folder or a name such as Qwen/Qwen3.5-4B")
    if config.dataset_use is None:
        raise ValueError("--dataset_use is missing: a name of the catalog or a path of a .json or .jsonl file")
    if config.eval_strategy != "no" and config.eval_dataset_use is None:
        raise ValueError(f"--eval_strategy {config.eval_strategy.value} needs --eval_dataset_use: nothing to evaluate")
    if config.eval_on_start and config.eval_dataset_use is None:
        raise ValueError("--eval_on_start needs --eval_dataset_use: nothing to evaluate")
    for name in ("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"):
        if getattr(config, name) is not None and not config.push_to_hub:
            raise ValueError(f"--{name} has no effect without --push_to_hub")


def help_text(
    usage: str = USAGE,
    purpose: str = PURPOSE,
    groups: Sequence[type[Options]] = FLAG_GROUPS,
    without: Collection[str] = (),
) -> str:
    """The flags of this library by topic, with their defaults.

    Args:
        purpose: what the command does, and what ``--dry_run`` shows.
        groups: the topics. An option that stands in two of them is that of the first.
        without: names of options that are left out.
    """
    parser = argparse.ArgumentParser(
        usage=usage,
        add_help=False,
        description=f"{purpose} A file sets the same names as the flags; flags override it.",
        epilog="Every setting of transformers' TrainingArguments is a flag too, such as --output_dir, --max_steps, "
        "--gradient_accumulation_steps, --eval_strategy, --save_total_limit, --deepspeed, --resume_from_checkpoint.",
    )
    told = set(without)
    for group in groups:
        section = parser.add_argument_group((group.__doc__ or "").rstrip("."))
        for name, kind, default, text in describe(group):
            if name in told:
                continue
            told.add(name)
            shown = text if default is None else f"{text} [{default}]"
            section.add_argument(f"--{name}", metavar=kind, help=shown.replace("%", "%%"))
    return parser.format_help()
