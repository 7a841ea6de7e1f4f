"""How many processes decode clips while the step runs, where nobody says."""

from __future__ import annotations

import os
from pathlib import Path

WORKERS = 2
"""They keep up with steps of seconds, and each holds a decoder and a few prompts."""
_SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 2 * 10**9  # prompts cross there. Docker gives 64 MB, and a full one kills the process


def decoding_workers(cuda: bool, cores: int, processes: int, shared_bytes: int | None) -> int:
    """The processes of the data loader of one process that trains.

    They are for a step on a GPU, while which the cores are free. On a CPU the step needs the cores itself. Without
    enough shared memory or cores there are none, and clips are decoded between the steps.

    Args:
        cores: that may be used by all processes of the machine.
        processes: that train on the machine.
        shared_bytes: free shared memory, or None where the system has no such folder.

    Example:
        >>> decoding_workers(cuda=True, cores=16, processes=4, shared_bytes=10**10)
        2
    """
    room = shared_bytes is None or shared_bytes >= _LEAST_BYTES * processes
    return min(WORKERS, max(0, cores // processes - 1)) if cuda and room else 0


def workers_here(cuda: bool) -> int:
    """``decoding_workers`` of this machine and run."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = None
    if _SHARED_MEMORY.is_dir():
        status = os.statvfs(_SHARED_MEMORY)
        shared = status.f_bavail * status.f_frsize
    return decoding_workers(cuda, cores, processes, shared)
