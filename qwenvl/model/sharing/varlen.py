"""Attention over concatenated sequences, with its log-sum-exp: the components of prefix attention.

Three kernels with one signature: flash attention of a GPU in half precision, of the CPU, and plain arithmetic in blocks
for all else (float32 on a GPU). The first two are PyTorch's own flash attention. Its operators are called directly
because the public functions hide the log-sum-exp, or do not let the backward pass take that of a merged result.

    out, lse   = kernel.forward(q, k, v, q_spans, k_spans, causal=..., scale=...)
    dq, dk, dv = kernel.backward(grad, q, k, v, out, lse, q_spans, k_spans, causal=..., scale=...)

is attention of each sequence of ``q`` over the sequence of the same number of ``k`` and ``v``. q, out and grad are
S x heads x D, k and v are S' x key-value heads x D, lse is heads x S. ``causal`` needs sequences of equal lengths. The
backward pass also takes ``out`` and ``lse`` of a softmax over more keys than ``k``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Concatenated sequences.

    Attributes:
        bounds: the start of each, and the end of the last.
        offsets: the same as an int32 tensor.
        longest: tokens of the longest.
    """

    bounds: tuple[int, ...]
    offsets: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Spans:
        """From the lengths."""
        bounds = (0, *accumulate(lengths))
        offsets = torch.tensor(bounds, dtype=torch.int32, device=device)
        return cls(bounds, offsets, longest=max(lengths, default=0))

    @property
    def total(self) -> int:
        """Tokens of all of them."""
        return self.bounds[-1]

    def slices(self) -> list[slice]:
        """One slice per sequence."""
        return [slice(start, end) for start, end in pairwise(self.bounds)]


def kernel_for(q: Tensor) -> CudaFlash | CpuFlash | Blockwise:
    """The kernel for the device, type and head size of ``q``."""
    if q.device.type == "cpu":
        return CpuFlash()
    half = q.dtype in (torch.float16, torch.bfloat16)
    if q.is_cuda and half and q.shape[-1] % 8 == 0 and torch.cuda.get_device_capability(q.device)[0] >= 8:
        return CudaFlash()
    return Blockwise()


def merge_attention(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """One attention over two disjoint sets of keys from the attention over each: S x heads x D and heads x S."""
    merged_lse = torch.logaddexp(lse, other_lse)
    weight = (other_lse - merged_lse).exp().T[..., None]  # the share of the softmax that the other keys have
    merged = torch.lerp(out.to(weight.dtype), other_out.to(weight.dtype), weight)
    return merged.to(out.dtype), merged_lse


class CudaFlash:
    """Flash attention on GPUs of compute capability 8 and above, float16 and bfloat16."""

    def forward(self, q, k, v, q_spans, k_spans, *, causal, scale):
        # Told that no sequence is longer than one token, the operator expects one in each of them.
        longest = max(2, q_spans.longest)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, q_spans.offsets, k_spans.offsets, longest, k_spans.longest, 0.0, causal, False, scale=scale
        )
        return out, lse

    def backward(self, grad, q, k, v, out, lse, q_spans, k_spans, *, causal, scale):
        # Two arguments that only dropout would read.
        seeds = torch.zeros(2, dtype=torch.uint64, device=q.device)
        unused = torch.empty(0, device=q.device)
        return torch.ops.aten._flash_attention_backward(
            grad.contiguous(), q, k, v, out, lse.contiguous(), q_spans.offsets, k_spans.offsets,
            q_spans.longest, k_spans.longest, 0.0, causal, seeds, unused, scale=scale,
        )  # fmt: skip


class _PerSequence(ABC):
    """A kernel that takes one sequence at a time, as 1 x heads x S x D."""

    @abstractmethod
    def _forward(self, q, k, v, causal, scale):
        """The output and the log-sum-exp of one sequence."""

    @abstractmethod
    def _backward(self, grad, q, k, v, out, lse, causal, scale):
        """The gradients of its queries, keys and values."""

    def forward(self, q, k, v, q_spans, k_spans, *, causal, scale):
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[1], len(q), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for rows, keys in zip(q_spans.slices(), k_spans.slices(), strict=True):
            if rows.stop > rows.start:
                one, one_lse = self._forward(
                    _by_head(q[rows]), _by_head(k[keys]), _by_head(v[keys]), causal=causal, scale=scale
                )
                out[rows] = one[0].transpose(0, 1)
                lse[:, rows] = one_lse[0]
        return out, lse

    def backward(self, grad, q, k, v, out, lse, q_spans, k_spans, *, causal, scale):
        dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.zeros(k.shape, dtype=k.dtype, device=k.device)
        dv = torch.zeros(v.shape, dtype=v.dtype, device=v.device)
        for rows, keys in zip(q_spans.slices(), k_spans.slices(), strict=True):
            if rows.stop > rows.start:
                one_dq, one_dk, one_dv = self._backward(
                    _by_head(grad[rows]),
                    _by_head(q[rows]),
                    _by_head(k[keys]),
                    _by_head(v[keys]),
                    _by_head(out[rows]),
                    lse[None, :, rows],
                    causal=causal,
                    scale=scale,
                )
                dq[rows] = one_dq[0].transpose(0, 1)
                dk[keys] = one_dk[0].transpose(0, 1)
                dv[keys] = one_dv[0].transpose(0, 1)
        return dq, dk, dv


class CpuFlash(_PerSequence):
    """Flash attention on the CPU, any floating type."""

    def _forward(self, q, k, v, causal, scale):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)

    def _backward(self, grad, q, k, v, out, lse, causal, scale):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=scale
        )


class Blockwise(_PerSequence):
    """The arithmetic spelled out, ``rows`` queries at a time, on any device in any floating type."""

    rows = 256

    def _scores(self, q, k, start, causal, scale):
        """The scores of the block of queries from ``start``, in the type of the log-sum-exp: B x heads x block x S'."""
        block = q[:, :, start : start + self.rows]
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = (block @ k.mT).to(wide) * scale
        if causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(start + 1)
            scores.masked_fill_(ahead, float("-inf"))
        return scores

    def _forward(self, q, k, v, causal, scale):
        k = _per_query_head(q, k)
        v = _per_query_head(q, v)
        outs = []
        lses = []
        for start in range(0, q.shape[2], self.rows):
            scores = self._scores(q, k, start, causal, scale)
            lse = scores.logsumexp(-1)
            probs = (scores - lse[..., None]).exp()
            outs.append(probs.to(v.dtype) @ v)
            lses.append(lse)
        return torch.cat(outs, dim=2), torch.cat(lses, dim=2)

    def _backward(self, grad, q, k, v, out, lse, causal, scale):
        # P = softmax(S), O = P V. Then dV = P^T dO and dS = P (dO V^T - rowsum(dO O)) (arXiv:2205.14135, section B.2).
        keys = _per_query_head(q, k)
        values = _per_query_head(q, v)
        dq = torch.zeros_like(q)
        dk = torch.zeros_like(keys)
        dv = torch.zeros_like(values)
        for start in range(0, q.shape[2], self.rows):
            block = slice(start, start + self.rows)
            d_out = grad[:, :, block]
            probs = (self._scores(q, keys, start, causal, scale) - lse[:, :, block, None]).exp()
            row_sums = (d_out * out[:, :, block]).to(probs.dtype).sum(-1, keepdim=True)
            d_probs = (d_out @ values.mT).to(probs.dtype)
            d_scores = (probs * (d_probs - row_sums) * scale).to(q.dtype)
            dq[:, :, block] = d_scores @ keys
            dk += d_scores.mT @ q[:, :, block]
            dv += probs.to(v.dtype).mT @ d_out
        # The query heads that share a key-value head add up.
        kv_heads = k.shape[1]
        return dq, dk.unflatten(1, (kv_heads, -1)).sum(2), dv.unflatten(1, (kv_heads, -1)).sum(2)


def _by_head(tokens: Tensor) -> Tensor:
    """S x heads x D to 1 x heads x S x D."""
    return tokens.transpose(0, 1)[None]


def _per_query_head(q: Tensor, k: Tensor) -> Tensor:
    """Keys or values repeated for the query heads that share them."""
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
