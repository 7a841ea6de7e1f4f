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
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.ahead import AheadEngine
from qwenvl.rollout.engine import EngineWithWeights, RolloutEngine, WeightsLostError, lost_together
from qwenvl.types import PromptBatch

logger = logging.getLogger(__name__)


class StepsAhead:
    """The steps after the present one: their prompts, drawn before their turn, and the engine that samples for them.

    Prompts are drawn ahead within an epoch, and no further than the run goes.
    Its methods get the ``Collector`` that has it, which imports this file.

    Attributes:
        engine: makes requests in a thread.
        due: whether the present step waits for its completions.
        inputs: model inputs of requested micro-batches by their ids, until they are collected.

    Raises:
        ValueError: the engine can't sample ahead.
    """

    def __init__(self, engine: RolloutEngine, args: GRPOConfig):
        if not isinstance(engine, EngineWithWeights):
            name = type(engine).__name__
            raise ValueError(
                f"--async_rollouts {args.async_rollouts}: {name} can't sample while the policy trains: take an engine "
                "with weights of its own, or leave it out"
            )
        self.engine = AheadEngine(engine)
        self.due = False
        self.inputs: dict[int, PromptInputs] = {}
        self._args = args
        self._version = 0  # optimizer steps that were done when the present step was collected
        self._upcoming: Sequence[Sequence[PromptBatch]] = ()  # the micro-batches of each step after the present one
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
        done, iterations = state.global_step, self._args.num_iterations
        most = min(self._args.async_rollouts * iterations, state.max_steps - done - 1)
        while len(self._drawn) <= most:
            drawn = draw()
            if not drawn[0]:
                break
            self._drawn.append(drawn)
        if not self._drawn:
            return [], None
        batches, items = self._drawn.popleft()
        if done % iterations == 0:
            steps = list(self._drawn)[iterations - 1 :: iterations]
            self._upcoming = [[inputs["prompts"] for inputs in each] for each, _ in steps]
            self.due = True
        return batches, items

    def take(self, collector: Any, model: nn.Module, batches: Sequence[PromptBatch], done: int) -> int:
        """Wait for the completions of the present step, which the engine then has. Returns their age in steps.

        Args:
            done: optimizer steps.
        """
        self.due, self._version = False, done
        if not self.engine.waiting:
            self._request(collector, model, [batches])
        with collector.clock("time/sample_s"), collector.clock("async/wait_s"):
            try:
                with lost_together(self.engine):
                    self.engine.wait()
            except WeightsLostError as lost:  # servers that were started again get the weights of now, once
                logger.warning(f"what was sampled ahead is requested again, with the current weights: {lost}")
                with lost_together(self.engine), collector.autocast():
                    self.engine.ask_again(model, done)
                with lost_together(self.engine):
                    self.engine.wait()
        return done - self.engine.take(collector.seed_of(batches))

    def request_next(self, collector: Any, model: nn.Module) -> None:
        """Request the next steps, if the present one took the last requested one. All processes do so together."""
        if not self.engine.waiting and self._upcoming:
            self._request(collector, model, self._upcoming)

    def sync(self, collector: Any, model: nn.Module) -> None:
        """Give the engine the weights of the present step."""
        with collector.clock("time/sync_s"), lost_together(self.engine):
            self.engine.sync(model, self._version)

    def check(self) -> None:
        """Raises an error of the sampling thread, also before its step is due. Several processes end together, then."""
        if self._args.world_size == 1:
            self.engine.check()

    def close(self) -> None:
        """Training is over."""
        self._forget(None)
        self.engine.close()

    def file(self, checkpoint: str) -> Path:
        """Where a checkpoint has the completions that were sampled ahead."""
        return Path(checkpoint) / f"sampled_ahead_{self._args.process_index}.pt"

    def _request(self, collector: Any, model: nn.Module, steps: Sequence[Sequence[PromptBatch]]) -> None:
        self.sync(collector, model)
        for batches in steps:
            with collector.clock("time/vision_s"):
                self.inputs |= zip(map(id, batches), collector.encoded(model, batches), strict=True)
            prompts = [self.inputs[id(batch)] for batch in batches]
            size, seed = collector.group_size, collector.seed_of(batches)
            begin = None if collector.toolbox is None else partial(collector.conversations, batches, size)
            with collector.autocast():
                self.engine.ask(model, prompts, size, collector.params, seed, begin)

    def _forget(self, epoch: Iterator[Any] | None) -> None:
        """Another epoch, or another training, begins."""
        self._epoch = epoch
        self._drawn.clear()
        self._upcoming, self.due = (), False
        self.inputs.clear()
