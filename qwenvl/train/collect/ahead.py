"""``async_rollouts``: an engine with weights of its own samples the next steps while this one trains.

At the first step of an epoch nothing has been asked for: the engine gets the policy's weights, and the step waits for
its completions. From then on, whenever a step takes the last completions that were asked for, the engine gets the
weights of that moment and is asked for the next N steps. So the completions of a step are 1 to N optimizer steps old,
and how old they are hangs on the number of the step within its epoch alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from torch import nn
from transformers import TrainerState

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.sharding import whole_weights
from qwenvl.rollout.ahead import AheadEngine, Ask
from qwenvl.rollout.engine import EngineAskedAhead, EnginePrompts, SamplingParams, lost_together
from qwenvl.train.collect.collector import Collector
from qwenvl.train.collect.contrast import NAME, TemporalContrast, with_videos
from qwenvl.train.collect.filtering import FilteringCollector
from qwenvl.train.step import Experience
from qwenvl.types import PromptBatch, RolloutBatch


@dataclass
class Draws:
    """The prompts of steps to come, which the Trainer has drawn before their turn.

    Attributes:
        depth: how many steps are sampled ahead (``async_rollouts``).
        present: the micro-batches of the present step.
        upcoming: for each of the steps after the present one its micro-batches.
        due: whether the present step waits for its completions.
        version: optimizer steps that were done when it was collected.
        inputs: what the model makes of micro-batches that the engine was asked about, until they are collected.
        shuffled: their prompts with frames in random order, for ``temporal_contrast``.
    """

    depth: int = 0
    present: Sequence[PromptBatch] = ()
    upcoming: Sequence[Sequence[PromptBatch]] = ()
    due: bool = False
    version: int = 0
    inputs: dict[int, PromptInputs] = field(default_factory=dict)
    shuffled: dict[int, PromptBatch] = field(default_factory=dict)

    def forget(self) -> None:
        """Another epoch, or another training, begins."""
        self.upcoming, self.due = (), False
        self.inputs.clear()
        self.shuffled.clear()


@dataclass(frozen=True, kw_only=True)
class AheadCollector(Collector):
    """A collector that asks its engine for the completions of the next steps before it scores those of this one.

    Attributes:
        engine: asks in a thread.
        draws: what the Trainer drew.
    """

    engine: AheadEngine
    draws: Draws
    asks_first: ClassVar[bool] = True

    @contextmanager
    def ready(self, model: nn.Module, wrapped: nn.Module | None = None, version: int | None = None) -> Iterator[None]:
        """See ``Collector.ready``. For the present step the engine keeps its weights: ``collect`` says when it gets new
        ones. For all else, such as an evaluation, it finishes what it was asked for and gets those of now.
        """
        if self.draws.due:
            with whole_weights(model, wrapped), lost_together(self.engine):
                yield
        else:
            with super().ready(model, wrapped, version):
                yield

    def collect(
        self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState | None = None
    ) -> list[Experience]:
        """See ``Collector.collect``. The completions are older than the policy by ``Experience.staleness`` steps."""
        if not self.draws.due or state is None:
            return super().collect(model, batches, state)
        self.draws.due, self.draws.version = False, state.global_step
        if not self.engine.waiting:
            self._ask(model, [batches])
        with self.clock("time/sample_s"), self.clock("async/wait_s"), lost_together(self.engine):
            self.engine.check()
            staleness = state.global_step - self.engine.take(self._seeds(batches))
        if self.asks_first:  # so that the engine samples while rewards are computed
            self._ask_on(model)
        experiences = super().collect(model, batches, state)
        if not self.asks_first:
            self._ask_on(model)
        return [replace(each, staleness=staleness) for each in experiences]

    def _ask_on(self, model: nn.Module) -> None:
        """Ask for the next steps, if this one took the last that were asked for. All processes do so together."""
        if not self.engine.waiting and self.draws.upcoming:
            self._ask(model, self.draws.upcoming)

    def _ask(self, model: nn.Module, steps: Sequence[Sequence[PromptBatch]]) -> None:
        with self.clock("time/sync_s"), lost_together(self.engine):
            self.engine.sync(model, self.draws.version)
        for batches in steps:
            asks = [self._request(model, batches, self.group_size)]
            if self.contrast is not None:
                for batch in batches:
                    self.draws.shuffled[id(batch)] = super()._shuffled(self.contrast, batch)
                parts = [self.draws.shuffled[id(batch)] for batch in batches]
                asks.append(self._request(model, parts, self.contrast.group_size(self.group_size), NAME))
            with self.autocast():
                self.engine.ask(model, asks)

    def _request(self, model: nn.Module, batches: Sequence[PromptBatch], size: int, *purpose: object) -> Ask:
        with self.clock("time/vision_s"):
            self.draws.inputs |= zip(map(id, batches), self._encoded(model, batches), strict=True)
        prompts = [EnginePrompts(batch, self.draws.inputs[id(batch)]) for batch in batches]
        return Ask(prompts, size, self.params, self._seed_of(batches, *purpose))

    def _seeds(self, batches: Sequence[PromptBatch]) -> list[int]:
        """The seeds of what was asked for a step."""
        seeds = [self._seed_of(batches)]
        if self.contrast is not None:
            seeds.append(self._seed_of([with_videos(batch) for batch in batches], NAME))
        return seeds

    def _encode(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        known = self.draws.inputs.pop(id(batch), None)
        return super()._encode(model, batch) if known is None else known

    def _shuffled(self, contrast: TemporalContrast, batch: PromptBatch) -> PromptBatch:
        known = self.draws.shuffled.pop(id(batch), None)
        return super()._shuffled(contrast, batch) if known is None else known


@dataclass(frozen=True, kw_only=True)
class AheadFilteringCollector(AheadCollector, FilteringCollector):
    """Dynamic sampling of completions that were sampled ahead. What takes the places of groups is sampled by the policy
    of now, and the engine is asked for the next steps when the step is full.
    """

    asks_first: ClassVar[bool] = False

    def _sample(
        self,
        model: nn.Module,
        batches: Sequence[PromptBatch],
        prompts: Sequence[PromptInputs],
        size: int,
        params: SamplingParams,
        *purpose: object,
    ) -> list[RolloutBatch]:
        if "refill" in purpose:
            with self.clock("time/sync_s"):  # what samples is within lost_together already
                self.engine.sync(model, self.draws.version)
        return super()._sample(model, batches, prompts, size, params, *purpose)


def sampled_ahead(collector: Collector, draws: Draws) -> Collector:
    """The collector, which has steps sampled ahead where ``draws`` goes that far.

    Raises:
        ValueError: its engine can't be asked ahead.
    """
    if not draws.depth:
        return collector
    if not isinstance(collector.engine, EngineAskedAhead):
        raise ValueError(
            f"--async_rollouts {draws.depth}: {type(collector.engine).__name__} can't sample while the policy trains: "
            "take an engine with weights of its own, or leave it out"
        )
    own = {each.name: getattr(collector, each.name) for each in fields(collector)}
    kind = AheadFilteringCollector if isinstance(collector, FilteringCollector) else AheadCollector
    return kind(**{**own, "engine": AheadEngine(collector.engine), "draws": draws})
