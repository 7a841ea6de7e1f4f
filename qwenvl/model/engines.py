"""What the engines that split a model among processes ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def is_partitioned(model: nn.Module) -> bool:
    """Whether DeepSpeed ZeRO-3 keeps a part of each weight in each process."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


@contextmanager
def whole_weights(model: nn.Module, engine: nn.Module | None = None) -> Iterator[None]:
    """Every process has all weights of ``model`` within; all of them must enter.

    ZeRO-3 otherwise gathers the weights of each layer in each forward, and each forward waits for all processes: a
    process that samples longer completions than another would wait for ever.

    Args:
        engine: the model as DeepSpeed has wrapped it; the model itself, or None, before that.
    """
    if not is_partitioned(model):
        yield
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters
    from deepspeed.runtime.zero.stage3 import unwrap_model_for_generation

    with (
        unwrap_model_for_generation(engine) if hasattr(engine, "optimizer") else GatheredParameters(model.parameters())
    ):
        yield
