"""A run that is killed at a moment of its own: after so many calls within a phase, so many bytes of a file, or seconds.

A phase is what the run is at: ``beginning`` (it looks at its checkpoint and loads it), ``step``, ``refill`` (dynamic
sampling draws other groups), ``sync`` (a server is given weights, in a run that has one), ``evaluation``, ``save`` (a
checkpoint), ``ending`` (the model of a run that is done).
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHASES = ("beginning", "step", "refill", "evaluation", "save", "ending")
SYNC = "sync"
WRITES = ("save", "ending")  # phases that write large files


@dataclass(frozen=True)
class Moment:
    """When a run is killed.

    Attributes:
        phase: one of `PHASES`, or `SYNC`.
        occurrence: the how manyth phase of this name in the life of the process, from 1.
        kind: ``call``: SIGKILL after the call number ``at`` of Python or C within the phase, or at its end where it has
            fewer. ``write``: the system ends the process (SIGXFSZ) when a file that it writes within the phase grows
            beyond ``at`` bytes. ``time``: the parent is to send SIGKILL.
        at: calls, bytes or seconds.
    """

    phase: str
    occurrence: int = 1
    kind: str = "call"
    at: float = 0


@dataclass
class Trail:
    """What a run has been through, a line for each phase that begins or ends, in a file that outlives the process.

    Attributes:
        file: descriptor of the file.
        moment: when the process dies. None: it counts the calls of its phases and lives.
        open: the calls in each phase that has not ended, and the second that it began.
    """

    file: int
    moment: Moment | None
    seen: dict[str, int] = field(default_factory=dict)
    open: dict[str, list[float]] = field(default_factory=dict)

    def note(self, *words: object) -> None:
        """Add a line."""
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def begin(self, phase: str) -> None:
        """The run enters a phase, where its death may wait."""
        self.seen[phase] = self.seen.get(phase, 0) + 1
        self.open[phase] = [0, time.perf_counter()]
        self.note("begins", phase)
        if self.moment is None:
            sys.setprofile(self._count)
        elif (self.moment.phase, self.moment.occurrence) == (phase, self.seen[phase]):
            self._arm(self.moment)

    def end(self, phase: str) -> None:
        """The run leaves a phase. Where it should have died within, it dies now."""
        moment = self.moment
        if moment is None:
            sys.setprofile(None)
        elif moment.kind == "call" and (moment.phase, moment.occurrence) == (phase, self.seen[phase]):
            os.kill(os.getpid(), signal.SIGKILL)
        calls, began = self.open.pop(phase)
        self.note("ends", phase, int(calls), time.perf_counter() - began)
        if moment is None and self.open:
            sys.setprofile(self._count)

    def within(self, phase: str, function: Callable) -> Callable:
        """The function, as a phase of the run."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.begin(phase)
            result = function(*args, **kwargs)
            self.end(phase)
            return result

        return run

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            for each in self.open.values():
                each[0] += 1

    def _arm(self, moment: Moment) -> None:
        self.note("armed", moment.phase)
        if moment.kind == "write":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(moment.at), int(moment.at)))
        elif moment.kind == "call":
            left, own = int(moment.at), os.getpid()

            def kill(frame: Any, event: str, argument: Any) -> None:
                nonlocal left
                left -= event in ("call", "c_call")
                if left <= 0 and os.getpid() == own:  # and no process that reads records for it
                    os.kill(own, signal.SIGKILL)

            sys.setprofile(kill)


def live(argv: list[str], moment: Moment | None, trail: Path) -> None:
    """Train by the command, with phases noted, until the moment comes or the run is done. For a process of its own."""
    from qwenvl.rollout.weights import Handover
    from qwenvl.train.collect.filtering import FilteringCollector
    from qwenvl.train.grpo_trainer import GRPOTrainer
    from qwenvl.train.policy_trainer import PolicyTrainer
    from qwenvl.train.train_grpo import main

    noted = Trail(os.open(trail, os.O_WRONLY | os.O_CREAT | os.O_APPEND), moment)
    FilteringCollector._loaded = noted.within("refill", FilteringCollector._loaded)  # type: ignore[method-assign]
    GRPOTrainer.evaluation_loop = noted.within("evaluation", GRPOTrainer.evaluation_loop)  # type: ignore[method-assign]
    PolicyTrainer._save_checkpoint = noted.within("save", PolicyTrainer._save_checkpoint)  # type: ignore[method-assign]
    Handover.__call__ = noted.within(SYNC, Handover.__call__)  # type: ignore[method-assign]
    _note_steps(noted, GRPOTrainer)
    _note_refills(noted, FilteringCollector)
    _note_ending(noted, GRPOTrainer)
    main(argv)
    noted.note("done")


def _note_steps(noted: Trail, trainer: Any) -> None:
    """``beginning`` lasts until the first step draws its prompts, ``step`` from there to what is done after it."""
    train, draw, after = trainer.train, trainer.get_batch_samples, trainer._maybe_log_save_evaluate

    def begins(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted.begin("beginning")
        return train(self, *args, **kwargs)

    def draws(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "beginning" in noted.open:
            noted.note("resumed", self.state.global_step)
            noted.end("beginning")
        if "step" not in noted.open:
            noted.begin("step")
        return draw(self, *args, **kwargs)

    def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "step" in noted.open:
            noted.end("step")
        return after(self, *args, **kwargs)

    trainer.train, trainer.get_batch_samples, trainer._maybe_log_save_evaluate = begins, draws, ends


def _note_refills(noted: Trail, collector: Any) -> None:
    scored = collector._scored

    def refills(self: Any, model: Any, batches: Any, state: Any, *purpose: object) -> Any:
        run = noted.within("refill", scored) if purpose else scored
        return run(self, model, batches, state, *purpose)

    collector._scored = refills


def _note_ending(noted: Trail, trainer: Any) -> None:
    saves = trainer.save_model

    def save(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        run = saves if _internal_call else noted.within("ending", saves)
        run(self, output_dir, _internal_call)

    trainer.save_model = save


def half_alike(completions: list[str], id: list[str], **columns: Any) -> list[float]:
    """A reward that differs within the groups of records whose id is even, and is 1 for the others."""
    return [len(set(text)) / 10 if int(each) % 2 == 0 else 1.0 for text, each in zip(completions, id, strict=True)]
