"""Each kernel against softmax written out, and the backward pass of a merge against autograd."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.sharing.varlen import Blockwise, CpuFlash, CudaFlash, Spans, kernel_for

KERNELS = [CpuFlash(), Blockwise()]


def written_out(q, k, v, q_spans, k_spans, causal, scale):
    """Attention and log-sum-exp of each pair of sequences, by softmax."""
    outs, lses = [], []
    for rows, keys in zip(q_spans.slices(), k_spans.slices(), strict=True):
        queries = q[rows].transpose(0, 1)
        key, value = (x[keys].transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], dim=0) for x in (k, v))
        scores = queries @ key.mT * scale
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
        outs.append((scores.softmax(-1) @ value).transpose(0, 1))
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(lses, dim=1)


def tensors(queries: int, keys: int):
    generator = torch.Generator().manual_seed(5)
    shapes = (queries, 4, 8), (keys, 2, 8), (keys, 2, 8)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[5, 0, 7], [1, 0, 1]], ids=str)
def test_a_kernel_gives_softmax_attention_and_its_gradient(kernel, causal, lengths, monkeypatch):
    monkeypatch.setattr(Blockwise, "rows", 3)
    q_spans = Spans.of(lengths)
    k_spans = q_spans if causal else Spans.of([4, 6, 2])
    q, k, v = (x.requires_grad_() for x in tensors(q_spans.total, k_spans.total))
    expected_out, expected_lse = written_out(q, k, v, q_spans, k_spans, causal, 0.3)
    grad = torch.randn_like(expected_out)
    expected = torch.autograd.grad(expected_out, (q, k, v), grad)
    with torch.no_grad():
        out, lse = kernel.forward(q, k, v, q_spans, k_spans, causal=causal, scale=0.3)
        grads = kernel.backward(grad, q, k, v, out, lse, q_spans, k_spans, causal=causal, scale=0.3)
    torch.testing.assert_close(out, expected_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-12)
    for got, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_backward_takes_the_output_and_lse_of_a_softmax_over_more_keys(kernel):
    one = Spans.of([6])
    q, k, v = (x.requires_grad_() for x in tensors(6, 12))
    both, lse = written_out(q, k, v, one, Spans.of([12]), False, 0.3)
    grad = torch.randn_like(both)
    _, expected, _ = torch.autograd.grad(both, (q, k, v), grad)
    with torch.no_grad():
        halves = [
            kernel.backward(grad, q, k[half], v[half], both, lse, one, one, causal=False, scale=0.3)[1]
            for half in (slice(0, 6), slice(6, 12))
        ]
    torch.testing.assert_close(torch.cat(halves), expected, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[50, 0, 70], [1, 0, 1]], ids=str)
def test_the_gpu_kernel_agrees_with_the_arithmetic(causal, lengths):
    q_spans = Spans.of(lengths, "cuda")
    k_spans = q_spans if causal else Spans.of([40, 60, 20], "cuda")
    q, k, v = (x.repeat(1, 1, 8).bfloat16().cuda() for x in tensors(q_spans.total, k_spans.total))
    kernel = kernel_for(q)
    assert isinstance(kernel, CudaFlash)
    grad = torch.randn_like(q)
    out, lse = kernel.forward(q, k, v, q_spans, k_spans, causal=causal, scale=0.1)
    grads = kernel.backward(grad, q, k, v, out, lse, q_spans, k_spans, causal=causal, scale=0.1)
    wide = [x.float() for x in (grad, q, k, v)]
    out_wide, lse_wide = Blockwise().forward(*wide[1:], q_spans, k_spans, causal=causal, scale=0.1)
    grads_wide = Blockwise().backward(*wide, out_wide, lse_wide, q_spans, k_spans, causal=causal, scale=0.1)
    torch.testing.assert_close(lse, lse_wide, rtol=1e-2, atol=1e-2)
    for got, wanted in zip((out, *grads), (out_wide, *grads_wide), strict=True):
        torch.testing.assert_close(got.float(), wanted, rtol=3e-2, atol=3e-2)
