"""Ends training early: at a signal, after a checkpoint; at a stall, with a report; and without an engine.

SIGTERM comes from queue systems and container managers before they kill, SIGHUP when a terminal is closed, and SIGUSR1
from queue systems that announce their time limit. Ctrl-C (SIGINT) ends a run at once.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import psutil
import torch
from accelerate.utils import reduce
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import has_failed, told_before
from qwenvl.rollout.engine import EngineLostError
from qwenvl.step.meter import Meter
from qwenvl.train.run.signals import SIGNALS, end_fork, note_signal, prepare_forks
from qwenvl.train.running_trainer import RunningTrainer

SECONDS_FOR_EACH = 0.5  # for a process to write the stacks of its threads
BACKUP_SECONDS = 30.0  # behind the timeout: then C code ends a process whose Python is locked by the thread that hangs


@contextmanager
def interruptible(trainer: RunningTrainer) -> Iterator[StopOnSignal]:
    """Let training run within. A signal or a stall ends it, and a lost engine after a checkpoint of the last step.

    Raises:
        EngineLostError: all engines died; raised in every process.
    """
    stop = StopOnSignal(trainer.args)
    stall = StallWatch(trainer.args, trainer.meter)
    callbacks = (stop, stall)
    for each in callbacks:
        trainer.add_callback(each)
    try:
        with stop.listens(), stall.watches():
            yield stop
    except EngineLostError:  # during the sampling of a step or of an evaluation
        trainer.save_last_step()
        raise
    finally:
        for each in callbacks:
            trainer.remove_callback(each)


class StopOnSignal(TrainerCallback):
    """Ends training at the next step whose checkpoint can be resumed, once any process of the run got a signal.

    Attributes:
        stopped_by: the name of the signal that ended training. None: no signal did.
        step: the last step.
    """

    def __init__(self, args: GRPOConfig):
        self.stopped_by: str | None = None
        self.step = 0
        self._args = args
        self._received: signal.Signals | None = None
        self._timer: threading.Timer | None = None  # ends the process if its step takes too long
        self._process = os.getpid()

    @contextmanager
    def listens(self) -> Iterator[None]:
        """Take the signals within. A signal that the process ignores, as with ``nohup``, stays ignored.

        With ``save_on_signal 0`` a signal ends the process at once. Python takes signals in the main thread alone: in
        any other thread this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        prepare_forks()
        before = {each: signal.getsignal(each) for each in SIGNALS}
        handler: Any = self._receive
        if not self._args.save_on_signal:
            handler = signal.SIG_DFL if self._args.world_size == 1 else _end_with_status
        for each, earlier in before.items():
            if earlier is not signal.SIG_IGN:
                signal.signal(each, handler)
        try:
            yield
        finally:
            for each, earlier in before.items():
                signal.signal(each, signal.SIG_DFL if earlier is None else earlier)  # None: C code had set it
            if self._timer is not None:
                self._timer.cancel()
            self._received = None

    def on_step_end(self, args, state, control, **kwargs):
        """End training here after a signal, with a checkpoint."""
        self._end_if_signalled(state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        """End it here too: an evaluation may take long, and it comes before the checkpoint of its step."""
        if state.global_step:
            self._end_if_signalled(state, control)

    def on_save(self, args, state, control, **kwargs):
        """And here, so that a signal during a save neither waits for another step nor is forgotten after the last."""
        self._end_if_signalled(state, control)
        control.should_save = False  # it is saved

    def message(self) -> str:
        """The signal, the checkpoint, and how to resume, in a line."""
        folder = f"{self._args.output_dir}/checkpoint-{self.step}"
        return (
            f"stopped by {self.stopped_by} after step {self.step}, saved as {folder}: --resume auto resumes from it"
        )

    def _end_if_signalled(self, state: Any, control: Any) -> None:
        """Have the Trainer save and stop if any process got a signal, at a step that can be resumed."""
        number = torch.tensor(float(self._received or 0), device=self._args.device)
        if self._args.world_size > 1:
            number = reduce(number, "max")
        # A checkpoint between steps on the same completions lacks these.
        can_be_resumed = state.global_step % self._args.num_iterations == 0
        if number and can_be_resumed:
            self.stopped_by = signal.Signals(int(number)).name
            self.step = state.global_step
            control.should_save = True
            if self._args.logging_strategy == IntervalStrategy.STEPS:
                control.should_log = True  # the numbers since the last entry
            control.should_training_stop = True

    def _receive(self, number: int, frame: Any) -> None:
        """The handler of signals: note the first one, and start the clock of its time limit."""
        if os.getpid() != self._process:
            return end_fork(number, self._process)
        note_signal()
        if has_failed():  # the launcher ends the others, which wait for a process that is gone
            os._exit(1)
        if self._received is None:
            self._received = signal.Signals(number)
            seconds = self._args.save_on_signal
            self._timer = threading.Timer(seconds, self._end_at_once, (self._received,))
            self._timer.daemon = True
            self._timer.start()
            _write(f"{self._received.name}: finishing the step and saving a checkpoint, in at most {seconds:g} s\n")

    def _end_at_once(self, received: signal.Signals) -> None:
        """End the process, whose step was not done within the limit."""
        seconds = self._args.save_on_signal
        _write(f"{received.name}: the step was not done in {seconds:g} s (--save_on_signal): ending without it\n")
        os._exit(128 + received)


class StallWatch(TrainerCallback):
    """Ends the process with status 1 after ``stall_timeout`` minutes without progress, and prints the stacks.

    Each process of a run watches itself. Where one of them hangs the others wait for it, so that all of them end. A
    process that waits has made its last progress before the one that hangs, so its time is over first, and launchers
    then end the others. Therefore the first process of a machine makes all of them print their stacks, by a signal that
    is handled in C: a thread that hangs with Python's lock is reported too.

    Args:
        meter: counts phases that begin and tokens that are sampled, which are progress too.
    """

    def __init__(self, args: GRPOConfig, meter: Meter):
        self._meter = meter
        self._beat = meter.beat()
        self._limit = 60 * args.stall_timeout
        self._process = args.process_index
        self._launched = args.world_size > 1 and "TORCHELASTIC_ERROR_FILE" in os.environ  # who ends the others
        self._step = 0
        self._last = time.monotonic()

    @contextmanager
    def watches(self) -> Iterator[None]:
        """Watch within."""
        if not self._limit:
            yield
            return
        over = threading.Event()
        if self._launched:
            faulthandler.register(signal.SIGUSR2, file=2)  # for good: without it the signal would end the process
        self._progress()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            faulthandler.cancel_dump_traceback_later()

    def _progress(self) -> None:
        """Start the time without progress anew."""
        self._last = time.monotonic()
        if self._limit:
            # In C and without Python's lock, which a thread that hangs may hold.
            faulthandler.dump_traceback_later(self._limit + BACKUP_SECONDS, exit=True, file=2)

    def _watch(self, over: threading.Event) -> None:
        """The body of the thread: look for progress, and end the process where there is none for too long."""
        while not over.wait(min(1.0, self._limit / 4)):
            beat = self._meter.beat()
            if beat != self._beat:
                self._beat = beat
                self._progress()
            if time.monotonic() - self._last >= self._limit:
                self._end()

    def _end(self) -> NoReturn:
        """Print the stacks of this process and of its siblings, and end."""
        problem = (
            f"no progress for {self._limit / 60:g} minutes (--stall_timeout) since step {self._step} "
            f"({self._meter.phase()}): process {self._process} ends"
        )
        siblings = psutil.Process(os.getppid()).children() if self._launched else []
        if told_before(problem) is not None:  # another process reports, and has this one print its stacks meanwhile
            time.sleep(SECONDS_FOR_EACH * len(siblings))
            os._exit(1)
        os.write(2, f"{problem}. Its threads, the innermost call first:\n".encode())
        faulthandler.dump_traceback(file=2)
        for each in siblings:
            with suppress(psutil.Error):  # it has ended, or is not ours
                rank = each.environ().get("RANK") if each.pid != os.getpid() else None
                if rank is not None:
                    os.write(2, f"process {rank} is then told to end. Its threads:\n".encode())
                    each.send_signal(signal.SIGUSR2)
                    time.sleep(SECONDS_FOR_EACH)
        os._exit(1)

    def on_step_end(self, args, state, control, **kwargs):
        """Note a step as progress."""
        self._step = state.global_step
        self._progress()

    def on_substep_end(self, args, state, control, **kwargs):
        """Note a micro-batch, a batch of an evaluation, an evaluation or a checkpoint as progress."""
        self._progress()

    on_prediction_step = on_evaluate = on_save = on_substep_end


def begin_worker(then: Callable[[int], None] | None, index: int) -> None:
    """Initialize a worker of a data loader, which ignores signals: the run takes them.

    Args:
        then: the function that the loader would have called.
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    if then is not None:
        then(index)


def kill_workers(process: int) -> None:
    """End the workers of data loaders when the run exits: they ignore the SIGTERM of multiprocessing, which then waits.

    Args:
        process: the id of the run's process. Its forks leave the workers alone.
    """
    if os.getpid() == process:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for a worker that is killed
        for each in multiprocessing.active_children():
            if each.daemon:
                each.kill()


def _end_with_status(number: int, frame: Any) -> NoReturn:
    """End a process of a run that saves nothing. Its launcher sees by the status that a signal was taken."""
    os._exit(128 + number)


def _write(line: str) -> None:
    """Write a line to standard error, in the first process."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, line.encode())  # a handler must not call print, which may be at work
