"""Seconds and memory of a phase, the rates of the device, and rows that are kept."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Measured:
    """A phase: the median of its seconds, and the most GiB that it took over what was held before (None on a CPU)."""

    seconds: float
    memory: float | None


def measured(run: Callable[[], object], device: torch.device, repeats: int) -> Measured:
    """``repeats`` runs after one that is not counted. 0: that one run."""
    times, most, held = [], 0, 0
    for turn in range(repeats + 1):
        wait(device)
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        run()
        wait(device)
        if turn or not repeats:
            times.append(time.perf_counter() - start)
        if device.type == "cuda":
            most = max(most, torch.cuda.max_memory_allocated(device) - held)
    return Measured(statistics.median(times), most / 2**30 if device.type == "cuda" else None)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(device: torch.device) -> float:
    """Floating-point operations per second of a large bfloat16 product."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / _fastest(lambda: a @ a, device)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    a = torch.empty(2**30 if device.type == "cuda" else 2**24, device=device, dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / _fastest(lambda: b.copy_(a), device)


def _fastest(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the best of 20 runs."""
    best = float("inf")
    for _ in range(20):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that all parts have."""
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="cpu serves to rehearse")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a file that rows are added to, as JSON lines")


def keep(options: argparse.Namespace, part: str, **row: Any) -> None:
    """Prints a row, and adds it to the file of results."""
    numbers = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
    print("  ".join(f"{name} {value}" for name, value in numbers.items() if value is not None), flush=True)
    if options.results:
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, **numbers}) + "\n")
