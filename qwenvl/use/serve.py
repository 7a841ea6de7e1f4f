"""The model behind ``qwenvl serve``: requests of OpenAI's chat API, batched as they come, and their answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import DATA_ERRORS
from qwenvl.data.media.images import MAX_IMAGE_PIXELS
from qwenvl.data.options import SampleOptions
from qwenvl.evaluate.respondent import build_respondent, collator_of
from qwenvl.model.inputs import media_bytes
from qwenvl.rewards import build_rubric
from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.rollout.servers import ServerRefusedError
from qwenvl.step.answer import in_budget
from qwenvl.tools.errors import ToolError
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import Record, RolloutBatch, Sample
from qwenvl.use.answers import Pending, StopWatch
from qwenvl.use.awaiting import patiently
from qwenvl.use.chat_request import ApiError, Parsed, Patience, RequestReader, parse_body
from qwenvl.use.in_time import DatasetInTime, LookTimes, Reading
from qwenvl.use.options import UseRequest
from qwenvl.use.pictures import PictureReader
from qwenvl.use.turns import FairPool, Turns, gives_a_place

READERS = 8  # threads that decode media
SLOW_READERS = 4  # that decode those which took long while others waited
# Times --decode_timeout, for all media of a request: a few requests must not hold all readers for long.
READING_TIMEOUTS = 2
SECONDS_BETWEEN_TRIES = 0.05  # to find room for another prompt
# Of --decode_timeout, for one look: others wait for it. All looks at a clip may take ``toolbox.LOOK_TIMEOUTS`` of them.
LOOK_SHARE = 0.25
SHORTEST_LOOK = 0.01  # seconds: 0 would let the decoder take its time
MOST_BODIES = 2 * 2**30  # bytes of the bodies that are being received or parsed
LONG_ARRIVAL_SECONDS = 2.0  # a request that is received or fetched for longer gives way where others find no room
# Bytes of the prompts that wait: more are not decoded before some of these are sampled.
MOST_PROMPT_BYTES = 4 * 2**30
LONG_TEXT = 50_000  # bytes, whose tokens take a tenth of a second or more to find
LONG_FORWARD = 4096  # tokens or patches: a layer takes so long that a GPU is waited for before the next one
Read = Callable[[Callable[[int], None]], Awaitable[bytes]]
"""Receives the body of a request. It calls its argument with the bytes of each piece before it keeps them."""


def _may_be_together(request: Pending) -> bool:
    """Whether a request may be sampled with others: one with a seed, or with a refusal, is alone."""
    return request.options.seed is None and not request.alone


def _nobody_waits() -> bool:
    return False


class GaveWay(Exception):
    """The media of a request take long to read, and others wait for the same readers."""


class Abandoned(Exception):
    """Nobody waits any more for what is being sampled."""


@dataclass(eq=False)
class Arrival:
    """A request that waits: for its client to send the body, for a machine that has its media, or for slow media.

    Attributes:
        patience: of the request.
        began: when it began to wait.
        held: bytes so far, of the body or of what is fetched for it.
        complete: whether the body is there, and is being parsed.
    """

    patience: Patience
    began: float
    held: int = 0
    complete: bool = False


class ChatServer:
    """A model, the requests that wait for it, and the loop that samples those with the same settings together.

    Attributes:
        active: how many requests are received, read, wait or are sampled.
    """

    def __init__(self, request: UseRequest) -> None:
        config = request.config
        self.limits = request.options
        self.name = request.model.name
        self.active = 0
        self.collator = collator_of(config)
        respondent = build_respondent(config, self.collator, build_rubric())
        self.respondent = respondent.with_toolbox(self._in_time(respondent.sample.toolbox, config))
        self.model = self.respondent.step.policy
        self.reader = RequestReader(self.limits, request.asking, positions_of(self.model))
        fit_to = self.collator.options.fit_to
        self._dataset = DatasetInTime(
            [], SampleOptions.of(config), training=False, ruler=self.collator.ruler, fit_to=fit_to
        )
        self._budget = config.rollout_token_budget
        self._pictures = PictureReader(config.decode_memory_gb)
        self._collating = threading.Lock()  # tokenizers are not thread-safe
        # Bodies and prompts of text wait for no clip and for no long text. Downloads keep no other request from being
        # read: each has a thread, as there are no more of them than requests.
        self._parsers = FairPool(1, "parse")
        self._readers = FairPool(READERS, "read")
        self._slow_readers = FairPool(SLOW_READERS, "read-slow")
        self._long_readers = FairPool(1, "read-long")
        self._fetchers = ThreadPoolExecutor(self.limits.max_waiting, "fetch")
        self._sampler = ThreadPoolExecutor(1, "sample")
        self._folder = Path(tempfile.mkdtemp(prefix="qwenvl-serve-"))
        self._arrivals: list[Arrival] = []
        self._unread: set[Patience] = set()  # of requests that wait for one of the readers
        self._requests: list[Patience] = []  # in the order in which they came
        self._turns = Turns()
        self._waiting: list[Pending] = []
        self._sampling: Sequence[Pending] = ()
        self._looks = LookTimes()
        self._arrived = asyncio.Event()
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):  # of the language model and of the vision tower
                layer.register_forward_pre_hook(self._before_layer)

    def _in_time(self, toolbox: Toolbox | None, config: GRPOConfig) -> Toolbox | None:
        """A toolbox that answers no call of a request that is over. A call that fails ends its own request alone."""
        if toolbox is None:
            return None
        options = SampleOptions.of(config)
        options = replace(options, decode_timeout=LOOK_SHARE * options.decode_timeout)
        dataset = DatasetInTime([], options, training=False, ruler=self.collator.ruler)
        return replace(
            toolbox,
            dataset=dataset.within(partial(self._seconds_of_look, options.decode_timeout), self._is_look_over),
            is_awaited=self._is_awaited,
            on_answer=lambda: self._looks.end(),
            on_failure=self._end_failed,
        )

    def end_requests(self) -> None:
        """Ends all work for requests as soon as it can be interrupted."""
        for patience in self._requests:
            patience.end(ApiError(503, "the server ends"))

    def close(self) -> None:
        """Ends all work, and deletes the media of requests."""
        self.end_requests()
        for readers in (self._parsers, self._readers, self._slow_readers, self._long_readers):
            readers.shutdown()
        for pool in (self._fetchers, self._sampler):
            pool.shutdown(wait=False, cancel_futures=True)
        self._pictures.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @cached_property
    def _long_collator(self) -> GRPOCollator:
        """The collator of the one thread that reads long texts, so that no other thread waits for its tokenizer."""
        return deepcopy(self.collator)

    # ---- sampling

    async def sample_forever(self) -> None:
        """Sample what waits. An error is that of the requests that were sampled together."""
        loop = asyncio.get_running_loop()
        while True:
            self._waiting = [each for each in self._waiting if not each.patience.gone]
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            together = self._together()
            self._waiting = [each for each in self._waiting if each not in together]
            try:
                sampling = loop.run_in_executor(self._sampler, self._sampled_or_failed, together, loop)
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
                traceback.print_exception(error)
                found = [ApiError(400 if refused else 500, f"the sampling server refuses: {refused or 'see the log'}")]
            except Exception as error:
                traceback.print_exc()
                # Not its text, which may be about the clip of another client.
                failed = ApiError(500, f"sampling failed: {type(error).__name__}; the server's log says how")
                found = [failed] * len(together)
            for each, event in zip(together, found, strict=True):
                each.events.put_nowait(event)

    def _together(self) -> list[Pending]:
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

    def _sampled_or_failed(self, together: Sequence[Pending], loop: asyncio.AbstractEventLoop) -> list[RolloutBatch]:
        """The same as ``_sampled``. Whatever is raised is an ``Exception``: another one would end sampling for good.

        An ``asyncio.CancelledError`` of a tool would be taken for the cancellation of the task that awaits this.
        """
        try:
            return self._sampled(together, loop)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _sampled(self, together: Sequence[Pending], loop: asyncio.AbstractEventLoop) -> list[RolloutBatch]:
        """The completions of each request, in the sampling thread."""
        n = together[0].options.n
        decode = partial(self.collator.processor.tokenizer.decode, skip_special_tokens=True)
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
        self._sampling = together
        self._looks = LookTimes(len(together))
        try:
            batches = [each.batch for each in together]
            return self.respondent.complete(batches, n, together[0].params)
        finally:
            self._sampling = ()

    def _is_awaited(self, record: Record) -> bool:
        """Whether somebody waits for the completions of a record that is being sampled.

        Raises:
            Abandoned: nobody waits for any of those that are sampled.
        """
        if self._is_nobody_there():
            raise Abandoned
        # Ids of requests without a seed are drawn, and one with a seed is sampled alone.
        return any(each.patience.left() > 0 for each in self._asking(record))

    def _is_nobody_there(self) -> bool:
        """Whether nobody waits for anything that is being sampled."""
        return not any(each.patience.left() for each in self._sampling)

    def _asking(self, record: Record) -> list[Pending]:
        """The requests that are sampled and ask about a record."""
        return [each for each in self._sampling if each.batch.records[0].id == record.id]

    def _end_failed(self, record: Record, error: Exception) -> None:
        """Ends the requests about a record, for which a tool of the user has failed. The others go on."""
        traceback.print_exception(error)
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
        with_it = any(each.patience.left() for each in self._sampling if each not in own)
        if not self._looks.are_long(record) or not (with_it or self._waiting):
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
        left = max((each.patience.left() for each in self._sampling), default=0.0)
        return max(SHORTEST_LOOK, min(most, left))

    def _before_layer(self, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Ends a forward that nobody waits for, between two of its layers: a long prompt may take minutes.

        Raises:
            Abandoned: the time of all requests that are sampled is up, or their clients are gone.
        """
        if not self._sampling:
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

    # ---- one request

    async def answered(
        self, receive: Read, is_gone: Callable[[], Awaitable[bool]], client: str = ""
    ) -> AsyncGenerator[Any, None]:
        """First the ``Pending`` of a request, then its events. Its place is free when the iterator ends.

        Args:
            receive: its body.
            is_gone: says whether the client has left. It is asked once the body is there.
            client: the address that it comes from. Clients take turns.

        Raises:
            ApiError: the request cannot be answered.
        """
        taken = sum(not each.gone for each in self._requests)
        if taken >= self.limits.max_waiting:
            has_place = self._end_slowest_arrival() or self._end_newest_of_largest_client(client)
            if not has_place:
                raise ApiError(429, f"{taken} requests wait already (--max_waiting); try again later")
        patience = Patience(self.limits.max_seconds, client)
        self.active += 1
        self._requests.append(patience)
        folder = self._folder / uuid.uuid4().hex
        try:
            folder.mkdir()
            parsed, record = await self._received(receive, folder, patience, is_gone)
            pending = await self._read(parsed, record, folder, patience, is_gone)
            pending.turn = self._turns.of_next(client, {each.client for each in self._requests})
            yield pending
            self._waiting.append(pending)
            self._arrived.set()
            event = None
            while not isinstance(event, RolloutBatch):
                event = await patiently(pending.events.get(), patience, is_gone)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            patience.end(ApiError(499, "the client is gone"))
            self.active -= 1
            self._requests.remove(patience)
            shutil.rmtree(folder, ignore_errors=True)

    async def _received(
        self, receive: Read, folder: Path, patience: Patience, is_gone: Callable[[], Awaitable[bool]]
    ) -> tuple[Parsed, Record]:
        """A request and its record, made of its body. Afterwards its media are on the disk, and take no memory."""
        with self._arriving(patience) as arrival:
            receiving = receive(partial(self._count, arrival))
            body = await patiently(receiving, patience)  # receiving itself notices who leaves
            arrival.complete = True
            making = self._parsers.run(patience.client, self._parsed, body, folder, patience)
            del body
            parsed, record = await patiently(making, patience, is_gone)
            if record is None:
                with self._arriving(patience) as fetching:
                    count = partial(self._count, fetching)
                    loop = asyncio.get_running_loop()
                    writing = loop.run_in_executor(
                        self._fetchers, self.reader.record, parsed, folder, patience, count
                    )
                    record = await patiently(writing, patience, is_gone)
            return replace(parsed, messages=()), record

    def _parsed(self, body: bytes, folder: Path, patience: Patience) -> tuple[Parsed, Record | None]:
        """A request and its record, in the one thread that parses. None: the record waits for other machines.

        Both in one piece: between the two a request may take several times the memory of its body.
        """
        parsed = parse_body(body, self.name, self.respondent.sample.params)
        self.reader.check_length(parsed)
        if parsed.has_addresses:
            return parsed, None
        return replace(parsed, messages=()), self.reader.record(parsed, folder, patience)

    @contextmanager
    def _arriving(self, patience: Patience) -> Iterator[Arrival]:
        """Notes that a request waits for others, and may have to give way."""
        arrival = Arrival(patience, monotonic())
        self._arrivals.append(arrival)
        try:
            yield arrival
        finally:
            self._arrivals.remove(arrival)

    def _count(self, arrival: Arrival, more: int) -> None:
        """Count the bytes of a body, or of a medium that is fetched for one, against those of all requests.

        Raises:
            ApiError: there is no room for them.
        """
        arrival.held += more
        held = sum(each.held for each in [*self._arrivals] if not each.patience.gone)  # media come in other threads
        if held > MOST_BODIES and not self._end_slowest_arrival():
            raise ApiError(429, "other requests take the memory of this one; try again later")
        arrival.patience.check()  # it may be the one that gives way

    def _end_slowest_arrival(self) -> bool:
        """End the request that has waited for others for the longest time, and say whether one has waited for long.

        Else clients that send as slowly as is allowed would keep everybody out: their requests cost them nothing.
        """
        waiting = [each for each in [*self._arrivals] if not each.complete and not each.patience.gone]
        oldest = min(waiting, key=lambda each: each.began, default=None)
        if oldest is None or monotonic() - oldest.began < LONG_ARRIVAL_SECONDS:
            return False
        reason = "this request takes long to come or to read, and others wait; try again later"
        oldest.patience.end(ApiError(429, reason))
        return True

    def _end_newest_of_largest_client(self, client: str) -> bool:
        """End the newest request of another client than this one, if that has most of the places, and say whether."""
        there = [each for each in self._requests if not each.gone]
        other = gives_a_place(client, Counter(each.client for each in there))
        sampled = {each.patience for each in self._sampling}
        waiting = [each for each in there if each.client == other and each not in sampled]
        if not waiting:
            return False
        waiting[-1].end(ApiError(429, "other clients wait, and this one has most of the requests; try again later"))
        return True

    async def _read(
        self,
        parsed: Parsed,
        record: Record,
        folder: Path,
        patience: Patience,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> Pending:
        """A request with its prompt."""
        while sum(media_bytes(each.batch) for each in self._waiting) > MOST_PROMPT_BYTES:
            await patiently(asyncio.sleep(SECONDS_BETWEEN_TRIES), patience, is_gone)
        if parsed.text_bytes > LONG_TEXT or not parsed.has_media:
            readers = self._long_readers if parsed.text_bytes > LONG_TEXT else self._parsers
            making = readers.run(patience.client, self._made, record, parsed, folder, patience)
            return await patiently(making, patience, is_gone)
        try:
            self._unread.add(patience)
            making = self._readers.run(patience.client, self._made_quickly, record, parsed, folder, patience)
            return await patiently(making, patience, is_gone)
        except GaveWay:
            with self._arriving(patience):
                making = self._slow_readers.run(patience.client, self._made, record, parsed, folder, patience)
                return await patiently(making, patience, is_gone)
        finally:
            self._unread.discard(patience)

    def _made_quickly(self, record: Record, parsed: Parsed, folder: Path, patience: Patience) -> Pending:
        """As ``_made``, where others wait for the same readers.

        Media that take long to decode cost their client nothing: a few such requests would keep everybody waiting.
        """
        self._unread.discard(patience)
        return self._made(record, parsed, folder, patience, self._others_wait)

    def _others_wait(self) -> bool:
        """Whether requests wait for a reader."""
        return bool(self._unread)

    def _made(
        self,
        record: Record,
        parsed: Parsed,
        folder: Path,
        patience: Patience,
        others_wait: Callable[[], bool] = _nobody_waits,
    ) -> Pending:
        """A request with its prompt, made as ``qwenvl try`` makes it.

        Args:
            others_wait: see ``Reading``.

        Raises:
            ApiError: it cannot be made.
            GaveWay: its media take long to read, and others wait.
        """
        timeout = self._dataset.options.decode_timeout
        reading = Reading(patience, each=timeout, total=READING_TIMEOUTS * timeout, others_wait=others_wait)
        try:
            sample = self._loaded(record, folder, reading)
            patience.check()
            if parsed.text_bytes > LONG_TEXT:
                batch = self._long_collator([sample])["prompts"]
            else:
                with self._collating:
                    batch = self.collator([sample])["prompts"]
        except DATA_ERRORS as error:
            patience.check()  # a clip that was not decoded in time is no bad one
            if reading.gave_way:
                raise GaveWay from None
            raise self.reader.refusal(error, folder) from None
        except MemoryError:
            raise ApiError(500, "there is not enough memory for the media of this request") from None
        options = parsed.options
        params = options.params(self.respondent.sample.params)
        # Servers compare texts as well, in a process of their own.
        if isinstance(self.respondent.sample.engine, EngineWithWeights):
            params = replace(params, stop_strings=tuple(dict.fromkeys((*params.stop_strings, *options.stops))))
        prompt = batch.input_ids.shape[1]
        toolbox = self.respondent.sample.toolbox
        looks = 0 if toolbox is None else toolbox.options.look_tokens
        if prompt + params.max_new_tokens + looks > self.reader.positions:
            message = f"the prompt has {prompt:,} tokens, which with max_tokens {params.max_new_tokens:,} exceed the "
            message += f"{self.reader.positions:,} positions of the model"
            raise ApiError(400, message, "context_length_exceeded")
        return Pending(batch, options, params, patience)

    def _loaded(self, record: Record, folder: Path, reading: Reading) -> Sample:
        """A record with its media. Images are rewritten in the folder of the request, and read from there."""
        left = MAX_IMAGE_PIXELS
        rewritten: list[str] = []
        for number, path in enumerate(record.images):
            target = str(folder / f"{number}.bmp")
            left -= self._pictures.rewrite(path, target, left, reading.seconds_left(), reading.is_over)
            rewritten.append(target)
        dataset = self._dataset.within(lambda _: reading.seconds_left(), reading.is_over)
        sample = dataset.load(replace(record, images=tuple(rewritten)))
        # An image of a few kilobytes may take 150 MB there, and its request may wait for minutes.
        for target in rewritten:
            os.unlink(target)
        return replace(sample, record=record)


def positions_of(model: nn.Module) -> int:
    """The most tokens of a prompt and its answer together: those that the model has positions for."""
    return int(model.config.get_text_config().max_position_embeddings)
