"""Keys, values and states for sampling: keys and values of each prompt once, those of each completion beside them.

The first forward takes the P prompts, end to end in one row. Every later one takes the next token of each completion.
Both get the cache as the keyword ``shared_prefix`` (see ``prefix_attention``), with ``use_cache=False``: transformers'
own caches would repeat the prompt for each completion.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qwenvl.model.sharing.linear_attention import Layer, Padding, SlotStates, State
from qwenvl.model.sharing.varlen import Spans, kernel_for


@dataclass(frozen=True)
class LayerCache:
    """What the newest tokens of P x G completions see in one layer.

    Attributes:
        keys, values: of the prompts, padded to the longest, P x key-value heads x L x D.
        own_keys, own_values: of the completions, P x key-value heads x G x T x D.
        newest: the place of the newest token in T, one number.
        bias: added to the scores, P x 1 x 1 x (L + T), minus infinity where there is nothing. None where all is there.
    """

    keys: Tensor
    values: Tensor
    own_keys: Tensor
    own_values: Tensor
    newest: Tensor
    bias: Tensor | None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores k and v, those of the newest tokens, and attends. Written in operations that a compiler fuses.

        Args:
            layer: not used. One compiled layer serves all of them.
            q: P G x heads x D.
            k, v: P G x key-value heads x D.

        Returns:
            P G x heads x D.
        """
        prompts, kv_heads, group_size, _, width = self.own_keys.shape
        by_head = (prompts, group_size, kv_heads, -1, width)
        for own, newest in ((self.own_keys, k), (self.own_values, v)):
            own.index_copy_(3, self.newest, newest.view(by_head).transpose(1, 2))
        # The query heads of one key-value head, R of them, lie together: P x key-value heads x G x R x D.
        query = q.view(by_head).transpose(1, 2).contiguous()
        # The prompt's keys are read once for the whole group, and one softmax covers them and the completion's own.
        of_prompt = _scores(query.flatten(2, 3), self.keys, scale)
        of_own = _scores(query, self.own_keys, scale).flatten(2, 3)
        scores = torch.cat([of_prompt, of_own], dim=-1)
        if self.bias is not None:
            scores = scores + self.bias
        of_prompt, of_own = scores.softmax(-1).to(v.dtype).split([of_prompt.shape[-1], of_own.shape[-1]], dim=-1)
        out = (of_own.unflatten(2, (group_size, -1)) @ self.own_values).flatten(2, 3) + of_prompt @ self.values
        return out.unflatten(2, (group_size, -1)).transpose(1, 2).reshape(q.shape)


class PrefixCache:
    """The cache of P prompts with G completions each, which lie in P x G slots.

    Attributes:
        prompts: where the prompts lie in the row of the first forward.
        slots: (P, G).

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
        fixed_sizes: bool = False,
    ):
        """
        Args:
            prompt_lengths: P.
            group_size: completions of each prompt.
            capacity: tokens that each completion may have.
            fixed_sizes: show the room for all tokens from the start, behind a mask, so that every token's step has the
                same sizes: for a step that is compiled.
        """
        self.prompts = Spans.of(prompt_lengths, device)
        self.slots = (len(prompt_lengths), group_size)
        lengths, longest = self.prompts.offsets.diff(), self.prompts.longest
        present = torch.arange(longest, device=device) < lengths[:, None]  # P x L
        self._padding = Padding.on_the_right(self.prompts, least=1)
        self._bias = torch.full((len(prompt_lengths), 1, 1, longest + capacity), -torch.inf, device=device)
        self._bias[..., :longest].masked_fill_(present[:, None, None], 0.0)
        self._ragged = len(set(prompt_lengths)) > 1
        self._capacity = capacity
        self._fixed_sizes = fixed_sizes
        self._newest = torch.full((1,), -1, device=device)
        self._length = 0
        self._of_prompts: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_completions: dict[int, tuple[Tensor, Tensor]] = {}
        self._states: dict[int, SlotStates] = {}  # in layers of linear attention

    def advance(self) -> None:
        """Makes room for one more token of every completion. Call it before the forward that brings it."""
        self._newest += 1
        self._bias[..., self.prompts.longest + self._length] = 0.0
        self._length += 1

    def select(self, slots: Tensor) -> None:
        """Goes on with the completions ``slots`` (P' x G' of the P G). Those of a row are of one prompt."""
        prompts = slots[:, 0] // self.slots[1]
        rows = (prompts[:, None], slice(None), slots % self.slots[1])  # the indexed sizes come first: P' x G' x heads
        fewer = len(prompts) < self.slots[0]
        if fewer:
            self._bias = self._bias[prompts]
        for layer in self._of_prompts:  # one at a time, so that no more than one is there twice
            if fewer:
                self._of_prompts[layer] = tuple(x[prompts] for x in self._of_prompts[layer])
            own = self._of_completions[layer]
            self._of_completions[layer] = tuple(_laid_out(x[rows].transpose(1, 2)) for x in own)
        for layer in self._states:
            self._states[layer] = self._states[layer].select(slots)
        self.slots = tuple(slots.shape)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores k and v and attends. The first call brings the prompts' tokens, every later one a token for each slot.

        Args:
            q: S x heads x D.
            k, v: S x key-value heads x D.

        Returns:
            S x heads x D.
        """
        if layer in self._of_prompts:
            return self.of(layer).attend(layer, q, k, v, scale)
        prompts, group_size = self.slots
        room = (prompts, k.shape[1], group_size, self._capacity, k.shape[2])
        self._of_prompts[layer] = self._padded(k), self._padded(v)
        self._of_completions[layer] = k.new_zeros(room), v.new_zeros(room)
        return kernel_for(q).forward(q, k, v, self.prompts, self.prompts, causal=True, scale=scale)[0]

    def recur(self, layer: int, forward: Layer, hidden: Tensor) -> Tensor:
        """Linear attention. The first call brings the prompts, 1 x S x width, every later one a token for each slot.

        Args:
            hidden: 1 x S x width, then slots x 1 x width.

        Returns:
            The same shape.
        """
        if layer in self._states:
            return self._states[layer].recur(layer, forward, hidden)
        state = State()
        out = Padding.on_the_left(self.prompts).run(forward, hidden[0], state)
        self._states[layer] = SlotStates.of(state, self.slots[1])
        return out[None]

    def of(self, layer: int) -> LayerCache | SlotStates:
        """What the tokens of the present step see in a layer, or go on from."""
        if layer in self._states:
            return self._states[layer]
        (keys, values), own = self._of_prompts[layer], self._of_completions[layer]
        if self._fixed_sizes:
            return LayerCache(keys, values, *own, self._newest, self._bias)
        own_keys, own_values = (x[:, :, :, : self._length] for x in own)
        bias = self._bias[..., : self.prompts.longest + self._length] if self._ragged else None
        return LayerCache(keys, values, own_keys, own_values, self._newest, bias)

    def _padded(self, x: Tensor) -> Tensor:
        """S x heads x D, the prompts end to end -> P x heads x L x D with zeros where a prompt has ended."""
        return _laid_out(self._padding.pad(x).transpose(1, 2))


def _laid_out(x: Tensor) -> Tensor:
    """A copy whose strides are those of its shape.

    ``contiguous`` leaves the strides of sizes of 1 as they are, for example of a single key-value head. A compiled step
    would take them for another layout and be compiled anew.
    """
    return x.clone(memory_format=torch.contiguous_format)


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """.. x S x D and .. x S' x D -> .. x S x S', never below float32, as in the trainer's attention.

    Scores that are rounded to half precision would make another policy than the one that is trained.
    """
    if q.dtype not in (torch.float16, torch.bfloat16):
        return (q * scale) @ k.mT
    if not q.is_cuda:
        return (q.float() @ k.float().mT) * scale
    flat = torch.bmm(q.flatten(0, -3), k.mT.flatten(0, -3), out_dtype=torch.float32)
    return flat.unflatten(0, q.shape[:-2]) * scale
