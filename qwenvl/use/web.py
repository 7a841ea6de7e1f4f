"""HTTP around a ``ChatServer``: who may ask, how long a client may take, the addresses, and how the server ends.

No client is trusted: any page in a browser on this machine can send requests, and a connection costs nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from qwenvl.types import RolloutBatch
from qwenvl.use.answers import Pending, answers_of, logprobs_of, streamed, usage_of
from qwenvl.use.chat_request import ApiError
from qwenvl.use.options import OWNER, ServeOptions
from qwenvl.use.serve import ChatServer

LOCAL_NAME = "localhost"
IDLE_CONNECTIONS = 100  # besides those of requests
SECONDS_BETWEEN_LOOKS = 10.0  # at whether a connection moves
KEEP_ALIVE_SECONDS = 5  # between two requests
END_SECONDS = 3  # for requests that are being answered when the server ends
LEAST_BYTES = 100_000  # of a body, or of an answer, that must have come or gone between two looks
PIECE_BYTES = 4096  # that are parsed at once

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


# ---- who may ask


class Gate:
    """Refuses requests that a browser sends for a page of another site, and those without the token.

    A page can send requests to 127.0.0.1, but the browser says whose they are: by their Origin, and where the page has
    rebound its own name to this address, by the Host. An address as Host cannot be rebound. Starlette's
    ``TrustedHostMiddleware`` takes no addresses in general, and does not answer in OpenAI's form.
    """

    def __init__(self, app: Any, limits: ServeOptions) -> None:
        self._app = app
        names = [LOCAL_NAME, limits.host, *(limits.allowed_hosts or ())]
        self._names = {name.lower() for name in names}
        self._key = limits.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An application of ASGI."""
        problem = self._problem(scope) if scope["type"] == "http" else None
        app = self._app
        if problem is not None:
            headers = {"Connection": "close"} if _is_in_chunks(scope) else None  # the rest of which is not read
            app = JSONResponse(problem.body, problem.status, headers)
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> ApiError | None:
        if _is_in_chunks(scope):
            return ApiError(411, "expected a body with Content-Length, and not in chunks")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_ours(host):
            return ApiError(
                403, f"Host {host!r}: this server answers under an address, localhost and --allowed_hosts"
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            return ApiError(403, "Origin: this server answers no pages of other sites")
        if self._key is not None and scope["path"].startswith("/v1"):
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            known = hmac.compare_digest(token.strip(), self._key.encode())
            if scheme.lower() != b"bearer" or not known:
                message = "expected the server's key (--api_key) as Authorization: Bearer"
                return ApiError(401, message, "invalid_api_key")
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)


def _is_in_chunks(scope: Mapping[str, Any]) -> bool:
    """Whether the body of a request has a Transfer-Encoding, of which HTTP/1.1 has chunks alone."""
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


# ---- how long a client may take


class CountingTransport:
    """A transport that counts the bytes that are written to it.

    Attributes:
        written: these bytes, of which some may still have to be sent.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        """As of any transport."""
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ConnectionInTime(H11Protocol):
    """HTTP/1.1 that ends connections whose clients neither send nor read.

    uvicorn bounds the pause between two requests alone: a client that sends no whole head, or that does not read its
    answer, would hold a connection for ever. Where there are too many connections, the oldest that waits for a head is
    closed for a new one.

    h11 bounds a head that is not complete, so that heads are given to it in pieces, and a client may not send much of
    its next request before it has its answer. A body in chunks is not parsed at all: in chunks of a byte it would keep
    this process busy for minutes. ``Gate`` refuses such a request.
    """

    seconds = SECONDS_BETWEEN_LOOKS

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self._counted = CountingTransport(transport)
        self._began = time.monotonic()
        self._strikes = 0
        self._ahead = 0  # bytes that came since the request that is being answered was complete
        self._state: tuple[Any, int] = (self, 0)
        self._make_room()
        super().connection_made(self._counted)  # type: ignore[arg-type]
        self._next_look = self.loop.call_later(self.seconds, self._look)

    def _make_room(self) -> None:
        """Closes the oldest connection that waits for a head, where uvicorn would refuse this one."""
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency - 1:
            return
        waiting = [each for each in self.connections if isinstance(each, ConnectionInTime) and each.waits_for_a_head()]
        if waiting:
            oldest = min(waiting, key=lambda each: each._began)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing() or (self.cycle is not None and _is_in_chunks(self.cycle.scope)):
                return
            # h11 keeps what comes before the answer, and would parse all of it in one piece.
            is_ahead = not self.waits_for_a_head() and not self.cycle.more_body
            self._ahead = self._ahead + PIECE_BYTES if is_ahead else 0
            if self._ahead > PIECE_BYTES:
                self.transport.abort()
                return
            super().data_received(data[start : start + PIECE_BYTES])

    def waits_for_a_head(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def _look(self) -> None:
        """Ends the connection after two looks at which nothing has moved: at what must be read, or at a head."""
        unsent = self.transport.get_write_buffer_size()
        sent = self._counted.written - unsent
        cycle_before, sent_before = self._state
        if unsent:
            # A client that takes a few bytes now and then would hold its connection for hours.
            moves = sent - sent_before >= LEAST_BYTES
        else:
            moves = not self.waits_for_a_head() or self.cycle is not cycle_before
        self._state = (self.cycle, sent)
        self._strikes = 0 if moves else self._strikes + 1
        if self._strikes > 1:
            self.transport.abort()
        else:
            self._next_look = self.loop.call_later(self.seconds, self._look)


async def body_of(request: Request, most_mb: float, count: Callable[[int], None]) -> bytes:
    """The body of a request.

    Args:
        count: called with the bytes of each piece before it is kept.

    Raises:
        ApiError: it is too large, comes too slowly, or the request does not say how long it is.
    """
    length = request.headers.get("content-length")
    if length is None or not length.isdecimal():
        raise ApiError(411, "expected a body with Content-Length")
    if int(length[:20]) > most_mb * 1e6:
        raise ApiError(413, f"the request is above {most_mb:g} MB (--max_body_mb)")
    body = bytearray()
    before = 0
    look = time.monotonic() + SECONDS_BETWEEN_LOOKS
    complete = False
    while not complete:
        try:
            message = await asyncio.wait_for(request.receive(), max(0.01, look - time.monotonic()))
        except TimeoutError:
            message = {"type": "http.request", "more_body": True}
        if message["type"] == "http.disconnect":
            raise ApiError(499, "the client is gone")
        piece = message.get("body", b"")
        count(len(piece))
        body += piece
        complete = not message.get("more_body", False)
        if time.monotonic() >= look and not complete:
            if len(body) - before < LEAST_BYTES:
                raise ApiError(408, f"expected at least {LEAST_BYTES / 1000:g} kB in {SECONDS_BETWEEN_LOOKS:g} s")
            before = len(body)
            look = time.monotonic() + SECONDS_BETWEEN_LOOKS
    return bytes(body)


# ---- the addresses


class Events(StreamingResponse):
    """Server-sent events, whose iterator ends also where the client leaves."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An application of ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


def build_app(server: ChatServer) -> Any:
    """The ASGI application of a server."""
    tokenizer = server.collator.processor.tokenizer
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    model = {"id": server.name, "object": "model", "created": int(time.time()), "owned_by": OWNER}

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        sampling = asyncio.create_task(server.sampling.sample_forever())
        yield
        sampling.cancel()
        server.close()

    async def chat(request: Request) -> Any:
        # A page may send text/plain to any address without asking the browser's user, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "expected Content-Type: application/json")
        receive = partial(body_of, request, server.limits.max_body_mb)
        client = request.client.host if request.client else ""
        events = server.answered(receive, request.is_disconnected, client)
        pending = await anext(events)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": server.name}
        if pending.options.stream:
            return Events(streamed(pending, events, head, decode))
        async with aclosing(events):
            *_, rollout = [event async for event in events]
        # In a thread: the tokens of many answers take a second to decode one by one.
        return await asyncio.to_thread(completion_of, pending, rollout, head)

    def completion_of(pending: Pending, rollout: RolloutBatch, head: dict[str, Any]) -> JSONResponse:
        answers = answers_of(pending, rollout, decode)
        choices = []
        for number, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.text}
            choice: dict[str, Any] = {"index": number, "message": message, "finish_reason": answer.finish_reason}
            if pending.options.logprobs:
                choice |= logprobs_of(answer, tokenizer.decode)
            choices.append(choice)
        usage = usage_of(pending, answers)
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    async def models(request: Request) -> Any:
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Request) -> Any:
        if server.sampling.hangs():
            return JSONResponse({"status": "sampling hangs, perhaps in a tool", "requests": server.active}, 503)
        return JSONResponse({"status": "ok", "requests": server.active})

    async def failed(request: Request, error: Any) -> Any:
        if not isinstance(error, ApiError):
            error = ApiError(error.status_code, str(error.detail))
        return JSONResponse(error.body, error.status)

    async def broken(request: Request, error: Exception) -> Any:
        error = ApiError(500, f"the server failed: {type(error).__name__}")
        return JSONResponse(error.body, error.status)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_route("/v1/chat/completions", chat, ["POST"])
    app.add_route("/v1/models", models, ["GET"])
    app.add_route("/health", health, ["GET"])
    for kind in (404, 405, ApiError):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(Exception, broken)
    app.add_middleware(Gate, limits=server.limits)
    return app


# ---- the server


def listen(host: str, port: int) -> socket.socket:
    """A socket at which connections wait until they are accepted.

    Raises:
        OSError: the address is not one of this machine, or is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=socket.SOMAXCONN)  # type: ignore[arg-type]
    except OSError as error:
        raise OSError(f"--host {host} --port {port}: {error.strerror or error}; give another port or address") from None


class WebServer(uvicorn.Server):
    """The web server around a model. When it ends, requests have a few seconds to be answered."""

    def __init__(self, server: ChatServer) -> None:
        config = uvicorn.Config(
            build_app(server),
            http=ConnectionInTime,
            ws="none",
            log_level="error",
            lifespan="on",
            proxy_headers=False,  # a client could call itself another one
            limit_concurrency=server.limits.max_waiting + IDLE_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=END_SECONDS + 1,
        )
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        asyncio.get_running_loop().call_later(END_SECONDS, self._server.end_requests)
        await super().shutdown(sockets)


def serve(server: ChatServer, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM, which end the process within seconds, whatever clients do."""
    try:
        WebServer(server).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
    # Threads that read or sample for nobody end at the next interruption. The interpreter would wait for them.
    until = time.monotonic() + END_SECONDS
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        os._exit(0)
