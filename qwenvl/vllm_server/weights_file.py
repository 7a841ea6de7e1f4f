"""Files of safetensors with weights: where they are, what is in them, and one that is made of a message."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from qwenvl.vllm_server.wire.body import require
from qwenvl.vllm_server.wire.weights import WeightsRequest


@contextmanager
def file_of(request: WeightsRequest) -> Iterator[str]:
    """The path of the weights, written to memory for workers where they came in the message.

    Raises:
        Refusal: if the file is not there, or another than the request says.
    """
    if request.path is not None:
        require(os.path.isfile(request.path), f"no file of weights at {request.path} on the server's machine")
        if request.sha256 is not None:
            found = _sha256(request.path)
            require(found == request.sha256, f"{request.path} has the sha256 {found}, expected {request.sha256}")
        yield request.path
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="qwenvl-weights-", dir=memory) as folder:
        path = str(Path(folder) / "weights.safetensors")
        save_file(dict(request.tensors), path)
        yield path


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def tensors_of(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a file one after the other, without those of the vision tower, which never runs."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            if not is_of_vision(name):
                yield name, file.get_tensor(name)


def names_of(path: str | Path) -> list[str]:
    """The names in a file of safetensors, read from its head."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return [name for name in json.loads(file.read(size)) if name != "__metadata__"]


def is_of_vision(name: str) -> bool:
    """Whether a parameter is of the vision tower."""
    return "visual" in name.split(".")
