"""The frozen reference model of the KL penalty."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qwenvl.model.loading import evaluating
from qwenvl.model.sharding import is_partitioned, whole_weights


class Reference:
    """The policy as it was before training.

    With LoRA it is the policy with its adapter off, and costs no memory. Otherwise it is a copy that shares with the
    policy every tensor that is not trained (by default the vision tower).
    """

    def __init__(self, policy: nn.Module, *, dtype: torch.dtype | None = None):
        """Copies what is trained in ``policy``: call this before the first update, on the unwrapped model.

        Args:
            dtype: the type of the copy, where the policy rounds its own weights to it in each forward. The copy shares
                nothing then. None: as the weights are kept.
        """
        self._adapter = policy if hasattr(policy, "disable_adapter") else None
        self._copy = None if self._adapter else _copy_trained(policy, shares=dtype is None)
        if self._copy is not None and dtype is not None:
            for parameter in self._copy.parameters():  # buffers, of rotary angles, stay as they are
                parameter.data = parameter.data.to(dtype)

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """The reference within the context, in eval mode and without gradients."""
        with torch.no_grad():
            if self._adapter is None:
                yield self._copy
            else:
                with evaluating(self._adapter), self._adapter.disable_adapter():
                    yield self._adapter

    def to(self, device: torch.device) -> Reference:
        """Moves the copied tensors. Shared ones move with the policy."""
        if self._copy is not None:
            self._copy.to(device)
        return self


def _copy_trained(policy: nn.Module, shares: bool) -> nn.Module:
    """A deep copy of ``policy`` in which, if it ``shares``, tensors without gradient are the policy's own.

    Weights that are split among processes are copied whole and shared with none: this copy runs outside of the engine.
    """
    shares = shares and not is_partitioned(policy)
    frozen = (p for p in policy.parameters() if shares and not p.requires_grad)
    with whole_weights(policy):
        reference = copy.deepcopy(policy, memo={id(parameter): parameter for parameter in frozen})
    return reference.requires_grad_(False).eval()
