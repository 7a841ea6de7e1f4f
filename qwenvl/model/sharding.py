"""Models that DeepSpeed ZeRO-3 or FSDP shards: whole weights, forwards without hooks, settings of FSDP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import FSDPModule


def is_partitioned(model: nn.Module) -> bool:
    """Whether DeepSpeed ZeRO-3 keeps a part of each weight in each process."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules whose weights FSDP gathers together, the model itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def whole_weights(model: nn.Module, engine: nn.Module | None = None) -> Iterator[None]:
    """Context manager in which every process has all weights of ``model``, to be read and not changed. Collective.

    ZeRO-3 and FSDP otherwise gather the weights of each layer in each forward, and each forward waits for all
    processes: a process that samples longer completions than another would wait for ever.

    Args:
        engine: the model as DeepSpeed has wrapped it. Before that, the model itself or None.
    """
    sharded, partitioned = sharded_modules(model), is_partitioned(model)
    with ExitStack() as stack:
        for module in sharded:
            stack.enter_context(unsharded(module))
        if partitioned:
            from deepspeed.runtime.zero.partition_parameters import GatheredParameters

            stack.enter_context(GatheredParameters(model.parameters()))
        if sharded or partitioned:
            stack.enter_context(without_hooks(model, engine))
        yield


@contextmanager
def unsharded(module: FSDPModule) -> Iterator[None]:
    """Context manager in which the weights of one module of FSDP are gathered. Entering is collective."""
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


@contextmanager
def without_hooks(model: nn.Module, engine: nn.Module | None = None) -> Iterator[None]:
    """Context manager in which no forward of ``model`` gathers or frees weights.

    Args:
        engine: see ``whole_weights``.
    """
    with _without_fsdp_hooks(sharded_modules(model)), _without_zero_hooks(getattr(engine, "optimizer", None)):
        yield


@contextmanager
def _without_fsdp_hooks(modules: list[FSDPModule]) -> Iterator[None]:
    """With its hooks FSDP would take the first module to run, the vision tower's, for the root of the model."""
    removed = [
        (hooks, dict(hooks)) for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)
    ]
    for hooks, before in removed:
        for key, hook in before.items():
            if hook.__module__.startswith("torch.distributed.fsdp"):
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in removed:
            hooks.clear()
            hooks.update(before)


@contextmanager
def _without_zero_hooks(optimizer: Any) -> Iterator[None]:
    """Removes the hooks of ZeRO-3's ``optimizer`` (None before DeepSpeed has one) and registers them again at the end.

    The one at the start of the model's forward is among them: it compares the order of modules with other processes,
    and would wait for one that has nothing to sample.
    """
    if optimizer is None:
        yield
        return
    offload = getattr(optimizer, "parameter_offload", optimizer)
    at_start = offload.module._forward_pre_hooks[offload.fwd_pre_hook.id]
    for hook in [offload.fwd_pre_hook, *offload.forward_hooks, *offload.backward_hooks]:
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []
    try:
        yield
    finally:
        offload.fwd_pre_hook = offload.module.register_forward_pre_hook(at_start)
        offload._register_deepspeed_module(offload.module)


def settle_fsdp(
    accelerator: Accelerator, policy: nn.Module, *, asked: bool, copies_policy: bool, output_dir: str
) -> torch.dtype | None:
    """Makes FSDP keep the numbers that leave a module as they are, and sum gradients in float32.

    Accelerate would round them, and with them the log-probs, to the type of the matrix products.

    Args:
        asked: whether the run asks for FSDP.
        copies_policy: whether a reference is copied from the policy.
        output_dir: where the run leaves its model.

    Returns:
        The type that all weights of the policy are rounded to in its forwards, or None where they are not.

    Raises:
        ValueError: if FSDP was asked for and is off, or its settings would train wrongly or leave no model behind.
    """
    if problems := list(_problems(accelerator, policy, asked, copies_policy, output_dir)):
        raise ValueError("\n".join(problems))
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.mixed_precision_policy is None:
        return None
    plugin.mixed_precision_policy = replace(
        plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None, cast_forward_inputs=False
    )
    return plugin.mixed_precision_policy.param_dtype


def _problems(
    accelerator: Accelerator, policy: nn.Module, asked: bool, copies_policy: bool, output_dir: str
) -> Iterator[str]:
    if any(isinstance(module, FSDPModule) for module in policy.modules()):
        yield "the model is already sharded: hand over the whole one and ask for --fsdp, which shards it"
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        if asked or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            yield (
                "FSDP was asked for and is off: it needs several processes with a GPU each. Elsewhere it is left out, "
                "and each process would hold the whole model: start one process for each GPU, or leave --fsdp out"
            )
        return
    if plugin.fsdp_version != 2:
        yield f"FSDP version {plugin.fsdp_version} is not supported: set fsdp_version to 2"
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        yield (
            f"with fsdp_state_dict_type {plugin.state_dict_type.name} the run would end without a model in "
            f"{output_dir}: set it to FULL_STATE_DICT"
        )
    if plugin.cpu_ram_efficient_loading and copies_policy:
        yield (
            "with fsdp_cpu_ram_efficient_loading only the first process has the weights that the reference is copied "
            "from: set it to false; or train an adapter, or set --grpo_beta 0"
        )
