"""An engine that samples the completions of the next steps while this one trains, and their file in a checkpoint."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn

from qwenvl.failure import counted
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.vision_tower import tower_alone
from qwenvl.rollout.drafts import CountsDrafts, DraftCounts
from qwenvl.rollout.engine import (
    EngineWithWeights,
    SamplingRequest,
    WeightsLostError,
    lost_together,
    on_device,
)
from qwenvl.tools.toolbox import Conversations
from qwenvl.types import RolloutBatch, Turn

logger = logging.getLogger(__name__)

Begin = Callable[[nn.Module], Conversations]
"""Begins the conversations with the completions of a step, whose looks a model encodes."""
CLOSING_SECONDS = 10.0  # how long the end of a run waits for the current request


@dataclass
class PendingStep:
    """The request for one step, and its completions once they are there.

    Attributes:
        version: of the weights that sample.
        seed: of the request. It is a function of the prompts, and distinguishes one step from another.
        request: what was asked for, without conversations. None: the completions are those of a checkpoint.
        begin: begins the conversations. None: there are no tools.
        answer: the completions of each micro-batch, or the error that the request raised.
    """

    version: int
    seed: int
    request: SamplingRequest | None = None
    begin: Begin | None = None
    answer: Future[list[RolloutBatch]] = field(default_factory=Future)

    @property
    def error(self) -> BaseException | None:
        """The error of the request, once it has failed. After a ``WeightsLostError`` the request can be repeated."""
        return self.answer.exception() if self.answer.done() else None


Work = tuple[PendingStep, Callable[[], list[RolloutBatch]]]
"""A step, and what the thread calls for its completions."""


class BackgroundEngine:
    """Requests the completions of later steps from an engine with weights of its own, one after the other in a thread.

    The thread makes requests and nothing else: all that needs the policy or other processes is done in the main thread.
    So it is deterministic which weights sample a step: it depends on the order of calls, not on timing.

    Attributes:
        engine: whose requests are made.
        version: of its weights. None: it has none yet, or a script may have changed them.

    Example:
        >>> engine = BackgroundEngine(servers)
        >>> engine.sync(model, 0)
        >>> request = SamplingRequest(prompts, group_size=8, params=params, seed=1)
        >>> engine.ask(model, request)
        >>> engine.take(1)  # waits for them. The weights that sampled them:
        0
        >>> rollouts = engine.sample(model, request)
    """

    def __init__(self, engine: EngineWithWeights):
        self.engine = engine
        self.version: int | None = None
        self._pending: deque[PendingStep] = deque()
        self._taken: PendingStep | None = None
        self._requests: SimpleQueue[Work | None] = SimpleQueue()
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

    def sample(self, model: nn.Module, request: SamplingRequest) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. Completions of the step that was taken are there, others are sampled now."""
        if self._taken is not None and self._taken.seed == request.seed:
            answer = self._taken.answer.result()
            device = request.prompts[0].input_ids.device
            self._taken = None
            return [on_device(each, device) for each in answer]
        self.finish()
        return self.engine.sample(model, request)

    def request(self, model: nn.Module, request: SamplingRequest) -> Callable[[], list[RolloutBatch]]:
        """See ``EngineWithWeights.request``."""
        return self.engine.request(model, request)

    def take_counts(self) -> DraftCounts:
        """See ``CountsDrafts``: of the requests that have been answered since, of later steps too."""
        return self.engine.take_counts() if isinstance(self.engine, CountsDrafts) else DraftCounts()

    def ask(self, model: nn.Module, request: SamplingRequest, begin: Begin | None = None) -> None:
        """Request the completions of one more step, which the weights of the last ``sync`` sample.

        Args:
            request: without conversations.
            begin: begins them. None: there are no tools.

        Raises:
            RuntimeError: the engine has no weights yet.
        """
        if self.version is None:
            raise RuntimeError("the engine has weights of no known optimizer step: call sync before ask")
        self._pending.append(self._begun(model, request, begin, self.version))

    def ask_again(self, model: nn.Module, version: int) -> None:
        """Give the engine weights in any case, and request the steps again that lost theirs. Collective."""
        self.forget()
        self.sync(model, version)
        for number, step in enumerate(self._pending):
            if isinstance(step.error, WeightsLostError):
                assert step.request is not None, "the completions of a checkpoint are there"
                self._pending[number] = self._begun(model, step.request, step.begin, version)

    def _begun(self, model: nn.Module, request: SamplingRequest, begin: Begin | None, version: int) -> PendingStep:
        step = PendingStep(version, request.seed, request, begin)
        if begin is not None:  # anew, where a request is repeated
            model = tower_alone(model)
            request = replace(request, conversations=begin(model))
        self._requests.put((step, self.request(model, request)))
        if self._thread is None:
            self._thread = threading.Thread(target=partial(_make, self._requests), name="sampling-ahead", daemon=True)
            self._thread.start()
        return step

    def wait(self) -> None:
        """Wait for the first step. Raise at once any error of a request.

        Raises:
            WeightsLostError: the step has to be requested again.
        """
        self.check()
        self._pending[0].answer.result()

    def take(self, seed: int) -> int:
        """Wait for the first step. ``sample`` then has its completions.

        Args:
            seed: of its request.

        Returns:
            The version of the weights that sampled them.

        Raises:
            RuntimeError: another step was requested. Or the error of its request.
        """
        step = self._pending[0]
        if step.seed != seed:
            raise RuntimeError(
                "the completions that were sampled ahead are of other prompts than those of this step: the data or its "
                "order has changed since they were sampled. Resume with the data of the checkpoint, or begin a new run "
                "with its weights: --start_from_weights"
            )
        step.answer.result()
        self._taken = self._pending.popleft()
        return step.version

    def finish(self) -> None:
        """Wait for all requests. Raises the error of a request that can't be repeated."""
        wait([step.answer for step in self._pending])
        self.check()

    def check(self) -> None:
        """Raise the error of a request that can't be repeated, without waiting."""
        for step in self._pending:
            if step.error is not None and not isinstance(step.error, WeightsLostError):
                raise step.error

    def save(self, path: Path) -> None:
        """Write the completions of the steps that were requested and not taken. No file where there are none.

        Where a request has failed, in any process, the steps before it are written. Collective.
        """
        wait([step.answer for step in self._pending])
        failed = next((number for number, step in enumerate(self._pending) if step.error), len(self._pending))
        steps = list(self._pending)[: min(gather_object([failed]))]
        if len(steps) < len(self._pending):
            lost = counted(len(self._pending) - len(steps), "step")
            logger.warning(
                f"completions that were requested ahead ({lost}) did not come and are not part "
                "of the checkpoint: a run that resumes from it samples these steps again, by newer weights"
            )
        if not steps:
            return
        saved = []
        for step in steps:
            batches = [_plain(rollout) for rollout in step.answer.result()]
            saved.append((step.version, step.seed, batches))
        torch.save(saved, path)

    def load(self, path: Path) -> None:
        """The steps that ``save`` wrote become the pending ones. Without a file there are none.

        Raises:
            ValueError: the file does not hold what ``save`` writes.
        """
        self._pending.clear()
        if not path.is_file():
            return
        try:
            for version, seed, batches in torch.load(path, map_location="cpu", weights_only=True):
                step = PendingStep(version, seed)
                step.answer.set_result([_rollout(plain) for plain in batches])
                self._pending.append(step)
        except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{path}: expected completions that were sampled ahead, found: {error}") from None

    def close(self) -> None:
        """Drop all requests. The current one is waited for, but no longer than a few seconds."""
        for step in self._pending:
            step.answer.cancel()
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSING_SECONDS)
        self._pending.clear()
        self._taken = None
        self._thread = None
        self.version = None
        self._requests = SimpleQueue()


def _plain(rollout: RolloutBatch) -> dict[str, Any]:
    """The completions as tensors, lists and dicts: ``torch.load`` refuses other classes."""
    own = dict(vars(rollout))
    own["boots"] = sorted(rollout.boots)
    if rollout.turns is not None:
        own["whole"] = vars(rollout.whole)
        of_completions = []
        for turns in rollout.turns:
            of_completions.append([asdict(turn) for turn in turns])
        own["turns"] = of_completions
    return own


def _rollout(plain: dict[str, Any]) -> RolloutBatch:
    """The completions that ``_plain`` wrote."""
    own = dict(plain)
    own["boots"] = frozenset(plain["boots"])
    if plain.get("turns") is not None:
        own["whole"] = PromptInputs(**plain["whole"])
        own["turns"] = [tuple(map(Turn.of, turns)) for turns in plain["turns"]]
    return RolloutBatch(**own)


def _make(requests: SimpleQueue[Work | None]) -> None:
    """Makes requests until None comes. Once a request has failed for good, those after it do too."""
    error: BaseException | None = None
    # At the end of a thread's outermost autocast the casts of all threads are cleared, the policy's too.
    with torch.autocast("cpu", enabled=False):
        while (work := requests.get()) is not None:
            step, request = work
            if not step.answer.set_running_or_notify_cancel():
                continue
            try:
                if error is not None:
                    raise error
                step.answer.set_result(request())
            except BaseException as raised:
                error = None if isinstance(raised, WeightsLostError) else raised
                step.answer.set_exception(raised)
