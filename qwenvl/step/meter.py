"""Metrics between two log entries, over micro-batches, steps and processes; the current phase; the peak of memory."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qwenvl.rollout.engine import Drawing

BY_PROCESS = {"time/wait_s"}  # logged for each process: the others wait for the one that waits least


class Meter:
    """Means, maxima and sums by name since the last ``flush``, and the current phase of the process.

    Example:
        >>> meter = Meter()
        >>> meter.mean("kl", 0.1, weight=3)
        >>> meter.mean("kl", 0.5)
        >>> round(meter.flush()["kl"], 6)
        0.2
    """

    def __init__(self, device: torch.device | str = "cpu", drawing: Drawing | None = None):
        """
        Args:
            device: timings wait for its queued work.
            drawing: progress of the local engine. None: other processes sample.
        """
        self._device = torch.device(device)
        self.drawing = drawing
        self._started: dict[str, float] = {}
        self._running: list[str] = []
        self._clocks = 0  # started so far
        self._reset()

    def _reset(self) -> None:
        self._means: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._maxima: dict[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = defaultdict(float)
        self._steps = 0

    def mean(self, name: str, value: float | None, weight: float = 1.0) -> None:
        """Adds to a weighted mean. None, a value that does not apply, adds nothing."""
        if value is not None and weight:
            total = self._means[name]
            total[0] += value * weight
            total[1] += weight

    def max(self, name: str, value: float) -> None:
        """Keeps the largest."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def count(self, name: str, value: float) -> None:
        """Adds to a sum. A name is logged from its first count on, 0 included."""
        self._sums[name] += value

    def step(self) -> None:
        """One optimizer step begins. Times are logged per step."""
        self._steps += 1

    def phase(self) -> str:
        """What this process is doing, with the progress of sampling where that is known. Thread-safe.

        Example:
            >>> meter = Meter()
            >>> with meter.time("time/logp_s"):
            ...     meter.phase()
            'log-probs'
        """
        running = tuple(self._running)
        if not running:
            return "between phases"
        far = "" if self.drawing is None else self.drawing.words()
        return ", ".join(part for part in (phase_name(running[-1]), far) if part)

    def beat(self) -> tuple[int, int]:
        """A value that changes with progress: a phase that begins, a token that is sampled. Thread-safe."""
        return self._clocks, 0 if self.drawing is None else self.drawing.drawn

    def start(self, name: str) -> None:
        """The clock of ``name`` runs until ``stop``."""
        self._synchronize()
        self._runs(name)
        self._started[name] = time.perf_counter()

    def stop(self, name: str) -> None:
        """Adds the seconds since ``start`` to ``name``, or nothing if it was not started."""
        self._synchronize()
        if (start := self._started.pop(name, None)) is not None:
            self._running.remove(name)
            self._seconds[name] += time.perf_counter() - start

    @contextmanager
    def wait(self, name: str) -> Iterator[None]:
        """Adds the seconds that the process waits within to ``name``. The device goes on with its queued work."""
        self._runs(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._running.remove(name)
            self._seconds[name] += time.perf_counter() - start

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Adds the seconds spent within to ``name``."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)

    def flush(self, gather=lambda state: [state]) -> dict[str, float]:
        """All values since the last flush, joined over processes, and a fresh start.

        Args:
            gather: collects one picklable object from each process into a list.
        """
        state = (dict(self._means), self._maxima, dict(self._sums), dict(self._seconds), self._steps)
        self._reset()
        means, maxima, sums, seconds, steps = zip(*gather(state), strict=True)
        values = {
            name: sum(m[name][0] for m in means if name in m) / sum(m[name][1] for m in means if name in m)
            for name in _names(means)
        }
        values |= {name: max(m[name] for m in maxima if name in m) for name in _names(maxima)}
        values |= {name: sum(s.get(name, 0.0) for s in sums) for name in _names(sums)}
        per_step = {name: [s.get(name, 0.0) / max(1, steps[0]) for s in seconds] for name in _names(seconds)}
        for name, each in per_step.items():
            if name not in BY_PROCESS:
                values[name] = max(each)  # a step takes as long as its slowest process
            elif len(each) > 1:
                values |= {f"{name}/{process}": value for process, value in enumerate(each)}
        return values

    def _runs(self, name: str) -> None:
        if name not in self._started:
            self._running.append(name)
        self._clocks += 1

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _names(states) -> list[str]:
    return list(dict.fromkeys(name for state in states for name in state))


def peak_memory(device: torch.device | str) -> tuple[int, int]:
    """The most bytes that this process had at a time since it began, and all that there are.

    Of a CUDA device what torch has reserved, else of the process.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # what getrusage counts in
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return used, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


PHASES = {
    **{"sample": "sampling", "logp": "log-probs", "reward": "rewards", "data_wait": "waiting for data"},
    **{"refill": "other prompts", "contrast": "other orders", "teacher": "teacher", "sync": "weights to vLLM"},
}
"""Phases of a step by the names of their clocks, for people. Other phases have the names of their clocks."""


def phase_name(clock: str) -> str:
    """The phase that a clock measures.

    Example:
        >>> phase_name("time/logp_s"), phase_name("time/vision_s")
        ('log-probs', 'vision')
    """
    short = clock.removeprefix("time/").removesuffix("_s")
    return PHASES.get(short, short.replace("_", " "))
