"""A link: what weights go along from the device of a trainer to the workers of one server, and nothing else.

``nccl`` is between GPUs, ``ipc`` within one GPU, both by vLLM's own engines for the transfer of weights. Neither was
run so far. ``gloo`` is between the CPUs of one host: the same calls, messages and checks, where no GPU is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from torch import Tensor

from qwenvl.vllm_server.wire.body import Refusal, pack, require, unpack

KINDS = ("nccl", "ipc", "gloo")


@dataclass(frozen=True)
class LinkRequest:
    """Has a server take part in a link, in the place of the one that it had. It answers when it does.

    Attributes:
        link: names it. Weights that name another link are refused.
        kind: one of ``KINDS``.
        settings: what the server's workers need to find the trainer: those of vLLM's engine of this kind, which are
            numbers and texts.
        deadline_s: seconds from its arrival after which nobody waits for the answer.
    """

    link: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
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


class GlooGroup:
    """Processes of one host, of which the one with rank 0 sends bytes to the others.

    Making one waits for all of them. A process that ended is noticed at once, one that does not answer in time.

    Args:
        store: a file that all of them can write. It is made by the first.
        seconds: that they wait for each other, then and in each broadcast.

    Raises:
        RuntimeError: not all came in time.
    """

    def __init__(self, store: str, rank: int, size: int, seconds: float):
        from torch.distributed import FileStore, ProcessGroupGloo  # not in every build of torch

        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=seconds)
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._group: Any = ProcessGroupGloo(FileStore(store, size), rank, size, options)

    def broadcast(self, flat: Tensor) -> None:
        """Sends bytes of the CPU, or receives them. Waits until that is done.

        Raises:
            RuntimeError: another process is gone or has not come in time, or the group was closed.
        """
        from torch.distributed import BroadcastOptions

        # Held here: its end waits for what is under way, and stops all threads meanwhile.
        group = self._group
        if group is None:
            raise RuntimeError("the link was closed")
        group.broadcast([flat], BroadcastOptions()).wait()

    def close(self) -> None:
        """Takes part no more."""
        self._group = None
