"""One token of every completion to the logits of the next: by the stock forward, as it is or with compiled layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from qwenvl.model.sharing.linear_attention import SlotStates
from qwenvl.model.sharing.prefix_cache import LayerCache, PrefixCache


class Decoder:
    """Takes the newest token of every completion that goes on.

    Completions lie in the P x G slots of the cache. Those that have ended leave it as soon as the grid can be smaller.
    With one prompt that is at once. With several, a prompt's slots stay while another prompt has as many completions.
    """

    def __init__(self, model: nn.Module, cache: PrefixCache, compiled: bool):
        """
        Args:
            model: the bare transformers model.
            cache: after its first forward, that of the prompts.
            compiled: run each layer through ``torch.compile``. The cache must have fixed sizes then.
        """
        self._model, self._cache, self._compiled = model, cache, compiled
        prompts, group_size = cache.slots
        self._slots = torch.arange(prompts * group_size, device=cache.prompts.offsets.device)  # of each completion

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """R tokens and their positions (3 x R) -> float32 logits, R x V."""
        self._cache.advance()
        prompts, group_size = self._cache.slots
        ids = tokens.new_zeros(prompts * group_size, 1)
        ids[self._slots, 0] = tokens
        where = positions.new_zeros(len(positions), *ids.shape)
        where[:, self._slots, 0] = positions
        with _compiled_layers(self._model, self._cache) if self._compiled else nullcontext():
            out = self._model(input_ids=ids, position_ids=where, use_cache=False, shared_prefix=self._cache)
        return out.logits[self._slots, -1].float()

    def keep(self, rows: Tensor) -> None:
        """Goes on with the completions where ``rows`` (R bool) is True."""
        self._slots = self._slots[rows]
        prompts, group_size = self._cache.slots
        counts = (self._slots // group_size).unique_consecutive(return_counts=True)[1]  # of each prompt that goes on
        width = int(counts.max())
        if self._compiled:
            width = max(width, 2)  # a size of 1 would be compiled by itself
        if len(counts) * width >= prompts * group_size:
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


@contextmanager
def _compiled_layers(model: nn.Module, cache: PrefixCache) -> Iterator[None]:
    """Layers that run compiled. All of them share one compilation, which sees a layer and its own part of the cache."""
    layers = model.model.language_model.layers
    for number, layer in enumerate(layers):
        layer.forward = _CompiledLayer(layer, cache.of(number))
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's is found again


class _CompiledLayer:
    """The forward of one layer."""

    def __init__(self, layer: nn.Module, cache: LayerCache | SlotStates):
        self._layer, self._cache = layer, cache
        if isinstance(cache, SlotStates):  # a size that happens to be P or G would be taken for it
            for state in (cache.inputs, cache.matrices):
                torch._dynamo.mark_static(state, list(range(2, state.dim())))

    def __call__(
        self, hidden: Tensor, *, position_embeddings: tuple[Tensor, Tensor], shared_prefix: PrefixCache, **arguments
    ) -> Tensor:
        slots = shared_prefix.slots
        # P and G come apart: as the one size P G they would be compiled for each product anew.
        grids = [hidden.unflatten(0, slots), *(x.unflatten(-3, slots) for x in position_embeddings)]
        return _compiled_forward()(self._layer, *grids, shared_prefix=self._cache, **arguments)


def _forward(layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, **arguments) -> Tensor:
    """From P x G x 1 x width and position embeddings of .. x P x G x 1 x D to P G x 1 x width."""
    embeddings = cos.flatten(-4, -3), sin.flatten(-4, -3)
    return type(layer).forward(layer, hidden.flatten(0, 1), position_embeddings=embeddings, **arguments)


@cache
def _compiled_forward() -> Callable[..., Tensor]:
    # Made when first used: making it loads the compiler, which takes seconds.
    return torch.compile(_forward, dynamic=True)
