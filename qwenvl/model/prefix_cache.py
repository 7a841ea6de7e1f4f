"""Keys and values for sampling: those of a prompt once for all its completions.

A first forward takes the P prompts, end to end in one row; every later one takes the next token of each completion.
Both get the cache as the keyword ``shared_prefix`` (see ``prefix_attention``), with ``use_cache=False``: transformers'
own caches would repeat the prompt for each completion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwenvl.model.varlen import Spans, kernel_for, merge

GPU_PART_TOKENS = 1024
"""Prompt keys that one group of GPU threads reads; longer prompts are read by several at once, their results merged."""


class PrefixCache:
    """The cache of P prompts and up to N completions.

    Attributes:
        length: tokens of each completion so far.
        prompts: where the prompts lie in the row of the first forward.
        of_prompts: keys and values of that row by layer, each S x key-value heads x D.
        group_size, capacity: as given.

    Example:
        >>> cache = PrefixCache((1200, 800), group_size=4, capacity=256, device="cpu")
        >>> model(input_ids=row_of_prompts, position_ids=..., shared_prefix=cache, use_cache=False)
        >>> cache.advance()
        >>> model(input_ids=first_tokens, position_ids=..., shared_prefix=cache, use_cache=False)  # 8 x 1
    """

    def __init__(
        self,
        prompt_lengths: tuple[int, ...],
        group_size: int,
        capacity: int,
        device: torch.device | str,
        part_tokens: int | None = None,
    ):
        """
        Args:
            prompt_lengths: P.
            group_size: completions of each prompt.
            capacity: tokens that each completion may have.
            part_tokens: longest run of prompt keys that is read in one go; by default ``GPU_PART_TOKENS`` on a GPU, and
                whole prompts elsewhere.
        """
        self.length = 0
        self.capacity = capacity
        self.group_size = group_size
        self._device = torch.device(device)
        self._counts = [group_size] * len(prompt_lengths)
        self.prompts = Spans.of(prompt_lengths, device)
        part = part_tokens or (GPU_PART_TOKENS if self._device.type == "cuda" else self.prompts.longest)
        self._owners = [p for p, length in enumerate(prompt_lengths) for _ in range(0, length, part)]
        self._parts = Spans.of(
            [min(part, length - start) for length in prompt_lengths for start in range(0, length, part)], device
        )
        self._queries: tuple[Tensor, Spans] | None = None
        self.of_prompts: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_completions: dict[int, tuple[Tensor, Tensor]] = {}

    def advance(self) -> None:
        """Makes room for one more token of every completion; call before the forward that brings it."""
        self.length += 1

    def keep(self, rows: Tensor) -> None:
        """Goes on with the completions where ``rows`` (bool, one per completion so far) is True."""
        self._counts = [int(part.sum()) for part in rows.cpu().split(self._counts)]
        self._of_completions = {
            layer: (keys[rows], values[rows]) for layer, (keys, values) in self._of_completions.items()
        }
        self._queries = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores k and v and attends; first called with the prompts' tokens, then with one token per completion.

        Args:
            q: S x heads x D.
            k, v: S x key-value heads x D.

        Returns:
            S x heads x D.
        """
        if layer not in self.of_prompts:
            self.of_prompts[layer] = (k, v)
            return kernel_for(q).forward(q, k, v, self.prompts, self.prompts, causal=True, scale=scale)[0]
        rows, heads, width = q.shape
        # The query heads of one key-value head become queries of their own, so that keys are read once for all.
        folded = q.unflatten(1, (k.shape[1], -1)).transpose(1, 2)  # rows x repeats x key-value heads x D
        of_prompt = self._over_prompts(layer, folded.flatten(0, 1), scale)
        of_own = self._over_own(layer, folded, k, v, scale)
        out, _ = merge(*of_prompt, *of_own)
        return out.unflatten(0, (rows, -1)).transpose(1, 2).reshape(rows, heads, width)

    def _over_prompts(self, layer: int, q: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Every completion's queries over its prompt, each part of a prompt by itself."""
        if self._queries is None:
            self._queries = self._queries_of_parts(len(q) // sum(self._counts))
        source, spans = self._queries
        whole = len(source) == len(q)  # each prompt is one part
        queries = q if whole else q[source]
        out, lse = kernel_for(q).forward(
            queries, *self.of_prompts[layer], spans, self._parts, causal=False, scale=scale
        )
        return (out, lse) if whole else _merge_parts(out, lse, source, len(q))

    def _queries_of_parts(self, repeats: int) -> tuple[Tensor, Spans]:
        """Which queries each part of a prompt meets, as indices, and how many; a completion has ``repeats`` queries."""
        groups = Spans.of([count * repeats for count in self._counts]).slices()
        indices = [range(groups[p].start, groups[p].stop) for p in self._owners]
        source = torch.tensor([i for run in indices for i in run], device=self._device)
        return source, Spans.of([len(run) for run in indices], self._device)

    def _over_own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Every completion's queries (rows x repeats x heads x D) over its own tokens, ``k`` and ``v`` the newest."""
        if layer not in self._of_completions:
            shape = (*k.shape[:2], self.capacity, k.shape[2])
            self._of_completions[layer] = (k.new_empty(shape), v.new_empty(shape))
        keys, values = self._of_completions[layer]
        keys[:, :, self.length - 1], values[:, :, self.length - 1] = k, v
        keys, values = keys[:, :, : self.length], values[:, :, : self.length]
        out, lse = kernel_for(q).batch(q.transpose(1, 2), keys, values, scale=scale)
        return out.transpose(1, 2).flatten(0, 1), lse.transpose(0, 1).flatten(1)


def _merge_parts(out: Tensor, lse: Tensor, source: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """One attention per query from those over the parts of its keys; row i of ``out`` is of query ``source[i]``."""
    top = lse.new_full((len(lse), queries), -torch.inf).scatter_reduce_(1, source.expand_as(lse), lse, "amax")
    weight = (lse - top[:, source]).exp()
    total = torch.zeros_like(top).index_add_(1, source, weight)
    weighted = weight.new_zeros(queries, *out.shape[1:]).index_add_(0, source, out * weight.T[..., None])
    return (weighted / total.T[..., None]).to(out.dtype), top + total.log()
