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
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import yaml

from qwenvl.config.flags import FLAG_GROUPS, FlagParser
from qwenvl.failure import tell
from qwenvl.files import plain_file
from qwenvl.option import Options, kinds_of, row_text
from qwenvl.yaml_text import PlainLoader, read_yaml, without_repeats

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig, PolicyConfig

Config = TypeVar("Config", bound="PolicyConfig")

WITH_ROWS = {each.name for group in FLAG_GROUPS for each in fields(group) if each.metadata.get("rows")}
"""Options that a settings file can give as a mapping, ``loss_type: {cispo: {bound: 4}}``."""
FILES_AND_FLAGS = "[FILE.yaml | FILE.json] [--config FILE] [--dry_run] [--flag value ...]"
USAGE = f"qwenvl train {FILES_AND_FLAGS}"
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


def settings_from(argv: Sequence[str], kind: type[Config], usage: str, ignored: Collection[str] = ()) -> Config:
    """The settings of a run of some kind from a command line. Wrong ones end the process with status 2 and a message.

    Args:
        usage: shown before the message.
        ignored: names that a file may have, for another command.
    """
    try:
        config = config_from(*split_file(argv), kind, ignored=ignored)
        require_what_a_run_needs(config)
    except ValueError as error:
        tell(f"usage: {usage}\nerror: {error}")
        raise SystemExit(2) from None
    return config


def config_from(
    file: Path | None,
    argv: Sequence[str],
    kind: type[Config],
    only: Collection[str] | None = None,
    ignored: Collection[str] = (),
) -> Config:
    """The settings of ``file``, overridden by the flags in ``argv``.

    Args:
        only: names of the settings that are taken from the file. None for all.
        ignored: further names that the file may have, for another command.

    Raises:
        ValueError: an unknown name or unfit value, and whether it stands in the file or on the command line.
    """
    parser = FlagParser(raises=True, add_help=False)
    parser.add_options(kind)
    namespace = argparse.Namespace()
    for parser.where, tokens in ((f"{file}: ", file_tokens(file, kind, only, ignored)), ("", list(argv))):
        _, unknown = parser.parse_known_args(tokens, namespace)
        if unknown:
            raise ValueError(kind.unknown(unknown[0]))
    for name, hint in get_type_hints(kind).items():  # --report_to takes one word, or several as a list
        value = getattr(namespace, name, None)
        if isinstance(value, list) and len(value) == 1 and str in kinds_of(hint):
            setattr(namespace, name, value[0])
    return kind(**vars(namespace))


def split_file(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The settings file of a command line, given first or by ``--config``, and the other arguments."""
    finder = FlagParser(raises=True, add_help=False)
    finder.add_argument("--config", type=Path)
    found, rest = finder.parse_known_args(argv)
    if rest and rest[0] == argv[0] and Path(rest[0]).suffix in (".yaml", ".yml", ".json"):
        if found.config is not None:
            raise ValueError(f"two settings files: {rest[0]} and {found.config}; give one")
        return Path(rest[0]), rest[1:]
    return found.config, rest


def file_tokens(
    file: Path | None, kind: type[PolicyConfig], only: Collection[str] | None = None, ignored: Collection[str] = ()
) -> list[str]:
    """The settings of a YAML or JSON file as a command line. Empty without a file.

    Args:
        only, ignored: as for ``config_from``.

    Raises:
        ValueError: the file cannot be read, is not a mapping, repeats a name or has an unknown one.
    """
    if file is None:
        return []
    try:
        settings = read_settings(file)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}" if error.strerror else str(error)) from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(settings, dict):
        got = "nothing: it is empty" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{file}: expected settings as `name: value`, got {got}")
    known = {each.name: each.default for each in fields(kind)}
    settings = {name: value for name, value in settings.items() if name not in ignored}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"{file}: {kind.unknown(str(name))}")
        if value is None and known[name] is not None:
            raise ValueError(f"{file}: {name} cannot be null; leave it out for its default, {known[name]}")
    return tokens_of(
        {
            name: typed(value) if isinstance(value, dict) or name == "reward_funcs" else value
            for name, value in settings.items()
            if only is None or name in only
        }
    )


def read_settings(file: Path) -> Any:
    """What a JSON or YAML file holds. Scalars of YAML stay strings, but for null.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON or YAML, or gives a name twice.
    """
    text = plain_file(file).read_text(encoding="utf-8-sig")
    if file.suffix == ".json":
        return json.loads(text, object_pairs_hook=without_repeats)
    return read_yaml(text, StringLoader)


def typed(value: Any) -> Any:
    """A mapping or list with its numbers, truth values and nulls, written as in JSON, in place of their strings.

    For settings that are mappings themselves, such as ``lr_scheduler_kwargs``: no flag knows the types inside.

    Example:
        >>> typed({"min_lr": "1e-7", "name": "one"})
        {'min_lr': 1e-07, 'name': 'one'}
    """
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


class StringLoader(PlainLoader):
    """YAML without guesses: ``1e-6``, ``no`` and ``2026-01-31`` are strings, for the flag they set to interpret."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (read by PyYAML from the class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def tokens_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings by name as a command line. None leaves one at its default."""
    tokens = []
    for name, value in settings.items():
        if isinstance(value, list):
            tokens += [f"--{name}", *map(row_text, value)]
        elif value is not None:
            as_row = isinstance(value, dict) and name in WITH_ROWS
            shown = row_text(value) if as_row else json.dumps(value) if isinstance(value, dict) else value
            tokens.append(f"--{name}={shown}")
    return tokens


def require_what_a_run_needs(config: PolicyConfig) -> None:
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
    parser = FlagParser(
        usage=usage,
        add_help=False,
        description=f"{purpose} A file sets the same names as the flags; flags override it.",
        epilog="Every setting of transformers' TrainingArguments is a flag too, such as --output_dir, --max_steps, "
        "--gradient_accumulation_steps, --eval_strategy, --save_total_limit, --deepspeed, --resume_from_checkpoint.",
    )
    listed = set(without)
    for group in groups:
        parser.add_options(group, listed, parser.add_argument_group((group.__doc__ or "").rstrip(".")))
        listed |= {each.name for each in fields(group)}
    return parser.format_help()
