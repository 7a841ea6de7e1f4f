"""The flags: the options of all rooms, by topic.

Each room has its options in a file of its own, ``options.py``, with the standard library alone, so that ``--help`` does
not wait for torch. The help text and ``docs/flags.md`` are made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

from qwenvl.config.trainer_options import TrainerOptions
from qwenvl.data.options import DataOptions
from qwenvl.grpo.options import ObjectiveOptions
from qwenvl.model.options import ModelOptions
from qwenvl.option import Options, all_options, choices_of, kinds_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

FLAG_GROUPS = (ModelOptions, DataOptions, RewardOptions, SamplingOptions, ObjectiveOptions, TrainerOptions)


def describe(group: type[Options]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, kind of value, default and help text of each option of a group."""
    hints = get_type_hints(group)
    for each in all_options(group):
        kind = "|".join(choices_of(hints[each.name])) or kinds_of(hints[each.name])[0].__name__
        yield each.name, kind, each.default, each.metadata["help"]
