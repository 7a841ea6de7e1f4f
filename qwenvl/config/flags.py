"""The flags: the options of all rooms by topic, those of the Trainer, and the parser of every command that has some.

Each room has its options in a file of its own, ``options.py``, with the standard library alone. Those of the Trainer
are read from the source of transformers. So neither ``--help`` nor a misspelt flag waits for torch.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_type_hints

from qwenvl.config.checks import problems_of_run
from qwenvl.config.own_options import RunOptions, TrainerOptions, WarmupOptions
from qwenvl.data.options import DataOptions, DecodingOptions, FrameOptions, PromptOptions, ReadingOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import LoraOptions, ModelOptions, ReferenceOptions, TuneOptions
from qwenvl.option import Options, all_options, choices_of, did_you_mean, kinds_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions
from qwenvl.tools.options import ToolOptions

SHARED_GROUPS: tuple[type[Options], ...] = (
    ModelOptions,
    TuneOptions,
    LoraOptions,
    DataOptions,
    ReadingOptions,
    FrameOptions,
    DecodingOptions,
    PromptOptions,
    ToolOptions,
    RunOptions,
    TrainerOptions,
)
"""The options that a warm-up reads too."""
FLAG_GROUPS: tuple[type[Options], ...] = (
    *SHARED_GROUPS,
    ReferenceOptions,
    RewardOptions,
    SamplingOptions,
    ObjectiveOptions,
)
WARMUP_GROUPS: tuple[type[Options], ...] = (WarmupOptions, *SHARED_GROUPS)
_REASONS: dict[type[Options], str] = {
    ReferenceOptions: "a warm-up has no reference",
    RewardOptions: "a warm-up scores nothing",
    SamplingOptions: "a warm-up samples nothing",
    ObjectiveOptions: "the loss of a warm-up is the cross-entropy of its targets",
}
OF_TRAINING = {each.name: reason for group, reason in _REASONS.items() for each in fields(group)}
"""The flags of training that a warm-up does not have, each with the reason. A settings file may have them."""


class _Types(dict):
    """The names in annotations of the Trainer's settings: enumerations have their values, other unknown names text."""

    def __missing__(self, name: str) -> Any:
        return str


@cache
def trainer_settings() -> type:
    """A dataclass of the settings of transformers' ``TrainingArguments``, from its source: the import takes seconds.

    An enumeration is a ``Literal`` of its values. A default that is no literal is None.
    """
    found = find_spec("transformers")
    folder = Path(next(iter(found.submodule_search_locations or ()))) if found else Path()
    names, settings = _Types(Any=Any, Literal=Literal, dict=dict, list=list, int=int, float=float, bool=bool), []
    for file in ("trainer_utils.py", "training_args.py"):
        tree: Any = ast.parse((folder / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                values: Any = [each.value for each in node.body if isinstance(each, ast.Assign)]
                names[node.name] = Literal[tuple(each.value for each in values)]
            if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments":
                settings = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return make_dataclass("TrainerSettings", [_setting(each, names) for each in settings])


def _setting(row: Any, names: dict[str, Any]) -> tuple[str, Any, Any]:
    """Name, type and field of a setting, by its assignment in the source."""
    given = {each.arg: each.value for each in row.value.keywords}
    metadata = given.get("metadata", ast.Dict([], []))
    texts = {key.value: _literal(value) for key, value in zip(metadata.keys, metadata.values, strict=True)}
    made: Any = field(
        **({"default_factory": list} if "default_factory" in given else {"default": _literal(given["default"])}),
        metadata={key: value for key, value in texts.items() if value is not None},
    )
    hint = eval(ast.unparse(row.annotation), {"__builtins__": {}}, names)
    if any(isinstance(each, str) for each in choices_of(hint)):  # the Trainer takes enumerations as any text
        hint = next(part for part in (*get_args(hint), hint) if choices_of(part))
    return row.target.id, hint, made


def _literal(node: Any) -> Any:
    """The value of a literal. None for other expressions."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


@cache
def settings_class(groups: tuple[type[Options], ...]) -> Any:
    """A dataclass of all settings of a run, which checks itself as its config does, without torch and its machine."""

    def check(self: Any) -> None:
        if problems := problems_of_run(self):
            raise ValueError("\n".join(problems))

    return make_dataclass("Settings", [], bases=(*groups, trainer_settings()), namespace={"__post_init__": check})


def describe(group: type[Options]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, kind of value, default and help text of each option of a group."""
    hints = get_type_hints(group)
    for each in all_options(group):
        yield each.name, kind_of(each, hints[each.name]), each.default, help_of(each)


def kind_of(each: Field, hint: Any) -> str:
    """The values of an option in words: its choices or rows, or the name of its type."""
    rows = each.metadata.get("rows") or ()
    if None in rows:
        return "bool|NAME"
    choices = [str(each) for each in rows or choices_of(hint)]
    return "|".join(choices) or next(each for each in kinds_of(hint) if each is not NoneType).__name__


def help_of(each: Field) -> str:
    """The help of an option, with the names of the arguments of its rows."""
    shown = [f"{names}: {', '.join(part.name for part in fields(kind))}" for names, kind in arguments(each).items()]
    return each.metadata["help"] + (f" Arguments of {'; of '.join(shown)}." if shown else "")


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
        self.where = ""  # named before an error, such as a file

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        args = [*(sys.argv[1:] if args is None else args)]
        return super().parse_known_args(list(map(self._as_known, args, [*args[1:], ""])), namespace)

    def _as_known(self, word: str, following: str) -> str:
        """A flag with underscores, and with its value where it is a switch that stands alone."""
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
        """A flag for each field of a dataclass but those of the names ``without``.

        Args:
            group: the section of the help that they stand in.
        """
        hints = get_type_hints(kind)
        for each in fields(kind):
            if each.init and each.name not in without:
                _add_option(group or self, each, hints[each.name])


def _add_option(parser: argparse._ActionsContainer, each: Field, hint: Any) -> None:
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
        part = next(get_args(part)[0] for part in (hint, *get_args(hint)) if kinds_of(part) == (list,))
        named |= {"nargs": "+", "type": part if part in (int, float) else str}
    elif choices:
        named |= {"choices": choices}
    else:
        named |= {"type": kinds[0] if kinds[0] in (int, float) else str}
    named |= {key: each.metadata[key] for key in ("nargs", "const", "choices") if key in each.metadata}
    parser.add_argument(f"--{each.name}", **named)
    if bool in kinds and default is True:
        parser.add_argument(f"--no_{each.name}", dest=each.name, action="store_false", help=argparse.SUPPRESS)


TRUE, FALSE = ("true", "yes", "1", "t", "y"), ("false", "no", "0", "f", "n")


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
