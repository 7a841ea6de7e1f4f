"""A message's bytes, the secret that goes with it, and the refusal of one.

A body is a file of safetensors: the tensors of the message, and its head as JSON in a tensor of bytes. Nothing in it is
run when it is read, and numbers arrive to the bit.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from qwenvl.files import cache_root

TOKEN = "QWENVL_VLLM_TOKEN"  # the environment variable: a command line can be read by everybody on the machine
MOST_BYTES = 2**34  # of a body
HEAD = "head"  # the tensor that holds the JSON

KINDS = {
    "request": 400,  # it is malformed, or asks for what the model cannot do
    "token": 401,  # the token is missing or another
    "page": 403,  # a web page sent it
    "version": 409,  # the server has other weights, or lays parts over others
    "link": 409,  # the weights come along another link than the server has
    "size": 413,  # the body is larger than the server takes
    "asleep": 423,  # its memory was given back: POST /wake first
    "starting": 503,  # the model is being loaded
    "engine": 500,  # the engine raised. The server ends, and whoever started it starts it again
    "busy": 503,  # another request ran until this one's deadline
    "deadline": 504,  # sampling was not finished at the deadline. The server ends, as after "engine"
}
"""Why a server refuses a request, and the HTTP status that says so."""


class Refusal(Exception):
    """A server's answer other than 200.

    Attributes:
        kind: a key of ``KINDS``.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        return KINDS[self.kind]

    def body(self) -> bytes:
        """The JSON of the answer."""
        return json.dumps({"kind": self.kind, "error": str(self)}).encode()

    @classmethod
    def of_answer(cls, status: int, body: bytes) -> Refusal:
        """From an answer of ``status``. One that no server of ours wrote has the kind ``request``."""
        try:
            said = json.loads(body)
            return cls(said["kind"] if said["kind"] in KINDS else "request", str(said["error"]))
        except (ValueError, TypeError, KeyError):
            return cls("request", f"HTTP {status}: {body[:200].decode(errors='replace')}")


def secret() -> str:
    """The token of each request: ``$QWENVL_VLLM_TOKEN``, else a random one in a file that only this user can read."""
    if given := os.environ.get(TOKEN):
        return given
    path = cache_root() / "vllm-token"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # another process was first
                os.link(file.name, path)
    return path.read_text()


def pack(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A head that JSON can hold, and tensors, as bytes. The tensors may be on any device, and may be views."""
    assert HEAD not in tensors
    text = torch.frombuffer(bytearray(json.dumps(head).encode()), dtype=torch.uint8)
    # A clone each: parts of one tensor are refused as tensors that share memory.
    own = {name: each.detach().to("cpu", copy=True).contiguous() for name, each in tensors.items()}
    return save({HEAD: text, **own})


def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `pack` was given.

    Raises:
        Refusal: if the bytes are no such message.
    """
    try:
        tensors = load(body)
        head = json.loads(bytes(tensors.pop(HEAD).numpy()))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Refusal("request", f"the body is not safetensors with a head in JSON: {error}") from error
    require(isinstance(head, dict), "the head must be a JSON object")
    return head, tensors


def require(condition: bool, message: str) -> None:
    """Refuses a message as malformed where the condition does not hold."""
    if not condition:
        raise Refusal("request", message)


def require_tensor(tensor: Tensor, where: str, dims: int, dtype: torch.dtype | None = None) -> None:
    """Refuses a tensor of another number of dimensions or another type."""
    fits = tensor.dim() == dims and (dtype is None or tensor.dtype == dtype)
    wanted = f"{dims} dimensions" + (f" of {dtype}" if dtype else "")
    require(fits, f"{where}: expected {wanted}, got {tuple(tensor.shape)} of {tensor.dtype}")
