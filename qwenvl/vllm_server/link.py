"""An engine for vLLM's transfer of weights, along a link from the device of a trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.packed_tensor import unpack_tensor
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from qwenvl.vllm_server.wire.link import LinkGroup


@dataclass
class LinkInfo(WeightTransferInitInfo):
    """Where the workers and the trainer meet."""

    kind: str
    store: str
    size: int
    seconds: float


@dataclass
class LinkUpdate(WeightTransferUpdateInfo):
    """What comes, as vLLM's NCCL engine is told it."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class LinkTransfer(WeightTransferEngine[LinkInfo, LinkUpdate]):
    """As vLLM's NCCL engine, by torch's process groups: the trainer broadcasts a tensor of bytes with the weights."""

    init_info_cls, update_info_cls = LinkInfo, LinkUpdate
    _group: LinkGroup | None = None

    def init_transfer_engine(self, init_info: LinkInfo) -> None:
        rank = 1 + self.parallel_config.rank
        self._group = LinkGroup(init_info.kind, init_info.store, rank, init_info.size, init_info.seconds)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As its parent, which would wait for a GPU then."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: LinkUpdate) -> None:
        assert self._group is not None, "no link"
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(update_info.shapes, dtypes, strict=True)]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        self._group.broadcast(flat)
        self.model.load_weights(unpack_tensor(flat, update_info.names, update_info.shapes, dtypes, sizes))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
