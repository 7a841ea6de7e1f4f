"""The server around an engine: one request at a time, versions of weights, deadlines, HTTP."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError, safe_open

from qwenvl.vllm_server.wire import (
    MOST_BYTES,
    PROTOCOL,
    TOKEN,
    Health,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    memory_file,
    pack,
    require,
)

if TYPE_CHECKING:
    from qwenvl.vllm_server.engine import Engine  # which loads vLLM. Tests have another one

Some = TypeVar("Some")
RESTART = 75  # exit status: the engine can't be trusted any more, a new process can (EX_TEMPFAIL of sysexits.h)


class SamplingServer:
    """Answers requests one after the other, in one thread: vLLM's engine is not thread-safe.

    A server whose engine raised, or did not finish by a deadline, refuses all else and ends: such an engine has been
    seen to hang at the next request. Its script starts it again, and it begins with version 0.

    Attributes:
        boot: names this process.
        version: of the weights. 0 for those that it was started with. None while it has some of the parts of a version,
            and after a sync that failed: nothing is sampled then.
        raised: why the server ends, if it does.
    """

    def __init__(self, model: str, *, sleeps: bool = False):
        """
        Args:
            model: the checkpoint.
            sleeps: the engine can release its memory.
        """
        self.boot = secrets.token_hex(8)
        self.version: int | None = 0
        self.raised: str | None = None
        self._model, self._sleeps = model, sleeps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._engine: Engine | None = None
        self._next_part: tuple[int, int | None, int] | None = None  # version, base and number of the part to come
        self._written: set[str] = set()  # parameters, by the parts so far
        self._busy = self._asleep = False

    def load(self, make: Callable[[], Engine]) -> None:
        """Makes the engine, in the thread that will run it."""
        self._engine = self._thread.submit(make).result()

    def health(self) -> Health:
        """Answers at once, also while the engine works."""
        engine = self._ready()
        return Health(
            protocol=PROTOCOL,
            boot=self.boot,
            version=self.version,
            model=self._model,
            model_type=engine.shape.model_type,
            sizes=engine.shape.sizes,
            dtype=engine.dtype,
            tied=engine.shape.tied,
            busy=self._busy,
            asleep=self._asleep,
            raised=self.raised,
        )

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """
        Raises:
            Refusal: see its kinds.
        """
        return self._in_turn(lambda: self._sample(request), request.deadline_s)

    def take_weights(self, request: WeightsRequest) -> Health:
        """
        Raises:
            Refusal: see its kinds.
        """
        self._in_turn(lambda: self._take_weights(request), request.deadline_s)
        return self.health()

    def sleep(self, asleep: bool, deadline_s: float = 600.0) -> Health:
        """Releases memory, or takes it again. Idempotent."""
        self._in_turn(lambda: self._sleep(asleep), deadline_s)
        return self.health()

    def _sample(self, request: SampleRequest) -> SampleAnswer:
        engine = self._awake()
        if request.version != self.version:
            has = "a part of a version" if self.version is None else f"version {self.version}"
            raise Refusal("version", f"the request is for weights of version {request.version}, the server has {has}")
        engine.check(request)
        return replace(engine.sample(request, salt=f"{self.boot}-{request.version}"), boot=self.boot)

    def _take_weights(self, request: WeightsRequest) -> None:
        engine, version, base, part = self._awake(), request.version, request.base, request.part
        if part:
            follows = self._next_part == (version, base, part)
            require(follows, f"part {part} of version {version} does not follow what came before")
        elif base is not None and base != self.version:
            raise Refusal("version", f"the weights go over version {base}, the server has {self.version}: send all")
        with _file_of(request) as path:
            self.version, self._next_part = None, None
            self._written = (self._written if part else set()) | engine.load(path)
        if part + 1 < request.parts:
            self._next_part = (version, base, part + 1)
            return
        if base is None:
            missing = engine.language_parameters() - self._written
            some = ", ".join(sorted(missing)[:3])
            require(not missing, f"{len(missing)} parameters of the model were not among all weights: {some}, ...")
        self.version = version

    def _sleep(self, asleep: bool) -> None:
        engine = self._ready()
        require(self._sleeps, "the server was started without --sleeps")
        if asleep != self._asleep:
            (engine.sleep if asleep else engine.wake)()
            self._asleep = asleep

    def _ready(self) -> Engine:
        if self._engine is None:
            raise Refusal("starting", "the model is being loaded")
        return self._engine

    def _awake(self) -> Engine:
        if self._asleep:
            raise Refusal("asleep", "the server has released its memory: POST /wake first")
        return self._ready()

    def _in_turn(self, work: Callable[[], Some], deadline_s: float) -> Some:
        """Runs ``work`` after the requests before it."""
        self._ready()
        self._require_working()
        turn: Future[Some] = self._thread.submit(self._run, work)
        try:
            return turn.result(timeout=deadline_s)
        except NotDone:
            if turn.cancel():
                raise Refusal("busy", f"other requests ran for the {deadline_s:g} s of this one") from None
            self._end(f"a request was not done after {deadline_s:g} s")
            raise Refusal("deadline", f"not done after {deadline_s:g} s: the server ends") from None

    def _require_working(self) -> None:
        if self.raised:
            raise Refusal("engine", f"the server is ending: {self.raised}")

    def _run(self, work: Callable[[], Some]) -> Some:
        self._require_working()
        self._busy = True
        try:
            return work()
        except Refusal:
            raise
        except BaseException as error:
            self._end(f"{type(error).__name__}: {error}")
            raise Refusal("engine", f"the engine raised {self.raised}: the server ends") from error
        finally:
            self._busy = False

    def _end(self, reason: str) -> None:
        """Ends the process when the answer that gives the reason has had time to leave."""
        self.raised = reason
        print(f"the server ends: {reason}", flush=True)
        timer = threading.Timer(1.0, lambda: self.exit())
        timer.daemon = True
        timer.start()

    def exit(self) -> None:
        """Ends the process at once, without waiting for the engine's thread, which may hang."""
        os._exit(RESTART)


@contextmanager
def _file_of(request: WeightsRequest) -> Iterator[str]:
    """The path of the weights, written to memory for the workers where they came in the message.

    Raises:
        Refusal: there is no file of safetensors.
    """
    if request.path is None:
        with memory_file(request.tensors) as path:
            yield path
        return
    require(
        os.path.isfile(request.path),
        f"no file of weights at {request.path}: trainer and server do not see each other's processes. Give "
        "--vllm_server the name of the machine in the place of 127.0.0.1, and weights are sent in messages",
    )
    try:
        with safe_open(request.path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise Refusal("request", f"{request.path}: not a file of safetensors") from error
    yield request.path


class Web(ThreadingHTTPServer):
    """HTTP by the standard library. Each connection has a thread, and ``SamplingServer`` runs one request at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], server: SamplingServer, token: str):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.answers, self.token = server, token
        self.is_loopback = ipaddress.ip_address(self.server_name.partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def server_bind(self) -> None:
        """As its parent, which would also ask the network for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    """One connection, which is closed where nothing is sent for ``timeout`` seconds."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server: Web
    _left = 0

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_POST(self) -> None:
        self._reply(self._post)

    def _get(self) -> bytes:
        require(self.path == "/health", f"GET {self.path}: there is only /health")
        return self.server.answers.health().pack()

    def _post(self) -> bytes:
        body, answers = self._body(), self.server.answers
        if self.path == "/sample":
            return pack(answers.sample(SampleRequest.unpack(body)))
        if self.path == "/weights":
            return answers.take_weights(WeightsRequest.unpack(body)).pack()
        if self.path in ("/sleep", "/wake"):
            return answers.sleep(self.path == "/sleep").pack()
        raise Refusal("request", f"POST {self.path}: there are /sample, /weights, /sleep and /wake")

    def _reply(self, answer: Callable[[], bytes]) -> None:
        length = self.headers.get("Content-Length", "0")
        self._left = int(length) if length.isdecimal() else 0  # bytes of the body that were not read
        try:
            self._check_sender()
            status, body = 200, answer()
        except Refusal as refusal:
            status, body = refusal.status, refusal.body()
            self._drain()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check_sender(self) -> None:
        # A page of another site may have a browser send it, under that site's name or its own.
        host = self.headers.get("Host", "").rpartition(":")[0]
        own = {self.server.server_name, "127.0.0.1", "localhost", "[::1]"}
        if "Origin" in self.headers or (self.server.is_loopback and host not in own):
            raise Refusal("page", "requests of web pages are refused: name this machine as 127.0.0.1 or localhost")
        expected = f"Bearer {self.server.token}".encode()
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            raise Refusal(
                "token",
                f"the token is missing or wrong: set ${TOKEN} to the server's, or to vllm-token in the cache folder "
                "(~/.cache/qwenvl) of its machine",
            )

    def _drain(self) -> None:
        """Reads the remaining body, so that the client can read the refusal. Then the connection ends."""
        self.close_connection = True
        while self._left > 0 and (read := self.rfile.read(min(self._left, 2**20))):
            self._left -= len(read)

    def _body(self) -> bytes:
        size = self._left
        require("Content-Length" in self.headers, "no Content-Length")
        if size > MOST_BYTES:
            self._left = min(size, 2**20)  # nobody reads all that
            raise Refusal("size", f"a body of {size} bytes: at most {MOST_BYTES} are taken")
        body = self.rfile.read(size)
        self._left = 0
        require(len(body) == size, f"the connection broke after {len(body)} of {size} bytes")
        return body

    def log_message(self, *args) -> None:
        """Not a line for each request."""
