"""Samples the requests that wait for a model, those with the same settings together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.options import SampleOptions
from qwenvl.evaluate.respondent import Respondent
from qwenvl.model.inputs import media_bytes
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.rollout.servers import ServerRefusedError
from qwenvl.step.answer import in_budget
from qwenvl.tools.errors import ToolError
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import Record, RolloutBatch
from qwenvl.use.answers import Pending, StopWatch
from qwenvl.use.awaiting import IsGone, patiently
from qwenvl.use.chat_request import ApiError, Patience
from qwenvl.use.in_time import DatasetInTime, LookTimes
from qwenvl.use.turns import Turns

# Unlike printing it raises nothing where stderr is closed, as with the terminal of a server in the background.
logger = logging.getLogger(__name__)
# Of --decode_timeout, for one look: others wait for it. All looks at a clip may take ``toolbox.LOOK_TIMEOUTS`` of them.
LOOK_SHARE = 0.25
SHORTEST_LOOK = 0.01  # seconds: 0 would let the decoder take its time
HANGING_SECONDS = 60.0  # that what is sampled may go on when nobody waits for it any more
LONG_FORWARD = 4096  # tokens or patches: a layer takes so long that a GPU is waited for before the next one


def _may_be_together(request: Pending) -> bool:
    """Whether a request may be sampled with others: one with a seed, or with a refusal, is alone."""
    return request.options.seed is None and not request.alone


class Abandoned(Exception):
    """Nobody waits any more for what is being sampled."""


class Sampling:
    """The requests that wait for a model, and the loop that samples them in a thread.

    Attributes:
        respondent: the model, with tools that stop where nobody waits for them.
    """

    def __init__(self, respondent: Respondent, collator: GRPOCollator, config: GRPOConfig) -> None:
        self._collator = collator
        self._budget = config.rollout_token_budget
        self._turns = Turns()
        self._waiting: list[Pending] = []
        self._together: Sequence[Pending] = ()  # the batch that is sampled
        self._looks = LookTimes()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "sample")
        self.respondent = respondent.with_toolbox(self._in_time(respondent.sample.toolbox, config))
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):  # of the language model and of the vision tower
                layer.register_forward_pre_hook(self._before_layer)

    @property
    def model(self) -> nn.Module:
        """The model that samples."""
        return self.respondent.step.policy

    def _in_time(self, toolbox: Toolbox | None, config: GRPOConfig) -> Toolbox | None:
        """A toolbox that answers no call of a request that is over. A call that fails ends its own request alone."""
        if toolbox is None:
            return None
        options = SampleOptions.of(config)
        options = replace(options, decode_timeout=LOOK_SHARE * options.decode_timeout)
        dataset = DatasetInTime([], options, training=False, ruler=self._collator.ruler)
        return replace(
            toolbox,
            dataset=dataset.within(partial(self._seconds_of_look, options.decode_timeout), self._is_look_over),
            is_awaited=self._is_awaited,
            on_answer=lambda: self._looks.end(),
            on_failure=self._end_failed,
        )

    def sampled_now(self) -> set[Patience]:
        """The requests in the batch that is sampled."""
        return {each.patience for each in self._together}

    def hangs(self) -> bool:
        """Whether nobody has waited for long for what is sampled: a tool of the user may never return."""
        together = self._together
        return bool(together) and all(each.patience.over_for() > HANGING_SECONDS for each in together)

    def waiting_bytes(self) -> int:
        """The bytes of the prompts that wait."""
        return sum(media_bytes(each.batch) for each in self._waiting)

    async def answered(self, pending: Pending, clients: Collection[str], is_gone: IsGone) -> AsyncGenerator[Any, None]:
        """The events of a request, which waits for its turn, up to its completions.

        Args:
            clients: all with a request at the server.

        Raises:
            ApiError: it was not answered.
        """
        pending.turn = self._turns.of_next(pending.patience.client, clients)
        self._waiting.append(pending)
        self._arrived.set()
        event = None
        try:
            while not isinstance(event, RolloutBatch):
                event = await patiently(pending.events.get(), pending.patience, is_gone)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            # Else the prompts of clients that have left would be held until the batch that is sampled has ended.
            self._waiting = [each for each in self._waiting if each is not pending]

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def sample_forever(self) -> None:
        """Sample what waits. All requests of a batch get its error."""
        loop = asyncio.get_running_loop()
        while True:
            self._waiting = [each for each in self._waiting if not each.patience.gone]
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            together = self._next()
            self._waiting = [each for each in self._waiting if each not in together]
            try:
                sampling = loop.run_in_executor(self._thread, self._sample_or_fail, together, loop)
                found: Sequence[Any] = await sampling
            except Abandoned:
                continue
            except ServerRefusedError as error:  # before anything was sampled, and perhaps for one of them
                if len(together) > 1:
                    for each in together:
                        each.alone = True
                    self._waiting = [*together, *self._waiting]
                    continue
                refused = str(error).partition("/sample: HTTP 400: ")[2]  # what a server says of the request
                logger.error("the sampling server refuses a request", exc_info=error)
                found = [ApiError(400 if refused else 500, f"the sampling server refuses: {refused or 'see the log'}")]
            except Exception as error:
                logger.error("sampling failed", exc_info=error)
                # Not its text, which may be about the clip of another client.
                failed = ApiError(500, f"sampling failed: {type(error).__name__}; the server's log says how")
                found = [failed] * len(together)
            for each, event in zip(together, found, strict=True):
                each.events.put_nowait(event)

    def _next(self) -> list[Pending]:
        """The request whose turn it is and those of the same settings, as many as fit, the oldest first.

        One with a seed or a refusal is alone.
        """
        first = self._turns.chosen(self._waiting)
        others = [each for each in self._waiting if each is not first]
        n = first.options.n
        together = [first]
        if _may_be_together(first):
            together += [
                each
                for each in others
                if _may_be_together(each) and (each.options.n, each.params) == (n, first.params)
            ]
        batches = [each.batch for each in together]
        new_tokens = n * first.params.max_new_tokens
        fitting = next(in_budget(batches, new_tokens=new_tokens, budget=self._budget))
        return together[: len(fitting)]

    def _sample_or_fail(self, together: Sequence[Pending], loop: asyncio.AbstractEventLoop) -> list[RolloutBatch]:
        """The same as ``_sample``. Whatever is raised is an ``Exception``: another one would end sampling for good.

        An ``asyncio.CancelledError`` of a tool would be taken for the cancellation of the task that awaits this.
        """
        try:
            return self._sample(together, loop)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _sample(self, together: Sequence[Pending], loop: asyncio.AbstractEventLoop) -> list[RolloutBatch]:
        """The completions of each request, in the sampling thread."""
        n = together[0].options.n
        decode = partial(self._collator.processor.tokenizer.decode, skip_special_tokens=True)
        stops: list[StopWatch] = []  # of each answer: answer k of request i is row i * n + k
        for request in together:
            stops += [StopWatch(request.options.stops, decode) for _ in range(n)]
        engine = self.respondent.sample.engine

        def watch(rows: list[int], tokens: list[int]) -> list[bool]:
            ended = []
            for row, token in zip(rows, tokens, strict=True):
                request = together[row // n]
                if request.options.stream:
                    loop.call_soon_threadsafe(request.events.put_nowait, (row % n, token))
                ended.append(stops[row].ends_at(token) or not request.patience.left())
            return ended

        if isinstance(engine, SharedPrefixEngine) and self.respondent.sample.toolbox is None:
            engine.drawing.watch = watch
        self._together = together
        self._looks = LookTimes(len(together))
        try:
            batches = [each.batch for each in together]
            return self.respondent.complete(batches, n, together[0].params)
        finally:
            self._together = ()

    # ---- who waits, and for how long

    def _is_awaited(self, record: Record) -> bool:
        """Whether somebody waits for the completions of a record that is being sampled.

        Raises:
            Abandoned: nobody waits for any request of the batch.
        """
        if self._is_nobody_there():
            raise Abandoned
        # Ids of requests without a seed are drawn, and one with a seed is sampled alone.
        return any(each.patience.left() > 0 for each in self._asking(record))

    def _is_nobody_there(self) -> bool:
        """Whether nobody waits for anything that is being sampled."""
        return not any(each.patience.left() for each in self._together)

    def _asking(self, record: Record) -> list[Pending]:
        """The requests that are sampled and ask about a record."""
        return [each for each in self._together if each.batch.records[0].id == record.id]

    def _end_failed(self, record: Record, error: Exception) -> None:
        """Ends the requests about a record, for which a tool of the user has failed. The others go on."""
        logger.error("a tool failed", exc_info=error)
        for each in self._asking(record):
            each.patience.end(ApiError(500, "a tool of this server failed for this request; its log says how"))

    def _is_look_over(self) -> bool:
        """Whether to stop the look that runs. One that takes long while others wait ends its request.

        The model is not asked to answer without it: that answer would look like any other.
        """
        if self._is_nobody_there():
            return True
        record = self._looks.record
        assert record is not None
        own = self._asking(record)
        with_it = any(each.patience.left() for each in self._together if each not in own)
        others_wait = with_it or any(not each.patience.gone for each in self._waiting)
        if not self._looks.are_long(record) or not others_wait:
            return False
        for each in own:
            message = "the looks of this request take long, and other requests wait: ask again later"
            each.patience.end(ApiError(503, message))
        return True

    def _seconds_of_look(self, most: float, record: Record) -> float:
        """The seconds that a look may take: a look that several requests share lasts as long as one of them.

        Raises:
            ToolError: others do not wait for another look of this request, which has ended.
        """
        self._looks.begin(record)
        if self._is_look_over():
            raise ToolError("nobody waits for this look")
        left = max((each.patience.left() for each in self._together), default=0.0)
        return max(SHORTEST_LOOK, min(most, left))

    def _before_layer(self, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Ends a forward that nobody waits for, between two of its layers: a long prompt may take minutes.

        Raises:
            Abandoned: the time of all requests that are sampled is up, or their clients are gone.
        """
        if not self._together:
            return
        hidden = arguments[0] if arguments else None
        if isinstance(hidden, torch.Tensor) and hidden.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return
            if hidden.shape[:-1].numel() > LONG_FORWARD:
                # Else the layers would all be queued before the first one has run.
                torch.cuda.synchronize(hidden.device)
        if self._is_nobody_there():
            raise Abandoned
