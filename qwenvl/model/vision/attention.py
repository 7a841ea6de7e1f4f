"""Attention of the vision tower: the sequences of one length at once.

A tower attends within frames or windows, hundreds of short sequences for a clip. Stock classes call ``sdpa`` for each
of them. Here all sequences of one length make a batch, and there are few lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

NAME = "batched_flash"
"""Towers hand all sequences at once, with their bounds, to an implementation whose name has "flash" in it."""


@contextmanager
def batched_attention(visual: nn.Module) -> Iterator[None]:
    """Within it, a tower whose attention is ``sdpa`` computes the same in batches. Others go on as they are."""
    from transformers import AttentionInterface

    config = visual.config
    if config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, partial(_attention, {}))
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def _attention(
    batches: dict[int, tuple[Tensor, list[Tensor]]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **unused,
) -> tuple[Tensor, None]:
    """1 x heads x S x D to 1 x S x heads x D, for the sequences that ``cu_seq_lens_q`` bounds.

    Args:
        batches: those of earlier layers, by the identity of the bounds, which are beside them and stay alive so.
    """
    if id(cu_seq_lens_q) not in batches:
        batches[id(cu_seq_lens_q)] = cu_seq_lens_q, _by_length(cu_seq_lens_q)
    tokens = [x[0].transpose(0, 1) for x in (query, key, value)]  # S x heads x D
    out = torch.empty_like(tokens[0])
    for rows in batches[id(cu_seq_lens_q)][1]:
        q, k, v = (x[rows].transpose(1, 2) for x in tokens)
        out[rows] = nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2)
    return out[None], None


def _by_length(bounds: Tensor) -> list[Tensor]:
    """For each length, the places of its sequences' tokens: sequences x length. A GPU is waited for."""
    starts, lengths = bounds[:-1], bounds.diff()
    return [
        starts[lengths == length][:, None] + torch.arange(length, device=bounds.device)
        for length in lengths.unique().tolist()
    ]
