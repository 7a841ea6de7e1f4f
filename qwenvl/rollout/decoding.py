"""The decode step, from one token of every completion to the logits of the next: eager, compiled or a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from qwenvl.model.sharing.linear_attention import SlotStates
from qwenvl.model.sharing.prefix_cache import LayerCache, PrefixCache


class Decoder:
    """Runs the decode step of all unfinished completions.

    Completions are in the P x G slots of the cache. Finished ones leave it as soon as the grid can be smaller: with one
    prompt at once, with several as soon as no other prompt has as many completions.
    """

    def __init__(self, model: nn.Module, cache: PrefixCache, compiled: bool, cuda_graph: bool = False):
        """
        Args:
            model: the bare transformers model.
            cache: after its first forward, that of the prompts.
            compiled: run each layer through ``torch.compile``. The cache must have fixed sizes then.
            cuda_graph: replay the forward as a CUDA graph. The cache must have fixed sizes then.
        """
        self._model, self._cache, self._compiled, self._cuda_graph = model, cache, compiled, cuda_graph
        self._run = self._new_run()
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
        return self._run(ids, where)[self._slots, -1].float()

    def _new_run(self) -> Callable[[Tensor, Tensor], Tensor]:
        return GraphedForward(self._forward) if self._cuda_graph else self._forward

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        with _compiled_layers(self._model, self._cache) if self._compiled else nullcontext():
            return self._model(input_ids=ids, position_ids=positions, use_cache=False, shared_prefix=self._cache).logits

    def keep(self, rows: Tensor) -> None:
        """Continues with the completions where ``rows`` (R bool) is True."""
        self._slots = self._slots[rows]
        prompts, group_size = self._cache.slots
        counts = (self._slots // group_size).unique_consecutive(return_counts=True)[1]  # of each unfinished prompt
        width = int(counts.max())
        if self._compiled:
            width = max(width, 2)  # a size of 1 would be compiled separately
        smaller = len(counts) * width
        # Each size needs a capture of its own, which takes about as long as five tokens: the grid is halved at least.
        if smaller >= prompts * group_size or (self._cuda_graph and 2 * smaller > prompts * group_size):
            return
        held = [slots.tolist() for slots in self._slots.split(counts.tolist())]
        rest = torch.tensor([slots + slots[-1:] * (width - len(slots)) for slots in held], device=self._slots.device)
        self._cache.select(rest)
        self._run = self._new_run()
        places = torch.arange(rest.numel(), device=rest.device).view(rest.shape)
        self._slots = places[torch.arange(width, device=rest.device) < counts[:, None]]


class GraphedForward:
    """A forward of fixed sizes, captured as a CUDA graph in its second call and replayed in every later one.

    Launching a token's kernels one by one takes several times as long as running them (docs/benchmarks.md). The first
    call is eager: libraries load and tune their kernels in it, which a capture does not allow.
    """

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]):
        self._forward = forward
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The result, whose memory the next call overwrites."""
        if self._inputs is None:
            self._inputs = inputs
            return self._forward(*inputs)
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # thread_local: threads of a DataLoader or of NCCL may use the GPU during the capture.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._out = self._forward(*self._inputs)
        self._graph.replay()
        return self._out


def require_compiler(device: torch.device) -> None:
    """Compiles and runs one addition.

    Raises:
        RuntimeError: if that fails, saying what is missing.
    """
    try:
        torch.compile(lambda x: x + 1)(torch.ones(4, device=device))
    except Exception as error:  # a missing compiler raises many kinds
        raise RuntimeError(
            f"decoding cannot be compiled on this machine: torch.compile failed: {str(error).splitlines()[0]}. "
            "On a CPU it needs a C++ compiler (g++), on a GPU Triton; or leave out --compile_decoding."
        ) from error


@contextmanager
def _compiled_layers(model: nn.Module, cache: PrefixCache) -> Iterator[None]:
    """Context manager with compiled layers. All of them share one compilation, of a layer and its part of the cache."""
    layers = model.model.language_model.layers
    for number, layer in enumerate(layers):
        layer.forward = _CompiledLayer(layer, cache.of(number))
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # which uncovers the class's


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
        # P and G separately: the one size P G would be compiled for each product.
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
