"""Weights from the device of this process to the workers of a server, without a file or a message between.

A link is one process's to one start of one server. It is made when it is first needed. What broke is never used again:
the next weights make another one.
"""

from __future__ import annotations

import base64
import logging
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from qwenvl.rollout.remote.nccl import Nccl, NcclError, NcclLine, own_library
from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.link import GlooGroup, LinkRequest
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest

logger = logging.getLogger(__name__)

JOIN_SECONDS = 60.0  # a server whose trainer was killed meanwhile is there again after that


class Line(Protocol):
    """One kind of link, at this end.

    Attributes:
        kind: see ``LinkRequest``.
    """

    kind: str

    def settings(self) -> dict[str, Any]:
        """What the workers are told."""
        ...

    def join(self) -> None:
        """Waits for the workers, which are waiting for this end meanwhile."""
        ...

    def handle(self, flat: Tensor) -> dict[str, Any] | None:
        """What the workers are told of where the bytes lie, if they are not moved."""
        ...

    def send(self, flat: Tensor) -> None:
        """Sends bytes, and waits until the workers have them."""
        ...

    def close(self) -> None:
        """Takes part no more. It ends a ``send`` that hangs."""
        ...


class Link:
    """What weights go along to one start of a server.

    Args:
        seconds: that the server may take, to join and for the weights of a request.

    Attributes:
        boot: of the server, see ``Health``.
        closed: it is not used any more.

    Raises:
        ServerLostError: it did not join.
        ServerRefusedError: it does not join.
    """

    def __init__(self, server: Server, boot: str, line: Line, seconds: float):
        self.boot, self._server, self._line, self._seconds = boot, server, line, seconds
        self._name, self.closed = secrets.token_hex(8), False
        joining = min(JOIN_SECONDS, seconds)
        with self._beside(line.join):
            server.join(LinkRequest(self._name, line.kind, line.settings(), joining), joining)

    def put(self, request: WeightsRequest, flat: Tensor) -> WeightsAnswer:
        """Have the server take weights, while their bytes are sent.

        Args:
            request: with the shapes of the weights.
            flat: their bytes, see ``in_one``.

        Raises:
            ServerLostError, ServerRefusedError: it does not take them. The link is closed then.
        """
        handle = self._line.handle(flat)
        request = replace(request, link=self._name, handle=handle, deadline_s=self._seconds)
        with self._beside(lambda: self._line.send(flat)):
            return self._server.put(request, self._seconds)

    def close(self) -> None:
        """Takes part no more."""
        self.closed = True
        self._line.close()

    @contextmanager
    def _beside(self, work: Callable[[], None]) -> Iterator[None]:
        """Does ``work`` in a thread beside the block, and waits for both. Where one fails, the link is closed.

        The thread is left alone where it does not come back, as it may wait for a server that is gone.
        """
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="weights-along-a-link", daemon=True)
        thread.start()
        try:
            yield
            thread.join(self._seconds)
        except BaseException:
            self.close()
            raise
        if thread.is_alive() or errors:
            self.close()
            why = str(errors[0]) if errors else f"not done in {self._seconds:g} s"
            raise ServerLostError(f"{self._server.address}: the link ({self._line.kind}) broke: {why}")


class GlooLine:
    """From the CPU of this process to those of the workers, on the same host. See ``Line``.

    The processes find each other by a file that no other user can read.
    """

    kind = "gloo"

    def __init__(self, workers: int, seconds: float):
        self._size, self._seconds = 1 + workers, seconds
        self._folder = Path(tempfile.mkdtemp(prefix="qwenvl-link-"))
        self._group: GlooGroup | None = None

    def settings(self) -> dict[str, Any]:
        return {"store": str(self._folder / "store"), "size": self._size, "seconds": self._seconds}

    def join(self) -> None:
        self._group = GlooGroup(str(self._folder / "store"), 0, self._size, self._seconds)

    def handle(self, flat: Tensor) -> None: ...

    def send(self, flat: Tensor) -> None:
        assert self._group is not None
        self._group.broadcast(flat.cpu())

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class IpcLine:
    """Within the GPU that this process shares with its server: the bytes are not moved. See ``Line``.

    Not run so far.
    """

    kind = "ipc"

    def settings(self) -> dict[str, Any]:
        return {"packed": True}

    def join(self) -> None:
        """There is nobody to wait for."""

    def handle(self, flat: Tensor) -> dict[str, Any]:
        torch.cuda.current_stream(flat.device).synchronize()  # the bytes are there
        names = ("device", "memory", "storage_bytes", "storage_offset", "counter", "counter_offset", "event")
        shared = dict(zip((*names, "event_sync"), flat.untyped_storage()._share_cuda_(), strict=True))
        texts = {name: base64.b64encode(shared[name]).decode() for name in ("memory", "counter", "event")}
        gpu = str(torch.cuda.get_device_properties(flat.device).uuid)
        return {**shared, **texts, "gpu": gpu, "bytes": flat.numel()}

    def send(self, flat: Tensor) -> None:
        """The server reads them where they lie. Its answer says that it has."""

    def close(self) -> None:
        torch.cuda.ipc_collect()


def line_to(server: Server, health: Health, device: torch.device, seconds: float) -> Line:
    """The line from a device to a server, and why it is this one.

    Raises:
        ServerRefusedError: there is none.
    """
    line: Line
    if server.sleeps:
        line, why = IpcLine(), "it shares the GPU of this process"
    elif health.nccl and device.type == "cuda":
        if (own := Nccl().version()) != health.nccl:
            raise ServerRefusedError(
                f"{server.address}: it has NCCL {health.nccl}, this process {own}, and versions do not mix: start the "
                f"server with VLLM_NCCL_SO_PATH={own_library()}, or leave out --vllm_weights direct"
            )
        line, why = NcclLine(device, health.workers, seconds), "both compute on GPUs"
    elif not health.nccl and server.shares_memory:
        line, why = GlooLine(health.workers, seconds), "it computes on the CPU of this host"
    else:
        there = "a GPU" if health.nccl else "a CPU of another host"
        raise ServerRefusedError(
            f"{server.address}: it computes on {there} and the policy on {device.type}: there is no direct way for "
            "weights: leave out --vllm_weights direct"
        )
    never_run = "" if line.kind == "gloo" else ". This way was not run so far: --check_parity tells whether it is right"
    logger.warning(f"{server.address}: weights go to it by {line.kind}, since {why}{never_run}")
    return line


class Links:
    """The links of this process, one for each server.

    Args:
        device: where the weights are.
        seconds: that a server may take, to join and for the weights of a request.
    """

    def __init__(self, device: torch.device, seconds: float):
        self.device, self._seconds = device, seconds
        self._links: dict[str, Link] = {}

    def to(self, server: Server, health: Health) -> Link:
        """The link to the server that is there now: the one that there is, or a new one.

        Raises:
            ServerLostError, ServerRefusedError: it does not join, or can't.
        """
        link = self._links.get(server.address)
        if link is not None and link.boot == health.boot and not link.closed:
            return link
        if link is not None:
            link.close()
        try:
            line = line_to(server, health, self.device, self._seconds)
        except NcclError as error:
            raise ServerRefusedError(f"{server.address}: no link: {error}; leave out --vllm_weights direct") from None
        self._links[server.address] = Link(server, health.boot, line, self._seconds)
        return self._links[server.address]
