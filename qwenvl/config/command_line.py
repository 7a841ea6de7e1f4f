"""Makes a ``GRPOConfig`` or ``WarmupConfig`` from a command line, with or without a settings file.

    train_grpo.py --model_name_or_path MODEL --dataset_use data.json --max_steps 100
    train_grpo.py run.yaml
    train_grpo.py --config run.yaml --max_steps 100

A file sets the same names as the flags, and flags override it. Its values are read as the command line reads them:
``1e-6`` is a number and ``no`` a word, which YAML 1.1 sees otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from qwenvl.config.checks import problems_of_machine
from qwenvl.config.flags import FALSE, TRUE, FlagParser
from qwenvl.config.other_names import unknown_flag
from qwenvl.config.settings import OF_TRAINING, TrainingOptions, TrainingSettings, WarmupSettings, flags_elsewhere
from qwenvl.data.prompt_settings import trained_otherwise
from qwenvl.failure import tell
from qwenvl.files import plain_file
from qwenvl.option import Options, all_options, kinds_of, no_effect, row_text, set_among, was_set

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

WITH_ROWS = {each.name for each in fields(TrainingOptions) if each.metadata.get("rows")}
"""Options that a settings file can give as a mapping, ``loss_type: {cispo: {bound: 4}}``."""
FILES_AND_FLAGS = "[FILE.yaml | FILE.json] [--config FILE] [--dry_run [all]] [--flag value ...]"


def parse_args(argv: Sequence[str] | None = None) -> GRPOConfig:
    """The settings of a training run from ``argv``, by default those of the process.

    Wrong settings end the process with status 2 and a message that says where, what and what to do.
    """
    return read_command("qwenvl train", sys.argv[1:] if argv is None else argv)


def read_command(command: str, argv: Sequence[str], begins: bool = False) -> Any:
    """The ``GRPOConfig`` or ``WarmupConfig`` of a command line. Wrong settings end the process with status 2.

    All that can be found out without torch is checked before torch is loaded.

    Args:
        command: ``qwenvl train`` or ``qwenvl warmup``.
        begins: the run begins on this machine: check models, data and packages too.
    """
    warmup = command == "qwenvl warmup"
    kind = WarmupSettings if warmup else TrainingSettings
    try:
        values = parsed(*split_file(argv), kind)
        settings = kind(**values)
        problems = list(_missing(settings))
        if begins:
            problems += _of_machine(settings)
        if problems:
            raise ValueError("\n".join(problems))
        if begins:
            for path in (settings.model_name_or_path, settings.start_from_weights):
                if path is not None:
                    tell_otherwise(path, settings)
            announce_loading(f"{command}: ")
        from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig

        config = WarmupConfig(**values) if warmup else GRPOConfig(**values)
        if begins and config.load_in_4bit:
            from qwenvl.model.loading import require_four_bit

            require_four_bit(config.device)
        return config
    except (ValueError, OSError, ImportError) as error:
        tell(f"usage: {command} {FILES_AND_FLAGS}\nerror: {error}")
        raise SystemExit(2) from None


_OF_DRY_RUN = {"all": "all", **dict.fromkeys(TRUE, "changed"), **dict.fromkeys(FALSE, "")}
"""The values of ``--dry_run``, each with what is shown."""


def without_dry_run(argv: Sequence[str]) -> tuple[list[str], str]:
    """The other arguments, and what ``--dry_run`` shows: "changed" or "all" settings, or "" where it does not stand."""
    words = list(argv)
    for place, word in enumerate(words):
        flag = word[:2] + word[2:].replace("-", "_")  # flags are written with either
        name, equals, value = flag.partition("=")
        if name != "--dry_run":
            continue
        before = words[:place]
        behind = words[place + 1 :]
        if not equals and (value := "".join(behind[:1])).lower() in _OF_DRY_RUN:
            behind = behind[1:]
        elif not equals:
            value = "true"
        if value.lower() in _OF_DRY_RUN:
            return [*before, *behind], _OF_DRY_RUN[value.lower()]
    return words, ""


def config_from(
    file: Path | None,
    argv: Sequence[str],
    only: Collection[str] | None = None,
    check: Callable[[Any], None] | None = None,
) -> GRPOConfig:
    """The ``GRPOConfig`` of ``file``, overridden by the flags in ``argv``. See ``parsed``.

    Args:
        check: a further check of the settings on this machine, called before torch is loaded.
    """
    values = parsed(file, argv, TrainingSettings, only)
    settings = TrainingSettings(**values)
    if check is not None:
        check(settings)
        announce_loading()
    from qwenvl.config.grpo_config import GRPOConfig

    return GRPOConfig(**values)


def tell_otherwise(model: str, flags: Any) -> None:
    """Say in the first process which settings of prompts differ from those that a model was trained with."""
    if int(os.environ.get("RANK", "0")) == 0:
        for sentence in trained_otherwise(model, flags):
            print(f"worth a look: {sentence}", file=sys.stderr, flush=True)


def announce_loading(command: str = "") -> None:
    """Say in the first process why nothing happens: PyTorch takes seconds to load. Silent once it is there."""
    if "torch" not in sys.modules and int(os.environ.get("RANK", "0")) == 0:
        print(f"{command}loading PyTorch and transformers", file=sys.stderr, flush=True)


def parsed(
    file: Path | None,
    argv: Sequence[str],
    kind: type[TrainingSettings | WarmupSettings],
    only: Collection[str] | None = None,
    more: Collection[str] = (),
) -> dict[str, Any]:
    """The settings of ``file``, overridden by the flags in ``argv``, by name. Settings at their default are left out.

    Args:
        kind: a dataclass with all settings that there are.
        only: names of the settings that are taken from the file. None for all.
        more: further flags of the command, as corrections of a misspelt one.

    Raises:
        ValueError: an unknown name or an unfit value. The message says whether the file or the command line has it.
    """
    known = {each.name: each for each in fields(kind)}
    hints = get_type_hints(kind)
    elsewhere = flags_elsewhere(kind)
    parser = FlagParser(raises=True, add_help=False)
    parser.add_options(kind)
    defaults = vars(parser.parse_args([]))
    namespace = argparse.Namespace()
    # The command line comes second, so that its flags override the file.
    for where, tokens in ((f"{file}: ", file_tokens(file, kind, only)), ("", list(argv))):
        parser.where = where
        _, unknown = parser.parse_known_args(tokens, namespace)
        if unknown and not unknown[0].startswith("-") and not Path(unknown[0]).suffix:
            raise ValueError(
                f"{where}stray word {unknown[0]}: the flag before it takes no such value, or there is none"
            )
        if unknown:
            raise ValueError(unknown_flag(unknown[0], {*known, *more}, elsewhere))
    values = {name: value for name, value in vars(namespace).items() if value != defaults[name]}
    for name, value in values.items():  # --report_to takes one word, or several as a list
        if isinstance(value, list) and len(value) == 1 and str in kinds_of(hints[name]):
            values[name] = value[0]
    return values


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
    file: Path | None, kind: type[TrainingSettings | WarmupSettings], only: Collection[str] | None = None
) -> list[str]:
    """The settings of a YAML or JSON file as a command line. Empty without a file.

    Scalars of YAML stay strings, but for null: the flags interpret them. A file of training serves for a warm-up too:
    settings that a warm-up does not have are passed over.

    Args:
        kind, only: as for ``parsed``.

    Raises:
        ValueError: the file cannot be read, is not a mapping, repeats a name or has an unknown one.
    """
    if file is None:
        return []
    from qwenvl.yaml_text import StringLoader, read_yaml, without_repeats

    try:
        text = plain_file(file).read_text(encoding="utf-8-sig")
        if file.suffix == ".json":
            settings = json.loads(text, object_pairs_hook=without_repeats)
        else:
            settings = read_yaml(text, StringLoader)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}" if error.strerror else str(error)) from None
    except RecursionError:
        raise ValueError(f"{file}: nested too deeply for settings") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(settings, dict):
        got = "nothing: it is empty" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{file}: expected settings as `name: value`, got {got}")
    known = {each.name: each for each in fields(kind)}
    if kind is WarmupSettings:
        settings = {name: value for name, value in settings.items() if name in known or name not in OF_TRAINING}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"{file}: {unknown_flag(str(name), known, flags_elsewhere(kind))}")
        default = known[name].default
        if value is None and default is MISSING:
            raise ValueError(f"{file}: {name} cannot be null; leave it out")
        if value is None and default is not None:
            raise ValueError(f"{file}: {name} cannot be null; leave it out for its default, {default}")
    if only is not None:
        settings = {name: value for name, value in settings.items() if name in only}
    try:
        return tokens_of(settings)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def changed_flags(
    config: Any, groups: Sequence[type[Options]], more: Sequence[str] = (), without: Collection[str] = ()
) -> list[str]:
    """The flags of some groups of options that were set to other values than their defaults, as a user would type them.

    Put them at the end of a command: a word behind ``--use_cpu`` would be its value.

    Args:
        config: a ``GRPOConfig`` or a ``WarmupConfig``.
        more: names of further settings.
        without: names of settings that the other command does not take.
    """
    names: list[str] = []
    for group in groups:
        names += [each.name for each in all_options(group)]
    changed = {}
    for name in [*names, *more]:
        # A setting that the user left at None may have another value by now.
        if name not in without and name in config.set_by_user and was_set(config, name):
            changed[name] = getattr(config, name)
    words = []
    for token in tokens_of(changed):
        flag, separator, value = token.partition("=")
        if not flag.startswith("--") or not separator or value.startswith("-"):
            words.append(token)
        elif value == "True":
            words.append(flag)
        else:
            words += [flag, value]
    return words


def typed(value: Any) -> Any:
    """A mapping or list with its numbers, truth values and nulls in place of texts that stand in YAML without quotes.

    For settings that are mappings themselves, such as ``lr_scheduler_kwargs``: no flag knows the types inside. They are
    written as in JSON, and True, False and None are truth values and a null too.

    Raises:
        ValueError: a bare yes, no, on or off, which some read as a truth value and others as a word.

    Example:
        >>> from qwenvl.yaml_text import StringLoader, read_yaml
        >>> typed(read_yaml("{min_lr: 1e-7, name: one, label: '1'}", StringLoader))
        {'min_lr': 1e-07, 'name': 'one', 'label': '1'}
    """
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if not isinstance(value, str):
        return value
    from qwenvl.yaml_text import Bare

    if not isinstance(value, Bare):
        return value
    try:
        return json.loads(value)
    except ValueError:
        word = value.lower()
    if word in ("yes", "no", "on", "off"):
        raise ValueError(f"{value} may be a truth value or a text: write true or false, or put it in quotes")
    return {"true": True, "false": False, "none": None}.get(word, str(value))


def tokens_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings by name as a command line. A setting of None is left at its default.

    Raises:
        ValueError: a word of a list would be read as a flag, or a bare word in a mapping has two readings.
    """
    tokens = []
    for name, value in settings.items():
        try:
            tokens += _tokens(name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return tokens


def _tokens(name: str, value: Any) -> list[str]:
    """A setting as words of a command line, none for None."""
    if value is None:
        return []
    if isinstance(value, dict):
        write = row_text if name in WITH_ROWS else json.dumps
        return [f"--{name}={write(typed(value))}"]
    if not isinstance(value, list):
        return [f"--{name}={value}"]
    words = [row_text(typed(each) if isinstance(each, dict) else each) for each in value]
    for word in words:
        if word.startswith("--"):
            raise ValueError(f"{word!r} reads as a flag: a word of a list can't begin with --")
    return [f"--{name}", *words]


def _missing(config: Any) -> Iterator[str]:
    """Problems of settings that a command needs. A script may give the trainer these things itself."""
    if config.model_name_or_path is None:
        yield "--model_name_or_path is missing: a folder or a name such as Qwen/Qwen3.5-4B"
    if config.dataset_use is None:
        yield "--dataset_use is missing: a name of the catalog or a path of a .json or .jsonl file"
    for name in ("eval_strategy", "eval_on_start"):
        if getattr(config, name) not in ("no", False) and config.eval_dataset_use is None:
            value = f" {config.eval_strategy}" if name == "eval_strategy" else ""
            yield f"--{name}{value} needs --eval_dataset_use: nothing to evaluate"
    if config.eval_dataset_use is None:
        for name in set_among(config, "eval_sample_size", "per_device_eval_batch_size"):
            yield no_effect(f"--{name}", without="--eval_dataset_use")
    for name in ("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"):
        if getattr(config, name) is not None and not config.push_to_hub:
            yield f"--{name} has no effect without --push_to_hub"


def _of_machine(config: Any) -> Iterator[str]:
    """Problems of files and packages that a run on this machine lacks."""
    from qwenvl.data.records.catalog import resolve_datasets
    from qwenvl.model.hub import require_model
    from qwenvl.rewards.resolve import RewardError, check_names

    # Of a teacher only the checkpoint: it may also be a name, such as "self". Plans and warm-ups have no teacher.
    models = {name: getattr(config, name, None) for name in ("model_name_or_path", "ref_model_name_or_path")}
    models["start_from_weights"] = getattr(config, "start_from_weights", None)
    models["teacher"] = getattr(config, "teacher_path", None)
    for flag, model in models.items():
        try:
            require_model(model or "")
        except OSError as error:
            yield f"--{flag} {error}"
    for name in ("dataset_use", "eval_dataset_use"):
        names = getattr(config, name)
        if names:
            try:
                resolve_datasets(names, config.dataset_catalog, f"--{name}")
            except (ValueError, OSError) as error:
                yield str(error)
    for name in getattr(config, "reward_model", None) or ():  # a warm-up has none
        try:
            require_model(name)
        except OSError as error:
            yield f"--reward_model {error}"
    try:
        check_names(getattr(config, "reward_funcs", None) or (), getattr(config, "external_plugins", None) or ())
    except RewardError as error:
        yield f"--reward_funcs: {error}"
    yield from problems_of_machine(config)
