"""Attention over one packed row in which the completions of a prompt share that prompt's keys and values.

The row holds all prompts, then all completions, without padding: ``[p0 | p1 | .. | c00 c01 .. | c10 c11 .. | ..]``.
Three attentions cover it, and no mask of (prompt + group)^2 is ever made:

- each prompt over itself, causal;
- each completion over itself, causal;
- all completions of a prompt, as one run of queries, over the prompt, without a mask.

The last two see disjoint keys, so their results merge exactly by their log-sum-exp. The backward pass of such a merge
is that of each part with the merged output and log-sum-exp in the place of its own (FlashAttention, arXiv:2205.14135,
appendix B.2: the probabilities are recomputed as exp(score - lse)).

The layout reaches the attention of every layer as the keyword ``shared_prefix`` of the model's forward: stock model
classes hand unknown keywords down, and unlike a global it is still there when checkpointing recomputes a layer. Without
it, attention is what it was. In sampling the same keyword brings a ``PrefixCache``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from qwenvl.model.sharing.linear_attention import Layer, Padding, State
from qwenvl.model.sharing.varlen import Spans, kernel_for, merge

IMPLEMENTATIONS = ("sdpa", "flash_attention_2")
"""The attention implementations of transformers that understand ``shared_prefix`` once it is installed."""


@dataclass(frozen=True)
class PrefixLayout:
    """Where the prompts and completions of a packed row lie.

    Attributes:
        prompt_lengths: P token counts.
        completion_lengths: N token counts in the row, 0 allowed. Completion n belongs to prompt n // (N / P).
        device: of the row.
    """

    prompt_lengths: tuple[int, ...]
    completion_lengths: tuple[int, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def prompts(self) -> Spans:
        """The P prompts."""
        return Spans.of(self.prompt_lengths, self.device)

    @cached_property
    def completions(self) -> Spans:
        """The N completions, counted from the first of them."""
        return Spans.of(self.completion_lengths, self.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of the packed row, with gradient, the same in every layer.

        Args:
            q: S x heads x D.
            k, v: S x key-value heads x D.
            scale: factor of the scores.

        Returns:
            S x heads x D.
        """
        return _PrefixAttention.apply(q, k, v, self, scale)

    def recur(self, layer: int, forward: Layer, hidden: Tensor) -> Tensor:
        """Linear attention of the packed row, 1 x S x width, with gradient, the same in every layer."""
        of_prompts, of_completions = hidden[0].split([self.prompts.total, self.completions.total])
        prompts, completions = self._paddings
        state = State()
        of_prompts = prompts.run(forward, of_prompts, state)
        start = State(*(x.flatten(0, 1) for x in state.expand(completions.rows // prompts.rows)))
        return torch.cat([of_prompts, completions.run(forward, of_completions, start)])[None]

    @cached_property
    def _paddings(self) -> tuple[Padding, Padding]:
        """Of prompts and completions, where they have to be rows of a batch."""
        return Padding.on_the_left(self.prompts), Padding.on_the_right(self.completions)

    @cached_property
    def groups(self) -> Spans:
        """The completions of each of the P prompts taken together."""
        size = len(self.completion_lengths) // len(self.prompt_lengths)
        ends = [0, *accumulate(self.completion_lengths)][::size]
        return Spans.of([end - start for start, end in pairwise(ends)], self.device)


def obstacle(text_config) -> str | None:
    """None where full attention can share a prompt, else the reason why not."""
    if text_config._attn_implementation not in IMPLEMENTATIONS:
        name, known = text_config._attn_implementation, " or ".join(IMPLEMENTATIONS)
        return f"attention {name!r} cannot share a prompt: it takes {known}"
    if dropout := getattr(text_config, "attention_dropout", 0.0):
        return f"attention_dropout {dropout} is not 0"
    return None


def install(model: nn.Module | None = None) -> None:
    """Has transformers' ``sdpa`` and ``flash_attention_2`` accept the keyword ``shared_prefix``. Idempotent.

    All models share these functions.
    """
    from transformers import AttentionInterface

    registry = AttentionInterface()
    for name in IMPLEMENTATIONS:
        if not hasattr(registry[name], "stock"):
            AttentionInterface.register(name, _with_shared_prefix(registry[name]))


def _with_shared_prefix(stock: Callable) -> Callable:
    @wraps(stock)
    def attention(module, query: Tensor, key: Tensor, value: Tensor, *args, shared_prefix=None, **kwargs):
        # The keyword also comes by the vision tower, whose attention is not causal and not concerned.
        if shared_prefix is None or not module.is_causal:
            return stock(module, query, key, value, *args, **kwargs)
        # B x heads x S x D -> B S x heads x D. Under autocast the rotation leaves queries and keys in float32.
        q, k, v = (x.transpose(1, 2).flatten(0, 1).to(value.dtype) for x in (query, key, value))
        out = shared_prefix.attend(module.layer_idx, q, k, v, kwargs["scaling"])
        return out.unflatten(0, (len(query), -1)), None

    attention.stock = stock  # type: ignore[attr-defined]
    return attention


class _PrefixAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, layout: PrefixLayout, scale: float) -> Tensor:
        kernel, split = kernel_for(q), layout.prompts.total
        prompts, groups, own = layout.prompts, layout.groups, layout.completions
        out, lse = kernel.forward(q[:split], k[:split], v[:split], prompts, prompts, causal=True, scale=scale)
        if own.total:
            rest = q[split:]
            of_own, own_lse = kernel.forward(rest, k[split:], v[split:], own, own, causal=True, scale=scale)
            of_prompt, prompt_lse = kernel.forward(
                rest, k[:split], v[:split], groups, prompts, causal=False, scale=scale
            )
            merged, merged_lse = merge(of_prompt, prompt_lse, of_own, own_lse)
            out, lse = torch.cat([out, merged]), torch.cat([lse, merged_lse], dim=1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        kernel, split = kernel_for(q), layout.prompts.total
        prompts, groups, own = layout.prompts, layout.groups, layout.completions

        def gradients(queries: slice, keys: slice, q_spans: Spans, k_spans: Spans, causal: bool):
            return kernel.backward(
                grad[queries], q[queries], k[keys], v[keys], out[queries], lse[:, queries],
                q_spans, k_spans, causal=causal, scale=scale,
            )  # fmt: skip

        first, rest = slice(0, split), slice(split, None)
        dq, dk, dv = gradients(first, first, prompts, prompts, True)
        if own.total:
            dq_prompt, dk_prompt, dv_prompt = gradients(rest, first, groups, prompts, False)
            dq_own, dk_own, dv_own = gradients(rest, rest, own, own, True)
            dq = torch.cat([dq, dq_prompt.add_(dq_own)])
            dk = torch.cat([dk.add_(dk_prompt), dk_own])
            dv = torch.cat([dv.add_(dv_prompt), dv_own])
        return dq, dk, dv, None, None
