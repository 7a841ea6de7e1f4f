"""One GRPO step, each prompt computed once, against the plain path: seconds, memory, and what arithmetic would allow.

    python scripts/bench/step.py                      # the table of docs/benchmarks.md, about 40 minutes
    python scripts/bench/step.py --cases 1000,8,64    # prompt tokens, completions, completion tokens

Both paths run in turn in one process, so that a busy machine slows both. The medians of CPU seconds are compared. Peak
memory is taken in a process of its own for each path and phase, over what the process held before the phase. By the
shared path the tower runs once for both phases and is counted in the first, by the plain path it runs in every forward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_model import Case, Step, ideal_flops

from qwenvl.demo.tiny import FAMILIES

DEFAULT_CASES = ("1000,8,64", "2000,8,64", "4000,16,64")
GROWTH = ("4000,4,64", "4000,16,64")


@dataclass(frozen=True)
class Spent:
    """Seconds of one run of a phase: of all threads together, and on the clock."""

    cpu: float
    wall: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=DEFAULT_CASES, metavar="P,G,C")
    parser.add_argument("--family", default="qwen2_5_vl", choices=FAMILIES)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each path, in turn; medians are printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--growth", action="store_true", help="also compare G = 4 and G = 16 at 4,000 prompt tokens")
    parser.add_argument("--compile_decoding", action="store_true", help="sample by the compiled step, too")
    parser.add_argument("--no_memory", action="store_true", help="leave out the processes that measure memory")
    parser.add_argument("--memory_of", nargs=2, metavar=("PATH", "PHASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(peak_memory(Step.of(Case.parse(options.cases[0]), options.family), *options.memory_of))
        return
    rate = matmul_rate()
    print(f"{options.threads} threads, float32, {rate / 1e9:.0f} GFLOP/s in matrix products; seconds are CPU (wall)")
    for text in options.cases:
        report_case(Case.parse(text), options, rate)
    if options.growth:
        report_growth(options)


def report_case(case: Case, options: argparse.Namespace, rate: float) -> None:
    """Prints the rows of one case."""
    step = Step.of(case, options.family)
    print(f"\n{case}: {step.prompt_tokens} prompt tokens, {step.patches} patches")
    whole = {"plain": 0.0, "shared": 0.0}
    for phase in ("train", "sample"):
        spent = in_turn({path: getattr(step, f"{path}_{phase}") for path in whole}, options.repeats)
        whole = {path: whole[path] + spent[path].wall for path in whole}
        memory = {} if options.no_memory else {path: child_memory(case, options, path, phase) for path in whole}
        print(f"  {phase:7}" + comparison(spent, memory))
    tower = in_turn({"tower": step.tower}, options.repeats)["tower"]
    again = spent["plain"].cpu / (spent["shared"].cpu + tower.cpu)  # of the last phase, sampling
    print(f"  tower {tower.cpu:.2f} ({tower.wall:.2f}), once, in train; sampling with a tower of its own {again:.1f} x")
    if options.compile_decoding:
        report_compiled(step, options.repeats)
    ideal = ideal_flops(step) / rate
    print(
        f"  ideal step {ideal:.2f} s at that rate; shared {whole['shared']:.2f} s wall, "
        f"{whole['shared'] / ideal:.2f} x; plain {whole['plain'] / ideal:.1f} x"
    )


def report_compiled(step: Step, repeats: int) -> None:
    """Prints what compiling the decoding step costs once, and what it gives."""
    start = time.perf_counter()
    step.compiled_sample()
    first = time.perf_counter() - start
    spent = in_turn({path: getattr(step, f"{path}_sample") for path in ("plain", "shared", "compiled")}, repeats)
    ratios = {path: spent["plain"].cpu / spent[path].cpu for path in ("shared", "compiled")}
    saved = spent["shared"].wall - spent["compiled"].wall
    print(
        f"  compiled decoding {spent['compiled'].cpu:.2f} ({spent['compiled'].wall:.2f}), {ratios['compiled']:.1f} x "
        f"where shared is {ratios['shared']:.1f} x; the first call takes {first:.0f} s, made good by "
        f"{first / saved:.0f} steps"
        if saved > 0
        else f"  compiled decoding {spent['compiled'].cpu:.2f} gains nothing here"
    )


def report_growth(options: argparse.Namespace) -> None:
    """Prints how the step grows with the group."""
    small, large = (Step.of(Case.parse(text), options.family) for text in GROWTH)
    for path in ("shared", "plain"):
        runs = {name: getattr(step, f"{path}_step") for name, step in (("small", small), ("large", large))}
        spent = in_turn(runs, options.repeats)
        ratio = spent["large"].cpu / spent["small"].cpu
        print(f"\nG = 4 -> 16 at 4,000 prompt tokens, {path}: whole step {ratio:.2f} x the CPU seconds")


def in_turn(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, Spent]:
    """Medians of ``repeats`` runs of each, one after the other."""
    times: dict[str, list[Spent]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            times[name].append(Spent(time.process_time() - cpu, time.perf_counter() - wall))
    return {
        name: Spent(statistics.median(t.cpu for t in spent), statistics.median(t.wall for t in spent))
        for name, spent in times.items()
    }


def comparison(spent: dict[str, Spent], memory: dict[str, float]) -> str:
    plain, shared = spent["plain"], spent["shared"]
    text = (
        f"plain {plain.cpu:7.2f} ({plain.wall:.2f})  shared {shared.cpu:6.2f} ({shared.wall:.2f})  "
        f"{plain.cpu / shared.cpu:5.1f} x"
    )
    if memory:
        text += (
            f"   memory {memory['plain']:.0f} -> {memory['shared']:.0f} MiB, {memory['shared'] / memory['plain']:.2f} x"
        )
    return text


def child_memory(case: Case, options: argparse.Namespace, path: str, phase: str) -> float:
    """Peak MiB of one phase, measured in a new process."""
    command = [sys.executable, __file__, "--cases", str(case), "--family", options.family]
    command += ["--threads", str(options.threads), "--memory_of", path, phase]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(printed.splitlines()[-1])  # libraries print before it


def peak_memory(step: Step, path: str, phase: str) -> float:
    """MiB that the process held at most during the phase, over what it held before (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _memory_line("VmRSS")
    getattr(step, f"{path}_{phase}")()
    return (_memory_line("VmHWM") - before) / 1024


def _memory_line(name: str) -> int:
    """In kB, from the kernel."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no line {name}: memory is measured on Linux only")


def matmul_rate(size: int = 1024) -> float:
    """Floating-point operations per second of a large float32 product, the best of ten."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
