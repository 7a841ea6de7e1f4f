"""vLLM's engines for the transfer of weights: NCCL and CUDA IPC as they are, and one of ours for CPUs.

Not run so far: ``nccl`` and ``ipc``, which need a GPU. All around them is what ``gloo`` runs through too.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.packed_tensor import unpack_tensor
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from qwenvl.vllm_server.wire.link import GlooGroup


def transfer_engine(kind: str, config: Any, device: torch.device, model: nn.Module) -> WeightTransferEngine:
    """The engine of one worker for links of a kind.

    Args:
        config: the configuration of the whole of vLLM.
    """
    chosen = WeightTransferConfig(backend=kind)
    if kind == "gloo":
        return GlooTransfer(chosen, config, device, model)
    return WeightTransferEngineFactory.create_engine(chosen, config, device, model)


def nccl_version() -> int:
    """That of the library which vLLM takes, such as 23007 for 2.30.7."""
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

    return int(NCCLLibrary().ncclGetRawVersion())


def update_of(shapes: dict[str, list[int]], dtype: str, handle: dict[str, Any] | None) -> dict[str, Any]:
    """What vLLM's engines are told of weights that come: they lie one after the other, in one tensor of bytes."""
    update: dict[str, Any] = {
        "names": [*shapes],
        "dtype_names": [dtype] * len(shapes),
        "shapes": [*shapes.values()],
    }
    if handle is None:
        return update
    dtypes = [getattr(torch, dtype)] * len(shapes)
    return update | {"ipc_handles": _rebuilt(handle), "tensor_sizes": _sizes(update["shapes"], dtypes)}


def _sizes(shapes: list[list[int]], dtypes: list[torch.dtype]) -> list[int]:
    return [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]


def _rebuilt(handle: dict[str, Any]) -> dict[str, tuple]:
    """The arguments of torch's ``rebuild_cuda_tensor``, by the number of the GPU. They come as texts and numbers."""
    memory, counter, event = (base64.b64decode(handle[name]) for name in ("memory", "counter", "event"))
    tensor = (torch.Tensor, torch.Size([handle["bytes"]]), (1,), 0, torch.storage.TypedStorage, torch.uint8)
    storage = (handle["device"], memory, handle["storage_bytes"], handle["storage_offset"], False)
    return {handle["gpu"]: (*tensor, *storage, counter, handle["counter_offset"], event, handle["event_sync"])}


@dataclass
class GlooInfo(WeightTransferInitInfo):
    """Where the workers and the trainer meet."""

    store: str
    size: int
    seconds: float


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """What comes, as vLLM's NCCL engine is told it."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooTransfer(WeightTransferEngine[GlooInfo, GlooUpdate]):
    """As vLLM's NCCL engine, for CPUs: the trainer broadcasts a tensor of bytes that holds the weights of an update."""

    init_info_cls, update_info_cls = GlooInfo, GlooUpdate
    _group: GlooGroup | None = None

    def init_transfer_engine(self, init_info: GlooInfo) -> None:
        rank = 1 + self.parallel_config.rank
        self._group = GlooGroup(init_info.store, rank, init_info.size, init_info.seconds)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As its parent, which would wait for a GPU then."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdate) -> None:
        assert self._group is not None, "no link"
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        sizes = _sizes(update_info.shapes, dtypes)
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        self._group.broadcast(flat)
        self.model.load_weights(unpack_tensor(flat, update_info.names, update_info.shapes, dtypes, sizes))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
