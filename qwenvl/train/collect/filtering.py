"""Dynamic sampling: groups that teach nothing are replaced by groups of other prompts (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.order import RefillOrder
from qwenvl.grpo.diagnostics import equal_groups
from qwenvl.option import row_of
from qwenvl.train.assemble import Parts
from qwenvl.train.collect.collector import Collector
from qwenvl.train.collect.contrast import NAME
from qwenvl.train.collect.scored import Scored
from qwenvl.train.meter import Meter
from qwenvl.train.step import Experience
from qwenvl.types import TOTAL, PromptBatch, Record, RewardBatch


class UnfilledStepError(RuntimeError):
    """Groups with equal rewards were left after the last round (``unfilled=stop`` of ``filter_groups``)."""


@dataclass(frozen=True, kw_only=True)
class FilteringCollector(Collector):
    """A collector whose groups have rewards that differ, as far as there are such groups.

    Where all rewards of a group are equal, another prompt is sampled in its place, in rounds that all processes make
    together. A process without groups to replace takes part with empty batches. Micro-batches keep their sizes. A
    group that no round could replace stays, and its advantages are 0.

    Attributes:
        dataset, collate: make prompts from the keys of the order.
        order: which records take the places.
        by: the reward that has to differ, ``total`` or the name of a function.
        rounds: most rounds of a step.
        stop: raise where groups are left that no round could replace.
        measure: takes the name and the value of a metric, and its weight.
    """

    dataset: Dataset
    collate: Callable[[list[Any]], dict[str, PromptBatch]]
    order: RefillOrder
    by: str = TOTAL
    rounds: int = 3
    stop: bool = False
    measure: Callable[[str, float, float], None] = lambda name, value, weight: None

    def collect(
        self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState | None = None
    ) -> list[Experience]:
        """See ``Collector.collect``. ``Experience.dropped`` has the replaced groups.

        Raises:
            UnfilledStepError: on all processes, where ``stop`` says so.
        """
        places = [_Place(each, self._equal(each.rewards)) for each in self._scored(model, batches, state)]
        made = 0
        for number in range(1, self.rounds + 1):
            keys = self._drawn(places, number, state)
            with self.clock("time/wait_s"):  # for the processes that are still sampling
                drawn = sum(self._from_all(sum(map(len, keys))))
            if not drawn:
                break
            made, step = number, _step(state)
            for place, refill in zip(
                places, self._scored(model, self._loaded(keys), state, "refill", step, number), strict=True
            ):
                place.take(refill, self._equal(refill.rewards))
        self._report(places, made)
        experiences = self._compared([place.filled() for place in places])
        return [place.noted(each) for place, each in zip(places, experiences, strict=True)]

    def _equal(self, rewards: RewardBatch) -> list[bool]:
        """P, whether a group has equal rewards. A group without values of the function ``by`` goes by its total."""
        total = equal_groups(rewards.total, self.group_size)
        columns = {
            name: torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)
            for name, values in zip(rewards.names, rewards.components, strict=True)
        }
        if self.by != TOTAL:
            absent = columns[self.by].isnan().view(len(total), self.group_size).all(1)
            return torch.where(absent, total, equal_groups(columns[self.by], self.group_size)).tolist()
        if self.advantage_estimator == "gdpo":  # which normalises each function: equal totals may hide differences
            weighed = [columns[name] for name, weight in zip(rewards.names, rewards.weights, strict=True) if weight]
            total = torch.stack([total, *(equal_groups(values, self.group_size) for values in weighed)]).all(0)
        return total.tolist()

    def _drawn(self, places: Sequence[_Place], number: int, state: TrainerState | None) -> list[list[tuple[int, int]]]:
        """The keys of a round for each place, as many as it has groups to replace, or fewer where records run out."""
        epoch = 0 if state is None else int(state.epoch or 0)
        had = {record.index for place in places for record in place.records}
        missing = sum(len(place.open) for place in places)
        keys = iter(self.order.draw(_step(state), epoch, number, missing, had))
        return [list(islice(keys, len(place.open))) for place in places]

    def _loaded(self, keys: Sequence[Sequence[tuple[int, int]]]) -> list[PromptBatch]:
        with self.clock("time/refill_s"):
            return [self.collate([self.dataset[key] for key in each])["prompts"] for each in keys]

    def _report(self, places: Sequence[_Place], rounds: int) -> None:
        """Counts what was kept, and raises where too little was."""
        for place in places:
            for sampled, groups in ((1.0, place.varied), (0.0, place.sampled - place.varied)):
                self.measure("filter/kept_frac", sampled, groups)
            self.measure("filter/unfilled_frac", len(place.open) / max(1, len(place.first)), len(place.first))
        self.measure("filter/rounds", rounds, 1)
        if self.stop and (left := sum(self._from_all(sum(len(place.open) for place in places)))):
            raise UnfilledStepError(
                f"{left} groups of the step have equal rewards ({self.by}) after {rounds} rounds of other prompts "
                "(unfilled=stop of --filter_groups): take records that are neither too easy nor too hard, a reward "
                "with finer steps, a higher --generation_temperature or more max_rounds"
            )


def filtering(collector: Collector, args: GRPOConfig, parts: Parts, meter: Meter) -> Collector:
    """The collector, which replaces groups where the flags ask for it.

    Args:
        parts: of the trainer.

    Raises:
        ValueError: there is no such reward, or the data set can't be drawn from by number.
    """
    dataset = parts.train_dataset
    groups = row_of(args, "filter_groups")
    if groups is None or dataset is None:
        return collector
    if not isinstance(dataset, GRPODataset):
        raise ValueError("--filter_groups needs a GRPODataset, as load_dataset makes it")
    by, rounds = groups.name or TOTAL, groups.arguments.max_rounds
    names = (TOTAL, *collector.rubric.names, *([NAME] if collector.contrast is not None else []))
    if by not in names:
        raise ValueError(f"--filter_groups {by}: no such reward in this run; give one of {', '.join(names)}")
    step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    order = RefillOrder(
        dataset.parts,
        args.seed if args.data_seed is None else args.data_seed,
        longest=step * (4 + rounds),
        process=args.process_index,
        processes=args.world_size,
    )
    return FilteringCollector(
        **{each.name: getattr(collector, each.name) for each in fields(collector)},
        dataset=dataset,
        collate=parts.collator,
        order=order,
        by=by,
        rounds=rounds,
        stop=groups.arguments.unfilled == "stop",
        measure=meter.mean,
    )


@dataclass
class _Place:
    """A micro-batch, whose groups with equal rewards wait for others to take their places.

    Attributes:
        first: what was sampled for the prompts that the Trainer drew.
        equal: P, whether a group of it has equal rewards.
        refills: what was sampled in each round.
        open: places of groups that are still to be replaced.
        varied: groups whose rewards differ, of all that were sampled.
    """

    first: Scored
    equal: list[bool]
    refills: list[Scored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = [p for p, equal in enumerate(self.equal) if equal]
        self.varied = len(self.first) - len(self.open)
        self._kept = [(0, p) for p in range(len(self.first))]  # round and place in it, of each group

    @property
    def sampled(self) -> int:
        """Groups that were sampled for this micro-batch."""
        return sum(len(part) for part in self._parts)

    @property
    def records(self) -> list[Record]:
        """All that was drawn for this micro-batch."""
        bad = [sample.record for part in self._parts for sample in part.batch.bad]
        return [record for part in self._parts for record in part.batch.records] + bad

    def take(self, refill: Scored, equal: Sequence[bool]) -> None:
        """Groups of a round whose rewards differ take the first open places."""
        self.refills.append(refill)
        rows = [p for p, same in enumerate(equal) if not same]
        for row in rows:
            self._kept[self.open.pop(0)] = (len(self.refills), row)
        self.varied += len(rows)

    def filled(self) -> Scored:
        """The groups to train on, as many as the micro-batch had."""
        if all(number == 0 for number, _ in self._kept):
            return self.first
        starts = list(accumulate((len(part) for part in self._parts), initial=0))
        return Scored.join(self._parts).select([starts[number] + row for number, row in self._kept])

    def noted(self, experience: Experience) -> Experience:
        """The experience with what was drawn and dropped on the way to it."""
        dropped = []
        for number, part in enumerate(self._parts):
            rows = [row for row in range(len(part)) if (number, row) not in self._kept]
            if rows:
                dropped.append(part.select(rows).without_media())
        refills = tuple(each.without_media().batch for each in self.refills)
        return replace(experience, dropped=tuple(dropped), refills=refills)

    @property
    def _parts(self) -> list[Scored]:
        return [self.first, *self.refills]


def _step(state: TrainerState | None) -> int:
    return 0 if state is None else state.global_step
