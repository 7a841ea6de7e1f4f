"""Attention of the vision tower: the sequences of one length at once.

A tower attends within frames or windows, hundreds of short sequences for a clip. Stock classes call ``sdpa`` for each
of them. Here all sequences of one length make a batch, and there are few lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    AttentionInterface.register(NAME, _attention)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def _attention(
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
    """1 x heads x S x D to 1 x S x heads x D, for the sequences that ``cu_seq_lens_q`` bounds."""
    starts, lengths = cu_seq_lens_q[:-1], cu_seq_lens_q.diff()
    tokens = [x[0].transpose(0, 1) for x in (query, key, value)]  # S x heads x D
    out = torch.empty_like(tokens[0])
    for length in lengths.unique().tolist():
        rows = starts[lengths == length][:, None] + torch.arange(length, device=starts.device)  # sequences x length
        q, k, v = (x[rows].transpose(1, 2) for x in tokens)
        out[rows] = nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2)
    return out[None], None
