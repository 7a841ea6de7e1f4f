"""Preparation of a process that is forked for commands and trainings: imports, and what is done once in a process."""

import gc
from contextlib import suppress
from importlib import import_module

import ranks  # noqa: F401
from torch.utils.data import _utils
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import tests.environment  # noqa: F401

with suppress(ImportError):  # an optional package. The second module compiles, for which it loads much of torch.
    import_module("deepspeed")
    import_module("deepspeed.utils.nvtx").enable_nvtx = False  # ranges for a profiler of GPUs, in each call
    import_module("deepspeed.runtime.zero.muon.original_muon")
get_checkpoint_conversion_mapping("qwen2_5_vl")
_utils.MP_STATUS_CHECK_INTERVAL = 0.2  # seconds that a loader waits for its workers at the end, twice, and not 5
gc.collect()
gc.freeze()  # what is there stays, and is not looked through again by each process
