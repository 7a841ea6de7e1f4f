"""The weights of the policy's language model for servers: their values, and the transfer of one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.merging import adapters_of, plain_name, with_adapters
from qwenvl.rollout.servers import Server, ServerLostError, ServerRefusedError, in_parallel
from qwenvl.vllm_server.wire import Health, WeightsRequest, architecture, memory_file

PART_BYTES = 2**30  # of weights in one message or file


def policy_weights(policy: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The names and values of the language model's weights, adapters merged. The vision tower is the trainer's alone.

    Weights that are one tensor are listed once. Each value is computed when it is reached, on the CPU, in memory of its
    own: FSDP could not free what numpy has seen. Call it within ``whole_weights``.

    Raises:
        ValueError: an adapter is of a kind that can't be merged.
    """
    bare = unwrap(policy)
    adapters = adapters_of(bare)
    for full, parameter in bare.named_parameters():
        name = plain_name(full)
        if part_of(name) != "llm" or ".lora_" in name:
            continue
        value = with_adapters(parameter.detach(), adapters.get(name, []))
        yield name, value.to("cpu", dtype, copy=True).contiguous()


def in_parts(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[dict[str, Tensor], bool]]:
    """The weights in parts of at most ``PART_BYTES``, or of one weight, and whether a part is the last."""
    part: dict[str, Tensor] = {}
    for name, value in weights:
        if part and sum(each.nbytes for each in part.values()) + value.nbytes > PART_BYTES:
            yield part, False
            part = {}
        part[name] = value
    yield part, True


def give_weights(policy: nn.Module, version: int, servers: Sequence[tuple[Server, Health]]) -> list[ServerLostError]:
    """Gives servers all weights of the policy, part by part: a file in memory on this machine, messages to others.

    Call it within ``whole_weights``.

    Returns:
        The errors of servers that were lost meanwhile. The others have the version.

    Raises:
        ServerRefusedError: a server was started with another model, or does not take the weights.
    """
    for server, health in servers:
        _require_same_model(policy, server, health)
    lost: list[ServerLostError] = []
    for dtype in {health.dtype for _, health in servers}:
        left = [server for server, health in servers if health.dtype == dtype]
        for number, (tensors, last) in enumerate(in_parts(policy_weights(policy, getattr(torch, dtype)))):
            with memory_file(tensors) as path:
                request = WeightsRequest(version, number, last, path, tensors)
                outcomes = in_parallel(partial(_put, request), left)
            lost += filter(None, outcomes)
            left = [server for server, error in zip(left, outcomes, strict=True) if error is None]
            if not left:
                break
    return lost


def _put(request: WeightsRequest, server: Server) -> None:
    server.put(replace(request, tensors={}) if server.shares_memory else replace(request, path=None))


def _require_same_model(policy: nn.Module, server: Server, health: Health) -> None:
    bare = unwrap(policy)
    tied = "lm_head.weight" not in dict(bare.named_parameters())  # which lists a tensor once
    for name, own in architecture(bare.config, tied).items():
        if (found := health.architecture.get(name)) != own:
            raise ServerRefusedError(
                f"{server.address}: it was started with {health.model}: its {name} is {found}, the policy's {own}; "
                "start it with the checkpoint that the run starts from"
            )
