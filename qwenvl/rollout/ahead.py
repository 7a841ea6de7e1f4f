"""An engine that samples the completions of the next steps while others train, and their file in a checkpoint."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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

CLOSING_SECONDS = 10.0  # how long the end of a run waits for a request that is under way


@dataclass(frozen=True)
class Ask:
    """A call of ``RolloutEngine.sample`` that is still to be made, see there."""

    prompts: Sequence[EnginePrompts]
    group_size: int
    params: SamplingParams
    seed: int


@dataclass
class _Step:
    """What was asked for one step: requests, and their answers once all of them are there.

    Attributes:
        version: of the weights that sample.
        seeds: of the requests. They are functions of the prompts, and tell one step from another.
        asks: what the requests were made from, until they are answered.
    """

    version: int
    seeds: tuple[int, ...]
    asks: Sequence[Ask] = ()
    requests: tuple[Callable[[], list[RolloutBatch]], ...] = ()
    answers: tuple[list[RolloutBatch], ...] | None = None
    error: BaseException | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def make(self) -> None:
        """Makes the requests, in the thread. An error is kept for who waits."""
        try:
            self.answers = tuple(request() for request in self.requests)
            self.asks = ()
        except BaseException as error:
            self.error = error
        self.requests = ()  # which hold the prompts
        self.over.set()

    def wait(self) -> tuple[list[RolloutBatch], ...]:
        """The answers. Raises what the thread raised."""
        self.over.wait()
        if self.error is not None:
            raise self.error
        assert self.answers is not None
        return self.answers

    @property
    def lost_weights(self) -> bool:
        """Whether the step can be asked for again."""
        return isinstance(self.error, WeightsLostError)


class AheadEngine:
    """Asks an engine with weights of its own for the completions of steps to come, in one thread, in order.

    The thread makes requests and nothing else: what needs the policy or other processes is done in the main thread. So
    which weights sample a step hangs on the calls of ``sync`` and ``ask`` alone, never on time.

    Attributes:
        engine: whose requests are made.
        version: of its weights. None: they were not given yet, or a script may have changed them.

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
        self._asked: deque[_Step] = deque()
        self._taken: dict[int, list[RolloutBatch]] = {}
        self._queue: SimpleQueue[_Step | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Steps that were asked for and not taken."""
        return len(self._asked)

    def sync(self, model: nn.Module, version: int | None) -> None:
        """See ``EngineWithWeights.sync``. Waits for all that was asked for, which older weights sample to the end."""
        with lost_together(self.engine):  # in all processes, which may wait for the same server
            self.settle()
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
        self.settle()
        return self.engine.sample(model, prompts, group_size, params, seed)

    def ask(self, model: nn.Module, asks: Sequence[Ask]) -> None:
        """Ask for the completions of one more step, which the weights of the last ``sync`` sample.

        Raises:
            RuntimeError: the engine has no weights yet.
        """
        if self.version is None:
            raise RuntimeError("the engine has weights of no known optimizer step: call sync before ask")
        self._asked.append(self._begun(model, asks, self.version))

    def ask_again(self, model: nn.Module, version: int) -> None:
        """Give the engine weights in any case, and ask for the steps again that lost theirs. All processes together."""
        self.forget()
        self.sync(model, version)
        for number, step in enumerate(self._asked):
            if step.lost_weights:
                self._asked[number] = self._begun(model, step.asks, version)

    def _begun(self, model: nn.Module, asks: Sequence[Ask], version: int) -> _Step:
        requests = tuple(
            self.engine.request(model, each.prompts, each.group_size, each.params, each.seed) for each in asks
        )
        step = _Step(version, tuple(each.seed for each in asks), asks, requests)
        if self._thread is None:
            self._thread = threading.Thread(target=_make_all, args=(self._queue,), name="sampling-ahead", daemon=True)
            self._thread.start()
        self._queue.put(step)
        return step

    def wait(self) -> None:
        """Wait for the first step that was asked for. Raise at once what any request has raised.

        Raises:
            WeightsLostError: the step has to be asked for again.
        """
        self.check()
        self._asked[0].wait()

    def take(self, seeds: Sequence[int]) -> int:
        """Wait for the first step that was asked for. ``sample`` then has its completions.

        Args:
            seeds: of its requests.

        Returns:
            The version of the weights that sampled them.

        Raises:
            RuntimeError: another step was asked for. Or what a request raised.
        """
        step = self._asked[0]
        if step.seeds != tuple(seeds):
            raise RuntimeError(
                "the completions that were sampled ahead are of other prompts than those of this step: the data or its "
                "order has changed since they were sampled. Resume with the data of the checkpoint, or begin a new run "
                "with its weights: --start_from_weights"
            )
        self._taken = dict(zip(step.seeds, step.wait(), strict=True))
        self._asked.popleft()
        return step.version

    def settle(self) -> None:
        """Wait for all that was asked for. Raises what a request raised, if it can't be asked for again."""
        for step in self._asked:
            step.over.wait()
        self.check()

    def check(self) -> None:
        """Raise what a request has raised, if one has that can't be made again, without waiting."""
        for step in self._asked:
            if step.error is not None and not step.lost_weights:
                raise step.error

    def save(self, path: Path) -> None:
        """Write the completions of the steps that were asked for and not taken. Nothing where there are none.

        Where a request has failed, in any process, they are those of the steps before it. All processes must call this
        together.
        """
        for step in self._asked:
            step.over.wait()
        there = next((n for n, step in enumerate(self._asked) if step.answers is None), len(self._asked))
        kept = list(self._asked)[: min(gather_object([there]))]
        if len(kept) < len(self._asked):
            logger.warning(
                f"completions that were asked for ({len(self._asked) - len(kept)} steps) did not come and are no part "
                "of the checkpoint: a run that goes on from it has these steps sampled anew, by newer weights"
            )
        if kept:
            write_kept(path, [Kept(step.version, step.seeds, step.wait()) for step in kept])

    def load(self, path: Path) -> None:
        """The steps that ``save`` wrote are those that were asked for. Without a file there are none.

        Raises:
            ValueError: the file is no such file.
        """
        self._asked.clear()
        for kept in read_kept(path) if path.is_file() else []:
            step = _Step(kept.version, kept.seeds, answers=kept.answers)
            step.over.set()
            self._asked.append(step)

    def close(self) -> None:
        """Forget what was asked for. A request that is under way is waited for, but no longer than a few seconds."""
        for step in self._asked:
            step.requests = ()
        self._asked.clear()
        self._taken = {}
        self.version = None
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSING_SECONDS)
            self._queue, self._thread = SimpleQueue(), None


def _make_all(steps: SimpleQueue[_Step | None]) -> None:
    """What the thread does. Once a request has failed, those behind it fail with the same error."""
    error: BaseException | None = None
    while (step := steps.get()) is not None:
        if error is None:
            step.make()
            error = None if step.lost_weights else step.error
        else:
            step.error, step.requests = error, ()
            step.over.set()


_TENSORS = ("completion_ids", "completion_mask", "logprobs", "entropies")


class Kept(NamedTuple):
    """The completions of one step.

    Attributes:
        version: of the weights that sampled them.
        seeds: of the requests.
        answers: of each request, a batch of completions for each micro-batch.
    """

    version: int
    seeds: tuple[int, ...]
    answers: tuple[list[RolloutBatch], ...]


def write_kept(path: Path, steps: Sequence[Kept]) -> None:
    """Write the steps to a file, in order."""
    tensors, head = {}, []
    for s, step in enumerate(steps):
        requests = []
        for r, rollouts in enumerate(step.answers):
            requests.append([_head(each) for each in rollouts])
            for b, each in enumerate(rollouts):
                for name in _TENSORS:
                    if (value := getattr(each, name)) is not None:
                        tensors[f"{s}.{r}.{b}.{name}"] = value.detach().cpu().contiguous()
        head.append({"version": step.version, "seeds": list(step.seeds), "requests": requests})
    save_file(tensors, path, metadata={"steps": json.dumps(head)})


def read_kept(path: Path) -> list[Kept]:
    """The steps that ``write_kept`` wrote.

    Raises:
        ValueError: the file is not whole, or another one.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            head = json.loads(opened.metadata()["steps"])
        steps = []
        for s, step in enumerate(head):
            answers = []
            for r, rollouts in enumerate(step["requests"]):
                named = [{n: tensors.get(f"{s}.{r}.{b}.{n}") for n in _TENSORS} for b in range(len(rollouts))]
                answers.append([_rollout(*parts) for parts in zip(named, rollouts, strict=True)])
            steps.append(Kept(step["version"], tuple(step["seeds"]), tuple(answers)))
        return steps
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected completions that were sampled ahead, got something else: {error}") from None


def _head(rollout: RolloutBatch) -> dict[str, list[str]]:
    return {"texts": rollout.texts, "finish_reasons": [*rollout.finish_reasons], "boots": sorted(rollout.boots)}


def _rollout(tensors: dict[str, Any], head: dict[str, Any]) -> RolloutBatch:
    return RolloutBatch(**tensors, **{**head, "boots": frozenset(head["boots"])})
