"""From the options to an engine of servers."""

from __future__ import annotations

import torch

from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import EngineOptions
from qwenvl.rollout.remote.colocate import ColocatedServer
from qwenvl.rollout.remote.engine import VllmEngine
from qwenvl.rollout.remote.link import Links
from qwenvl.rollout.remote.server import Server
from qwenvl.rollout.remote.servers import Servers


def remote_engine(
    options: EngineOptions,
    local: LocalEngine,
    *,
    model: str,
    process: int,
    device: torch.device,
    dtype: torch.dtype,
    max_tokens: int | None,
) -> VllmEngine:
    """The servers that the options name, or one of this process's own.

    Args:
        local: the engine that samples from the policy itself.
        model: the checkpoint that a server of one's own is started with.
        process: the number of this process. Its first prompt is dealt to the server of this number.
        device: of the policy. A server of one's own shares it.
        dtype: that it computes in.
        max_tokens: of a prompt and its completion. None: not known.

    Raises:
        FileNotFoundError: there is no environment of vLLM to start one in.
        ValueError: there is no checkpoint to start one with.
    """
    deadline, patience = options.vllm_deadline, options.vllm_patience
    links = Links(device, deadline) if options.vllm_weights == "direct" else None
    if options.rollout_engine == "vllm_server":
        servers = Servers([Server(each) for each in options.vllm_server or []], patience=patience, first=process)
        return VllmEngine(local, servers, deadline=deadline, links=links)
    if not model:
        raise ValueError(
            "--rollout_engine vllm_colocate starts vLLM with the policy's checkpoint, and this model is of none: save "
            "it first, and give the folder as --model_name_or_path"
        )
    arguments = [model, "--dtype", str(dtype).removeprefix("torch.")]
    if device.type == "cuda":
        arguments += ["--gpu_memory_utilization", str(options.vllm_gpu_memory)]
    if max_tokens is not None:
        arguments += ["--max_model_len", str(max_tokens)]
    own = ColocatedServer(arguments, device)
    return VllmEngine(local, Servers([own], patience=patience), deadline=deadline, own=True, links=links)
