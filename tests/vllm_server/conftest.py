"""Servers with real vLLM, for the tests marked so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vllm_server.serving import ServerProcess


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The python of the server's environment, which ``scripts/test.sh --vllm`` makes before the tests."""
    python = Path(os.environ["QWENVL_VLLM_ENV"]) / "bin" / "python"
    assert python.exists(), f"{python} is missing: run bash scripts/test.sh --vllm, which makes the environment"
    return python


@pytest.fixture(scope="module")
def start_server(vllm_python, tmp_path_factory) -> Callable[..., ServerProcess]:
    """``start_server(folder of a checkpoint, flags...)``. All that it started are killed after the module."""
    started = []

    def start(model: Path, *flags: str) -> ServerProcess:
        started.append(ServerProcess(vllm_python, model, tmp_path_factory.mktemp("server"), *flags))
        return started[-1]

    yield start
    for each in started:
        each.kill()
