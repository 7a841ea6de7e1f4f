"""Random completions, and models whose float64 is float64 throughout."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qwenvl.demo.tiny import make_model, make_processor


@pytest.fixture
def random_completions() -> Callable[..., tuple[Tensor, Tensor]]:
    """``random_completions(rows, length)`` -> ids, mask; the first row is full, the last has a single token."""

    def make(rows: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, length + 1, (rows,), generator=generator)
        lengths[0], lengths[-1] = length, 1
        return torch.randint(0, 250, (rows, length), generator=generator), torch.arange(length) < lengths[:, None]

    return make


@pytest.fixture
def exact_model(monkeypatch) -> Callable[..., torch.nn.Module]:
    """``exact_model(family, **options)``: a float64 tiny model in train mode, without the roundings of stock classes.

    Stock norms and the vision tower's rotation compute in float32 whatever the model's type; two orders of the same
    sums then differ by 1e-8 in their gradients, which would hide a wrong term of that size.
    """

    def make(family: str, **options) -> torch.nn.Module:
        model = make_model(family, make_processor(family), initializer_range=0.1, **options).double().train()
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(_rms_norm, module)
        monkeypatch.setattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb_vision", _rotate)
        return model

    return make


def _rms_norm(self, x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def one(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos[:, None].to(x) + torch.cat((-right, left), dim=-1) * sin[:, None].to(x)

    return one(q), one(k)
