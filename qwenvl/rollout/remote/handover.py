"""One version of the policy's weights on its way to the servers that lack it."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import IO

import torch
from torch import nn

from qwenvl.rollout.remote.link import Link, Links
from qwenvl.rollout.remote.server import Server, ServerLostError
from qwenvl.rollout.remote.weights import Weight, hold, in_one, in_parts, place_for, policy_weights, write_weights
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest


class Handover:
    """Gives weights to servers, side by side: all of them, or those that changed since the version that a server has.

    On the same host a server gets a file in shared memory, which is deleted when the block ends. On another host it
    gets messages. With ``links`` weights go from device to device. Within ``whole_weights``.

    Args:
        model: the policy.
        version: that a server then has.
        name: of the files, different for each process of the run.
        seconds: that a server may take for them.
        links: from the device of the policy to servers.

    Example:
        >>> with Handover(model, 3, "run-0", seconds=60) as give:
        ...     give(server, server.health(), base=2)
    """

    def __init__(self, model: nn.Module, version: int, name: str, seconds: float, links: Links | None = None):
        self._model, self._version, self._name, self._seconds = model, version, name, seconds
        self._links = links
        self._files: dict[tuple[bool, torch.dtype], Path] = {}
        self._held: list[IO[bytes]] = []
        self._one_writes = Lock()

    def __enter__(self) -> Handover:
        return self

    def __exit__(self, *failure: object) -> None:
        for path in self._files.values():
            path.unlink(missing_ok=True)
        for file in self._held:
            file.close()

    def __call__(self, server: Server, health: Health, base: int | None) -> None:
        """Gives a server what it lacks.

        Raises:
            ServerLostError, ServerRefusedError: it does not take it.
            OSError: there is no space for the file.
        """
        dtype = getattr(torch, health.dtype.removeprefix("torch."))
        weights = policy_weights(self._model, dtype, learning=base is not None)
        if self._links is not None and weights:
            answer = self._along(self._links.to(server, health), self._links.device, base, weights)
        elif server.shares_memory and weights:
            path = self._file(weights, base is not None, dtype)
            answer = server.put(WeightsRequest(self._version, base, path=str(path)), self._seconds)
        else:
            answer = self._send(server, base, weights)
        if (answer.version, answer.boot) != (self._version, health.boot):
            raise ServerLostError(f"{server.address}: it was started again while it was given weights")

    def _file(self, weights: list[Weight], changed: bool, dtype: torch.dtype) -> Path:
        with self._one_writes:
            if (changed, dtype) not in self._files:
                kind = f"{'changed' if changed else 'all'}-{str(dtype).removeprefix('torch.')}"
                path = place_for(weights, f"{self._name}-{kind}")
                write_weights(path, weights)
                self._held.append(hold(path))
                self._files[changed, dtype] = path
            return self._files[changed, dtype]

    def _along(self, link: Link, device: torch.device, base: int | None, weights: list[Weight]) -> WeightsAnswer:
        parts = [*in_parts(weights)]
        for number, part in enumerate(parts):
            shapes = {each.name: each.shape for each in part}
            request = WeightsRequest(self._version, base, part=number, parts=len(parts), shapes=shapes)
            answer = link.put(request, in_one(part, device))
        return answer

    def _send(self, server: Server, base: int | None, weights: list[Weight]) -> WeightsAnswer:
        parts = [*in_parts(weights)] or [[]]
        for number, part in enumerate(parts):
            tensors = {each.name: each.tensor() for each in part}
            request = WeightsRequest(self._version, base, part=number, parts=len(parts), tensors=tensors)
            answer = server.put(request, self._seconds)
        return answer
