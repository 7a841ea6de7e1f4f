"""A link: what weights go along from the device of a trainer to the workers of one server, and nothing else."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from qwenvl.vllm_server.wire.body import Refusal, pack, require, unpack

KINDS = ("nccl", "gloo")  # between GPUs, and between CPUs, of one host

_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"


def nccl_version() -> int:
    """The version of NCCL that torch has, such as 23007 for 2.30.7. 0 without a GPU."""
    return int("{}{:02}{:02}".format(*torch.cuda.nccl.version())) if torch.cuda.is_available() else 0


@dataclass(frozen=True)
class LinkRequest:
    """Has a server take part in a link, in the place of the one that it had. It answers when it does.

    Attributes:
        link: names it. Weights that name another link are refused.
        kind: one of ``KINDS``.
        store, size, seconds: see ``LinkGroup``.
        deadline_s: seconds from its arrival after which nobody waits for the answer.
    """

    link: str
    kind: str
    store: str
    size: int
    seconds: float
    deadline_s: float = 600.0

    def pack(self) -> bytes:
        return pack(asdict(self), {})

    @classmethod
    def unpack(cls, body: bytes) -> LinkRequest:
        """
        Raises:
            Refusal: if the request is malformed.
        """
        head, _ = unpack(body)
        try:
            request = cls(**head)
        except TypeError as error:
            raise Refusal("request", f"not a request for a link: {error}") from error
        require(request.kind in KINDS, f"kind: expected one of {', '.join(KINDS)}, got {request.kind!r}")
        require(bool(request.link), "link: expected a name")
        return request


class LinkGroup:
    """Processes of one host, of which the one with rank 0 sends bytes to the others: a process group of torch.

    Making one waits for all of them (``gloo``), or its first broadcast does (``nccl``). A process that ended is noticed
    at once, one that does not answer in time. Of ``nccl``, a group of one process was run, and no other.

    Args:
        kind: one of ``KINDS``.
        store: a file that all of them can write. It is made by the first.
        seconds: that they wait for each other, then and in each broadcast.

    Raises:
        RuntimeError: not all came in time.
    """

    def __init__(self, kind: str, store: str, rank: int, size: int, seconds: float):
        from torch import distributed  # what it has is not the same in every build of torch

        place = distributed.FileStore(store, size), rank, size
        self._group: Any
        if kind == "gloo":
            gloo = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = timedelta(seconds=seconds)
            options._devices = [gloo.create_device(hostname="127.0.0.1")]
            self._group = gloo(*place, options)
            return
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=seconds)
        before = os.environ.get(_BLOCKING)
        os.environ[_BLOCKING] = "1"  # read when it is made: without it a timeout would end this process
        self._group = distributed.ProcessGroupNCCL(*place, options)
        del os.environ[_BLOCKING]
        if before is not None:
            os.environ[_BLOCKING] = before

    def broadcast(self, flat: Tensor) -> None:
        """Sends bytes of a device, or receives them. Waits until that is done.

        Raises:
            RuntimeError: another process is gone or has not come in time, or the group was closed.
        """
        from torch.distributed import BroadcastOptions

        # Held here: its end waits for what is under way, and stops all threads meanwhile.
        group = self._group
        if group is None:
            raise RuntimeError("the link was closed")
        group.broadcast([flat], BroadcastOptions()).wait()
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()

    def close(self) -> None:
        """Takes part no more. It ends a broadcast of ``nccl`` that hangs."""
        group, self._group = self._group, None
        if hasattr(group, "abort"):
            group.abort()
