"""What the engines that split a model among processes ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


def is_partitioned(model: nn.Module) -> bool:
    """Whether DeepSpeed ZeRO-3 keeps a part of each weight in each process."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


@contextmanager
def whole_weights(model: nn.Module, engine: nn.Module | None = None) -> Iterator[None]:
    """Every process has all weights of ``model`` within, to be read and not changed; all of them must enter.

    ZeRO-3 and FSDP otherwise gather the weights of each layer in each forward, and each forward waits for all
    processes: a process that samples longer completions than another would wait for ever.

    Args:
        engine: the model as DeepSpeed has wrapped it; the model itself, or None, before that.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if sharded:
        with _unsharded(sharded):
            yield
    elif is_partitioned(model):
        with _gathered(model, engine):
            yield
    else:
        yield


@contextmanager
def _gathered(model: nn.Module, engine: nn.Module | None) -> Iterator[None]:
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters
    from deepspeed.runtime.zero.stage3 import unwrap_model_for_generation

    with (
        unwrap_model_for_generation(engine) if hasattr(engine, "optimizer") else GatheredParameters(model.parameters())
    ):
        yield


@contextmanager
def _unsharded(modules: list[FSDPModule]) -> Iterator[None]:
    """Gathers the weights of each module once, and keeps FSDP's hooks from gathering and freeing them in forwards.

    Without its hooks FSDP does not take the first module to run, the vision tower's, for the root of the model either.
    """
    removed = [
        (hooks, dict(hooks)) for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)
    ]
    for module in modules:
        module.unshard()
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
        for module in modules:
            module.reshard()
