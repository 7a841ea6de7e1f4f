"""Commands of Python in processes that are forked from one which has imported all: to import takes them seconds.

``fork_python`` is a program that is called as ``python`` is: with a script, ``-m module`` or ``-c code``, and flags.
Folder, environment and streams are those of its caller, signals reach the process, and its status is handed back. Only
the start of the interpreter is not tested so, which `tests/train/test_commands.py` does.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from functools import cache
from itertools import dropwhile
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

import pytest

OPTIONS = {"-u", "-B"}  # of Python: they change nothing here
CLIENT = Path(__file__).with_name("forked_client.py")


@cache
def forks():
    """A process that has imported everything, and waits to be forked: importing would take longer than most runs."""
    tests = Path(__file__).parent
    sys.path.insert(0, str(tests / "train"))
    paths = os.pathsep.join([str(tests / "train"), str(tests.parent)])
    here = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "PYTHONPATH": paths}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with patch.dict(os.environ, here):
        forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def fork_python():
    """The program. See the head of this file."""
    with tempfile.TemporaryDirectory() as folder:  # the address of a socket has at most 107 letters
        program, address = Path(folder, "python"), str(Path(folder, "socket"))
        words = [sys.executable, "-S", "-I", str(CLIENT), address]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            server = forks().Process(target=serve, args=(listener,))
            server.start()
        yield str(program)
        server.kill()
        server.join()


def serve(listener: socket.socket) -> None:
    """Fork a process for each request, until this one is killed."""
    while True:
        connection, _ = listener.accept()
        while _reap():
            pass
        if os.fork() == 0:
            listener.close()
            _answer(connection)
            os._exit(0)
        connection.close()


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _answer(connection: socket.socket) -> None:
    """Run what is asked for, and tell its process, then its status. It is killed where nobody waits any more."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(head, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _become(**asked)
    with suppress(BrokenPipeError):
        connection.sendall(f"{child}\n".encode())
    ends = os.pidfd_open(child)
    if ends not in select.select([connection, ends], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(f"{status}\n".encode())


def _become(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Do in this process what ``python WORDS`` does, and end."""
    multiprocessing.process._parent_process = None
    os.chdir(folder)
    os.environ.clear()
    os.environ |= {"DS_ACCELERATOR": "cpu", **environment}
    # A shell that started the tests in the background, or nohup, has them ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    status: object = 1
    try:
        _run_as_python(list(dropwhile(OPTIONS.__contains__, words)))
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        with suppress(OSError):  # a test that failed has closed the pipe
            traceback.print_exc()
    code = status if isinstance(status, int) else 1
    try:
        if not isinstance(status, int):
            print(status, file=sys.stderr)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # whatever fails: who asked for this process waits for its end


def _run_as_python(words: list[str]) -> None:
    kind, *rest = words
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if kind in ("-c", "-m"):
        sys.argv, sys.path[:0] = [kind, *rest[1:]], ["", *paths]
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[:0] = words, [str(Path(kind).parent.resolve()), *paths]
        runpy.run_path(kind, run_name="__main__")
