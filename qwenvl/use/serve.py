"""The server of ``qwenvl serve``: requests of OpenAI's chat API to prompts as trained, batched as they come."""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import os
import threading
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import torch

from qwenvl.data.chat import chat_messages
from qwenvl.data.errors import DATA_ERRORS
from qwenvl.data.media.source import media_path
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.parse import Row, parse_row
from qwenvl.data.records.record_file import RecordFile
from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of
from qwenvl.files import require
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rewards import build_rubric
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.step.answer import in_budget
from qwenvl.step.parity import HALF_PRECISION
from qwenvl.types import PromptBatch, Record, RolloutBatch, SamplingParams
from qwenvl.use.label import unframed
from qwenvl.use.options import ChatOptions, UseRequest

MEDIA = {"video_url": "video", "image_url": "image"}
WITHOUT_EFFECT = {"messages", "user", "metadata", "store", "service_tier", "stream_options", "return_token_ids"}
NEUTRAL: tuple[Any, ...] = (None, 0, [], {}, "none", "auto", {"type": "text"})  # values that ask for nothing
READERS = 4  # threads that decode media
SECONDS_BETWEEN_LOOKS = 0.5  # at whether a client is still there
OWNER = "qwenvl"
CHECKED = 5  # records


class ApiError(Exception):
    """An answer in OpenAI's error form."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status, self.body = status, {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(eq=False)
class Pending:
    """A request whose prompt is made.

    Attributes:
        events: (choice, token) of each token where the request streams, and at the end the completions or an error.
        gone: nobody waits for the answer any more.
    """

    batch: PromptBatch
    options: ChatOptions
    params: SamplingParams
    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    gone: bool = False


class ChatServer:
    """A model, the requests that wait for it, and the loop that samples those with the same settings together.

    Attributes:
        active: how many requests are read, wait or are sampled.
    """

    def __init__(self, request: UseRequest) -> None:
        config, self.limits, self.active = request.config, request.options, 0
        self.name, root = request.model.name, request.options.media_root
        self.collator = collator_of(config)
        self.respondent = build_respondent(config, self.collator, build_rubric())
        self._dataset, self._budget = dataset_of([], config, self.collator), config.rollout_token_budget
        self._reading = replace(request.reading, format=None, columns={}, allow_outside_media=True)
        self._root = None if root is None else Path(os.path.realpath(root))
        self._collating = threading.Lock()  # tokenizers are not thread-safe
        self._readers, self._sampler = ThreadPoolExecutor(READERS), ThreadPoolExecutor(1)
        self._waiting: list[Pending] = []
        self._arrived = asyncio.Event()

    async def sample_forever(self) -> None:
        """Sample what waits. An error is that of the requests that were sampled together."""
        loop = asyncio.get_running_loop()
        while True:
            self._waiting = [each for each in self._waiting if not each.gone]
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            together = self._together()
            self._waiting = [each for each in self._waiting if each not in together]
            try:
                found: Sequence[Any] = await loop.run_in_executor(self._sampler, self._sampled, together, loop)
            except Exception as error:
                traceback.print_exc()
                found = [ApiError(500, f"sampling failed: {type(error).__name__}: {error}")] * len(together)
            for each, event in zip(together, found, strict=True):
                each.events.put_nowait(event)

    def _together(self) -> list[Pending]:
        """The oldest request and those of the same settings, as many as fit. One with a seed is sampled alone."""
        first, *others = self._waiting
        n, params, seed = first.options.n, first.params, first.options.seed
        alike = [each for each in others if (each.options.n, each.params, each.options.seed) == (n, params, None)]
        together = [first, *(alike if seed is None else [])]
        batches, new_tokens = [each.batch for each in together], n * params.max_new_tokens
        return together[: len(next(in_budget(batches, new_tokens=new_tokens, budget=self._budget)))]

    def _sampled(self, together: Sequence[Pending], loop: asyncio.AbstractEventLoop) -> list[RolloutBatch]:
        """The completions of each request, in the sampling thread."""
        first, n, engine = together[0], together[0].options.n, self.respondent.sample.engine

        def watch(rows: list[int], tokens: list[int]) -> list[bool]:
            for row, token in zip(rows, tokens, strict=True):
                if (each := together[row // n]).options.stream:
                    loop.call_soon_threadsafe(each.events.put_nowait, (row % n, token))
            return [together[row // n].gone for row in rows]

        if isinstance(engine, SharedPrefixEngine) and self.respondent.sample.toolbox is None:
            engine.drawing.watch = watch
        return self.respondent.complete([each.batch for each in together], n, first.params)

    async def answered(self, body: bytes, is_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[Any]:
        """First the ``Pending`` of a request, then its events. Its place is free when the iterator ends.

        Args:
            is_gone: says whether the client has left.

        Raises:
            ApiError: the request cannot be answered.
        """
        if self.active >= self.limits.max_waiting:
            raise ApiError(429, f"{self.active} requests wait already (--max_waiting); try again later")
        self.active += 1
        pending, event, until = None, None, time.monotonic() + self.limits.max_seconds
        with TemporaryDirectory(prefix="qwenvl-serve-", ignore_cleanup_errors=True) as folder:
            try:
                making = asyncio.get_running_loop().run_in_executor(self._readers, self._made, body, Path(folder))
                pending = await making  # the reader of clips has a bound on its time
                yield pending
                self._waiting.append(pending)
                self._arrived.set()
                while not isinstance(event, RolloutBatch):
                    try:
                        event = await asyncio.wait_for(pending.events.get(), SECONDS_BETWEEN_LOOKS)
                    except asyncio.TimeoutError:
                        event = ApiError(499, "the client is gone") if await is_gone() else None
                        if time.monotonic() > until:
                            event = ApiError(504, f"no answer within {self.limits.max_seconds:g} s (--max_seconds)")
                    if isinstance(event, Exception):
                        raise event
                    if event is not None:
                        yield event
            finally:
                self.active -= 1
                if pending is not None:
                    pending.gone = True

    def _made(self, body: bytes, folder: Path) -> Pending:
        """A request with its prompt, made as ``qwenvl try`` makes it."""
        try:
            messages, options = self._options(body)
            sample = self._dataset.load(self._record(messages, options, folder))
            with self._collating:
                batch = self.collator([sample])["prompts"]
            return Pending(batch, options, options.params(self.respondent.sample.params))
        except DATA_ERRORS as error:
            raise ApiError(400, str(error).replace(f"{folder}/", "medium ").replace(f"{self._root}/", "")) from None

    def _options(self, body: bytes) -> tuple[Any, ChatOptions]:
        """The messages and the parameters of a request."""
        try:
            found = json.loads(body)
            messages = found["messages"]
            read = {each.name for each in fields(ChatOptions)} & found.keys()
            for name in found.keys() - read - WITHOUT_EFFECT:
                if found[name] not in NEUTRAL:
                    raise ApiError(400, f"{name}: not offered by this server; leave it out", "unsupported_parameter")
            options = ChatOptions(**{name: found[name] for name in read if found[name] is not None})
            options.params(self.respondent.sample.params)
        except (TypeError, KeyError, AttributeError, RecursionError):
            raise ApiError(400, "expected a JSON object with messages") from None
        except ValueError as error:
            raise ApiError(400, str(error).removeprefix("--").replace("\n--", "\n")) from None
        if options.model not in (None, self.name):
            raise ApiError(404, f"model: {options.model!r} is not served; there is {self.name!r}", "model_not_found")
        return messages, options

    def _record(self, messages: Any, options: ChatOptions, folder: Path) -> Record:
        """The record of a request. Its media are written to the folder."""
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise ApiError(400, "messages: expected a list of objects with role and content")
        paths: list[str] = []
        turns = [{**each, "content": self._content(each.get("content"), folder, paths)} for each in messages]
        own_system: dict[str, Any] = {"system": None} if any(each.get("role") == "system" for each in messages) else {}
        drawn_by = uuid.uuid4().hex if options.seed is None else f"seed {options.seed}"
        row = Row("request", drawn_by, {"messages": turns})
        record = parse_row(row, Path("/"), replace(self._reading, **own_system))
        if record.solution:
            raise ApiError(400, "messages: expected the last one to be the user's")
        return record

    def _content(self, parts: Any, folder: Path, paths: list[str]) -> Any:
        """The content of a message as rows have it. Media before all text end in one new line, as in ``qwenvl try``.

        Args:
            paths: of the media of the request so far, to which those of this message are added.
        """
        if not isinstance(parts, list):
            return parts
        found: list[Any] = []
        for part, after in zip(parts, [*parts[1:], {"text": "\n"}], strict=True):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in MEDIA and kind != "text":
                raise ApiError(400, f"messages: expected parts of type text, video_url or image_url, got {kind!r}")
            if kind == "text":
                found.append(part)
                continue
            url = part[kind].get("url") if isinstance(part.get(kind), dict) else part.get(kind)
            if len(paths) >= self.limits.max_media:
                raise ApiError(
                    400, f"messages: expected at most {self.limits.max_media} clips and images (--max_media)"
                )
            try:
                if not isinstance(url, str):
                    raise ValueError('expected {"url": ...}')
                paths.append(self._path(url, folder / str(len(paths))))
            except (ValueError, OSError) as error:
                raise ApiError(400, f"{kind} {str(url)[:80]!r}: {error}") from None
            leading = all(each.get("text") in (None, "\n") for each in found)
            leading &= not (isinstance(after, dict) and str(after.get("text")).startswith("\n"))
            found += [{"type": MEDIA[kind], MEDIA[kind]: paths[-1]}, *([{"type": "text", "text": "\n"}] * leading)]
        return found

    def _path(self, url: str, target: Path) -> str:
        """The path of a medium. One that is not a file of this machine is written to ``target``.

        Raises:
            ValueError, OSError: it may not be read, or cannot be.
        """
        if url.startswith(("http://", "https://")):
            if not self.limits.allow_http:
                raise ValueError("this server fetches nothing (--allow_http); send a data URL")
            most = int(self.limits.max_body_mb * 1e6)
            with urlopen(url, timeout=30) as answer:
                data = answer.read(most + 1)
            if len(data) > most:
                raise ValueError(f"above {self.limits.max_body_mb:g} MB (--max_body_mb)")
        elif url.startswith("data:"):
            text = url.partition(";base64,")[2]
            if not text:
                raise ValueError("expected data:TYPE;base64,DATA")
            data = base64.b64decode(text, validate=True)
        elif self._root is None:
            raise ValueError("this server reads no files (--media_root); send a data URL")
        else:
            is_address = url.startswith("file://")
            return media_path(unquote(url.removeprefix("file://")) if is_address else url, "the path", self._root)
        target.write_bytes(data)
        return str(target)


# ---- the answers


def texts_and_usage(pending: Pending, rollout: RolloutBatch) -> tuple[list[str], dict[str, int]]:
    """The texts of an answer, each up to the request's own stop strings, and its tokens, end tokens included."""
    texts = []
    for text in rollout.texts:
        ends = [found for stop in pending.options.stops if (found := text.find(stop)) >= 0]
        texts.append(text[: min(ends, default=None)])
    prompt, completion = pending.batch.input_ids.shape[1], int(rollout.completion_mask.sum())
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return texts, usage


def logprobs_of(rollout: RolloutBatch, row: int, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """The log-probs of an answer in OpenAI's form, and ``token_ids`` as vLLM has them."""
    assert rollout.logprobs is not None  # every engine gives them
    mask = rollout.completion_mask[row]
    ids, values = rollout.completion_ids[row][mask].tolist(), rollout.logprobs[row][mask].tolist()
    pairs = zip(ids, values, strict=True)
    content = [{"token": decode([n]), "logprob": value, "bytes": None, "top_logprobs": []} for n, value in pairs]
    return {"logprobs": {"content": content}, "token_ids": ids}


async def streamed(
    pending: Pending, events: AsyncIterator[Any], head: Mapping[str, Any], decode: Callable[[list[int]], str]
) -> AsyncIterator[str]:
    """An answer as server-sent events: pieces of text as they come, and at the end the remaining text and the usage."""

    def piece(choice: int, text: str, reason: str | None = None, **more: Any) -> str:
        delta = {"role": "assistant", "content": text}
        chosen = {"index": choice, "delta": delta, "finish_reason": reason}
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [chosen], **more})}\n\n"

    ids: list[list[int]] = [[] for _ in range(pending.options.n)]
    sent = [""] * len(ids)
    try:
        async for each in events:
            if isinstance(each, tuple):
                choice, token = each
                ids[choice].append(token)
                text = decode(ids[choice])
                whole = text.startswith(sent[choice]) and not text.endswith("\ufffd")  # half of a character
                if whole and text != sent[choice] and not pending.options.stops:
                    yield piece(choice, text[len(sent[choice]) :])
                    sent[choice] = text
                continue
            texts, usage = texts_and_usage(pending, each)
            for choice, (text, reason) in enumerate(zip(texts, each.finish_reasons, strict=True)):
                yield piece(choice, text[len(sent[choice]) :], reason, usage=usage)
    except ApiError as error:
        yield f"data: {json.dumps(error.body)}\n\n"
    yield "data: [DONE]\n\n"


def build_app(server: ChatServer) -> Any:
    """The ASGI application of a server."""
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, StreamingResponse

    decode = partial(server.collator.processor.tokenizer.decode, skip_special_tokens=True)
    model = {"id": server.name, "object": "model", "created": int(time.time()), "owned_by": OWNER}

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        sampling = asyncio.create_task(server.sample_forever())
        yield
        sampling.cancel()

    async def chat(request: Any) -> Any:
        body, most = bytearray(), server.limits.max_body_mb * 1e6
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise ApiError(413, f"the request is above {server.limits.max_body_mb:g} MB (--max_body_mb)")
        events = server.answered(bytes(body), request.is_disconnected)
        pending = await anext(events)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": server.name}
        if pending.options.stream:
            return StreamingResponse(streamed(pending, events, head, decode), media_type="text/event-stream")
        rollout = [event async for event in events][-1]
        texts, usage = texts_and_usage(pending, rollout)
        choices = [
            {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": rollout.finish_reasons[n]}
            for n, text in enumerate(texts)
        ]
        if pending.options.logprobs:
            tokens = server.collator.processor.tokenizer.decode
            choices = [each | logprobs_of(rollout, n, tokens) for n, each in enumerate(choices)]
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    async def models(request: Any) -> Any:
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Any) -> Any:
        return JSONResponse({"status": "ok", "requests": server.active})

    async def failed(request: Any, error: Any) -> Any:
        if not isinstance(error, ApiError):
            error = ApiError(getattr(error, "status_code", 500), getattr(error, "detail", str(error)))
        return JSONResponse(error.body, error.status)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_route("/v1/chat/completions", chat, ["POST"])
    app.add_route("/v1/models", models, ["GET"])
    app.add_route("/health", health, ["GET"])
    for kind in (404, 405, ApiError, Exception):
        app.add_exception_handler(kind, failed)
    return app


# ---- the comparison with a running server


def check(request: UseRequest) -> str:
    """Whether the server ``--check`` shows five records as training did: a line for each, and the verdict.

    Its greedy answers are compared with those here, and their log-probs with those of the same tokens here.

    Raises:
        ValueError, OSError: no record can be sent, or the server does not answer.
    """
    openai, config, url = require("openai", "judge"), request.config, request.options.check
    files = (RecordFile(each, seed=0, options=request.reading) for each in resolve_datasets(request.words[0]))
    rows = (row for file in files for row in file.iterate() if isinstance(row, Record) and not any(row.clip_meta))
    records = [*islice((row for row in rows if all(map(os.path.isfile, (*row.videos, *row.images)))), CHECKED)]
    if not records:
        raise ValueError(f"{request.words[0]}: expected records whose clips and images are files, without `meta`")
    collator = collator_of(config)
    dataset, tokenizer = dataset_of([], config, collator), collator.processor.tokenizer
    respondent = build_respondent(config, collator, build_rubric())
    model, encode = respondent.step.policy, respondent.sample.encode
    likelihood = partial(completion_likelihood, temperature=1.0, logit_chunk_tokens=1024)
    lines, gaps, same_lengths, same_answers = list[str](), list[float](), True, True
    try:
        client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none")
        [served, *_] = client.models.list()
        for record in records:
            batch = collator([dataset.load(record)])["prompts"]
            [own] = respondent.complete([batch], 1)
            inputs = encode.inputs(model, batch)
            reply = client.chat.completions.create(
                model=served.id,
                # Our own server puts the template and the system turn around prompts.
                messages=messages_of(unframed(record, request.reading) if served.owned_by == OWNER else record),
                max_tokens=respondent.sample.params.max_new_tokens,
                temperature=0,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            choice, theirs, here = reply.choices[0], reply.usage.prompt_tokens, batch.input_ids.shape[1]
            same = (choice.message.content or "").strip() == own.texts[0].strip()
            same_lengths, same_answers = same_lengths and theirs == here, same_answers and same
            named = "the same answer" if same else "another answer"
            lines.append(f"{record.id}: {named}; {theirs:,} tokens of the prompt, {here:,} here")
            given = (choice.logprobs and choice.logprobs.content) or []
            ids = getattr(choice, "token_ids", None) or tokenizer.encode("".join(each.token for each in given))
            if given and len(ids) == len(given):
                tokens = torch.tensor([ids], device=config.device)
                with torch.no_grad(), encode.autocast():
                    [values] = likelihood(model, inputs, tokens, tokens >= 0).logprobs.tolist()
                gap = [abs(value - each.logprob) for value, each in zip(values, given, strict=True)]
                lines[-1] += f", log-probs within {max(gap):.2g}"
                gaps += gap
    except openai.OpenAIError as error:
        raise ValueError(f"--check {url}: {str(error)[:300]}") from None
    alike, compared = same_answers, "the server gives no log-probs: only lengths of prompts and answers are compared"
    if gaps:
        largest, mean = max(gaps), sum(gaps) / len(gaps)
        alike = largest <= HALF_PRECISION[0] and mean <= HALF_PRECISION[1]
        compared = f"log-probs of {len(gaps):,} tokens differ by {largest:.3g} at most and by {mean:.3g} on average"
    causes = "which frames are taken, their times, the template's arguments, and the weights"
    if not same_lengths:
        causes = "the number of frames, their sizes, and the chat template"
    verdict = "as trained, but for rounding" if alike and same_lengths else f"NOT as trained: look at {causes}"
    return "\n".join([*lines, compared, verdict])


def messages_of(record: Record) -> list[dict[str, Any]]:
    """The messages of OpenAI's API, with clips and images as data URLs."""
    paths = {"video": iter(record.videos), "image": iter(record.images)}

    def sent(part: dict[str, Any]) -> dict[str, Any]:
        if (kind := part["type"]) not in paths:
            return part
        path = Path(next(paths[kind]))
        data = base64.b64encode(path.read_bytes()).decode()
        return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{mimetypes.guess_type(path)[0]};base64,{data}"}}

    return [{**turn, "content": [*map(sent, turn["content"])]} for turn in chat_messages(record)]
