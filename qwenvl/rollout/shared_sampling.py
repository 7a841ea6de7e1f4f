"""Sampling with each prompt computed once: one prefill per prompt, and its keys and values once for all completions.

The same distributions as ``generate`` on repeated prompts, and the same tokens when greedy. Finished completions leave
the batch. The decode step, from one token of every completion to the logits of the next, is the stock forward: eager,
compiled, or replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood, entropy_of
from qwenvl.model.positions import first_positions
from qwenvl.model.sharding import is_partitioned, sharded_modules
from qwenvl.model.sharing.linear_attention import State
from qwenvl.model.sharing.prefix_cache import Parked, PrefixCache
from qwenvl.model.sharing.shared_prefix import install_sharing, pack
from qwenvl.rollout.engine import Drawing, SamplingParams


def logits_processors(
    params: SamplingParams, suppress: list[int], device: torch.device | str = "cpu"
) -> LogitsProcessorList:
    """The processors of transformers for these settings, in the order of ``generate``. A setting that is off has none.

    Args:
        params: a temperature of 0 leaves out all but the repetition penalty and ``suppress``.
        suppress: tokens that are never sampled.
        device: that of the logits. On another one ``suppress`` would be copied for each token.
    """
    chosen = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty)))
    if suppress:
        chosen.append(SuppressTokensLogitsProcessor(suppress, device=device))
    if params.temperature == 0:
        return chosen
    if params.temperature != 1.0:
        chosen.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chosen.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chosen.append(MinPLogitsWarper(params.min_p))
    return chosen


def exponential_race(scores: Tensor) -> Tensor:
    """Rows x V logits -> rows x V numbers whose argmax is a draw from softmax(logits).

    Of independent exponential variables with rates p that sum to 1, each is the smallest with probability p. On a CPU
    the draws equal those of ``Tensor.multinomial``, bit for bit. Logits that are not finite raise no error here, while
    ``multinomial`` ends the process on a GPU. The trainer reports them (``--on_nonfinite``).
    """
    probs = scores.softmax(-1)
    return probs / torch.empty_like(probs).exponential_()


@dataclass
class SharedSampler:
    """Samples completions of prompts that are computed once, turn by turn.

    Attributes:
        model: the bare transformers model, in eval mode, for which ``supports_shared_prefix`` has no objection.
        prompts: P prompts, with pixels or encoded.
        params: a temperature of 0 takes the most probable token. Their stop strings are left to ``stopping``.
        suppress: tokens that are never sampled.
        end_ids: tokens that end a completion. The token counts as part of it.
        pad_id: fills finished completions.
        stopping: called after each token with the ids of the unfinished completions (rows x tokens, without their
            prompts). It returns rows bool, True for those that end there, beside those with an end token.
        compiled: compile the layers of the decode step (see ``DecodeStep``).
        cuda_graph: replay the decode step as a CUDA graph (see ``DecodeStep``). None: on a GPU, for a dense model that
            is not sharded.
        drawing: where progress is written.
        resumable: keep what the cache has of completions that have ended, so that ``resume`` can continue them.
    """

    model: nn.Module
    prompts: PromptInputs
    group_size: int
    params: SamplingParams
    suppress: list[int]
    end_ids: list[int]
    pad_id: int
    stopping: Callable[[Tensor], Tensor] | None = None
    compiled: bool = False
    cuda_graph: bool | None = None
    drawing: Drawing = field(default_factory=Drawing)
    resumable: bool = False

    def __post_init__(self) -> None:
        install_sharing(self.model)
        ids, params = self.prompts.input_ids, self.params
        if self.cuda_graph is None:
            sharded = is_partitioned(self.model) or sharded_modules(self.model)
            # Some ways to run experts wait for the GPU.
            experts = getattr(self.model.config.get_text_config(), "num_experts", 0)
            self.cuda_graph = ids.is_cuda and not sharded and not experts
        self._processors = logits_processors(params, self.suppress, ids.device)
        self._ends = torch.tensor(self.end_ids, device=ids.device)
        self._parked: dict[int, Parked] | None = {} if self.resumable else None
        lengths, fixed = tuple(self.prompts.attention_mask.sum(1).tolist()), self.compiled or self.cuda_graph
        size, most = self.group_size, params.max_new_tokens
        self._cache = PrefixCache(lengths, size, most, ids.device, fixed, self.resumable)

    def first(self) -> tuple[Tensor, Likelihood]:
        """Samples completions, or their first turns.

        Returns:
            Ids N x T, and the likelihood of each token under softmax(logits / temperature), before truncation, 0.0 at
            padding. At temperature 0 it is that of temperature 1.
        """
        prompts, size = self.prompts, self.group_size
        starts = first_positions(prompts.position_ids, size)
        with _without_gradient(starts.device):
            logits = _prefill(self.model, prompts, self._cache).repeat_interleave(size, dim=0)
            return self._decode(self._cache, [*range(len(starts))], logits, starts, self.params.max_new_tokens)

    def resume(self, rows: Sequence[int], fresh: PromptInputs, most: int) -> tuple[Tensor, Likelihood]:
        """Samples one more turn of some completions whose turn has ended. Nothing before it is computed again.

        Args:
            rows: R numbers of completions. Those of a prompt follow each other.
            fresh: R rows of tokens that the model has not computed: the last one of the turn, and what follows it.
            most: tokens of the turn.
        """
        assert self._parked is not None
        there = fresh.attention_mask.bool()
        lengths = there.sum(1)
        with _without_gradient(there.device):
            cache = self._cache.resumed([self._parked.pop(row) for row in rows], lengths.tolist(), most)
            logits = self.model(
                input_ids=fresh.input_ids[there][None],
                position_ids=fresh.position_ids[:, there][:, None],
                logits_to_keep=lengths.cumsum(0) - 1,
                use_cache=False,
                shared_prefix=cache,
                **fresh.vision(),
            ).logits[0]
            return self._decode(cache, rows, logits.float(), fresh.position_ids.amax((0, 2)) + 1, most)

    def _decode(
        self, cache: PrefixCache, rows: Sequence[int], logits: Tensor, starts: Tensor, most: int
    ) -> tuple[Tensor, Likelihood]:
        """The tokens of a turn of R completions, R x t.

        Args:
            logits: of their first tokens, R x V.
            starts: R, the positions of these.
        """
        params, device = self.params, logits.device
        # Only a repetition penalty needs the prompt's tokens, beside those of each completion, as ``generate`` does.
        start = self.prompts.input_ids.shape[1] if params.repetition_penalty != 1.0 else 0
        ids = torch.full((len(rows), start + most), self.pad_id, device=device)
        if start:
            ids[:, :start] = self.prompts.input_ids.repeat_interleave(self.group_size, dim=0)
        logprobs = torch.zeros(len(rows), most, device=device)
        entropies = torch.zeros_like(logprobs) if params.entropies else None
        going = torch.arange(len(rows), device=device)  # the unfinished completions
        decoder = DecodeStep(self.model, cache, self.compiled, bool(self.cuda_graph))
        for t in range(most):
            self.drawing.token()
            scores = self._processors(ids[going, : start + t], logits)
            tokens = (scores if params.temperature == 0 else exponential_race(scores)).argmax(-1)
            ids[going, start + t] = tokens
            scores = (logits / (params.temperature or 1.0)).log_softmax(-1)
            logprobs[going, t] = scores.gather(1, tokens[:, None])[:, 0]
            if entropies is not None:  # log-probs are logits that need no normaliser
                entropies[going, t] = entropy_of(scores, scores.new_zeros(()))
            done = torch.isin(tokens, self._ends)
            if self.stopping is not None:
                done = done | self.stopping(ids[going, start : start + t + 1])
            if self.drawing.watch is not None:
                done = done | self.drawing.watched(going + self.drawing.first * self.group_size, tokens)
            ended = int(done.sum())  # a GPU is waited for here, so it is asked once
            if ended and self._parked is not None:
                self._parked |= {rows[n]: own for n, own in zip(going[done].tolist(), decoder.park(done), strict=True)}
            if t + 1 == most or ended == len(done):
                break
            if ended:
                going, tokens = going[~done], tokens[~done]
                decoder.keep(~done)
            logits = decoder.step(tokens, (starts[going] + t).expand(3, -1))
        found = Likelihood(logprobs[:, : t + 1], None if entropies is None else entropies[:, : t + 1])
        return ids[:, start : start + t + 1], found


def _without_gradient(device: torch.device) -> AbstractContextManager[None]:
    """Inference mode is about a twentieth faster, but under autocast it rounds every weight again for each token."""
    return torch.no_grad() if torch.is_autocast_enabled(device.type) else torch.inference_mode()


def _prefill(model: nn.Module, prompts: PromptInputs, cache: PrefixCache) -> Tensor:
    """P x V logits of the first completion tokens, from all prompts in one row."""
    none = torch.zeros(len(prompts), 1, dtype=torch.bool, device=prompts.input_ids.device)
    row = pack(prompts, none.long(), none)
    row |= {"logits_to_keep": cache.prompts.offsets[1:].long() - 1, "shared_prefix": cache}
    return model(**row, use_cache=False, **prompts.vision()).logits[0].float()


class DecodeStep:
    """The decode step of all unfinished completions, after the first forward of the cache.

    Completions are in the P x G slots of the cache. Finished ones leave it as soon as the grid can be smaller: with one
    prompt at once, with several as soon as no other prompt has as many completions.

    Args:
        compiled: run each layer through ``torch.compile``. The cache must have fixed sizes then.
        cuda_graph: replay the forward as a CUDA graph. The cache must have fixed sizes then.
    """

    def __init__(self, model: nn.Module, cache: PrefixCache, compiled: bool, cuda_graph: bool):
        self._model, self._cache, self._compiled, self._cuda_graph = model, cache, compiled, cuda_graph
        self._run: Callable[..., Tensor] = GraphedForward(self._forward) if cuda_graph else self._forward
        self._slots = cache.filled  # of each completion

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """R tokens and their positions (3 x R) -> float32 logits, R x V."""
        self._cache.advance()
        prompts, group_size = self._cache.slots
        ids = tokens.new_zeros(prompts * group_size, 1)
        ids[self._slots, 0] = tokens
        where = positions.new_zeros(len(positions), *ids.shape)
        where[:, self._slots, 0] = positions
        return self._run(ids, where)[self._slots, -1].float()

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        with _compiled_layers(self._model, self._cache) if self._compiled else nullcontext():
            return self._model(input_ids=ids, position_ids=positions, use_cache=False, shared_prefix=self._cache).logits

    def park(self, rows: Tensor) -> list[Parked]:
        """What the cache holds of the completions where ``rows`` (R bool) is True."""
        return [self._cache.parked(slot) for slot in self._slots[rows].tolist()]

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
        self._run = GraphedForward(self._forward) if self._cuda_graph else self._forward
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


@contextmanager
def _compiled_layers(model: nn.Module, cache: PrefixCache) -> Iterator[None]:
    """Context manager with compiled layers. All of them share one compilation, of a layer and its part of the cache."""
    layers = model.model.language_model.layers
    for number, layer in enumerate(layers):
        own = cache.of(number)
        if isinstance(own, State):  # a size that happens to be P or G would be taken for it
            for each in own.known():
                torch._dynamo.mark_static(each, list(range(2, each.dim())))
        layer.forward = partial(_compiled_layer, layer, own)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # which uncovers the class's


def _compiled_layer(
    layer: nn.Module, own: Any, hidden: Tensor, *, position_embeddings: Any, shared_prefix: PrefixCache, **arguments
) -> Tensor:
    """The forward of a layer with its ``own`` part of the cache."""
    slots = shared_prefix.slots
    # P and G separately: the one size P G would be compiled for each product.
    grids = [hidden.unflatten(0, slots), *(x.unflatten(-3, slots) for x in position_embeddings)]
    return _compiled_forward()(layer, *grids, shared_prefix=own, **arguments)


def _forward(layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, **arguments) -> Tensor:
    """From P x G x 1 x width and position embeddings of .. x P x G x 1 x D to P G x 1 x width."""
    embeddings = cos.flatten(-4, -3), sin.flatten(-4, -3)
    return type(layer).forward(layer, hidden.flatten(0, 1), position_embeddings=embeddings, **arguments)


@cache
def _compiled_forward() -> Callable[..., Tensor]:
    # Made when first used: making it loads the compiler, which takes seconds.
    return torch.compile(_forward, dynamic=True)
