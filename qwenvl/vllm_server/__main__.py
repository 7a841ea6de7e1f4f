"""``python -m qwenvl.vllm_server MODEL``, in the environment that ``scripts/serve_vllm.sh`` makes.

The script reads the command line with a Python that has no torch, before it makes that environment.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from qwenvl.types import Speculation

VLLM = "0.32.0"  # held to the trainer's numbers. scripts/serve_vllm.sh reads this line and installs it

LARGEST_PORT = 65535

# Read by vLLM when it is loaded. One process, so that the engine's death is the server's. The first of its two model
# runners: the hooks were tried on no other.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
ON_CPU = {
    "VLLM_CPU_CI_ENV": "1",
    "TORCH_COMPILE_DISABLE": "1",  # the first request would wait for a C++ compiler, for one function
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Wrong values are reported as argparse does, with exit status 2."""
    parser = argparse.ArgumentParser(
        prog="serve_vllm.sh",
        description="Sample completions for a trainer with vLLM. The trainer sends the weights and the prompts.",
    )
    add = parser.add_argument
    types = ["auto", "float32", "bfloat16", "float16"]
    add("model", help="the checkpoint that the training starts from: a folder, or a name on the hub")
    add("--host", default="127.0.0.1", help="address to listen at [%(default)s]")
    add("--port", type=int, default=8200, help="0: any that is free [%(default)s]")
    add("--dtype", default="auto", choices=types, help="of weights; auto: as they are stored [%(default)s]")
    add("--max_model_len", type=int, default=32768, help="most tokens of prompt and completion [%(default)s]")
    add("--max_num_seqs", type=int, default=256, help="most completions that are sampled together [%(default)s]")
    add("--cache_gb", type=float, help="memory for keys and values, in GiB [on a CPU 1, else by the next flag]")
    add("--gpu_memory_utilization", type=float, default=0.9, help="share of the GPU's memory [%(default)s]")
    add("--speculative", metavar="ngram:TOKENS", type=_speculation, help="ngram:4 drafts up to 4 tokens a forward")
    add("--tensor_parallel_size", type=int, default=1, help="GPUs that share the model (not run so far) [%(default)s]")
    add("--compiled", action="store_true", help="compile the model and use CUDA graphs (not run so far)")
    add("--sleeps", action="store_true", help="can release its GPU memory between samplings (not run so far)")
    add("--with_parent", type=int, metavar="PID", help="end when this process has ended, which started this one")
    add("--ready_file", help="written when the server is ready: its address")
    settings = parser.parse_args(argv)
    for name in ("max_model_len", "max_num_seqs", "tensor_parallel_size"):
        if getattr(settings, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not 0 <= settings.port <= LARGEST_PORT:
        parser.error(f"--port must be at least 0 and at most {LARGEST_PORT}")
    if not 0 < settings.gpu_memory_utilization <= 1:
        parser.error("--gpu_memory_utilization must be above 0 and at most 1")
    if settings.cache_gb is not None and not 0 < settings.cache_gb < math.inf:
        parser.error("--cache_gb must be above 0")
    if settings.ready_file and not Path(settings.ready_file).absolute().parent.is_dir():
        parser.error(f"--ready_file {settings.ready_file}: no such folder")
    return settings


def _speculation(text: str) -> Speculation:
    try:
        return Speculation.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: list[str] | None = None) -> None:
    """Serves until it is stopped. Exit status 75 asks for a restart."""
    settings = parse(argv)
    if settings.with_parent is not None:  # now: it may end while vLLM is loaded, which takes some seconds
        threading.Thread(target=_end_with_parent, args=(settings.with_parent,), daemon=True).start()
    _require_pinned_vllm()
    import torch
    from transformers import AutoConfig

    from qwenvl.vllm_server.server import SamplingServer, Web, require_family
    from qwenvl.vllm_server.wire import Refusal, secret

    os.environ |= ENVIRONMENT if torch.cuda.is_available() else ENVIRONMENT | ON_CPU
    try:
        config = AutoConfig.from_pretrained(settings.model)
        require_family(config.model_type)
    except (OSError, ValueError, Refusal) as error:
        sys.exit(f"error: {settings.model}: {' '.join(str(error).split())}")

    server = SamplingServer(settings.model, sleeps=settings.sleeps)
    try:
        web = Web((settings.host, settings.port), server, secret())
    except OSError as error:
        sys.exit(f"error: --host {settings.host} --port {settings.port}: {error.strerror or error}")
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")
    from qwenvl.vllm_server.engine import Engine  # loads vLLM, which takes some seconds

    with web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        server.load(lambda: Engine(settings, config))
        print(f"ready at {web.url}", flush=True)
        if settings.ready_file:
            partial = Path(f"{settings.ready_file}.part")
            partial.write_text(web.url)
            os.replace(partial, settings.ready_file)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            os._exit(130)  # without waiting for the engine


def _require_pinned_vllm() -> None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = version(distribution).split("+")[0]
        except PackageNotFoundError:
            continue
        if found != VLLM:
            sys.exit(f"error: vLLM {found} is installed: the server was made for {VLLM} and uses its private functions")
        return
    sys.exit("error: vLLM is not installed here: start the server with scripts/serve_vllm.sh")


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    main()
