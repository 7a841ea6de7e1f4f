"""``python -m qwenvl.vllm_server MODEL``, in the environment that ``scripts/serve_vllm.sh`` makes."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from qwenvl.vllm_server.server import Server
from qwenvl.vllm_server.settings import VLLM, Settings, parse
from qwenvl.vllm_server.web import Web
from qwenvl.vllm_server.wire.body import Refusal, secret

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


def main(argv: list[str] | None = None) -> None:
    """Serves until it is stopped. Exit status 75 asks for a restart."""
    settings = parse(argv)
    os.environ |= ENVIRONMENT if torch.cuda.is_available() else ENVIRONMENT | ON_CPU
    try:
        _serve(settings)
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")


def _serve(settings: Settings) -> None:
    _require_pinned_vllm()
    from transformers import AutoConfig

    from qwenvl.vllm_server.family import family_of

    config = AutoConfig.from_pretrained(settings.model)
    family_of(config.model_type)

    from qwenvl.vllm_server.engine import Engine  # loads vLLM, which takes some seconds

    server = Server(settings)
    with Web((settings.host, settings.port), server, secret()) as web:
        if settings.with_parent:
            threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
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
            raise Refusal("request", f"vLLM {found} is installed: the server was made for {VLLM} and uses its insides")
        return
    raise Refusal("request", "vLLM is not installed here: start the server with scripts/serve_vllm.sh")


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    main()
