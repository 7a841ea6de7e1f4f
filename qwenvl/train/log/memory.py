"""How much memory a process has used at most, and how much there is."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import torch


class Memory(NamedTuple):
    """Bytes: the most that this process had at a time since it began, and all that there are."""

    used: int
    total: int


def peak_memory(device: torch.device | str) -> Memory:
    """The memory of a CUDA device that torch has reserved, or that of the process where it computes on the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return Memory(torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # what getrusage counts in
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Memory(used, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
