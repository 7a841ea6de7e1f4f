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
        if family.endswith("_moe"):
            model.set_experts_implementation("eager")  # the other takes no float64
        for module in model.modules():
            name = type(module).__name__
            if name.endswith(("RMSNorm", "RMSNormGated")):
                module.forward = types.MethodType(_gated_norm if name.endswith("Gated") else _rms_norm, module)
            if name.endswith("Router"):
                module.forward = types.MethodType(_route, module)
        source = sys.modules[type(model).__module__]
        monkeypatch.setattr(source, "apply_rotary_pos_emb_vision", _rotate)
        if hasattr(source, "torch_chunk_gated_delta_rule"):
            monkeypatch.setattr(source, "torch_chunk_gated_delta_rule", _delta_rule)
            monkeypatch.setattr(source, "torch_recurrent_gated_delta_rule", _delta_rule)
            stock = Tensor.float  # which the layers round their gates by
            monkeypatch.setattr(Tensor, "float", lambda x: x if x.dtype == torch.float64 else stock(x))
        return model

    return make


def _rms_norm(self, x: Tensor) -> Tensor:
    if hasattr(self, "variance_epsilon"):
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), 1 + self.weight, self.eps)  # Qwen3.5 centres it at 0


def _gated_norm(self, x: Tensor, gate: Tensor) -> Tensor:
    return _rms_norm(self, x) * torch.nn.functional.silu(gate)


def _route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.nn.functional.linear(x, self.weight)
    chosen, which = logits.softmax(-1).topk(self.top_k)
    return logits, chosen / chosen.sum(-1, keepdim=True), which


def _delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **unused):
    """Token by token, in the type of its inputs (arXiv:2412.06464, equation 10)."""
    heads = value.shape[2] // key.shape[2]
    query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query, key = (x.repeat_interleave(heads, dim=2) for x in (query, key))
    state, outs = initial_state, []
    if state is None:
        state = value.new_zeros(len(value), value.shape[2], key.shape[3], value.shape[3])
    for t in range(query.shape[1]):
        q, k, v = query[:, t, :, :, None], key[:, t, :, :, None], value[:, t, :, None]
        state = state * g[:, t, :, None, None].exp()
        state = state + beta[:, t, :, None, None] * k @ (v - k.mT @ state)
        outs.append((q.mT @ state)[:, :, 0] * key.shape[-1] ** -0.5)
    return torch.stack(outs, dim=1), state


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def one(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos[:, None].to(x) + torch.cat((-right, left), dim=-1) * sin[:, None].to(x)

    return one(q), one(k)
