"""A run that is told to end: it finishes its step, saves a checkpoint on all processes, and ends with status 0.

SIGTERM comes from queue systems and container managers before they kill, SIGHUP when a terminal is closed, and SIGUSR1
from queue systems that are asked to tell of their time limit. Ctrl-C (SIGINT) is not among them: it ends a run at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import reduce
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import has_failed
from qwenvl.train.run.idle import SIGNALS


class StopOnSignal(TrainerCallback):
    """Ends training at the next step whose checkpoint can be resumed, once any process of the run got a signal.

    Attributes:
        stopped_by: the name of the signal that training was ended by. None: of none.
        step: the step that training was ended after.
    """

    def __init__(self, args: GRPOConfig):
        self.stopped_by: str | None = None
        self.step = 0
        self._args = args
        self._received: signal.Signals | None = None
        self._process = os.getpid()

    @contextmanager
    def listens(self) -> Iterator[None]:
        """Take the signals within. A signal that the process ignores, as ``nohup`` has it, stays ignored.

        Where nothing is to be saved a signal ends the process at once. Python takes signals in the main thread alone.
        In any other thread nothing is listened to.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in SIGNALS}
        for each, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(each, self._receive if self._args.save_on_signal else self._at_once())
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, signal.SIG_DFL if handler is None else handler)
            self._received = None  # the time limit has nothing to end any more

    def on_step_end(self, args, state, control, **kwargs):
        """Training ends here where it was told to, after a checkpoint."""
        self._end_if_told(state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        """The same: an evaluation may take long, and it comes before the checkpoint of its step."""
        if state.global_step:
            self._end_if_told(state, control)

    def told(self) -> str:
        """What happened and how to go on, in a line."""
        folder = f"{self._args.output_dir}/checkpoint-{self.step}"
        return (
            f"stopped by {self.stopped_by} after step {self.step}, saved as {folder}: --resume auto goes on from there"
        )

    def _end_if_told(self, state: Any, control: Any) -> None:
        number = torch.tensor(float(self._received or 0), device=self._args.device)
        number = reduce(number, "max") if self._args.world_size > 1 else number
        if number and state.global_step % self._args.num_iterations == 0:
            self.stopped_by, self.step = signal.Signals(int(number)).name, state.global_step
            control.should_save = control.should_training_stop = True

    def _at_once(self) -> Any:
        """The handler of a run that saves nothing. Launchers tell the status from a signal that came before it did."""
        return signal.SIG_DFL if self._args.world_size == 1 else lambda number, frame: os._exit(128 + number)

    def _receive(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a fork: the signal is for the run, which got it too
            return
        if has_failed():  # the launcher ends the others, which wait for a process that is gone
            os._exit(1)
        if self._received is None:
            self._received = signal.Signals(number)
            seconds = self._args.save_on_signal
            threading.Thread(target=self._limit, args=(seconds,), daemon=True).start()
            _write(f"{self._received.name}: finishing the step and saving a checkpoint, in at most {seconds:g} s\n")

    def _limit(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._received is not None and time.monotonic() < until:
            time.sleep(min(0.2, seconds))
        if (received := self._received) is not None:
            _write(f"{received.name}: the step was not done in {seconds:g} s (--save_on_signal): ending without it\n")
            os._exit(128 + received)


def begin_worker(then: Callable[[int], None] | None, index: int) -> None:
    """What a worker of a data loader does first: it leaves signals to the run, and then what it did before."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    if then is not None:
        then(index)


def kill_workers(process: int) -> None:
    """End the workers of data loaders when the run exits: they ignore the SIGTERM of multiprocessing, which then waits.

    Args:
        process: of the run. Its forks leave the workers alone.
    """
    if os.getpid() == process:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for a worker that is killed
        for each in multiprocessing.active_children():
            if each.daemon:
                each.kill()


def _write(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, line.encode())  # print is not allowed to be called again while it is at work
