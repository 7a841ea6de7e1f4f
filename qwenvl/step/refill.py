"""Dynamic sampling: groups that teach nothing are replaced by groups of other prompts (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from qwenvl.data.order import RefillOrder
from qwenvl.grpo.diagnostics import equal_groups
from qwenvl.step.compare import value_table
from qwenvl.step.groups import join, select, without_media
from qwenvl.step.meter import Meter
from qwenvl.step.processes import Processes
from qwenvl.step.types import Scored, Stage, StepContext
from qwenvl.types import TOTAL, PromptBatch, RewardBatch


@dataclass(frozen=True)
class Refill:
    """Makes the groups of a step have rewards that differ, as far as there are such groups.

    It wraps the stages that sample and score. Where all rewards of a group are equal, another prompt is sampled in its
    place, in rounds that all processes make together. A process without groups to replace takes part with empty
    batches. Micro-batches keep their sizes. A group that no round could replace stays: its rewards give it no
    advantages, and a KL penalty that is part of the reward still may.

    Attributes:
        groups: samples and scores prompts.
        dataset, collate: make prompts from the keys of the order.
        order: which records take the places.
        by: the reward that has to differ, ``total`` or the name of a function.
        rounds: most rounds of a step.
        group_size: completions per prompt.
        by_function: with ``total``, a group stays where any function that weighs differs (``gdpo``).
        processes: all of the run.
    """

    groups: Stage[PromptBatch, Scored]
    dataset: Dataset
    collate: Callable[[list[Any]], dict[str, PromptBatch]]
    order: RefillOrder
    by: str
    rounds: int
    group_size: int
    by_function: bool
    processes: Processes

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[Scored]:
        """The micro-batches with other groups in the places of those with equal rewards, which become ``dropped``."""
        places = [_Place(each, self.equal(each.rewards)) for each in self.groups(batches, step)]
        rounds = 0
        for number in range(1, self.rounds + 1):
            drawn = self._draw(places, step, number)
            with step.meter.time("time/wait_s"):  # for the processes that are still sampling
                own = sum(len(keys) for keys in drawn)
                drawn_by_all = sum(self.processes.gather(own))
            if not drawn_by_all:
                break
            rounds = number
            with step.meter.time("time/refill_s"):
                prompts = self.loaded(drawn)
            refills = self.groups(prompts, step.drawing_for("refill", step.finished_steps, number))
            for place, refill in zip(places, refills, strict=True):
                place.take(refill, self.equal(refill.rewards))
        _report(places, rounds, step.meter)
        return [place.filled() for place in places]

    def _draw(self, places: Sequence[_Place], step: StepContext, number: int) -> list[list[tuple[int, int]]]:
        """Keys of the data set for the open places of each micro-batch, fewer where records run out."""
        missing = sum(len(place.open) for place in places)
        had: set[int] = set()
        for place in places:
            had |= place.indices
        keys = iter(self.order.draw(step.finished_steps, step.epoch, number, missing, had))
        return [list(islice(keys, len(place.open))) for place in places]

    def loaded(self, keys: Sequence[Sequence[tuple[int, int]]]) -> list[PromptBatch]:
        """The prompts of the keys of each place."""
        batches = []
        for of_place in keys:
            samples = [self.dataset[key] for key in of_place]
            batches.append(self.collate(samples)["prompts"])
        return batches

    def equal(self, rewards: RewardBatch) -> list[bool]:
        """P, whether a group has equal rewards. A group without values of the function ``by`` goes by its total."""
        size = self.group_size
        of_functions = dict(zip(rewards.names, value_table(rewards)[:, 1:].unbind(1), strict=True))
        is_equal = equal_groups(rewards.total, size)
        if self.by != TOTAL:
            values = of_functions[self.by]
            has_none = values.isnan().view(len(is_equal), size).all(1)
            return torch.where(has_none, is_equal, equal_groups(values, size)).tolist()
        if self.by_function:  # each function is normalised by itself: equal totals may hide differences
            for name, weight in zip(rewards.names, rewards.weights, strict=True):
                if weight:
                    is_equal = is_equal & equal_groups(of_functions[name], size)
        return is_equal.tolist()


def _report(places: Sequence[_Place], rounds: int, meter: Meter) -> None:
    """Counts the groups that were kept, and those that no round could replace."""
    for place in places:
        size = len(place.parts[0])
        sampled = sum(map(len, place.parts))
        meter.mean("filter/kept_frac", 1.0, weight=place.varied)
        meter.mean("filter/kept_frac", 0.0, weight=sampled - place.varied)
        meter.mean("filter/unfilled_frac", len(place.open) / max(1, size), weight=size)
    meter.mean("filter/rounds", rounds)


class _Group(NamedTuple):
    """The origin of a group: the part of a micro-batch that it was sampled in, and its number in this part."""

    part: int
    number: int


class _Place:
    """A micro-batch, whose groups with equal rewards wait for others to take their places.

    Attributes:
        parts: what was sampled for it: for the prompts that the Trainer drew, and in each round.
        open: places of groups that are still to be replaced.
        varied: groups whose rewards differ, of all that were sampled.
    """

    def __init__(self, first: Scored, equal: Sequence[bool]) -> None:
        self.parts = [first]
        self.open = [p for p, same in enumerate(equal) if same]
        self.varied = len(first) - len(self.open)
        self._kept = [_Group(0, p) for p in range(len(first))]  # the group of each place

    @property
    def indices(self) -> set[int]:
        """The numbers of all records that were drawn for it."""
        indices: set[int] = set()
        for part in self.parts:
            indices.update(record.index for record in part.batch.records)
            indices.update(bad.record.index for bad in part.batch.bad)
        return indices

    def take(self, refill: Scored, equal: Sequence[bool]) -> None:
        """Groups of a round whose rewards differ take the first open places."""
        varied = [p for p, same in enumerate(equal) if not same]
        for number in varied:
            place = self.open.pop(0)
            self._kept[place] = _Group(len(self.parts), number)
        self.varied += len(varied)
        self.parts.append(refill)

    def filled(self) -> Scored:
        """The groups to train on, as many as the micro-batch had, with what was drawn and dropped on the way."""
        first, *refills = self.parts
        filled = first
        if any(group.part > 0 for group in self._kept):
            starts = list(accumulate(map(len, self.parts), initial=0))  # of each part among all groups
            filled = select(join(self.parts), [starts[group.part] + group.number for group in self._kept])
        dropped = []
        for k, part in enumerate(self.parts):
            unused = [number for number in range(len(part)) if _Group(k, number) not in self._kept]
            if unused:
                dropped.append(without_media(select(part, unused)))
        return replace(
            filled, dropped=tuple(dropped), refills=tuple(without_media(each).batch for each in refills)
        )
