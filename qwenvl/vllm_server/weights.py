"""Which weights the server has, how it takes others, and the files of safetensors that hold them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qwenvl.vllm_server.wire.body import Refusal, require
from qwenvl.vllm_server.wire.weights import WeightsRequest, layer_of

if TYPE_CHECKING:
    from qwenvl.vllm_server.engine import Engine


class Weights:
    """The version of an engine's weights.

    Attributes:
        version: 0 for those that it was started with. None while it has some of the parts of a version, and after a
            sync that failed: nothing is sampled then.
    """

    def __init__(self, engine: Engine):
        self.version: int | None = 0
        self._engine = engine
        self._all: frozenset[str] = frozenset()  # names of the last sync of all weights
        self._coming: tuple[int, int | None] | None = None  # the version and base of the parts so far
        self._parts = 0
        self._names: set[str] = set()
        self._written: set[str] = set()

    def require(self, version: int) -> None:
        """Refuses to sample with other weights than these."""
        if version != self.version:
            has = "a part of a version" if self.version is None else f"version {self.version}"
            raise Refusal("version", f"the request is for weights of version {version}, the server has {has}")

    def take(self, request: WeightsRequest, names: Sequence[str], load: Callable[[], set[str]]) -> None:
        """Takes one part.

        Args:
            names: of its weights.
            load: has the engine take them, and says which parameters it wrote.

        Raises:
            Refusal: before anything is changed, or, where the parts together are not all weights, afterwards.
        """
        self._check_order(request)
        before = self._names if request.part else set()
        check_layers(names, before, self._all if request.base is not None else frozenset())
        self.version, self._coming, self._names = None, (request.version, request.base), before | set(names)
        if request.part == 0:
            self._parts, self._written = 0, set()
        self._written |= load()
        self._parts += 1
        if self._parts == request.parts:
            self._finish(request)

    def _finish(self, request: WeightsRequest) -> None:
        """After the last part."""
        self._coming = None
        if request.base is None:
            missing = self._engine.language_parameters() - self._written
            some = ", ".join(sorted(missing)[:3])
            require(not missing, f"{len(missing)} parameters of the model were not among all weights: {some}, ...")
            self._all = frozenset(self._names)
        self.version = request.version

    def _check_order(self, request: WeightsRequest) -> None:
        if request.part > 0:
            follows = self._coming == (request.version, request.base) and self._parts == request.part
            require(follows, f"part {request.part} of version {request.version} does not follow what came before")
        elif request.base is not None and (request.base != self.version or not self._all):
            raise Refusal(
                "version",
                f"the weights go over version {request.base}, the server has {self.version}: send all weights",
            )


def check_layers(names: Sequence[str], before: Set[str], known: Set[str]) -> None:
    """Refuses a part of a layer: vLLM would fill it up with whatever lies in memory, silently.

    Args:
        names: weights of this message.
        before: those of the messages before it, of the same version.
        known: all weights there are. Empty where nobody knows.
    """
    here = {layer_of(name) for name in names}
    for name in sorted(before):
        require(
            layer_of(name) not in here, f"{layer_of(name)} lies in two parts: vLLM takes it as a whole, or not at all"
        )
    for name in sorted(known - set(names)):
        require(
            layer_of(name) not in here, f"{name} is missing: vLLM holds {layer_of(name)} as one layer, send all of it"
        )


@contextmanager
def file_of(request: WeightsRequest) -> Iterator[str]:
    """The path of the weights, written to memory for workers where they came in the message.

    Raises:
        Refusal: if the file is not there.
    """
    if request.path is not None:
        require(os.path.isfile(request.path), f"no file of weights at {request.path} on the server's machine")
        yield request.path
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="qwenvl-weights-", dir=memory) as folder:
        path = str(Path(folder) / "weights.safetensors")
        save_file(dict(request.tensors), path)
        yield path


def tensors_of(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a file one after the other, without those of the vision tower, which never runs."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            if not is_of_vision(name):
                yield name, file.get_tensor(name)


def names_of(path: str | Path) -> list[str]:
    """The names in a file of safetensors.

    Raises:
        Refusal: it is none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return [*file.keys()]
    except (SafetensorError, OSError) as error:
        raise Refusal("request", f"{path}: not a file of safetensors") from error


def is_of_vision(name: str) -> bool:
    """Whether a parameter is of the vision tower."""
    return "visual" in name.split(".")
