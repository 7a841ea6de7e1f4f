"""Makes the prompts of requests: their bodies are received and parsed, their media fetched and decoded.

Slow work has threads of its own, so that requests of text wait for no clip, and no other request for a slow machine.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from torch import nn

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import DATA_ERRORS
from qwenvl.data.media.images import MAX_IMAGE_PIXELS
from qwenvl.data.options import SampleOptions
from qwenvl.evaluate.respondent import Respondent
from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.types import Record, Sample
from qwenvl.use.answers import Pending
from qwenvl.use.awaiting import IsGone, patiently
from qwenvl.use.chat_request import ApiError, Parsed, Patience, RequestReader, parse_body
from qwenvl.use.fetch import OnBytes
from qwenvl.use.in_time import DatasetInTime, ReadingTime
from qwenvl.use.options import UseRequest
from qwenvl.use.pictures import PictureReader
from qwenvl.use.places import Places
from qwenvl.use.request_folder import RequestFolder
from qwenvl.use.turns import FairPool

READERS = 8  # threads that decode media
SLOW_READERS = 4  # that decode those which took long while others waited
# Times --decode_timeout, for all media of a request: a few requests must not hold all readers for long.
READING_TIMEOUTS = 2
SECONDS_BETWEEN_TRIES = 0.05  # to find room for another prompt
# Bytes of the prompts that wait: more are not decoded before some of these are sampled.
MOST_PROMPT_BYTES = 4 * 2**30
LONG_TEXT = 50_000  # bytes, whose tokens take a tenth of a second or more to find
ReceiveBody = Callable[[Callable[[int], None]], Awaitable[bytes]]
"""Receives the body of a request. It calls its argument with the number of bytes of each piece before it keeps them."""


class GaveWay(Exception):
    """The media of a request take long to read, and others wait for the same readers."""


def _nobody_waits() -> bool:
    return False


class PromptMaker:
    """Makes the prompts of requests.

    Args:
        respondent: that is asked with them.
        places: of the requests, which count the bytes of their bodies.
        waiting_bytes: says how much memory the prompts take that wait.

    Attributes:
        reader: makes records of requests.
    """

    def __init__(
        self,
        request: UseRequest,
        respondent: Respondent,
        collator: GRPOCollator,
        places: Places,
        waiting_bytes: Callable[[], int],
    ) -> None:
        self.reader = RequestReader(request.options, request.asking, positions_of(respondent.step.policy))
        self._name = request.model.name
        self._respondent = respondent
        self._collator = collator
        self._places = places
        self._waiting_bytes = waiting_bytes
        options = SampleOptions.of(request.config)
        fit_to = collator.options.fit_to
        self._dataset = DatasetInTime([], options, training=False, ruler=collator.ruler, fit_to=fit_to)
        self._pictures = PictureReader(request.config.decode_memory_gb)
        self._collating = threading.Lock()  # tokenizers are not thread-safe
        self._unread: set[Patience] = set()  # of requests that wait for one of the readers
        # Bodies and prompts of text wait for no clip and for no long text. Downloads keep no other request from being
        # read: each has a thread, as there are no more of them than requests, with whose end they end.
        self._parsers = FairPool(1, "parse")
        self._readers = FairPool(READERS, "read")
        self._slow_readers = FairPool(SLOW_READERS, "read-slow")
        self._long_readers = FairPool(1, "read-long")
        self._fetchers = ThreadPoolExecutor(request.options.max_waiting, "fetch")

    async def pending(
        self, receive: ReceiveBody, folder: RequestFolder, patience: Patience, is_gone: IsGone
    ) -> Pending:
        """A request with its prompt.

        Args:
            receive: its body.
            folder: for its media.
            is_gone: asked once the body is there.

        Raises:
            ApiError: the request cannot be answered.
        """
        parsed, record = await self._received(receive, folder, patience, is_gone)
        return await self._read(parsed, record, folder, patience, is_gone)

    def close(self) -> None:
        """Begin nothing more, and end the processes that decode pictures and have nothing to do."""
        for readers in (self._parsers, self._readers, self._slow_readers, self._long_readers):
            readers.shutdown()
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        self._pictures.close()

    @cached_property
    def _long_collator(self) -> GRPOCollator:
        """The collator of the one thread that reads long texts, so that no other thread waits for its tokenizer."""
        return deepcopy(self._collator)

    async def _received(
        self, receive: ReceiveBody, folder: RequestFolder, patience: Patience, is_gone: IsGone
    ) -> tuple[Parsed, Record]:
        """A request and its record, made of its body. Afterwards its media are on the disk, and take no memory."""
        with self._places.arriving(patience) as arrival:
            receiving = receive(partial(self._places.add_bytes, arrival))
            body = await patiently(receiving, patience)  # receiving itself notices who leaves
            arrival.complete = True
            making = self._parsers.run(patience.client, self._parsed, body, folder, patience)
            del body
            parsed, record = await patiently(making, patience, is_gone)
            if record is None:
                with self._places.arriving(patience) as fetching:
                    count = partial(self._places.add_bytes, fetching)
                    loop = asyncio.get_running_loop()
                    making_record = loop.run_in_executor(self._fetchers, self._record, parsed, folder, patience, count)
                    record = await patiently(making_record, patience, is_gone)
            return replace(parsed, messages=()), record

    def _parsed(self, body: bytes, folder: RequestFolder, patience: Patience) -> tuple[Parsed, Record | None]:
        """A request and its record, in the one thread that parses. None: the record waits for other machines.

        Both in one piece: between the two a request may take several times the memory of its body.
        """
        parsed = parse_body(body, self._name, self._respondent.sample.params)
        self.reader.check_length(parsed)
        if parsed.has_addresses:
            return parsed, None
        return replace(parsed, messages=()), self._record(parsed, folder, patience)

    def _record(
        self, parsed: Parsed, folder: RequestFolder, patience: Patience, on_bytes: OnBytes = lambda count: None
    ) -> Record:
        """The record of a request, whose media are in its folder.

        Args:
            on_bytes: see ``fetch``.
        """
        with folder.in_use() as path:
            return self.reader.record(parsed, path, patience, on_bytes)

    async def _read(
        self, parsed: Parsed, record: Record, folder: RequestFolder, patience: Patience, is_gone: IsGone
    ) -> Pending:
        """A request with its prompt."""
        while self._waiting_bytes() > MOST_PROMPT_BYTES:
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
            with self._places.arriving(patience):
                making = self._slow_readers.run(patience.client, self._made, record, parsed, folder, patience)
                return await patiently(making, patience, is_gone)
        finally:
            self._unread.discard(patience)

    def _made_quickly(self, record: Record, parsed: Parsed, folder: RequestFolder, patience: Patience) -> Pending:
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
        folder: RequestFolder,
        patience: Patience,
        others_wait: Callable[[], bool] = _nobody_waits,
    ) -> Pending:
        """A request with its prompt, made as ``qwenvl try`` makes it.

        Args:
            others_wait: see ``ReadingTime``.

        Raises:
            ApiError: it cannot be made.
            GaveWay: its media take long to read, and others wait.
        """
        timeout = self._dataset.options.decode_timeout
        reading = ReadingTime(patience, each=timeout, total=READING_TIMEOUTS * timeout, others_wait=others_wait)
        try:
            with folder.in_use() as path:
                sample = self._loaded(record, path, reading)
            patience.check()
            if parsed.text_bytes > LONG_TEXT:
                batch = self._long_collator([sample])["prompts"]
            else:
                with self._collating:
                    batch = self._collator([sample])["prompts"]
        except DATA_ERRORS as error:
            patience.check()  # a clip that was not decoded in time is no bad one
            if reading.gave_way:
                raise GaveWay from None
            raise self.reader.refusal(error, folder.path) from None
        except MemoryError:
            raise ApiError(500, "there is not enough memory for the media of this request") from None
        options = parsed.options
        params = options.params(self._respondent.sample.params)
        # Servers compare texts as well, in a process of their own.
        if isinstance(self._respondent.sample.engine, EngineWithWeights):
            params = replace(params, stop_strings=tuple(dict.fromkeys((*params.stop_strings, *options.stops))))
        prompt = batch.input_ids.shape[1]
        toolbox = self._respondent.sample.toolbox
        looks = 0 if toolbox is None else toolbox.options.look_tokens
        if prompt + params.max_new_tokens + looks > self.reader.positions:
            message = f"the prompt has {prompt:,} tokens, which with max_tokens {params.max_new_tokens:,} exceed the "
            message += f"{self.reader.positions:,} positions of the model"
            raise ApiError(400, message, "context_length_exceeded")
        return Pending(batch, options, params, patience)

    def _loaded(self, record: Record, folder: Path, reading: ReadingTime) -> Sample:
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
    """The most tokens of a prompt and its answer together: the model has no more positions."""
    return int(model.config.get_text_config().max_position_embeddings)
