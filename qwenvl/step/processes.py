"""Collective calls of stages, in a step in which processes may still wait for each other's layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from accelerate.utils import gather_object
from torch import nn

from qwenvl.model.sharding import LockStep, whole_weights

Value = TypeVar("Value")
GatherWeights = Callable[[nn.Module, nn.Module | None], AbstractContextManager[Any]]
"""From a model, and the model as DeepSpeed has wrapped it, to a context in which the model can run."""


@dataclass(frozen=True)
class Processes:
    """All processes of a run.

    Attributes:
        lock_step: gathers weights that processes share layer by layer. None: they are gathered whole, where any are.
    """

    lock_step: LockStep | None = None

    @property
    def gather_weights(self) -> GatherWeights:
        """The context in which a model can run whose weights processes share. Entering is collective."""
        return whole_weights if self.lock_step is None else self.lock_step

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes. All must call this, and none samples meanwhile."""
        if self.lock_step is not None:
            self.lock_step.meet()  # processes that wait for a layer would not come to this call
        return gather_object([value])
