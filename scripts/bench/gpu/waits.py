"""What the host waits for in sampling and in the update, launches per token, and the kernels that take the time.

    python scripts/bench/gpu/waits.py --model 3b --case 2000,8,32 --profiles runs/profiles

Sampling should wait once per token, the update for nothing but its end. *busy* is the time of kernels over the time on
the clock: far below 1 means that the device waits for the host.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from measure import add_common, keep, wait
from shapes import NAMES, Wanted, make_step
from torch.profiler import ProfilerActivity, profile

from bench_model import Case  # isort: skip  (found once shapes is loaded)
from qwenvl.model.sharing import shared_prefix

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
COPIES = ("Memcpy DtoH", "Memcpy HtoD", "cudaMemcpyAsync")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="3b")
    parser.add_argument("--case", default="2000,8,32", metavar="P,G,C")
    parser.add_argument("--profiles", type=Path, help="a folder for tables of the operators")
    add_common(parser)
    options = parser.parse_args()
    step = make_step(Wanted(options.model, options.device), Case.parse(options.case))
    path = shared_prefix.completion_logprobs
    step.model.eval()
    look("sampling", step.shared_sample, options, tokens=step.case.length)
    of_reference = step.reference_logprobs(path, step.encoded)
    look("vision", step.tower, options)
    look("reference", lambda: step.reference_logprobs(path, step.encoded), options)
    step.model.train()
    look("policy", lambda: step.update(path, step.encoded, of_reference), options)


def look(phase: str, run: Callable[[], object], options: argparse.Namespace, tokens: int = 1) -> None:
    """One row for a phase, counts by token, and the operators' table in a file."""
    run()
    wait(options.device)
    gpu = options.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as seen:
        start = time.perf_counter()
        run()
        wait(options.device)
        seconds = time.perf_counter() - start
    counts: Counter[str] = Counter()
    events = seen.key_averages()
    for event in events:
        for name in (*WAITS, *LAUNCHES, *COPIES):
            if event.key.startswith(name):
                counts["waits" if name in WAITS else "launches" if name in LAUNCHES else name] += event.count
    kernels = sum(event.self_device_time_total for event in events) / 1e6
    by_token = {f"{name}_a_token" if tokens > 1 else name: count / tokens for name, count in sorted(counts.items())}
    keep(options, "waits", model=options.model, phase=phase, busy=kernels / seconds if gpu else None, **by_token)
    if options.profiles:
        options.profiles.mkdir(parents=True, exist_ok=True)
        order = "self_cuda_time_total" if gpu else "self_cpu_time_total"
        table = events.table(sort_by=order, row_limit=40, max_name_column_width=90)
        (options.profiles / f"{options.model}-{phase}.txt").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
