"""Log-probabilities of completions, each prompt computed once: the fast path of ``logprobs.completion_likelihood``.

P prompts and their N completions lie end to end in one row without any padding, P L + N T tokens where the plain path
has N (L + T): ``[p0 | p1 | .. | c00 c01 .. | c10 c11 .. | ..]``. A completion's last token predicts nothing and is left
out. Everything but attention treats tokens one by one, so stock model classes take the row as it is.

Three attentions cover the row, and no mask of (prompt + group)^2 is ever made:

- each prompt over itself, causal;
- each completion over itself, causal;
- all completions of a prompt, as one run of queries, over the prompt, without a mask.

The last two see disjoint keys, so their results merge exactly by their log-sum-exp. The backward pass of such a merge
is that of each part with the merged output and log-sum-exp in the place of its own (FlashAttention, arXiv:2205.14135,
appendix B.2: the probabilities are recomputed as exp(score - lse)).

The layout reaches the attention of every layer as the keyword ``shared_prefix`` of the model's forward: stock model
classes hand unknown keywords down, and unlike a global it is still there when checkpointing recomputes a layer. Without
it, attention is what it was. In sampling the same keyword brings a ``PrefixCache``. Layers that keep a state
(``linear_attention``) take it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import (
    EntropyUse,
    Extras,
    HeadColumns,
    Likelihood,
    logprobs_by,
    sampled_alone,
    selected_logprobs,
    spread_out,
)
from qwenvl.model.sharing import linear_attention
from qwenvl.model.sharing.linear_attention import Layer, Padding, State
from qwenvl.model.sharing.varlen import Spans, kernel_for, merge_attention

IMPLEMENTATIONS = ("sdpa", "flash_attention_2")
"""The attention implementations of transformers that understand ``shared_prefix`` once it is installed."""


def completion_likelihood(
    model: torch.nn.Module,
    prompts: PromptInputs,
    completion_ids: Tensor,
    completion_mask: Tensor,
    *,
    temperature: float,
    logit_chunk_tokens: int,
    entropy: EntropyUse = "none",
    whole: PromptInputs | None = None,
    extras: Extras | None = None,
) -> Likelihood:
    """Log-probs and entropies of all completion tokens, of softmax(logits / temperature).

    The same numbers and gradients as ``logprobs.completion_likelihood``, which describes arguments and result. The
    model's forward is called once. Ask ``supports_shared_prefix`` first.
    """
    install_sharing(model)
    mask = completion_mask.bool()
    row, targets = pack(prompts, completion_ids, mask, whole), completion_ids[mask][None]
    everywhere = torch.ones_like(targets, dtype=torch.bool)
    with selected_logprobs(
        model, targets, everywhere, temperature, logit_chunk_tokens, entropy=entropy, extras=extras
    ):
        output = model(**row, use_cache=False, **prompts.vision_with(whole))
    return HeadColumns.of(entropy, extras).unstack(spread_out(output.logits[0], mask))


completion_logprobs = logprobs_by(completion_likelihood)
"""The log-probs of ``completion_likelihood``, N x T. Its arguments but for ``entropy``."""


def supports_shared_prefix(model: torch.nn.Module) -> str | None:
    """None where ``completion_likelihood`` works for ``model``, else the reason why not, for a log line."""
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    others = kinds - {"full_attention", "linear_attention"}
    if others:
        return f"layers of type {', '.join(sorted(others))} cannot share a prompt"
    name = config._attn_implementation
    if name not in IMPLEMENTATIONS:
        return f"attention {name!r} cannot share a prompt: it takes {' or '.join(IMPLEMENTATIONS)}"
    dropout = getattr(config, "attention_dropout", 0.0)
    if dropout:
        return f"attention_dropout {dropout} is not 0"
    return linear_attention.obstacle() if "linear_attention" in kinds else None


def install_sharing(model: torch.nn.Module) -> None:
    """Has all layers of ``model`` accept the keyword ``shared_prefix``. Idempotent.

    The attention functions of transformers are shared by all models.
    """
    linear_attention.install(unwrap(model))
    registry = AttentionInterface()
    for name in IMPLEMENTATIONS:
        if not hasattr(registry[name], "stock"):
            AttentionInterface.register(name, _with_shared_prefix(registry[name]))


def pack(
    prompts: PromptInputs, completion_ids: Tensor, completion_mask: Tensor, whole: PromptInputs | None = None
) -> dict[str, Any]:
    """Arguments of a forward with P prompts (padding anywhere) and N x T completions (padded on the right) end to end.

    Args:
        completion_mask: the tokens that are predicted.
        whole: the completions with what tools have appended to them. None: all of their tokens are predicted.

    Returns:
        ``input_ids`` 1 x S, ``position_ids`` 3 x 1 x S, the ``shared_prefix``, and ``logits_to_keep``: K places in the
        row whose hidden states predict the completion tokens, in the order of the tokens. A prompt's last place is
        named once for each of its completions.

    Raises:
        ValueError: if a completion has tokens after a masked one, or N is no multiple of P.
    """
    rows = len(completion_mask)
    if not len(prompts) or rows % len(prompts):
        raise ValueError(f"expected the completions of {len(prompts)} prompts to be a multiple of it, got {rows}")
    if whole is None:
        whole = sampled_alone(prompts, completion_ids, completion_mask)
    there = whole.attention_mask.bool()
    if (there[:, 1:] & ~there[:, :-1]).any():
        raise ValueError("a completion has tokens after a masked one: completions must be padded on the right")
    keep = prompts.attention_mask.bool()
    inner = there[:, 1:]  # the tokens that another follows
    positions = whole.position_ids[:, :, :-1][:, inner]
    layout = PrefixLayout(tuple(keep.sum(1).tolist()), tuple(inner.sum(1).tolist()), keep.device)
    return {
        "input_ids": torch.cat([prompts.input_ids[keep], completion_ids[:, :-1][inner]])[None],
        "position_ids": torch.cat([prompts.position_ids[:, keep], positions], dim=1)[:, None],
        "logits_to_keep": _predictors(layout, completion_mask),
        "shared_prefix": layout,
    }


def _predictors(layout: PrefixLayout, mask: Tensor) -> Tensor:
    """K places in the row: a prompt's last for the first token of a completion, the token before for every other."""
    group_size = len(mask) // len(layout.prompt_lengths)
    ends = layout.prompts.offsets[1:].long().repeat_interleave(group_size)
    starts = layout.completions.offsets[:-1].long() + layout.prompts.total
    places = starts[:, None] + torch.arange(-1, mask.shape[1] - 1, device=mask.device)
    places[:, 0] = ends - 1
    return places[mask]


@dataclass(frozen=True)
class PrefixLayout:
    """The places of the prompts and completions of a packed row.

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
        group_size = completions.rows // prompts.rows
        behind_prompt = state.expand(group_size).flatten()  # of each completion
        of_completions = completions.run(forward, of_completions, behind_prompt)
        return torch.cat([of_prompts, of_completions])[None]

    @cached_property
    def _paddings(self) -> tuple[Padding, Padding]:
        """The paddings of prompts and completions, where they have to be rows of a batch."""
        return Padding.of(self.prompts, left=True), Padding.of(self.completions, least=2)

    @cached_property
    def groups(self) -> Spans:
        """The completions of each of the P prompts taken together."""
        size = len(self.completion_lengths) // len(self.prompt_lengths)
        ends = [0, *accumulate(self.completion_lengths)][::size]
        return Spans.of([end - start for start, end in pairwise(ends)], self.device)


def _with_shared_prefix(stock: Callable) -> Callable:
    """An attention function of transformers that computes a ``shared_prefix`` where a forward brings one."""

    @wraps(stock)
    def attention(module, query: Tensor, key: Tensor, value: Tensor, *args, shared_prefix=None, **kwargs):
        # The keyword also comes by the vision tower, whose attention is not causal and not concerned.
        if shared_prefix is None or not module.is_causal:
            return stock(module, query, key, value, *args, **kwargs)
        # B x heads x S x D -> B S x heads x D. Under autocast the rotation leaves queries and keys in float32.
        q = query.transpose(1, 2).flatten(0, 1).to(value.dtype)
        k = key.transpose(1, 2).flatten(0, 1).to(value.dtype)
        v = value.transpose(1, 2).flatten(0, 1)
        out = shared_prefix.attend(module.layer_idx, q, k, v, kwargs["scaling"])
        return out.unflatten(0, (len(query), -1)), None

    attention.stock = stock  # type: ignore[attr-defined]
    return attention


class _PrefixAttention(torch.autograd.Function):
    """Attention of a packed row: causal within prompts, and of each completion over its prompt and over itself.

    The two parts of a completion are merged by their log-sum-exps.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, layout: PrefixLayout, scale: float) -> Tensor:
        kernel = kernel_for(q)
        split = layout.prompts.total  # the prompts lie first in the row
        prompts = layout.prompts
        groups = layout.groups
        own = layout.completions
        out, lse = kernel.forward(q[:split], k[:split], v[:split], prompts, prompts, causal=True, scale=scale)
        if own.total:
            rest = q[split:]
            of_own, own_lse = kernel.forward(rest, k[split:], v[split:], own, own, causal=True, scale=scale)
            of_prompt, prompt_lse = kernel.forward(
                rest, k[:split], v[:split], groups, prompts, causal=False, scale=scale
            )
            merged, merged_lse = merge_attention(of_prompt, prompt_lse, of_own, own_lse)
            out = torch.cat([out, merged])
            lse = torch.cat([lse, merged_lse], dim=1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout = layout
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        layout = ctx.layout
        scale = ctx.scale
        kernel = kernel_for(q)
        split = layout.prompts.total
        prompts = layout.prompts
        groups = layout.groups
        own = layout.completions

        def gradients(queries: slice, keys: slice, q_spans: Spans, k_spans: Spans, causal: bool):
            return kernel.backward(
                grad[queries], q[queries], k[keys], v[keys], out[queries], lse[:, queries],
                q_spans, k_spans, causal=causal, scale=scale,
            )  # fmt: skip

        first = slice(0, split)
        rest = slice(split, None)
        # ``out`` and ``lse`` are those of the whole softmax, which each part's backward pass reads.
        dq, dk, dv = gradients(first, first, prompts, prompts, True)
        if own.total:
            dq_prompt, dk_prompt, dv_prompt = gradients(rest, first, groups, prompts, False)
            dq_own, dk_own, dv_own = gradients(rest, rest, own, own, True)
            dq = torch.cat([dq, dq_prompt.add_(dq_own)])
            dk = torch.cat([dk.add_(dk_prompt), dk_own])
            dv = torch.cat([dv.add_(dv_prompt), dv_own])
        return dq, dk, dv, None, None
