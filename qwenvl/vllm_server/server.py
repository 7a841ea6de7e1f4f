"""The server without its HTTP: one request after the other, versions, deadlines, and its end."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from qwenvl.vllm_server.settings import VLLM, Settings
from qwenvl.vllm_server.weights import Weights, file_of, names_of
from qwenvl.vllm_server.wire.body import Refusal, require
from qwenvl.vllm_server.wire.health import PROTOCOL, Health
from qwenvl.vllm_server.wire.link import LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest

if TYPE_CHECKING:
    from qwenvl.vllm_server.engine import Engine  # which loads vLLM. Tests have another one

Some = TypeVar("Some")
RESTART = 75  # exit status: the engine can't be trusted any more, a new process can (EX_TEMPFAIL of sysexits.h)


class Server:
    """Answers requests one after the other, in one thread, since vLLM is not made for several.

    A server whose engine raised, or did not finish by a deadline, refuses all else and ends: such an engine has been
    seen to hang at the next request. Who started it starts it again, and it begins with version 0.

    Attributes:
        boot: names this process.
        raised: why the server ends, if it does.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.boot = secrets.token_hex(8)
        self.raised: str | None = None
        self._started = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._engine: Engine | None = None
        self._weights: Weights | None = None
        self._link: str | None = None
        self._busy = self._asleep = False

    def load(self, make: Callable[[], Engine]) -> None:
        """Makes the engine, in the thread that will run it."""

        def start() -> None:
            engine = make()
            self._weights, self._engine = Weights(engine), engine

        self._thread.submit(start).result()

    def health(self) -> Health:
        """Answers at once, also while the engine is at work."""
        engine, weights = self._ready()
        return Health(
            protocol=PROTOCOL,
            boot=self.boot,
            pid=os.getpid(),
            version=weights.version,
            model=self.settings.model,
            model_type=engine.shape.model_type,
            sizes=engine.shape.sizes,
            dtype=engine.dtype,
            tied=engine.shape.tied,
            vllm=VLLM,
            max_model_len=engine.shape.max_model_len,
            seconds_up=time.monotonic() - self._started,
            busy=self._busy,
            asleep=self._asleep,
            workers=engine.workers,
            nccl=engine.nccl,
            raised=self.raised,
        )

    def sample(self, request: SampleRequest) -> SampleAnswer:
        """
        Raises:
            Refusal: see its kinds.
        """
        return self._in_turn(lambda: self._sample(request), request.deadline_s)

    def take_weights(self, request: WeightsRequest) -> WeightsAnswer:
        """
        Raises:
            Refusal: see its kinds.
        """
        return self._in_turn(lambda: self._take_weights(request), request.deadline_s)

    def join(self, request: LinkRequest) -> Health:
        """Takes part in a link for weights.

        Raises:
            Refusal: see its kinds.
        """
        self._in_turn(lambda: self._join(request), request.deadline_s)
        return self.health()

    def sleep(self, asleep: bool, deadline_s: float = 600.0) -> Health:
        """Gives memory back, or takes it again. It may be repeated."""
        self._in_turn(lambda: self._sleep(asleep), deadline_s)
        return self.health()

    def _sample(self, request: SampleRequest) -> SampleAnswer:
        engine, weights = self._awake()
        weights.require(request.version)
        engine.check(request)
        started = time.monotonic()
        done = engine.sample(request, salt=f"{self.boot}-{request.version}")
        return replace(done, boot=self.boot, seconds=time.monotonic() - started)

    def _take_weights(self, request: WeightsRequest) -> WeightsAnswer:
        engine, weights = self._awake()
        started = time.monotonic()
        if request.link is None:
            with file_of(request) as path:
                weights.take(request, names_of(path), lambda: engine.load(path))
        elif request.link == self._link:
            weights.take(request, [*request.shapes], lambda: engine.receive(request))
        else:
            raise Refusal("link", f"the weights come along link {request.link}, the server has {self._link or 'none'}")
        return WeightsAnswer(weights.version, time.monotonic() - started, self.boot)

    def _join(self, request: LinkRequest) -> None:
        engine, _ = self._awake()
        kind = "nccl" if engine.nccl else "gloo"
        require(request.kind == kind, f"the workers of this server take weights by {kind}, not by {request.kind}")
        self._link = None
        engine.join(request)
        self._link = request.link

    def _sleep(self, asleep: bool) -> None:
        engine, _ = self._ready()
        require(self.settings.sleeps, "the server was started without --sleeps")
        if asleep != self._asleep:
            (engine.sleep if asleep else engine.wake)()
            self._asleep = asleep

    def _ready(self) -> tuple[Engine, Weights]:
        if self._engine is None or self._weights is None:
            raise Refusal("starting", "the model is being loaded")
        return self._engine, self._weights

    def _awake(self) -> tuple[Engine, Weights]:
        if self._asleep:
            raise Refusal("asleep", "the server has given its memory back: POST /wake first")
        return self._ready()

    def _in_turn(self, work: Callable[[], Some], deadline_s: float) -> Some:
        """Runs ``work`` when those before it are done."""
        self._ready()
        if self.raised:
            raise Refusal("engine", f"the server is ending: {self.raised}")
        turn: Future[Some] = self._thread.submit(self._run, work)
        try:
            return turn.result(timeout=deadline_s)
        except NotDone:
            if turn.cancel():
                raise Refusal("busy", f"other requests ran for the {deadline_s:g} s of this one") from None
            self._end(f"a request was not done after {deadline_s:g} s")
            raise Refusal("deadline", f"not done after {deadline_s:g} s: the server ends") from None

    def _run(self, work: Callable[[], Some]) -> Some:
        if self.raised:
            raise Refusal("engine", f"the server is ending: {self.raised}")
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
        """Ends the process when the answer that says why has had time to leave."""
        self.raised = reason
        print(f"the server ends: {reason}", flush=True)
        timer = threading.Timer(1.0, lambda: self.exit())
        timer.daemon = True
        timer.start()

    def exit(self) -> None:
        """Ends the process at once. The engine's thread may hang and is not waited for."""
        os._exit(RESTART)
