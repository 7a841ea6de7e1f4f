"""The part of the trainer that draws prompts before their step, and keeps what was sampled for them in checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers.trainer_utils import TrainOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.rollout.ahead import AheadEngine
from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.train.collect.ahead import Draws
from qwenvl.train.collect.collector import Collector
from qwenvl.train.parts import Parts
from qwenvl.train.policy_trainer import PolicyTrainer


class DrawsAhead(PolicyTrainer):
    """A trainer whose steps can be sampled ahead (``async_rollouts``). Without that it changes nothing.

    Prompts are drawn ahead within an epoch, as the next one is drawn by what came of this one, and no further than the
    run goes.

    Attributes:
        draws: of the steps to come.
    """

    collector: Collector

    def __init__(self, parts: Parts, args: GRPOConfig, **settings: Any):
        self.draws = Draws(args.async_rollouts)
        self._drawn_steps: deque[tuple[list[Any], Any]] = deque()
        self._epoch: Iterator[Any] | None = None
        super().__init__(parts, args, **settings)

    @property
    def _ahead(self) -> AheadEngine | None:
        engine = self.collector.engine
        return engine if isinstance(engine, AheadEngine) else None

    def train(self, *args: Any, **settings: Any) -> TrainOutput:
        """Trains, as the base class does. In the end nothing is sampled any more."""
        if isinstance(self.collector.engine, EngineWithWeights):
            self.collector.engine.forget()
        try:
            return super().train(*args, **settings)
        finally:
            self._forget(None)
            if self._ahead is not None:
                self._ahead.close()

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One micro-batch. An error of what is sampled meanwhile ends training here, not when its step is due."""
        if self._ahead is not None and self.args.world_size == 1:  # several processes end together, when a step begins
            self._ahead.check()
        return super().training_step(model, inputs, num_items_in_batch)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step. Those of the steps that are sampled ahead are drawn as well."""
        if not self.draws.depth:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        if epoch_iterator is not self._epoch:
            self._forget(epoch_iterator)
        repeats, done = self.args.num_iterations, self.state.global_step
        most = min(self.draws.depth * repeats, self.state.max_steps - done - 1)
        while len(self._drawn_steps) <= most:
            drawn = super().get_batch_samples(epoch_iterator, self.args.gradient_accumulation_steps, device)
            if not drawn[0]:
                break
            self._drawn_steps.append(drawn)
        if not self._drawn_steps:
            return [], None
        batches, items = self._drawn_steps.popleft()
        if done % repeats == 0:
            steps = list(self._drawn_steps)[repeats - 1 :: repeats]
            self.draws.upcoming = [[inputs["prompts"] for inputs in each] for each, _ in steps]
            self.draws.due = True
        return batches, items

    def _forget(self, epoch: Iterator[Any] | None) -> None:
        self._epoch = epoch
        self._drawn_steps.clear()
        self.draws.forget()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self._ahead is not None:
            self._ahead.save(self._kept_in(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._ahead is not None and checkpoint is not None:
            self._ahead.load(self._kept_in(checkpoint))

    def _kept_in(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"sampled_ahead_{self.args.process_index}.safetensors"
