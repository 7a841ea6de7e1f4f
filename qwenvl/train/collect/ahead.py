"""``async_rollouts``: an engine with weights of its own samples the next steps while this one trains.

At the first step of an epoch nothing is requested yet: the engine gets the policy's weights, and the step waits for its
completions. From then on, whenever a step takes the last requested completions, the engine gets the current weights and
the requests of the next N steps. So the completions of a step are 1 to N optimizer steps old, and their age depends on
the number of the step within its epoch alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from transformers import TrainerState

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.sharding import whole_weights
from qwenvl.rollout.ahead import AheadEngine
from qwenvl.rollout.engine import EngineAskedAhead, EnginePrompts, SamplingParams, WeightsLostError, lost_together
from qwenvl.train.collect.collector import Collector
from qwenvl.train.collect.filtering import FilteringCollector
from qwenvl.train.step import Experience
from qwenvl.types import PromptBatch, RolloutBatch

logger = logging.getLogger(__name__)


class StepQueue:
    """The prompts of the present step and, with ``async_rollouts``, of steps to come, drawn before their turn.

    Prompts are drawn ahead within an epoch, as the next epoch is drawn by what came of this one, and no further than
    the run goes.

    Attributes:
        depth: steps sampled ahead (``async_rollouts``). 0: none, and the queue only has the present step.
        engine: samples ahead. None without ``async_rollouts``.
        present: the micro-batches of the present step.
        upcoming: for each of the steps after the present one its micro-batches.
        due: whether the present step waits for its completions.
        version: optimizer steps that were done when it was collected.
        inputs: model inputs of requested micro-batches, until they are collected.
    """

    def __init__(self, depth: int = 0, repeats: int = 1):
        """
        Args:
            repeats: steps on the same completions (``num_iterations``).
        """
        self.depth, self._repeats = depth, repeats
        self.engine: AheadEngine | None = None
        self.present: Sequence[PromptBatch] = ()
        self.upcoming: Sequence[Sequence[PromptBatch]] = ()
        self.due, self.version = False, 0
        self.inputs: dict[int, PromptInputs] = {}
        self._drawn: deque[tuple[list[Any], Any]] = deque()
        self._epoch: Iterator[Any] | None = None

    def next(
        self, draw: Callable[[], tuple[list[Any], Any]], epoch: Iterator[Any], state: TrainerState
    ) -> tuple[list[Any], Any]:
        """The micro-batches of the next step. As many steps are drawn as are sampled ahead.

        Args:
            draw: the micro-batches of one more step of the epoch, none at its end.
            epoch: where they are drawn from.
        """
        if epoch is not self._epoch:
            self._forget(epoch)
        done = state.global_step
        most = min(self.depth * self._repeats, state.max_steps - done - 1)
        while len(self._drawn) <= most:
            drawn = draw()
            if not drawn[0]:
                break
            self._drawn.append(drawn)
        if not self._drawn:
            return [], None
        batches, items = self._drawn.popleft()
        if done % self._repeats == 0:
            steps = list(self._drawn)[self._repeats - 1 :: self._repeats]
            self.upcoming = [[inputs["prompts"] for inputs in each] for each, _ in steps]
            self.due = True
        return batches, items

    def check(self, processes: int) -> None:
        """Raises an error of the sampling thread, also before its step is due. Several processes end together, then."""
        if self.engine is not None and processes == 1:
            self.engine.check()

    def close(self) -> None:
        """Training is over."""
        self._forget(None)
        if self.engine is not None:
            self.engine.close()

    def save(self, checkpoint: str, process: int) -> None:
        """The completions that were sampled ahead, into a checkpoint."""
        if self.engine is not None:
            self.engine.save(self._file(checkpoint, process))

    def load(self, checkpoint: str, process: int) -> None:
        """Those of a checkpoint."""
        if self.engine is not None:
            self.engine.load(self._file(checkpoint, process))

    def _file(self, checkpoint: str, process: int) -> Path:
        return Path(checkpoint) / f"sampled_ahead_{process}.pt"

    def _forget(self, epoch: Iterator[Any] | None) -> None:
        """Another epoch, or another training, begins."""
        self._epoch = epoch
        self._drawn.clear()
        self.upcoming, self.due = (), False
        self.inputs.clear()


@dataclass(frozen=True, kw_only=True)
class AheadCollector(Collector):
    """A collector that requests the completions of the next steps before it scores those of this one.

    Attributes:
        engine: makes requests in a thread.
        queue: the steps that the trainer has drawn.
    """

    engine: AheadEngine
    queue: StepQueue
    asks_first: ClassVar[bool] = True

    @contextmanager
    def ready(self, model: nn.Module, wrapped: nn.Module | None = None, version: int | None = None) -> Iterator[None]:
        """See ``Collector.ready``. For the present step the engine keeps its weights: ``collect`` says when it gets new
        ones. For all else, such as an evaluation, it finishes its requests and gets the current ones.
        """
        if self.queue.due:
            with whole_weights(model, wrapped), lost_together(self.engine):
                yield
        else:
            with super().ready(model, wrapped, version):
                yield

    def collect(
        self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState | None = None
    ) -> list[Experience]:
        """See ``Collector.collect``. The completions are older than the policy by ``Experience.staleness`` steps."""
        if not self.queue.due or state is None:
            return super().collect(model, batches, state)
        self.queue.due, self.queue.version = False, state.global_step
        if not self.engine.waiting:
            self._ask(model, [batches])
        with self.clock("time/sample_s"), self.clock("async/wait_s"):
            self._wait(model)
        staleness = state.global_step - self.engine.take(self._seed_of(batches))
        if self.asks_first:  # so that the engine samples while rewards are computed
            self._ask_on(model)
        experiences = super().collect(model, batches, state)
        if not self.asks_first:
            self._ask_on(model)
        return [replace(each, staleness=staleness) for each in experiences]

    def _wait(self, model: nn.Module) -> None:
        """Until the engine has the present step. Servers that were started again get the weights of now, once."""
        try:
            with lost_together(self.engine):
                self.engine.wait()
        except WeightsLostError as lost:
            logger.warning(f"what was sampled ahead is requested again, with the current weights: {lost}")
            with lost_together(self.engine), self.autocast():
                self.engine.ask_again(model, self.queue.version)
            with lost_together(self.engine):
                self.engine.wait()

    def _ask_on(self, model: nn.Module) -> None:
        """Request the next steps, if this one took the last requested one. All processes do so together."""
        if not self.engine.waiting and self.queue.upcoming:
            self._ask(model, self.queue.upcoming)

    def _ask(self, model: nn.Module, steps: Sequence[Sequence[PromptBatch]]) -> None:
        with self.clock("time/sync_s"), lost_together(self.engine):
            self.engine.sync(model, self.queue.version)
        for batches in steps:
            with self.clock("time/vision_s"):
                self.queue.inputs |= zip(map(id, batches), self._encoded(model, batches), strict=True)
            prompts = [EnginePrompts(batch, self.queue.inputs[id(batch)]) for batch in batches]
            with self.autocast():
                self.engine.ask(model, prompts, self.group_size, self.params, self._seed_of(batches))

    def _encode(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        known = self.queue.inputs.pop(id(batch), None)
        return super()._encode(model, batch) if known is None else known


@dataclass(frozen=True, kw_only=True)
class AheadFilteringCollector(AheadCollector, FilteringCollector):
    """Dynamic sampling of completions that were sampled ahead. What takes the places of groups is sampled by the policy
    of now, and the next steps are requested when the step is full.
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
                self.engine.sync(model, self.queue.version)
        return super()._sample(model, batches, prompts, size, params, *purpose)


def sampled_ahead(collector: Collector, queue: StepQueue) -> Collector:
    """The collector, with the steps of ``queue`` sampled ahead where its depth is above 0.

    Raises:
        ValueError: its engine can't sample ahead.
    """
    if not queue.depth:
        return collector
    if not isinstance(collector.engine, EngineAskedAhead):
        raise ValueError(
            f"--async_rollouts {queue.depth}: {type(collector.engine).__name__} can't sample while the policy trains: "
            "take an engine with weights of its own, or leave it out"
        )
    queue.engine = AheadEngine(collector.engine)
    own = {each.name: getattr(collector, each.name) for each in fields(collector)}
    kind = AheadFilteringCollector if isinstance(collector, FilteringCollector) else AheadCollector
    return kind(**{**own, "engine": queue.engine, "queue": queue})
