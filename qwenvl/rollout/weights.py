"""The weights of the policy's language model for servers: which ones, their values, and the transfer of one version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch import Tensor, nn

from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.merging import adapters_of, plain_name, with_adapters
from qwenvl.rollout.servers import Server, ServerLostError
from qwenvl.vllm_server.wire import Health, WeightsRequest, memory_file

PART_BYTES = 2**30  # of weights in one message or file

# Layers of the checkpoint that vLLM holds as one.
TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)


def layer_of(name: str) -> str:
    """The layer of vLLM that holds a weight. A message must have all weights of a layer, or none.

    Example:
        >>> layer_of("layers.0.self_attn.k_proj.bias")
        'layers.0.self_attn.q_proj+k_proj+v_proj'
    """
    module = name.split(".")[:-1]
    if "experts" in module:
        return ".".join(module[: module.index("experts") + 1])
    if module:
        module[-1] = next(("+".join(group) for group in TOGETHER if module[-1] in group), module[-1])
    return ".".join(module)


@dataclass(frozen=True)
class Weight:
    """One weight of the language model, computed when it is needed: no two need be in memory at a time.

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
    """The weights of the policy's language model, adapters merged. The vision tower is the trainer's alone.

    Weights that are one tensor are listed once. Call it, and read the values, within ``whole_weights``.

    Args:
        dtype: that the server computes in.
        learning: only those that training changes, and all others of the layers that a server holds as one with them.

    Raises:
        ValueError: an adapter is of a kind that can't be merged.
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
                f"{name}: a server takes LoRA adapters of linear layers and experts, merged into the weights; it takes "
                "no DoRA and no modules_to_save: leave these out, or sample with --rollout_engine local"
            )
        layers = adapters.get(name, [])
        weights.append(Weight(name, tuple(parameter.shape), dtype, _value(parameter, layers)))
        if parameter.requires_grad or any(p.requires_grad for layer in layers for p in layer.parameters()):
            learns.add(layer_of(name))
    return [each for each in weights if not learning or layer_of(each.name) in learns]


def _value(parameter: nn.Parameter, layers: Sequence[nn.Module]) -> Callable[[], Tensor]:
    return lambda: with_adapters(parameter.detach(), layers)


def in_parts(weights: Sequence[Weight]) -> list[list[Weight]]:
    """The weights in parts of at most ``PART_BYTES``, or of one layer: a server takes a layer as a whole."""
    layers: dict[str, list[Weight]] = {}
    for each in weights:
        layers.setdefault(layer_of(each.name), []).append(each)
    parts: list[list[Weight]] = [[]]
    for layer in layers.values():
        if parts[-1] and sum(each.bytes for each in [*parts[-1], *layer]) > PART_BYTES:
            parts.append([])
        parts[-1] += layer
    return parts


def _tensors(part: Sequence[Weight]) -> dict[str, Tensor]:
    return {each.name: each.tensor() for each in part}


class Handover:
    """Gives weights to servers, in parallel: all of them, or those that changed since the version that a server has.

    A server on the same machine reads files in memory, which several servers share and which are freed when the block
    ends. Another server gets messages. Use it within ``whole_weights``.

    Args:
        model: the policy.
        version: that a server then has.
        seconds: that a server may take for a message.

    Example:
        >>> with Handover(model, 3, seconds=60) as give:
        ...     give(server, server.health(), base=2)
    """

    def __init__(self, model: nn.Module, version: int, seconds: float):
        self._model, self._version, self._seconds = model, version, seconds
        self._open = ExitStack()
        self._files: dict[tuple[bool, torch.dtype], list[str]] = {}
        self._one_writes = Lock()

    def __enter__(self) -> Handover:
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    def __call__(self, server: Server, health: Health, base: int | None) -> None:
        """Gives a server the weights that it lacks.

        Raises:
            ServerLostError, ServerRefusedError: it does not take them.
        """
        dtype = getattr(torch, health.dtype)
        parts = in_parts(policy_weights(self._model, dtype, learning=base is not None))
        paths = self._written(parts, (base is not None, dtype)) if server.shares_memory else None
        for number, part in enumerate(parts):
            request = WeightsRequest(self._version, base, number, len(parts), deadline_s=self._seconds)
            content = {"tensors": _tensors(part)} if paths is None else {"path": paths[number]}
            answer = server.put(replace(request, **content))
        if (answer.version, answer.boot) != (self._version, health.boot):
            raise ServerLostError(f"{server.address}: it was started again while it was given weights")

    def _written(self, parts: list[list[Weight]], key: tuple[bool, torch.dtype]) -> list[str]:
        with self._one_writes:
            if key not in self._files:
                self._files[key] = [self._open.enter_context(memory_file(_tensors(part))) for part in parts]
            return self._files[key]
