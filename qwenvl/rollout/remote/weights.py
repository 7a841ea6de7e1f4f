"""The weights that servers get: their names, a file that is whole or not there, and the transfer of one version."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

import torch
from torch import Tensor, nn

from qwenvl.files import written_whole
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.merging import adapters_of, plain_name, with_adapters
from qwenvl.rollout.remote.link import Link, Links
from qwenvl.rollout.remote.server import Server, ServerLostError
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest, layer_of

SHARED_MEMORY = Path("/dev/shm")
LEFT_SECONDS = 60.0  # that a file is older which nobody holds: one that is being written is younger
_PREFIX = "qwenvl-weights-"
PART_BYTES = 2**30  # of a message with weights, for a server on another host
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Weight:
    """One weight of the language model, made when it is asked for: no two need exist at a time.

    Attributes:
        name: as the bare model has it.
        value: the tensor, on any device.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Its size."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """Its values, on the CPU, contiguous, in memory of their own: FSDP could not free what numpy has seen."""
        return self.value().to("cpu", self.dtype, copy=True).contiguous()


def policy_weights(policy: nn.Module, dtype: torch.dtype, *, learning: bool) -> list[Weight]:
    """The weights of the policy's language model, adapters folded in. The vision tower is the trainer's alone.

    Weights that are one tensor are listed once. Call it, and take the values, within ``whole_weights``.

    Args:
        dtype: that the server computes in.
        learning: only those that training changes, and all others of the layers that a server holds as one with them.

    Raises:
        ValueError: an adapter is of a kind that can't be folded in.
    """
    bare = unwrap(policy)
    adapters = adapters_of(bare)
    weights, learns = [], set()
    for full, parameter in bare.named_parameters():
        name = plain_name(full)
        if part_of(name) != "llm" or ".lora_" in name:
            continue
        if "modules_to_save" in name or "lora_magnitude" in name:
            raise ValueError(
                f"{name}: a server takes LoRA adapters of linear layers and experts, folded into the weights; it takes "
                "no DoRA and no modules_to_save: leave these out, or sample with --rollout_engine local"
            )
        layers = adapters.get(name, [])
        weights.append(Weight(name, tuple(parameter.shape), dtype, _value(parameter, layers)))
        if parameter.requires_grad or any(p.requires_grad for layer in layers for p in layer.parameters()):
            learns.add(layer_of(name))
    return [each for each in weights if not learning or layer_of(each.name) in learns]


def _value(parameter: nn.Parameter, layers: Sequence[nn.Module]) -> Callable[[], Tensor]:
    return lambda: with_adapters(parameter.detach(), layers)


def write_weights(path: Path, weights: Sequence[Weight]) -> None:
    """A file of safetensors, readable by its owner alone, that is there when it is whole. It holds one at a time.

    By hand, since ``safetensors.serialize_file`` (0.8) wants the addresses of all tensors, so that none could go.

    Raises:
        OSError: there is no space for it.
    """
    entries, end = {}, 0
    for each in weights:
        entries[each.name] = {
            "dtype": _NAMES[each.dtype],
            "shape": list(each.shape),
            "data_offsets": [end, end + each.bytes],
        }
        end += each.bytes
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with written_whole(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head)
            for each in weights:
                file.write(each.tensor().view(-1).view(torch.uint8).numpy().data)


def in_one(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """The bytes of weights of one type, one after the other, on a device. No other two copies exist at a time."""
    flat = torch.empty(sum(each.bytes for each in weights), dtype=torch.uint8, device=device)
    for each, own in zip(weights, flat.split([each.bytes for each in weights]), strict=True):
        own.view(each.dtype).view(each.shape).copy_(each.value())
    return flat


def place_for(weights: Sequence[Weight], name: str) -> Path:
    """The path of a file of this name where these weights fit: in shared memory, else in the folder of temporary files.

    Raises:
        OSError: it fits nowhere.
    """
    needed = sum(each.bytes for each in weights) + 2**20
    folders = [folder for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]
    for folder in folders:
        remove_left_behind(folder)
        if shutil.disk_usage(folder).free > needed:
            return folder / f"{_PREFIX}{name}.safetensors"
    raise OSError(
        f"the weights for the server take {needed / 1e9:.1f} GB, and there is no space for them in "
        f"{' or '.join(map(str, folders))}: make /dev/shm larger (docker run --shm-size), or set TMPDIR"
    )


def hold(path: Path) -> IO[bytes]:
    """Have a file of weights stay while this process lives, or until what is returned is closed."""
    import fcntl  # not on every system, nor are servers

    file = path.open("rb")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def remove_left_behind(folder: Path) -> None:
    """Delete files of weights that a killed run has left: old ones that no process holds. They may fill the memory."""
    import fcntl

    for each in folder.glob(f"{_PREFIX}*.safetensors*"):
        with suppress(OSError), each.open("rb") as file:  # of another user, or gone meanwhile
            if time.time() - os.fstat(file.fileno()).st_mtime > LEFT_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                each.unlink()


def in_parts(weights: Sequence[Weight]) -> Iterator[list[Weight]]:
    """The weights in messages of at most ``PART_BYTES``, or of one layer: a server takes a layer as a whole."""
    layers: dict[str, list[Weight]] = {}
    for each in weights:
        layers.setdefault(layer_of(each.name), []).append(each)
    part: list[Weight] = []
    for layer in layers.values():
        if part and sum(each.bytes for each in [*part, *layer]) > PART_BYTES:
            yield part
            part = []
        part += layer
    if part:
        yield part


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
