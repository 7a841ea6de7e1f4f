"""Keys, values and states for sampling: keys and values of each prompt once, those of each completion beside them.

The first forward takes the P prompts, end to end in one row. Every later one takes the next token of each completion.
Both get the cache as the keyword ``shared_prefix`` (see the module of that name), with ``use_cache=False``: caches of
transformers would repeat the prompt for each completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qwenvl.model.sharing.linear_attention import Layer, Padding, State
from qwenvl.model.sharing.varlen import Spans, kernel_for, merge_attention


class KeysValues(NamedTuple):
    """Keys and values of the same tokens."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class LayerCache:
    """The keys and values that the newest tokens of P x G completions see in one layer.

    Attributes:
        keys, values: of the prompts, padded to the longest, P x key-value heads x L x D.
        own_keys, own_values: of the completions, P x key-value heads x G x T x D.
        newest: the place of the newest token in T, one number.
        bias: added to the scores, P x 1 x G x 1 x (L + T), minus infinity where there is nothing. A G of 1 where that
            is so for all completions of a prompt. None where all is there.
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
            scores = (scores.unflatten(2, (group_size, -1)) + self.bias).flatten(2, 3)
        of_prompt, of_own = scores.softmax(-1).to(v.dtype).split([of_prompt.shape[-1], of_own.shape[-1]], dim=-1)
        out = (of_own.unflatten(2, (group_size, -1)) @ self.own_values).flatten(2, 3) + of_prompt @ self.values
        return out.unflatten(2, (group_size, -1)).transpose(1, 2).reshape(q.shape)


@dataclass(frozen=True)
class DraftedLayerCache:
    """The keys and values that several new tokens of each of P x G completions see in one layer. Lengths differ.

    Attributes:
        keys, values, own_keys, own_values: as in ``LayerCache``.
        places: of the W new tokens of each completion in T, P x G x W.
        bias: added to the scores, P x 1 x G x 1 x W x (L + T), minus infinity where there is nothing: each new token
            sees those before it, and itself.
    """

    keys: Tensor
    values: Tensor
    own_keys: Tensor
    own_values: Tensor
    places: Tensor
    bias: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores k and v, those of the new tokens, and attends.

        Args:
            layer: not used, as in ``LayerCache``.
            q: P G W x heads x D.
            k, v: P G W x key-value heads x D.

        Returns:
            P G W x heads x D.
        """
        prompts, kv_heads, group_size, _, width = self.own_keys.shape
        fresh = self.places.shape[-1]
        by_head = (prompts, group_size, fresh, kv_heads, -1, width)
        places = self.places[:, None, :, :, None].expand(-1, kv_heads, -1, -1, width)
        for own, newest in ((self.own_keys, k), (self.own_values, v)):
            own.scatter_(3, places, newest.view(by_head).squeeze(4).permute(0, 3, 1, 2, 4))
        # P x key-value heads x G x R x W x D, for the R query heads of a key-value head.
        query = q.view(by_head).permute(0, 3, 1, 4, 2, 5).contiguous()
        grid = query.shape[2:5]
        of_prompt = _scores(query.flatten(2, 4), self.keys, scale)
        of_own = _scores(query.flatten(3, 4), self.own_keys, scale).flatten(2, 3)
        scores = torch.cat([of_prompt, of_own], dim=-1)
        scores = (scores.unflatten(2, grid) + self.bias).flatten(2, 4)
        of_prompt, of_own = scores.softmax(-1).to(v.dtype).split([of_prompt.shape[-1], of_own.shape[-1]], dim=-1)
        out = (of_own.unflatten(2, (group_size, -1)) @ self.own_values).flatten(2, 3) + of_prompt @ self.values
        return out.unflatten(2, grid).permute(0, 2, 4, 1, 3, 5).reshape(q.shape)


@dataclass(frozen=True)
class Parked:
    """The part of the cache of a completion that has ended, kept so that it can be continued.

    Attributes:
        prompt: the number of its prompt.
        own: keys and values of each layer of full attention, t x key-value heads x D.
        states: of each layer of linear attention.
    """

    prompt: int
    own: dict[int, KeysValues]
    states: dict[int, State]

    @property
    def length(self) -> int:
        """Tokens that the cache has of it."""
        of_a_layer = next(iter(self.own.values()))
        return len(of_a_layer.keys)


@dataclass(frozen=True)
class _KeptPrompts:
    """The prompts of a cache whose completions can be continued.

    Attributes:
        lengths: of all prompts.
        of_layers: keys and values of all prompts by layer, P x key-value heads x L x D. Filled by the first forward.
    """

    lengths: tuple[int, ...]
    of_layers: dict[int, KeysValues]


@dataclass(frozen=True)
class _Resuming:
    """The first forward of completions that are continued: R of them, their new tokens end to end in one row.

    Attributes:
        kept: all prompts of the cache that they come from.
        numbers: which P of these have completions here.
        parked: R. Those of a prompt follow each other.
        fresh: where the new tokens of each lie in the row.
        history: where those that are kept of each lie end to end.
        groups: where the new tokens of all completions of a prompt lie in the row.
        prompts: where the P prompts lie end to end.
        of_prompts: keys and values of these by layer, P x key-value heads x L x D.
        grid: P x G, which of the R is in a slot. Slots that are left over repeat the last one.
        filled: the slots that are not left over.
        first: P x G, the column of a slot's first token: all tokens end in one column.
        width: tokens of the longest, old and new.
    """

    kept: _KeptPrompts
    numbers: list[int]
    parked: list[Parked]
    fresh: Spans
    history: Spans
    groups: Spans
    prompts: Spans
    of_prompts: dict[int, KeysValues]
    grid: Tensor
    filled: Tensor
    first: Tensor
    width: int

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of the new tokens over their prompts, over the tokens before them, and over each other."""
        kernel = kernel_for(q)
        prompt_k = self._end_to_end(self.of_prompts[layer].keys)
        prompt_v = self._end_to_end(self.of_prompts[layer].values)
        kept_k = torch.cat([each.own[layer].keys for each in self.parked])
        kept_v = torch.cat([each.own[layer].values for each in self.parked])
        # Three parts of one softmax, merged by their log-sum-exps.
        of_prompt, prompt_lse = kernel.forward(
            q, prompt_k, prompt_v, self.groups, self.prompts, causal=False, scale=scale
        )
        of_kept, kept_lse = kernel.forward(q, kept_k, kept_v, self.fresh, self.history, causal=False, scale=scale)
        of_fresh, fresh_lse = kernel.forward(q, k, v, self.fresh, self.fresh, causal=True, scale=scale)
        before, before_lse = merge_attention(of_prompt, prompt_lse, of_kept, kept_lse)
        out, _ = merge_attention(before, before_lse, of_fresh, fresh_lse)
        return out

    def _end_to_end(self, of_prompts: Tensor) -> Tensor:
        """P x key-value heads x L x D, with padding, to the tokens of all prompts x key-value heads x D."""
        lengths = self.prompts.offsets.diff().tolist()
        return torch.cat([own[:, :length].transpose(0, 1) for own, length in zip(of_prompts, lengths, strict=True)])

    def laid_out(self, layer: int, keys: Tensor, values: Tensor, room: int) -> KeysValues:
        """Keys and values, those kept and new ones, as ``own_keys`` of ``LayerCache``, with room for more tokens.

        Args:
            keys, values: of the new tokens, S x key-value heads x D.
            room: tokens that each completion may have besides.
        """
        return KeysValues(
            self._in_columns([each.own[layer].keys for each in self.parked], keys, room),
            self._in_columns([each.own[layer].values for each in self.parked], values, room),
        )

    def _in_columns(self, kept: Sequence[Tensor], new: Tensor, room: int) -> Tensor:
        """Old and new tokens as P x heads x G x (width + room) x D, so that those of all end in one column."""
        rows = new.new_zeros(len(self.parked), self.width + room, *new.shape[1:])
        for n, own in enumerate(self.fresh.slices()):
            tokens = torch.cat([kept[n], new[own]])
            rows[n, self.width - len(tokens) : self.width] = tokens
        return _laid_out(rows[self.grid].permute(0, 3, 1, 2, 4))

    def recur(self, layer: int, forward: Layer, hidden: Tensor) -> tuple[Tensor, State]:
        """Linear attention of the new tokens, 1 x S x width, and the states behind them.

        Completions with as many new tokens run together: padding would move a state.
        """
        out = torch.empty_like(hidden)
        after: dict[int, State] = {}  # behind each of the R
        spans = self.fresh.slices()
        lengths = self.fresh.offsets.diff().tolist()
        for length in sorted(set(lengths)):
            rows = [n for n, own in enumerate(lengths) if own == length]
            state = State.stack([self.parked[n].states[layer] for n in rows])
            made = forward(torch.stack([hidden[0, spans[n]] for n in rows]), state)  # which moves the state on
            for place, n in enumerate(rows):
                out[0, spans[n]] = made[place]
                after[n] = state.at(place)
        of_rows = State.stack([after[n] for n in range(len(self.parked))])
        return out, of_rows.at(self.grid)


class PrefixCache:
    """The cache of P prompts with G completions each, which lie in P x G slots.

    Attributes:
        prompts: where the prompts lie in the row of the first forward.
        slots: (P, G).
        filled: the slots with a completion of their own, counted row by row. All of them, but where a part
            of the completions goes on in further turns.
        fixed_sizes: every forward behind the first has the same sizes.

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
        resumable: bool = False,
        drafted: int = 0,
        resuming: _Resuming | None = None,
    ):
        """
        Args:
            prompt_lengths: P.
            group_size: completions of each prompt.
            capacity: tokens that each completion may have.
            fixed_sizes: show the room for all tokens from the start, behind a mask, so that every token's step has the
                same sizes: for a step that is compiled.
            resumable: keep all prompts, so that completions that have ended can be continued.
            drafted: tokens of a draft at most. Above 0 every later forward brings several tokens of each completion
                (``advance_drafts``), of which some are taken back (``accept``).
            resuming: the completions that the first forward continues, see ``resumed``. None: it brings the prompts.
        """
        self.prompts = Spans.of(prompt_lengths, device)
        self.slots = (len(prompt_lengths), group_size)
        self.filled = torch.arange(len(prompt_lengths) * group_size, device=device)
        lengths = self.prompts.offsets.diff()
        longest = self.prompts.longest
        present = torch.arange(longest, device=device) < lengths[:, None]  # P x L
        self._padding = Padding.of(self.prompts)
        self._drafted = drafted
        capacity += drafted  # a draft may reach over the end of a completion
        self._lengths = torch.zeros(self.slots, dtype=torch.long, device=device)  # of completions, with drafts
        self._places: Tensor | None = None  # of the tokens that the present forward brings, with drafts
        self._draft_bias: Tensor | None = None
        self._bias = torch.full((len(prompt_lengths), 1, 1, 1, longest + capacity), -torch.inf, device=device)
        self._bias[..., :longest].masked_fill_(present[:, None, None, None], 0.0)
        self._masked = len(set(prompt_lengths)) > 1
        self._capacity = capacity
        self.fixed_sizes = fixed_sizes
        self._numbers = list(range(len(prompt_lengths)))  # of the prompts that are left
        self._kept = _KeptPrompts(prompt_lengths, {}) if resumable else None
        self._first = torch.zeros(self.slots, dtype=torch.long)  # the column of a slot's first token
        self._resuming = resuming
        self._newest = torch.full((1,), -1, device=device)
        self._length = 0
        # By layer, as ``LayerCache`` has them.
        self._of_prompts: dict[int, KeysValues] = {}
        self._of_completions: dict[int, KeysValues] = {}
        self._states: dict[int, State] = {}  # in layers of linear attention
        if resuming is not None:
            self._begin_with(resuming)

    def _begin_with(self, resuming: _Resuming) -> None:
        """Make room for the tokens that continued completions have, and will have after the first forward."""
        width = resuming.width
        longest = self.prompts.longest
        device = self._bias.device
        self.filled = self.filled[resuming.filled]
        self._kept = resuming.kept
        self._numbers = resuming.numbers
        self._first = resuming.first
        self._newest += width
        self._lengths += width
        self._length = width
        # Completions begin in different columns, so each has a mask of its own.
        self._masked = True
        there = torch.arange(width) >= resuming.first[..., None]  # P x G x width
        self._bias = self._bias.repeat(1, 1, self.slots[1], 1, 1)
        self._bias[..., 0, longest : longest + width].masked_fill_(there[:, None].to(device), 0.0)

    def advance(self) -> None:
        """Makes room for one more token of every completion. Call it before the forward that brings it."""
        self._newest += 1
        self._bias[..., self.prompts.longest + self._length] = 0.0
        self._length += 1

    def advance_drafts(self, width: int) -> None:
        """Makes room for ``width`` tokens of every completion. Call it before the forward that brings them."""
        places = self._lengths[..., None] + torch.arange(width, device=self._lengths.device)  # P x G x W
        shown = self._capacity if self.fixed_sizes else int(self._lengths.max()) + width
        columns = torch.arange(shown, device=places.device)
        first = self._first.to(places.device)[..., None, None]
        # Columns behind a completion hold tokens that were taken back: they are written before they are seen.
        there = (columns >= first) & (columns <= places[..., None])  # P x G x W x T
        of_own = torch.zeros(there.shape, device=places.device).masked_fill_(~there, -torch.inf)
        of_prompt = self._bias[:, 0, :, :, : self.prompts.longest].expand(*places.shape, -1)
        bias = torch.cat([of_prompt, of_own], dim=-1)[:, None, :, None]
        if self.fixed_sizes and self._places is not None and self._draft_bias is not None:
            # The same memory for every token: a CUDA graph reads it.
            self._places.copy_(places)
            self._draft_bias.copy_(bias)
        else:
            self._places = places
            self._draft_bias = bias

    def accept(self, slots: Tensor, counts: Tensor) -> None:
        """Keeps the first ``counts`` tokens that the last forward brought of the completions in ``slots``."""
        self._lengths.view(-1).index_add_(0, slots, counts)

    def select(self, slots: Tensor) -> None:
        """Goes on with the completions ``slots`` (P' x G' of the P G). Those of a row are of one prompt."""
        prompts = slots[:, 0] // self.slots[1]
        self._first = self._first.flatten()[slots.cpu()]
        self._lengths = self._lengths.flatten()[slots]
        self._places = None
        self._draft_bias = None
        self._numbers = [self._numbers[n] for n in prompts.tolist()]
        rows = (prompts[:, None], slice(None), slots % self.slots[1])  # the indexed sizes come first: P' x G' x heads
        fewer = len(prompts) < self.slots[0]
        if self._resuming is not None:
            self._bias = self._bias.transpose(1, 2).flatten(0, 1)[slots].transpose(1, 2)
        elif fewer:
            self._bias = self._bias[prompts]
        for layer in self._of_prompts:  # one at a time, so that no more than one is there twice
            if fewer:
                keys, values = self._of_prompts[layer]
                self._of_prompts[layer] = KeysValues(keys[prompts], values[prompts])
            own_keys, own_values = self._of_completions[layer]
            self._of_completions[layer] = KeysValues(
                _laid_out(own_keys[rows].transpose(1, 2)), _laid_out(own_values[rows].transpose(1, 2))
            )
        for layer in self._states:
            self._states[layer] = self._states[layer].flatten().at(slots)
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
            own = self.of(layer)
            assert not isinstance(own, State)  # this layer attends
            return own.attend(layer, q, k, v, scale)
        resuming = self._resuming
        if resuming is not None:
            self._of_prompts[layer] = resuming.of_prompts[layer]
            more = self._capacity - resuming.width
            self._of_completions[layer] = resuming.laid_out(layer, k, v, more)
            return resuming.attend(layer, q, k, v, scale)
        # P x heads x L x D, zeros where a prompt has ended.
        self._of_prompts[layer] = KeysValues(
            _laid_out(self._padding.pad(k).transpose(1, 2)), _laid_out(self._padding.pad(v).transpose(1, 2))
        )
        prompts, group_size = self.slots
        room = (prompts, k.shape[1], group_size, self._capacity, k.shape[2])
        self._of_completions[layer] = KeysValues(k.new_zeros(room), v.new_zeros(room))
        if self._kept is not None:
            self._kept.of_layers[layer] = self._of_prompts[layer]
        out, _ = kernel_for(q).forward(q, k, v, self.prompts, self.prompts, causal=True, scale=scale)
        return out

    def recur(self, layer: int, forward: Layer, hidden: Tensor) -> Tensor:
        """Linear attention. The first call brings the prompts, 1 x S x width, every later one a token for each slot.

        Args:
            hidden: 1 x S x width, then slots x 1 x width.

        Returns:
            The same shape.
        """
        if layer in self._states:
            return self._states[layer].recur(layer, forward, hidden)
        if self._resuming is not None:
            out, self._states[layer] = self._resuming.recur(layer, forward, hidden)
            return out
        state = State()
        out = Padding.of(self.prompts, left=True).run(forward, hidden[0], state)
        self._states[layer] = state.expand(self.slots[1]).contiguous()
        return out[None]

    def parked(self, slot: int) -> Parked:
        """A copy of what there is of the completion in a slot, for ``resumed``."""
        p, g = divmod(slot, self.slots[1])
        length = int(self._lengths[p, g]) if self._drafted else self._length
        tokens = slice(int(self._first[p, g]), length)
        own = {}
        for layer, (keys, values) in self._of_completions.items():
            own[layer] = KeysValues(
                keys[p, :, g, tokens].transpose(0, 1).clone(), values[p, :, g, tokens].transpose(0, 1).clone()
            )
        states = {layer: state.at((p, g)).clone() for layer, state in self._states.items()}
        return Parked(self._numbers[p], own, states)

    def resumed(self, parked: Sequence[Parked], lengths: Sequence[int], most: int) -> PrefixCache:
        """A cache of some of the prompts, whose first forward brings new tokens of completions that had ended.

        Args:
            parked: R completions, those of a prompt following each other. The cache is ``resumable``.
            lengths: R numbers of new tokens, which come end to end in one row, at least 1.
            most: tokens that each may have besides.

        Raises:
            ValueError: the cache is not ``resumable``.
        """
        kept = self._kept
        if kept is None:
            raise ValueError("completions of this cache cannot be continued: it is not resumable")
        device = self.prompts.offsets.device
        rows_of: dict[int, list[int]] = {}  # by the number of a prompt, which of the R are its completions
        for n, each in enumerate(parked):
            rows_of.setdefault(each.prompt, []).append(n)
        numbers = list(rows_of)
        size = max(map(len, rows_of.values()))
        # A prompt with fewer completions repeats its last one.
        grid = torch.tensor([own + own[-1:] * (size - len(own)) for own in rows_of.values()])
        of_its_own = torch.tensor([len(own) for own in rows_of.values()])
        is_filled = torch.arange(size) < of_its_own[:, None]  # P x G
        widths = torch.tensor([each.length + new for each, new in zip(parked, lengths, strict=True)])
        width = int(widths.max())
        own_lengths = tuple(kept.lengths[number] for number in numbers)
        prompts = Spans.of(own_lengths, device)
        of_prompts = {}
        for layer, (keys, values) in kept.of_layers.items():
            of_prompts[layer] = KeysValues(
                keys[numbers, :, : prompts.longest], values[numbers, :, : prompts.longest]
            )
        resuming = _Resuming(
            kept=kept,
            numbers=numbers,
            parked=list(parked),
            fresh=Spans.of(lengths, device),
            history=Spans.of([each.length for each in parked], device),
            groups=Spans.of([sum(lengths[n] for n in own) for own in rows_of.values()], device),
            prompts=prompts,
            of_prompts=of_prompts,
            grid=grid.to(device),
            filled=is_filled.flatten(),
            first=width - widths[grid],
            width=width,
        )
        return PrefixCache(
            prompt_lengths=own_lengths,
            group_size=size,
            capacity=width + most,
            device=device,
            fixed_sizes=self.fixed_sizes,
            drafted=self._drafted,
            resuming=resuming,
        )

    def of(self, layer: int) -> LayerCache | DraftedLayerCache | State:
        """The part of the cache that the tokens of the present step see in a layer, or go on from."""
        if layer in self._states:
            return self._states[layer]
        keys, values = self._of_prompts[layer]
        own_keys, own_values = self._of_completions[layer]
        if self._places is not None and self._draft_bias is not None:
            shown = self._draft_bias.shape[-1] - keys.shape[2]
            return DraftedLayerCache(
                keys=keys,
                values=values,
                own_keys=own_keys[:, :, :, :shown],
                own_values=own_values[:, :, :, :shown],
                places=self._places,
                bias=self._draft_bias,
            )
        if self.fixed_sizes:
            return LayerCache(
                keys=keys,
                values=values,
                own_keys=own_keys,
                own_values=own_values,
                newest=self._newest,
                bias=self._bias,
            )
        return LayerCache(
            keys=keys,
            values=values,
            own_keys=own_keys[:, :, :, : self._length],
            own_values=own_values[:, :, :, : self._length],
            newest=self._newest,
            bias=self._bias[..., : self.prompts.longest + self._length] if self._masked else None,
        )


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
