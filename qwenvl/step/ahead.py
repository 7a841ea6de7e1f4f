"""``async_rollouts``: an engine with weights of its own samples the next steps while this one trains.

At the first step of an epoch nothing is requested yet: the engine gets the policy's weights, and the step waits for its
completions. From then on, whenever a step takes the last requested completions, the engine gets the current weights and
the requests of the next N steps. So the completions of a step are 1 to N optimizer steps old, and their age depends on
the number of the step within its epoch alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerState

from qwenvl.model.sharding import whole_weights
from qwenvl.rollout.background import BackgroundEngine
from qwenvl.rollout.engine import SamplingRequest, WeightsLostError, lost_together
from qwenvl.step.sample import SampleNow, seed_of
from qwenvl.step.types import EncodedPrompts, Sampled, StepContext
from qwenvl.types import PromptBatch

logger = logging.getLogger(__name__)


class SampleAhead:
    """The stage *sample* for steps whose completions were requested while earlier ones were trained.

    It draws the prompts of the steps after the present one before their turn, within an epoch, and no further than the
    run goes. Prompts that are no step's own, as refills are, it has sampled at once, by the weights of now.

    Attributes:
        now: samples prompts at once, by the same engine.
        engine: makes requests in a thread.
        due: whether the present step waits for its completions.
    """

    def __init__(
        self,
        now: SampleNow,
        engine: BackgroundEngine,
        *,
        depth: int,
        iterations: int,
        requests_at_once: bool,
        process: int,
        processes: int,
    ):
        """
        Args:
            depth: steps with new completions that are sampled ahead (``async_rollouts``).
            iterations: optimizer steps on the same completions (``num_iterations``).
            requests_at_once: request the next steps as soon as this one has its completions, so that the engine
                samples while rewards are computed. False: after ``finish``, since more is sampled for this step.
            process, processes: the number of this process, and how many there are.
        """
        self.now = now
        self.engine = engine
        self.due = False
        self._depth = depth
        self._iterations = iterations
        self._requests_at_once = requests_at_once
        self._process = process
        self._processes = processes
        # The micro-batches of each later step with new completions that is drawn already.
        self._upcoming: Sequence[Sequence[PromptBatch]] = ()
        # The model inputs of requested steps, by the seed of their request. A step of a checkpoint has none.
        self._encoded: dict[int, list[EncodedPrompts]] = {}
        self._drawn: deque[tuple[list[Any], Any]] = deque()  # what draw_step gave, the next step first
        self._epoch: Iterator[Any] | None = None

    def draw(
        self, draw_step: Callable[[], tuple[list[Any], Any]], epoch: Iterator[Any], state: TrainerState
    ) -> tuple[list[Any], Any]:
        """The micro-batches of the next step. As many steps are drawn as are sampled ahead.

        Args:
            draw_step: the micro-batches of one more step of the epoch, none at its end.
            epoch: where they are drawn from.
        """
        if epoch is not self._epoch:
            self._forget(epoch)
        done = state.global_step
        later_steps = min(self._depth * self._iterations, state.max_steps - done - 1)
        while len(self._drawn) < 1 + later_steps:
            batches, items = draw_step()
            if not batches:
                break
            self._drawn.append((batches, items))
        if not self._drawn:
            return [], None
        batches, items = self._drawn.popleft()
        if done % self._iterations == 0:
            # Each step with new prompts is followed by the further iterations on them, which are drawn empty: behind
            # the present step come iterations - 1 of these, then the next new prompts, and so on.
            with_new_prompts = list(self._drawn)[self._iterations - 1 :: self._iterations]
            self._upcoming = [_prompts(of_step) for of_step, _ in with_new_prompts]
            self.due = True
        return batches, items

    @contextmanager
    def ready(self, step: StepContext) -> Iterator[None]:
        """See ``Sampler.ready``. For a step that is due the engine keeps its weights until the next request."""
        if not self.due:
            with self.now.ready(step):
                yield
            return
        with whole_weights(step.policy, step.wrapped), lost_together(self.engine):
            yield

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[Sampled]:
        """See ``Sampler``. Waits for the completions of a step that is due."""
        if not self.due:
            if step.version is not None:  # in training these are refills, which the policy of now samples
                self._sync(step)
            return self.now(batches, step)
        self.due = False
        if not self.engine.waiting:
            self._request([batches], step)
        self._wait(step)
        seed = seed_of(batches, step)
        version = self.engine.take(seed)
        staleness = step.finished_steps - version
        encoded = self._encoded.pop(seed, None)
        if self._requests_at_once:
            self._request_next(step)
        if encoded is None:
            encoded = self.now.encode(batches, step)
        return self.now.of_encoded(encoded, step, staleness)

    def finish(self, step: StepContext) -> None:
        """See ``Sampler.finish``. Requests the next steps, if the present one took the last requested one."""
        self._request_next(step)

    def check(self) -> None:
        """See ``Sampler.check``."""
        if self._processes == 1:  # several end together, at their next collective call
            self.engine.check()

    def start(self) -> None:
        """See ``Sampler.start``."""
        self.now.start()

    def close(self) -> None:
        """See ``Sampler.close``."""
        self._forget(None)
        self.engine.close()

    def save(self, folder: str | Path) -> None:
        """See ``Sampler.save``: the completions that were sampled ahead."""
        self.engine.save(self._file(folder))

    def load(self, folder: str | Path) -> None:
        """See ``Sampler.load``."""
        self.engine.load(self._file(folder))

    def _wait(self, step: StepContext) -> None:
        """Wait for the completions of the present step, which the engine then has."""
        with step.meter.time("time/sample_s"), step.meter.time("async/wait_s"):
            try:
                with lost_together(self.engine):
                    self.engine.wait()
            except WeightsLostError as lost:  # servers that were started again get the weights of now, once
                logger.warning(f"what was sampled ahead is requested again, with the current weights: {lost}")
                with lost_together(self.engine), self.now.encode.autocast():
                    self.engine.ask_again(step.policy, step.finished_steps)
                with lost_together(self.engine):
                    self.engine.wait()

    def _request_next(self, step: StepContext) -> None:
        """Request the next steps, if the present one took the last requested one. All processes do so together."""
        if not self.engine.waiting and self._upcoming:
            self._request(self._upcoming, step)

    def _request(self, steps: Sequence[Sequence[PromptBatch]], step: StepContext) -> None:
        self._sync(step)
        sample = self.now
        for batches in steps:
            with step.meter.time("time/vision_s"):
                encoded = sample.encode.of_step(step.policy, batches)
            seed = seed_of(batches, step)
            self._encoded[seed] = encoded
            begin = None
            if sample.toolbox is not None:
                begin = partial(sample.conversations, batches, sample.group_size)
            request = SamplingRequest(
                prompts=[each.inputs for each in encoded],
                group_size=sample.group_size,
                params=sample.params,
                seed=seed,
            )
            with sample.encode.autocast():
                self.engine.ask(step.policy, request, begin)

    def _sync(self, step: StepContext) -> None:
        """Give the engine the weights of the present step."""
        with step.meter.time("time/sync_s"), lost_together(self.engine):
            self.engine.sync(step.policy, step.finished_steps)

    def _file(self, folder: str | Path) -> Path:
        return Path(folder) / f"sampled_ahead_{self._process}.pt"

    def _forget(self, epoch: Iterator[Any] | None) -> None:
        """Another epoch, or another training, begins."""
        self._epoch = epoch
        self._drawn.clear()
        self._upcoming = ()
        self.due = False
        self._encoded.clear()


def _prompts(batches: Sequence[Mapping[str, PromptBatch]]) -> list[PromptBatch]:
    """The prompts of the micro-batches of a step, which the collator gives as mappings."""
    return [inputs["prompts"] for inputs in batches]
