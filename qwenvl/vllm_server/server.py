"""The server around an engine: its models, one request at a time, versions of weights, deadlines, HTTP."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple, TypeVar

from qwenvl.vllm_server.wire import (
    AGAIN,
    TOKEN,
    Health,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    memory_file,
    pack,
    require,
    unpack,
)

Some = TypeVar("Some")
Engine = Any  # that of ``engine``, which loads vLLM and imports this file. Tests have another one
RESTART = 75  # exit status: the engine can't be trusted any more, a new process can (EX_TEMPFAIL of sysexits.h)

NEEDS_TOWER = {"qwen2_vl": False, "qwen2_5_vl": False, "qwen3_vl": True, "qwen3_5": False}
"""The families that the server takes, and whether vLLM must load the vision tower, though no pixels ever reach it:
without it Qwen3-VL would leave out its deepstack features."""


def require_family(model_type: str) -> None:
    """Check that the server samples models of this type exactly.

    Raises:
        Refusal: vLLM was not compared with the trainer for it.
    """
    require(
        model_type in NEEDS_TOWER,
        f"this server does not sample model type {model_type!r}, with which vLLM was never held to the trainer's "
        f"numbers: it takes {', '.join(NEEDS_TOWER)}",
    )


class NextPart(NamedTuple):
    """The part of weights that a server takes next.

    Attributes:
        version: that the part belongs to. None: the first part of any version.
    """

    version: int | None = None
    number: int = 0


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
        """``model`` is the checkpoint. ``sleeps``: the engine can release its memory."""
        self.boot = secrets.token_hex(8)
        self.version: int | None = 0
        self.raised: str | None = None
        self._model = model
        self._sleeps = sleeps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._engine: Engine | None = None
        self._next = NextPart()
        self._asleep = False

    def load(self, make: Callable[[], Engine]) -> None:
        """Makes the engine, in the thread that will run it."""
        self._engine = self._thread.submit(make).result()

    def health(self) -> Health:
        """Answers at once, also while the engine works."""
        engine = self._working()
        return Health(self.boot, self.version, self._model, engine.architecture, engine.dtype)

    def in_turn(self, work: Callable[[], Some], seconds: float) -> Some:
        """The result of ``work``, done after the requests before it.

        Raises:
            Refusal: it is not done in time. The server then ends, if it has begun.
        """
        self._working()
        turn: Future[Some] = self._thread.submit(self._run, work)
        try:
            return turn.result(timeout=seconds)
        except NotDone:
            if turn.done():  # just now
                return turn.result()
            if turn.cancel():
                raise Refusal(f"other requests ran for the {seconds:g} s of this one", AGAIN) from None
            self._end(f"a request was not done after {seconds:g} s")
            raise Refusal(f"not done after {seconds:g} s: the server ends", AGAIN) from None

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """The completions. Call it by ``in_turn``, as the following methods.

        Raises:
            Refusal: the server has other weights, or can't take the request.
        """
        if request.version != self.version:
            has = "a part of a version" if self.version is None else f"version {self.version}"
            raise Refusal(f"the request is for weights of version {request.version}, the server has {has}", AGAIN)
        engine = self._awake()
        most = engine.max_model_len
        for number, prompt in enumerate(request.prompts):  # vLLM would truncate one that is too long
            new = request.room_of(prompt)
            require(
                0 < len(prompt.ids) <= most - new,
                f"prompts[{number}]: {len(prompt.ids)} tokens and {new} new ones exceed the server's --max_model_len "
                f"{most}. Start it with a larger one, if the model has as many positions, or train with "
                "--max_prompt_length, which also sets it for --rollout_engine vllm_colocate",
            )
        return replace(engine.sample(request, salt=f"{self.boot}-{request.version}"), boot=self.boot)

    def take_weights(self, request: WeightsRequest) -> Health:
        """Loads a part of the weights, if the server does not have it.

        Raises:
            Refusal: it does not follow the part before it, or with the last one weights of the model are missing.
        """
        engine = self._awake()
        version = request.version
        part = request.part
        if part == 0 and version not in (self.version, self._next.version):
            self._next = NextPart(version)
        # Several processes of a run may send the same parts.
        is_here = version == self.version or (version == self._next.version and part < self._next.number)
        if is_here:
            return self.health()
        if NextPart(version, part) != self._next:
            raise Refusal(f"part {part} of version {version} does not follow what came before", AGAIN)
        with _file_of(request) as path:
            # In case that it fails: then the server samples nothing until a whole version has come.
            self.version = None
            self._next = NextPart()
            missing = engine.load(path, first=part == 0, last=request.last)
        require(not missing, f"{len(missing)} parameters were not among all weights: {', '.join(missing[:3])}, ...")
        if request.last:
            self.version = version
        else:
            self._next = NextPart(version, part + 1)
        return self.health()

    def sleep(self) -> Health:
        """Releases the GPU's memory. Idempotent. The next request wakes the engine."""
        require(self._sleeps, "the server was started without --sleeps")
        if not self._asleep:
            self._working().sleep()
            self._asleep = True
        return self.health()

    def _working(self) -> Engine:
        if self._engine is None:
            raise Refusal("the model is being loaded", AGAIN)
        if self.raised:
            raise Refusal(f"the server is ending: {self.raised}", AGAIN)
        return self._engine

    def _awake(self) -> Engine:
        engine = self._working()
        if self._asleep:
            engine.wake()
            self._asleep = False
        return engine

    def _run(self, work: Callable[[], Some]) -> Some:
        self._working()
        try:
            return work()
        except Refusal:
            raise
        except BaseException as error:
            self._end(f"{type(error).__name__}: {error}")
            raise Refusal(f"the engine raised {self.raised}: the server ends", AGAIN) from error

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
        Refusal: there is no such file.
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
    yield request.path


MOST_STRANGERS = 64  # connections that have not sent the token


class Web(ThreadingHTTPServer):
    """HTTP by the standard library. Each connection has a thread, and ``SamplingServer`` runs one request at a time.

    Of connections that have not sent the token there are a few, and the oldest is closed for a new one: others on the
    machine may open as many as they like.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], server: SamplingServer, token: str):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.answers = server
        self.token = token
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address, with the port that was free where the command line has 0."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def server_bind(self) -> None:
        """Binds the address without asking the network for this machine's name, as the parent class would."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each new connection, before its thread is started."""
        with self._lock:
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):  # its client has left
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._strangers[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called where a connection ends."""
        self.forget(request)
        super().shutdown_request(request)

    def forget(self, connection: socket.socket) -> None:
        """Called for a connection that has sent the token, or has ended: it is no stranger."""
        with self._lock:
            self._strangers.pop(connection, None)


class Handler(BaseHTTPRequestHandler):
    """One connection, which is closed where nothing is sent for ``timeout`` seconds."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server: Web

    def _answer(self, body: bytes) -> Any:
        answers = self.server.answers
        work: Callable[[], Any] = answers.sleep
        if self.path == "/health":
            return answers.health()
        if self.path == "/sample":
            work = partial(answers.sample, unpack(SampleRequest, body))
        elif self.path == "/weights":
            work = partial(answers.take_weights, unpack(WeightsRequest, body))
        else:
            require(self.path == "/sleep", f"{self.path}: there are /health, /sample, /weights and /sleep")
        return answers.in_turn(work, self._number("Deadline", 600))

    def do_POST(self) -> None:
        try:
            self._check_sender()
            body = self.rfile.read(int(self._number("Content-Length", 0)))
            content = pack(self._answer(body))
            status = 200
        except Refusal as refusal:
            content = str(refusal).encode()
            status = refusal.status
            self.close_connection = True  # its body may be unread
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def _number(self, header: str, default: float) -> float:
        """The number in a header. Refusal: it is none, or below 0."""
        text = self.headers.get(header)
        if text is None:
            return default
        is_number = re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]+)?", text) is not None
        require(is_number, f"{header}: expected a number of at least 0, got {text[:40]!r}")
        return float(text)

    def _check_sender(self) -> None:
        expected = f"Bearer {self.server.token}".encode()
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            raise Refusal(
                f"the token is missing or wrong: set ${TOKEN} to the server's, or to vllm-token in the cache folder "
                "(~/.cache/qwenvl) of its machine",
                status=401,
            )
        self.server.forget(self.connection)

    def log_message(self, *args) -> None:
        """Prints nothing: the parent class prints a line for each request."""
