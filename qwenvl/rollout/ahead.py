"""An engine that samples the completions of the next steps while this one trains, and their file in a checkpoint."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import torch
from accelerate.utils import gather_object
from torch import nn

from qwenvl.rollout.engine import (
    EngineAskedAhead,
    EnginePrompts,
    SamplingParams,
    WeightsLostError,
    lost_together,
    on_device,
)
from qwenvl.types import RolloutBatch

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 10.0  # how long the end of a run waits for the current request

Answers = tuple[list[RolloutBatch], ...]  # of each request of a step, a batch for each micro-batch


class Ask(NamedTuple):
    """The arguments of a call of ``RolloutEngine.sample``, see there."""

    prompts: Sequence[EnginePrompts]
    group_size: int
    params: SamplingParams
    seed: int


@dataclass
class PendingStep:
    """The requests for one step, and their answers once all of them are there.

    Attributes:
        version: of the weights that sample.
        seeds: of the requests. They are functions of the prompts, and distinguish one step from another.
        asks: the arguments of the requests.
        requests: made in the thread.
        answers: or the error that a request raised.
    """

    version: int
    seeds: tuple[int, ...]
    asks: Sequence[Ask] = ()
    requests: tuple[Callable[[], list[RolloutBatch]], ...] = ()
    answers: Future[Answers] = field(default_factory=Future)

    def run(self) -> None:
        """Makes the requests."""
        try:
            self.answers.set_result(tuple(request() for request in self.requests))
        except BaseException as error:
            self.answers.set_exception(error)
        self.requests = ()  # which hold the prompts

    @property
    def failed(self) -> bool:
        return self.answers.done() and self.answers.exception() is not None

    @property
    def lost_weights(self) -> bool:
        """Whether it failed and can be requested again."""
        return self.failed and isinstance(self.answers.exception(), WeightsLostError)


class AheadEngine:
    """Requests the completions of later steps from an engine with weights of its own, in one thread, in order.

    The thread makes requests and nothing else: all that needs the policy or other processes is done in the main thread.
    So it is deterministic which weights sample a step: it depends on the order of calls, not on timing.

    Attributes:
        engine: whose requests are made.
        version: of its weights. None: it has none yet, or a script may have changed them.

    Example:
        >>> ahead = AheadEngine(engine)
        >>> ahead.sync(model, 0)
        >>> ahead.ask(model, [Ask(prompts, 8, params, seed=1)])
        >>> ahead.take([1])  # waits for them. The weights that sampled them:
        0
        >>> rollouts = ahead.sample(model, prompts, 8, params, seed=1)
    """

    def __init__(self, engine: EngineAskedAhead):
        self.engine = engine
        self.version: int | None = None
        self._pending: deque[PendingStep] = deque()
        self._taken: dict[int, list[RolloutBatch]] = {}
        self._queue: SimpleQueue[PendingStep | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Steps that were requested and not taken."""
        return len(self._pending)

    def sync(self, model: nn.Module, version: int | None) -> None:
        """See ``EngineWithWeights.sync``. Waits for all requests, which older weights sample to the end."""
        with lost_together(self.engine):  # in all processes, which may wait for the same server
            self.finish()
        self.engine.sync(model, version)
        self.version = version

    def forget(self) -> None:
        """See ``EngineWithWeights.forget``."""
        self.engine.forget()
        self.version = None

    def rest(self) -> None:
        """See ``EngineWithWeights.rest``. It does not rest: it samples while the policy trains."""

    def sample(
        self, model: nn.Module, prompts: Sequence[EnginePrompts], group_size: int, params: SamplingParams, seed: int
    ) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. Completions of the step that was taken are there, others are sampled now."""
        if seed in self._taken:
            device = prompts[0].inputs.input_ids.device
            return [on_device(each, device) for each in self._taken.pop(seed)]
        self.finish()
        return self.engine.sample(model, prompts, group_size, params, seed)

    def ask(self, model: nn.Module, asks: Sequence[Ask]) -> None:
        """Request the completions of one more step, which the weights of the last ``sync`` sample.

        Raises:
            RuntimeError: the engine has no weights yet.
        """
        if self.version is None:
            raise RuntimeError("the engine has weights of no known optimizer step: call sync before ask")
        self._pending.append(self._begun(model, asks, self.version))

    def ask_again(self, model: nn.Module, version: int) -> None:
        """Give the engine weights in any case, and request the steps again that lost theirs. Collective."""
        self.forget()
        self.sync(model, version)
        for number, step in enumerate(self._pending):
            if step.lost_weights:
                self._pending[number] = self._begun(model, step.asks, version)

    def _begun(self, model: nn.Module, asks: Sequence[Ask], version: int) -> PendingStep:
        requests = tuple(self.engine.request(model, *each) for each in asks)
        step = PendingStep(version, tuple(each.seed for each in asks), asks, requests)
        if self._thread is None:
            self._thread = threading.Thread(target=_run_all, args=(self._queue,), name="sampling-ahead", daemon=True)
            self._thread.start()
        self._queue.put(step)
        return step

    def wait(self) -> None:
        """Wait for the first step. Raise at once any error of a request.

        Raises:
            WeightsLostError: the step has to be requested again.
        """
        self.check()
        self._pending[0].answers.result()

    def take(self, seeds: Sequence[int]) -> int:
        """Wait for the first step. ``sample`` then has its completions.

        Args:
            seeds: of its requests.

        Returns:
            The version of the weights that sampled them.

        Raises:
            RuntimeError: another step was requested. Or the error of a request.
        """
        step = self._pending[0]
        if step.seeds != tuple(seeds):
            raise RuntimeError(
                "the completions that were sampled ahead are of other prompts than those of this step: the data or its "
                "order has changed since they were sampled. Resume with the data of the checkpoint, or begin a new run "
                "with its weights: --start_from_weights"
            )
        self._taken = dict(zip(step.seeds, step.answers.result(), strict=True))
        self._pending.popleft()
        return step.version

    def finish(self) -> None:
        """Wait for all requests. Raises the error of a request that can't be repeated."""
        wait([step.answers for step in self._pending])
        self.check()

    def check(self) -> None:
        """Raise the error of a request that can't be repeated, without waiting."""
        for step in self._pending:
            if step.failed and not step.lost_weights:
                step.answers.result()

    def save(self, path: Path) -> None:
        """Write the completions of the steps that were requested and not taken. No file where there are none.

        Where a request has failed, in any process, the steps before it are written. Collective.
        """
        wait([step.answers for step in self._pending])
        failed = next((number for number, step in enumerate(self._pending) if step.failed), len(self._pending))
        steps = list(self._pending)[: min(gather_object([failed]))]
        if len(steps) < len(self._pending):
            logger.warning(
                f"completions that were requested ahead ({len(self._pending) - len(steps)} steps) did not come and are "
                "not part of the checkpoint: a run that resumes from it samples these steps again, by newer weights"
            )
        if steps:
            torch.save([(step.version, step.seeds, _plain(step.answers.result())) for step in steps], path)

    def load(self, path: Path) -> None:
        """The steps that ``save`` wrote become the pending ones. Without a file there are none.

        Raises:
            ValueError: the file is no such file.
        """
        self._pending.clear()
        if not path.is_file():
            return
        try:
            for version, seeds, answers in torch.load(path, map_location="cpu", weights_only=True):
                step = PendingStep(version, tuple(seeds))
                step.answers.set_result(tuple([_rollout(each) for each in batches] for batches in answers))
                self._pending.append(step)
        except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected completions that were sampled ahead, found: {error}") from None

    def close(self) -> None:
        """Drop all requests. The current one is waited for, but no longer than a few seconds."""
        for step in self._pending:
            step.requests = ()
        self._pending.clear()
        self._taken = {}
        self.version = None
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSING_SECONDS)
            self._queue, self._thread = SimpleQueue(), None


def _run_all(steps: SimpleQueue[PendingStep | None]) -> None:
    """The thread. Once a request has failed for good, those behind it fail with the same error."""
    error: BaseException | None = None
    while (step := steps.get()) is not None:
        if error is not None:
            step.answers.set_exception(error)
            continue
        step.run()
        if step.failed and not step.lost_weights:
            error = step.answers.exception()


def _plain(answers: Answers) -> list[list[dict]]:
    """Without classes, which ``torch.load`` would refuse."""
    return [[{**vars(each), "boots": sorted(each.boots)} for each in batches] for batches in answers]


def _rollout(values: dict) -> RolloutBatch:
    return RolloutBatch(**{**values, "boots": frozenset(values["boots"])})
