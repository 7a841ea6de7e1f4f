"""One GRPO step, each prompt computed once, against the plain path: CPU seconds and memory.

    python scripts/bench/step.py                      # about 40 minutes
    python scripts/bench/step.py --cases 1000,8,64    # prompt tokens, completions, completion tokens

Both paths run in turn in one process, so that a busy machine slows both. Medians of CPU seconds are compared. Peak
memory is taken in a process of its own for each path and phase, over what the process held before (Linux). By the
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
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_model import Case, Step

from qwenvl.demo.tiny import FAMILIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["1000,8,64", "2000,8,64", "4000,16,64"], metavar="P,G,C")
    parser.add_argument("--family", default="qwen2_5_vl", choices=FAMILIES)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each path, in turn; medians are printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile_decoding", action="store_true", help="also sample by the compiled step")
    parser.add_argument("--memory_of", nargs=2, metavar=("PATH", "PHASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(peak_memory(Step.of(Case.parse(options.cases[0]), options.family), *options.memory_of))
        return
    print(f"{options.threads} threads, float32; seconds are CPU (wall)")
    for text in options.cases:
        report_case(Case.parse(text), options)


def report_case(case: Case, options: argparse.Namespace) -> None:
    """Prints the rows of one case."""
    step = Step.of(case, options.family)
    print(f"\n{case}: {step.prompt_tokens} prompt tokens, {step.patches} patches")
    ways = ["plain", "shared", *(["compiled"] if options.compile_decoding else [])]
    for phase in ("train", "sample"):
        runs = {way: getattr(step, f"{way}_{phase}") for way in (ways if phase == "sample" else ways[:2])}
        if "compiled" in runs:
            start = time.perf_counter()
            runs["compiled"]()
            print(f"  the first compiled call takes {time.perf_counter() - start:.0f} s")
        spent = in_turn(runs, options.repeats)
        memory = {way: child_memory(case, options, way, phase) for way in ways[:2]}
        cells = [f"{way} {cpu:.2f} ({clock:.2f})" for way, (cpu, clock) in spent.items()]
        cells += [f"{spent['plain'][0] / spent[way][0]:.1f} x" for way in ways[1:] if way in spent]
        cells.append(f"memory {memory['plain']:.0f} -> {memory['shared']:.0f} MiB, ")
        print(f"  {phase:7}{'  '.join(cells)}{memory['shared'] / memory['plain']:.2f} x")


def in_turn(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU seconds and seconds of ``repeats`` runs of each, one after the other."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in times.items()}


def child_memory(case: Case, options: argparse.Namespace, path: str, phase: str) -> float:
    """Peak MiB of one phase, measured in a new process."""
    command = [sys.executable, __file__, "--cases", str(case), "--family", options.family]
    command += ["--threads", str(options.threads), "--memory_of", path, phase]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(printed.splitlines()[-1])  # libraries print before it


def peak_memory(step: Step, path: str, phase: str) -> float:
    """MiB that the process held at most during the phase, over what it held before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _memory_line("VmRSS")
    getattr(step, f"{path}_{phase}")()
    return (_memory_line("VmHWM") - before) / 1024


def _memory_line(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0])


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
