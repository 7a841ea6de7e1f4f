"""The flags: the options of all rooms, by topic.

Each room has its options in a file of its own, ``options.py``, with the standard library alone, so that ``--help`` does
not wait for torch. The help text and ``docs/flags.md`` are made from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from typing import Any, get_type_hints

from qwenvl.config.own_options import DisplayOptions, FitOptions, RunOptions, TrainerOptions
from qwenvl.data.options import DataOptions, DifficultyOptions
from qwenvl.grpo.options import FilterOptions, ObjectiveOptions
from qwenvl.model.options import ModelOptions
from qwenvl.option import Options, all_options, choices_of, kinds_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

FLAG_GROUPS = (
    ModelOptions,
    DataOptions,
    RewardOptions,
    SamplingOptions,
    ObjectiveOptions,
    FilterOptions,
    DifficultyOptions,
    RunOptions,
    FitOptions,
    TrainerOptions,
    DisplayOptions,
)


def describe(group: type[Options]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, kind of value, default and help text of each option of a group."""
    hints = get_type_hints(group)
    for each in all_options(group):
        kind = "|".join(choices_of(hints[each.name])) or kinds_of(hints[each.name])[0].__name__
        yield each.name, kind, each.default, each.metadata["help"]


def add_options(parser: argparse._ActionsContainer, group: type[Options], without: Collection[str] = ()) -> None:
    """A flag for each option of ``group`` but those of the names ``without``."""
    hints = get_type_hints(group)
    for each in all_options(group):
        if each.name in without:
            continue
        flag, text, hint = f"--{each.name}", each.metadata["help"].replace("%", "%%"), hints[each.name]
        if bool in kinds_of(hint):
            parser.add_argument(flag, action="store_true", help=text)
            continue
        choices, kinds = choices_of(hint) or None, kinds_of(hint)
        kind = str if choices or str in kinds else kinds[0]
        shown = text if each.default is None else f"{text} [%(default)s]"
        parser.add_argument(flag, type=kind, choices=choices, default=each.default, help=shown)
