"""The environment of every test, and of the processes that tests start; the same whatever the user's shell holds."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

# Settings of ours, of launchers and of clients, by which a test would do something else.
OF_THE_USER = {
    *("QWENVL_CACHE", "QWENVL_TRACEBACK", "QWENVL_WORKER_BYTES", "QWENVL_WORKER_PRELOAD", "XDG_CACHE_HOME"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DRY_RUN", "TINY"),
    *("MODEL", "DATASET", "EVAL_DATASET", "OUTPUT", "OUT", "NPROC", "DEEPSPEED", "FSDP", "LORA", "PYTHON", "WORKERS"),
    *(name for proxy in ("http_proxy", "https_proxy", "all_proxy") for name in (proxy, proxy.upper())),
    *("JUDGE_API_KEY", "OPENAI_API_KEY", "QWENVL_VLLM_TOKEN", "TRANSFORMERS_VERBOSITY", "FORCE_COLOR", "NO_COLOR"),
}
for name in [name for name in os.environ if name in OF_THE_USER or name.startswith(("ACCELERATE_", "FSDP_"))]:
    del os.environ[name]

os.environ |= {
    "HF_HUB_OFFLINE": "1",  # a test that reaches for the network fails at once instead of waiting
    "TOKENIZERS_PARALLELISM": "false",
    # Tiny tensors gain nothing from threads. scripts/test_settings.sh tries another number.
    "OMP_NUM_THREADS": os.environ.get("QWENVL_TEST_THREADS", "1"),
    "COLUMNS": "120",  # what argparse and progress bars take for the width of the terminal
}

if "QWENVL_TEST_SPLIT" in os.environ:  # of scripts/test_settings.sh: in this process, and in those that it starts
    paths = [str(Path(__file__).with_name("split_sums")), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    import_module("tests.split_sums.sitecustomize")

# No test cuts the power: what is written need not be on the disk, for which a process waits seconds on a busy machine.
os.fsync = lambda descriptor: None
