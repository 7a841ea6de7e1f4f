"""Weights from the device of this process to the workers of a server, without a file or a message between.

A link is one process's to one start of one server. It is made when it is first needed. What broke is never used again:
the next weights make another one.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.link import LinkGroup, LinkRequest, nccl_version
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest

logger = logging.getLogger(__name__)

JOIN_SECONDS = 60.0  # a server whose trainer was killed meanwhile is there again after that


class Link:
    """What weights go along to one start of a server.

    Args:
        kind: see ``kind_of_link``.
        seconds: that the server may take, to join and for the weights of a request.

    Attributes:
        boot: of the server, see ``Health``.
        closed: it is not used any more.

    Raises:
        ServerLostError: it did not join.
        ServerRefusedError: it does not join.
    """

    def __init__(self, server: Server, health: Health, kind: str, seconds: float):
        self.boot, self.kind, self._server, self._seconds = health.boot, kind, server, seconds
        self._name, self.closed = secrets.token_hex(8), False
        self._group: LinkGroup | None = None
        self._folder = tempfile.mkdtemp(prefix="qwenvl-link-")  # no other user can read it
        where, joining = (f"{self._folder}/store", 1 + health.workers, seconds), min(JOIN_SECONDS, seconds)

        def join() -> None:
            self._group = LinkGroup(kind, where[0], 0, *where[1:])

        with self._beside(join):
            server.join(LinkRequest(self._name, kind, *where, joining), joining)

    def put(self, request: WeightsRequest, flat: Tensor) -> WeightsAnswer:
        """Have the server take weights, while their bytes are sent.

        Args:
            request: with the shapes of the weights.
            flat: their bytes, see ``in_one``.

        Raises:
            ServerLostError, ServerRefusedError: it does not take them. The link is closed then.
        """
        request = replace(request, link=self._name, deadline_s=self._seconds)
        assert self._group is not None
        with self._beside(partial(self._group.broadcast, flat)):
            return self._server.put(request, self._seconds)

    def close(self) -> None:
        """Takes part no more."""
        self.closed = True
        if self._group is not None:
            self._group.close()
        shutil.rmtree(self._folder, ignore_errors=True)

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
            raise ServerLostError(f"{self._server.address}: the link ({self.kind}) broke: {why}")


def kind_of_link(server: Server, health: Health, device: torch.device) -> str:
    """Which kind of link there is from a device to a server: one of ``KINDS``.

    Raises:
        ServerRefusedError: there is none.
    """
    here, there = ("a GPU" if on_gpu else "a CPU" for on_gpu in (device.type == "cuda", health.nccl > 0))
    if not server.shares_memory or here != there:
        where = "this host" if server.shares_memory else "another host"
        raise ServerRefusedError(
            f"{server.address}: it computes on {there} of {where} and the policy on {here}: weights go directly "
            "between two GPUs or two CPUs of one host alone: leave out --vllm_weights direct"
        )
    if health.nccl and health.nccl != (own := nccl_version()):
        raise ServerRefusedError(
            f"{server.address}: it has NCCL {health.nccl}, this process {own}, and versions do not mix: install one "
            "version in both environments, or leave out --vllm_weights direct"
        )
    kind = "nccl" if health.nccl else "gloo"
    never_run = ". This way was not run so far: --check_parity tells whether it is right" if health.nccl else ""
    logger.warning(f"{server.address}: weights go to it by {kind}{never_run}")
    return kind


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
        kind = kind_of_link(server, health, self.device)
        self._links[server.address] = Link(server, health, kind, self._seconds)
        return self._links[server.address]
