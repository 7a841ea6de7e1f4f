"""A child process that answers messages and can be killed at any moment: for work that may hang, crash or swell.

The child is a fresh interpreter. It inherits no lock and no open file, and it does not import the main script again, as
children of ``multiprocessing`` do. Daemonic processes, such as the workers of a DataLoader, may start one too.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

START_SECONDS = 120.0  # for imports from a cold network disk on a busy machine
SECONDS_BETWEEN_LOOKS = 0.5  # at whether an answer is still waited for
ALARM_MARGIN_SECONDS = 5.0  # how long after its deadline a child ends that no parent has killed
EXIT_SECONDS = 2.0  # how long a parent waits for the exit code of a child that closed its connection
_OF_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # signals that it handles for its children
_CODE = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from qwenvl.child import main; main(sys.argv[2:])"


class ChildError(Exception):
    """A child process gave no answer.

    Attributes:
        exit_code: of the process, if it ended. A negative number is the signal that ended it.
    """

    exit_code: int | None = None


class ChildFailed(ChildError):
    """The child's work on a message raised an exception. The child lives on.

    Attributes:
        details: the traceback in the child, as text.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details


class ChildDied(ChildError):
    """The child process ended before it answered."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the process died (exit code {exit_code})")
        self.exit_code = exit_code


class ChildTimeout(ChildError):
    """The child took longer for a message than it was given. It was killed."""


class Child:
    """A running child process that answers one message at a time.

    Args:
        load: ``module:function``. The child calls it once with ``arguments``, and it returns the function from a
            message to its answer. Its imports count neither as memory nor as time of a message.
        arguments: texts.
        memory_bytes: how much more memory the child may take than it holds once it is loaded. None for no bound.
            Beyond it the child raises MemoryError. Only Linux has this bound.
        environment: variables of the child besides those of this process, and in their place.
        descriptors: of open files that the child shares. They have the same numbers there.

    Raises:
        ChildError: the child did not start.

    Example:
        >>> child = Child("operator:attrgetter", "real")
        >>> child.ask(3 + 4j, seconds=60)
        3.0
        >>> child.kill()
        -9
    """

    def __init__(
        self,
        load: str,
        *arguments: str,
        memory_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self._connection, other_end = Pipe()
        with other_end:
            path = "\n".join([*(folder or os.getcwd() for folder in sys.path), str(Path(__file__).parents[1])])
            settings = [str(other_end.fileno()), str(os.getpid()), str(memory_bytes or 0), load, *arguments]
            held = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_PARENT)  # the child begins with them held back too
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CODE, path, *settings],
                    pass_fds=[other_end.fileno(), *descriptors],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **(environment or {})},
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
        atexit.register(self.kill)
        try:
            self._receive(START_SECONDS, f"{load}: the process did not start within {START_SECONDS:g} s")
        except ChildDied as error:
            failed = ChildError(f"{load}: while the process started, {error}")
            failed.exit_code = error.exit_code
            raise failed from None
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(
        self,
        message: Any,
        seconds: float | None = None,
        cpu_seconds: float | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Any:
        """Send a message and wait for its answer.

        Args:
            message: anything that can be pickled.
            seconds: how long the answer may take by the clock. None for no bound.
            cpu_seconds: how long the child may compute for it, on all its threads together. None for no bound. Other
                processes of the machine have no part in this bound.
            is_over: asked twice a second: whether nobody waits for the answer any more.

        Returns:
            The answer.

        Raises:
            ChildTimeout: the answer took longer, or nobody waits for it. The child was killed.
            ChildDied: the child ended before it answered.
            ChildFailed: the work on this message raised an exception.
        """
        data = pickle.dumps((message, seconds, cpu_seconds))
        try:
            self._connection.send_bytes(data)
        except OSError:  # the child closed its end
            self._died(cpu_seconds)
        return self._receive(seconds, f"no result after {seconds} s", cpu_seconds, is_over)

    def kill(self) -> int:
        """End the process at once, and return its exit code. A negative one is the signal that ended it."""
        self._process.kill()
        self._connection.close()
        atexit.unregister(self.kill)
        return self._process.wait()

    def _has_answered(self, seconds: float | None, is_over: Callable[[], bool] | None) -> bool:
        """Wait for an answer, and say whether there is one: in time, and as long as somebody waits for it."""
        if is_over is None:
            return self._connection.poll(seconds)
        until = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if self._connection.poll(max(0.0, min(left, SECONDS_BETWEEN_LOOKS))):
                return True
            if left <= 0 or is_over():
                return False

    def _receive(
        self,
        seconds: float | None,
        too_late: str,
        cpu_seconds: float | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> Any:
        try:
            if not self._has_answered(seconds, is_over):
                self.kill()
                raise ChildTimeout(too_late)
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._died(cpu_seconds)
        if isinstance(answer, ChildFailed):
            raise answer
        return answer

    def _died(self, cpu_seconds: float | None) -> NoReturn:
        with suppress(subprocess.TimeoutExpired):  # the exit code of its own end says why
            self._process.wait(EXIT_SECONDS)
        code = self.kill()
        if cpu_seconds is not None and code == -signal.SIGPROF:
            raise ChildTimeout(f"no result after {cpu_seconds} s of computing") from None
        raise ChildDied(code) from None


def main(arguments: list[str]) -> None:
    """The program of the child: load, report that it is ready, and answer messages until the parent is gone."""
    descriptor, parent, memory_bytes, load, *rest = arguments
    for each in _OF_PARENT:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_PARENT)
    threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    connection = Connection(int(descriptor))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the parent's standard output is for the parent's results
    module, _, name = load.partition(":")
    answer = getattr(import_module(module), name)(*rest)
    _limit_memory(int(memory_bytes))
    with suppress(EOFError, ConnectionError):  # the parent is gone
        connection.send_bytes(pickle.dumps(True))
        while True:
            _serve(connection, answer)


def _serve(connection: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer one message."""
    data = connection.recv_bytes()
    try:
        message, seconds, cpu_seconds = pickle.loads(data)
        # The kernel ends this process when a timer runs out, also within a call into C, and where the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_MARGIN_SECONDS if seconds else 0)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds or 0)
        reply = pickle.dumps(answer(message))
    except (Exception, SystemExit) as error:
        reply = pickle.dumps(ChildFailed(f"{type(error).__name__}: {error}", traceback.format_exc()))
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    connection.send_bytes(reply)


def _follow(parent: int) -> None:
    """End with the parent, even from within work that hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _limit_memory(more_bytes: int) -> None:
    """Bound this process to what it holds now and ``more_bytes``, where the system knows such bounds."""
    try:
        import resource

        with open("/proc/self/statm") as statm:
            held = int(statm.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    bound = held + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if more_bytes and (hard == resource.RLIM_INFINITY or bound < hard):
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
