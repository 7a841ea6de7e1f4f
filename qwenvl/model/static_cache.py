"""Keys and values for sampling in tensors of fixed sizes, for a decoding step that is compiled.

``PrefixCache`` grows by a token at a time and keeps each prompt at its length: every step has shapes of its own, which
would be compiled anew. Here prompts are padded to the longest, each completion has room for all its tokens, a mask says
what is there, and the arithmetic is written in operations that a compiler fuses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwenvl.model.prefix_cache import PrefixCache


class StaticCache:
    """The cache of P prompts with G completions each.

    Attributes:
        slots: (P, G).
    """

    def __init__(self, filled: PrefixCache):
        """
        Args:
            filled: after its first forward, that of the prompts.
        """
        spans, group_size = filled.prompts, filled.group_size
        prompts, longest = len(spans.bounds) - 1, spans.longest
        device = spans.offsets.device
        lengths = spans.offsets.diff()
        absent = torch.arange(longest, device=device) >= lengths[:, None]
        self._prompt_bias = _minus_infinity(absent)[:, None, None]  # P x 1 x 1 x L
        self._places = torch.arange(filled.capacity, device=device)
        self._newest = torch.full((1,), -1, device=device)
        self._of_prompts: list[tuple[Tensor, Tensor]] = []  # P x key-value heads x L x D
        self._of_completions: list[tuple[Tensor, Tensor]] = []  # P x G x key-value heads x T x D
        for layer in sorted(filled.of_prompts):
            keys, values = filled.of_prompts[layer]
            self._of_prompts.append((_padded(keys, ~absent), _padded(values, ~absent)))
            room = (prompts, group_size, keys.shape[1], filled.capacity, keys.shape[2])
            self._of_completions.append((keys.new_zeros(room), values.new_zeros(room)))
        self.slots = (prompts, group_size)
        self._mark_dynamic()

    def advance(self) -> None:
        """Makes room for one more token of every completion; call before the forward that brings it."""
        self._newest += 1

    def select(self, slots: Tensor) -> None:
        """Goes on with the completions ``slots`` (P' x G' of the P G); those of a row are of one prompt."""
        prompts = slots[:, 0] // self.slots[1]
        self._prompt_bias = self._prompt_bias[prompts]
        self._of_prompts = [(keys[prompts], values[prompts]) for keys, values in self._of_prompts]
        self._of_completions = [
            (keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots]) for keys, values in self._of_completions
        ]
        self.slots = tuple(slots.shape)
        self._mark_dynamic()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores k and v, those of the newest token of each completion, and attends.

        Args:
            q: P G x heads x D.
            k, v: P G x key-value heads x D.

        Returns:
            P G x heads x D.
        """
        (keys, values), (own_keys, own_values) = self._of_prompts[layer], self._of_completions[layer]
        prompts, group_size, kv_heads = own_keys.shape[:3]
        own_keys.index_copy_(3, self._newest, k.unflatten(0, (prompts, group_size)).unsqueeze(3))
        own_values.index_copy_(3, self._newest, v.unflatten(0, (prompts, group_size)).unsqueeze(3))
        # The query heads of one key-value head, R of them, lie together: P x G x key-value heads x R x D.
        query = q.view(prompts, group_size, kv_heads, -1, q.shape[-1]) * scale
        wide = torch.promote_types(q.dtype, torch.float32)
        of_own = (query @ own_keys.mT).to(wide) + _minus_infinity(self._places > self._newest)
        of_prompt = (_by_prompt(query) @ keys.mT).to(wide) + self._prompt_bias
        # One softmax over both, the prompt's keys being read once for the whole group.
        top = torch.maximum(of_prompt.amax(-1, keepdim=True), _by_prompt(of_own).amax(-1, keepdim=True))
        of_prompt = (of_prompt - top).exp()
        of_own = (of_own - _by_completion(top, group_size)).exp()
        total = of_prompt.sum(-1, keepdim=True) + _by_prompt(of_own.sum(-1, keepdim=True))
        out = _by_completion((of_prompt / total).to(v.dtype) @ values, group_size)
        out = out + (of_own / _by_completion(total, group_size)).to(v.dtype) @ own_values
        return out.reshape(q.shape)

    def _mark_dynamic(self) -> None:
        """One compiled step serves all numbers of prompts and completions, and all lengths of prompts."""
        _dynamic(self._prompt_bias, 0, 3)
        for keys, values in self._of_prompts:
            _dynamic(keys, 0, 2)
            _dynamic(values, 0, 2)
        for keys, values in self._of_completions:
            _dynamic(keys, 0, 1)
            _dynamic(values, 0, 1)


def _dynamic(tensor: Tensor, *sizes: int) -> None:
    for size in sizes:
        torch._dynamo.maybe_mark_dynamic(tensor, size)


def _minus_infinity(where: Tensor) -> Tensor:
    return torch.where(where, float("-inf"), 0.0)


def _padded(x: Tensor, present: Tensor) -> Tensor:
    """S x heads x D, P sequences end to end -> P x heads x L x D with zeros where nothing is ``present`` (P x L)."""
    padded = x.new_zeros(*present.shape, *x.shape[1:])
    padded[present] = x
    return padded.transpose(1, 2).contiguous()


def _by_prompt(x: Tensor) -> Tensor:
    """P x G x heads x R x D -> P x heads x G R x D."""
    return x.transpose(1, 2).flatten(2, 3)


def _by_completion(x: Tensor, group_size: int) -> Tensor:
    """P x heads x G R x D -> P x G x heads x R x D."""
    return x.unflatten(2, (group_size, -1)).transpose(1, 2)
