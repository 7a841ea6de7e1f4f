"""One token of every completion to the logits of the next: as it is, or compiled."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from qwenvl.model.prefix_cache import PrefixCache
from qwenvl.model.static_cache import StaticCache


class Decoder(Protocol):
    """Takes the newest token of every completion that goes on."""

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """R tokens and their positions (3 x R) -> float32 logits, R x V."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with the completions where ``rows`` (R bool) is True."""


class EagerDecoder:
    """The stock forward; completions that have ended leave the batch."""

    def __init__(self, model: nn.Module, cache: PrefixCache):
        self._model, self._cache = model, cache
        self.keep = cache.keep

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See ``Decoder``."""
        self._cache.advance()
        return _next_logits(self._model, tokens[:, None], positions[..., None], self._cache).float()


class CompiledDecoder:
    """The stock forward through ``torch.compile``, once for all sizes.

    Completions lie in P x G slots. Those that have ended stay until half of the slots can be given up.
    """

    def __init__(self, model: nn.Module, cache: PrefixCache):
        self._model, self._cache = model, StaticCache(cache)
        prompts, group_size = self._cache.slots
        self._slots = torch.arange(prompts * group_size, device=cache.prompts.offsets.device)  # of each completion

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """See ``Decoder``."""
        self._cache.advance()
        prompts, group_size = self._cache.slots
        ids = tokens.new_zeros(prompts * group_size)
        ids[self._slots] = tokens
        where = positions.new_zeros(len(positions), len(ids))
        where[:, self._slots] = positions
        ids, where = ids.view(prompts, group_size), where.view(-1, prompts, group_size)
        for size in (0, 1):
            torch._dynamo.maybe_mark_dynamic(ids, size)
            torch._dynamo.maybe_mark_dynamic(where, size + 1)
        return _compiled_step(self._model, ids, where, self._cache)[self._slots].float()

    def keep(self, rows: Tensor) -> None:
        """See ``Decoder``."""
        self._slots = self._slots[rows]
        prompts, group_size = self._cache.slots
        counts = (self._slots // group_size).unique_consecutive(return_counts=True)[1]  # of each prompt that goes on
        width = max(2, int(counts.max()))  # a size of 1 would be compiled by itself
        if 2 * len(counts) * width > prompts * group_size:
            return
        held = [slots.tolist() for slots in self._slots.split(counts.tolist())]
        rest = torch.tensor([slots + slots[-1:] * (width - len(slots)) for slots in held], device=self._slots.device)
        self._cache.select(rest)
        places = torch.arange(rest.numel(), device=rest.device).view(rest.shape)
        self._slots = places[torch.arange(width, device=rest.device) < counts[:, None]]


def require_compiler(device: torch.device) -> None:
    """Compiles and runs one addition.

    Raises:
        RuntimeError: if that fails, saying what is missing.
    """
    try:
        torch.compile(lambda x: x + 1)(torch.ones(4, device=device))
    except Exception as error:  # whatever a compiler's absence brings about
        raise RuntimeError(
            f"decoding cannot be compiled on this machine: torch.compile failed: {str(error).splitlines()[0]}. "
            "On a CPU it needs a C++ compiler (g++), on a GPU Triton; or leave out --compile_decoding."
        ) from error


def _next_logits(model: nn.Module, ids: Tensor, positions: Tensor, cache: PrefixCache | StaticCache) -> Tensor:
    """R x V, from R x 1 tokens and 3 x R x 1 positions."""
    return model(input_ids=ids, position_ids=positions, use_cache=False, shared_prefix=cache).logits[:, -1]


def _slots_step(model: nn.Module, ids: Tensor, positions: Tensor, cache: StaticCache) -> Tensor:
    """P G x V, from P x G tokens and 3 x P x G positions."""
    return _next_logits(model, ids.reshape(-1, 1), positions.flatten(1, 2)[..., None], cache)


_compiled_step = torch.compile(_slots_step)
