"""Metrics between two log entries, over micro-batches, steps and processes; the current phase; the peak of memory."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from qwenvl.rollout.engine import Drawing

BY_PROCESS = {"time/wait_s"}  # logged for each process: the others wait for the one that waits least


@dataclass(frozen=True)
class Collected:
    """The metrics of a process since its last ``flush``, by name.

    Attributes:
        means: weighted sums, and the sums of the weights.
        steps: optimizer steps, by which seconds are divided.
    """

    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0


Gather = Callable[[Collected], list[Collected]]
"""Collects one picklable object from each process into a list."""


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
        self._calls = 0  # of tools, answered so far
        self._reset()

    def _reset(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}  # weighted sums, and the sums of the weights
        self._maxima: dict[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = defaultdict(float)
        self._steps = 0

    def mean(self, name: str, value: float | None, weight: float = 1.0) -> None:
        """Adds to a weighted mean. None, a value that does not apply, adds nothing."""
        if value is not None and weight:
            total, weights = self._means.get(name, (0.0, 0.0))
            self._means[name] = (total + value * weight, weights + weight)

    def max(self, name: str, value: float) -> None:
        """Keeps the largest."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def count(self, name: str, value: float) -> None:
        """Adds to a sum. A name is logged from its first count on, 0 included."""
        self._sums[name] += value

    def step(self) -> None:
        """Counts an optimizer step that begins. Times are logged per step."""
        self._steps += 1

    def phase(self) -> str:
        """The current phase of this process, with the progress of sampling where that is known. Thread-safe.

        Example:
            >>> meter = Meter()
            >>> with meter.time("time/logp_s"):
            ...     meter.phase()
            'log-probs'
        """
        running = tuple(self._running)
        if not running:
            return "between phases"
        phase = phase_name(running[-1])
        progress = "" if self.drawing is None else self.drawing.words()
        return f"{phase}, {progress}" if progress else phase

    def beat(self) -> tuple[int, int]:
        """A value that changes with progress: a phase, a call of a tool, a token that is sampled. Thread-safe."""
        return self._clocks + self._calls, 0 if self.drawing is None else self.drawing.drawn

    def call_answered(self) -> None:
        """Counts a call of a tool as progress: those of a step may take longer together than a run may stand still."""
        self._calls += 1

    def start(self, name: str) -> None:
        """Starts the clock of ``name``, which runs until ``stop``."""
        self._synchronize()
        self._runs(name)
        self._started[name] = time.perf_counter()

    def stop(self, name: str) -> None:
        """Adds the seconds since ``start`` to ``name``, or nothing if it was not started."""
        self._synchronize()
        start = self._started.pop(name, None)
        if start is not None:
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

    def flush(self, gather: Gather | None = None) -> dict[str, float]:
        """All values since the last flush, joined over processes, and a fresh start.

        Args:
            gather: collects what each process has collected into a list. None: there is one process.
        """
        own = Collected(
            means=self._means,
            maxima=self._maxima,
            sums=dict(self._sums),
            seconds=dict(self._seconds),
            steps=self._steps,
        )
        self._reset()
        processes = [own] if gather is None else gather(own)
        values: dict[str, float] = {}
        for name in _names(each.means for each in processes):
            known = [each.means[name] for each in processes if name in each.means]
            values[name] = sum(total for total, _ in known) / sum(weight for _, weight in known)
        for name in _names(each.maxima for each in processes):
            values[name] = max(each.maxima[name] for each in processes if name in each.maxima)
        for name in _names(each.sums for each in processes):
            values[name] = sum(each.sums.get(name, 0.0) for each in processes)
        steps = max(1, processes[0].steps)
        for name in _names(each.seconds for each in processes):
            per_step = [each.seconds.get(name, 0.0) / steps for each in processes]
            if name not in BY_PROCESS:
                values[name] = max(per_step)  # a step takes as long as its slowest process
            elif len(per_step) > 1:
                for process, seconds in enumerate(per_step):
                    values[f"{name}/{process}"] = seconds
        return values

    def _runs(self, name: str) -> None:
        if name not in self._started:
            self._running.append(name)
        self._clocks += 1

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _names(of_processes: Iterable[Mapping[str, object]]) -> list[str]:
    """The names that any process has, each once, in the order in which they come."""
    names: dict[str, None] = {}
    for each in of_processes:
        names |= dict.fromkeys(each)
    return list(names)


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
    "sample": "sampling",
    "logp": "log-probs",
    "reward": "rewards",
    "data_wait": "waiting for data",
    "refill": "other prompts",
    "contrast": "other orders",
    "teacher": "teacher",
    "sync": "weights to vLLM",
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
