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

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.model.positions import first_positions
from qwenvl.model.sharding import shares_weights
from qwenvl.model.sharing.linear_attention import State
from qwenvl.model.sharing.prefix_cache import Parked, PrefixCache
from qwenvl.model.sharing.shared_prefix import install_sharing, pack
from qwenvl.rollout.drafts import CompletionDrafts, Drafter, add_text
from qwenvl.rollout.engine import Drawing, SamplingParams
from qwenvl.rollout.next_token import NextToken


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
        drafter: drafts the next tokens of completions. None: each forward gives one token.
        no_token: a number that ``stopping`` takes for no token. With drafts it fills shorter completions.
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
    drafter: Drafter | None = None
    no_token: int = 0

    def __post_init__(self) -> None:
        install_sharing(self.model)
        device = self.prompts.input_ids.device
        if self.cuda_graph is None:
            # Some ways to run experts wait for the GPU.
            experts = getattr(self.model.config.get_text_config(), "num_experts", 0)
            self.cuda_graph = device.type == "cuda" and not shares_weights(self.model) and not experts
        self.next_token = NextToken(self.params, self.suppress, device)
        self._ends = torch.tensor(self.end_ids, device=device)
        # What the cache has of completions whose turn has ended, by their numbers.
        self._parked: dict[int, Parked] | None = {} if self.resumable else None
        # In the mode that it is used in: for tensors of another one a step would be compiled again.
        with _without_gradient(device):
            self._cache = PrefixCache(
                prompt_lengths=tuple(self.prompts.attention_mask.sum(1).tolist()),
                group_size=self.group_size,
                capacity=self.params.max_new_tokens,
                device=device,
                fixed_sizes=self.compiled or self.cuda_graph,
                resumable=self.resumable,
                drafted=0 if self.drafter is None else self.drafter.lengths.most,
            )
        self._drafts: list[CompletionDrafts] = []
        if self.drafter is not None:
            prompts = tokens_of(self.prompts)
            self._drafts = self.drafter.of_prompts(prompts, self.group_size, frozenset(self.suppress))

    def first(self) -> tuple[Tensor, Likelihood]:
        """Samples completions, or their first turns.

        Returns:
            Ids N x T, and the likelihood of each token under softmax(logits / temperature), before truncation, 0.0 at
            padding. At temperature 0 it is that of temperature 1.
        """
        starts = first_positions(self.prompts.position_ids, self.group_size)
        rows = list(range(len(starts)))
        with _without_gradient(starts.device):
            of_prompts = _prefill(self.model, self.prompts, self._cache)
            logits = of_prompts.repeat_interleave(self.group_size, dim=0)  # N x V
            decode = self._decode if self.drafter is None else self._decode_drafted
            return decode(self._cache, rows, logits, starts, self.params.max_new_tokens)

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
            starts = fresh.position_ids.amax((0, 2)) + 1
            if self.drafter is None:
                return self._decode(cache, rows, logits.float(), starts, most)
            for row, tokens in zip(rows, tokens_of(fresh), strict=True):
                appended = tokens[1:]  # the first one was sampled, and is known
                add_text(self._drafts[row], appended, frozenset(self.suppress))
            return self._decode_drafted(cache, rows, logits.float(), starts, most)

    def _decode(
        self, cache: PrefixCache, rows: Sequence[int], logits: Tensor, starts: Tensor, most: int
    ) -> tuple[Tensor, Likelihood]:
        """The tokens of a turn of R completions, R x t.

        Args:
            logits: of their first tokens, R x V.
            starts: R, the positions of these.
        """
        params = self.params
        device = logits.device
        # Only a repetition penalty needs the prompt's tokens, beside those of each completion, as ``generate`` does.
        start = self.prompts.input_ids.shape[1] if params.repetition_penalty != 1.0 else 0
        ids = torch.full((len(rows), start + most), self.pad_id, device=device)
        if start:
            own_prompt = torch.tensor([row // self.group_size for row in rows], device=device)
            ids[:, :start] = self.prompts.input_ids[own_prompt]
        logprobs = torch.zeros(len(rows), most, device=device)
        entropies = torch.zeros_like(logprobs) if params.entropies else None
        going = torch.arange(len(rows), device=device)  # the unfinished completions
        decoder = DecodeStep(self.model, cache, self.compiled, bool(self.cuda_graph))
        for t in range(most):
            self.drawing.token()
            tokens, likelihood = self.next_token.draw(ids[going, : start + t], logits)
            ids[going, start + t] = tokens
            logprobs[going, t] = likelihood.logprobs
            if entropies is not None and likelihood.entropies is not None:
                entropies[going, t] = likelihood.entropies
            done = self.ends(tokens)
            if self.stopping is not None:
                done = done | self.stopping(ids[going, start : start + t + 1])
            if self.drawing.watch is not None:
                done = done | self.drawing.watched(going + self.drawing.first * self.group_size, tokens)
            ended = int(done.sum())  # a GPU is waited for here, so it is asked once
            if ended:
                self._park([rows[n] for n in going[done].tolist()], decoder, done)
            if t + 1 == most or ended == len(done):
                break
            if ended:
                going = going[~done]
                tokens = tokens[~done]
                decoder.keep(~done)
            logits = decoder.step(tokens, (starts[going] + t).expand(3, -1))
        found = Likelihood(logprobs[:, : t + 1], None if entropies is None else entropies[:, : t + 1])
        return ids[:, start : start + t + 1], found

    def _decode_drafted(
        self, cache: PrefixCache, rows: Sequence[int], logits: Tensor, starts: Tensor, most: int
    ) -> tuple[Tensor, Likelihood]:
        """As ``_decode``, with several tokens of each completion in a forward: its newest one, and those of a draft.

        Every token is drawn from its own distribution. Those of the draft only tell for how many tokens the forward has
        the right distributions: up to the first draw that is not the drafted token, and with that draw.
        """
        assert self.drafter is not None
        device = logits.device
        drafts = [self._drafts[row] for row in rows]
        turn = _DraftedTurn(self, rows, most, device)
        decoder = DecodeStep(self.model, cache, self.compiled, bool(self.cuda_graph))
        going = torch.arange(len(rows), device=device)  # the unfinished completions
        newest, done = turn.draw(going, logits)
        for draft, token in zip(drafts, newest.tolist(), strict=True):
            draft.append(token)
        while True:
            ended = int(done.sum())
            if ended:
                self._park([rows[n] for n in going[done].tolist()], decoder, done)
            if ended == len(done):
                break
            if ended:
                going = going[~done]
                newest = newest[~done]
                decoder.keep(~done)
            made = []
            for n, length in zip(going.tolist(), turn.lengths[going].tolist(), strict=True):
                # The token behind a whole draft is drawn too.
                made.append(drafts[n].propose(most - length - 1))
            longest = max(len(draft.tokens) for draft in made)
            width = 1 + (self.drafter.lengths.most if cache.fixed_sizes else longest)
            padded = [draft.tokens + [0] * (width - 1 - len(draft.tokens)) for draft in made]
            # The drafted tokens, R x (W - 1), also where W is 1.
            guesses = torch.tensor(padded, dtype=torch.long, device=device).view(len(made), width - 1)
            sizes = torch.tensor([len(draft.tokens) for draft in made], device=device)
            # The newest token of a completion of t tokens is at the position start + t - 1.
            positions = (starts[going] + turn.lengths[going] - 1)[:, None] + torch.arange(width, device=device)
            logits = decoder.several(torch.cat([newest[:, None], guesses], dim=1), positions.expand(3, -1, -1))
            fresh = torch.zeros_like(going)  # tokens of each that the forward gave
            done = torch.zeros(len(going), dtype=torch.bool, device=device)
            right = torch.arange(len(going), device=device)  # the completions whose draft was right so far
            for place in range(longest + 1):
                tokens, ends = turn.draw(going[right], logits[right, place].float())
                newest[right] = tokens
                done[right] = ends
                fresh[right] += 1
                for n, token in zip(going[right].tolist(), tokens.tolist(), strict=True):
                    drafts[n].append(token)
                if place == longest:
                    break
                has_guess = place < sizes[right]
                guessed = tokens == guesses[right, place]
                right = right[has_guess & guessed & ~ends]
                if not len(right):
                    break
            decoder.accept(fresh)
            for draft, drawn, last in zip(made, fresh.tolist(), newest.tolist(), strict=True):
                self.drafter.verified(draft, drawn, last)
        return turn.result()

    def _park(self, rows: Sequence[int], decoder: DecodeStep, done: Tensor) -> None:
        """Keeps what the cache has of the completions ``rows``, which ``done`` marks, for ``resume``."""
        if self._parked is not None:
            for row, own in zip(rows, decoder.park(done), strict=True):
                self._parked[row] = own

    def ends(self, tokens: Tensor) -> Tensor:
        """True for tokens that end a completion."""
        return torch.isin(tokens, self._ends)


class _DraftedTurn:
    """The tokens of a turn of R completions, which grow unequally.

    Attributes:
        lengths: tokens of each so far.
    """

    def __init__(self, sampler: SharedSampler, rows: Sequence[int], most: int, device: torch.device):
        self._sampler = sampler
        self._most = most
        self._ids = torch.full((len(rows), most), sampler.pad_id, device=device)
        self._logprobs = torch.zeros(len(rows), most, device=device)
        self._entropies = torch.zeros_like(self._logprobs) if sampler.params.entropies else None
        self.lengths = torch.zeros(len(rows), dtype=torch.long, device=device)
        # A repetition penalty reads the prompt too. Places without a token repeat one of the prompt, as a token counts
        # once.
        self._seen = torch.zeros(len(rows), 0, dtype=torch.long, device=device)
        if sampler.params.repetition_penalty != 1.0:
            own_prompt = torch.tensor([row // sampler.group_size for row in rows], device=device)
            of_prompts = sampler.prompts.input_ids[own_prompt]
            self._seen = torch.cat([of_prompts, of_prompts[:, :1].expand(-1, most)], dim=1)

    def draw(self, rows: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draws the next token of some of the completions.

        Args:
            rows: r numbers of them.
            logits: r x V, float32.

        Returns:
            r tokens, and r bool: whether each of them ends its completion.
        """
        sampler = self._sampler
        tokens, likelihood = sampler.next_token.draw(self._seen[rows], logits)
        places = self.lengths[rows]
        self._ids[rows, places] = tokens
        if self._seen.shape[1]:
            behind_prompt = self._seen.shape[1] - self._most
            self._seen[rows, behind_prompt + places] = tokens
        self._logprobs[rows, places] = likelihood.logprobs
        if self._entropies is not None and likelihood.entropies is not None:
            self._entropies[rows, places] = likelihood.entropies
        before = int(self.lengths.max())
        self.lengths[rows] += 1
        # The longest completion is the progress that a display shows.
        for _ in range(int(self.lengths.max()) - before):
            sampler.drawing.token()
        return tokens, self._ended(rows, tokens)

    def _ended(self, rows: Tensor, tokens: Tensor) -> Tensor:
        sampler = self._sampler
        done = sampler.ends(tokens) | (self.lengths[rows] == self._most)
        if sampler.stopping is not None:
            done = done | sampler.stopping(self._aligned(rows))
        if sampler.drawing.watch is not None:
            first = sampler.drawing.first * sampler.group_size
            done = done | sampler.drawing.watched(rows + first, tokens)
        return done

    def _aligned(self, rows: Tensor) -> Tensor:
        """The tokens of some completions, filled up on the left."""
        lengths = self.lengths[rows]
        width = int(lengths.max())
        # Of each column the place in its completion. Negative: it begins later.
        places = torch.arange(width, device=rows.device) + (lengths - width)[:, None]
        tokens = self._ids[rows].gather(1, places.clamp(min=0))
        return tokens.masked_fill(places < 0, self._sampler.no_token)

    def result(self) -> tuple[Tensor, Likelihood]:
        """See ``SharedSampler.first``."""
        width = int(self.lengths.max())
        entropies = None if self._entropies is None else self._entropies[:, :width]
        return self._ids[:, :width], Likelihood(self._logprobs[:, :width], entropies)


def tokens_of(prompts: PromptInputs) -> list[list[int]]:
    """The tokens of each prompt, without padding."""
    masks = prompts.attention_mask.bool()
    return [ids[mask].tolist() for ids, mask in zip(prompts.input_ids, masks, strict=True)]


def _without_gradient(device: torch.device) -> AbstractContextManager[None]:
    """Inference mode is about a twentieth faster, but under autocast it rounds every weight again for each token."""
    return torch.no_grad() if torch.is_autocast_enabled(device.type) else torch.inference_mode()


def _prefill(model: nn.Module, prompts: PromptInputs, cache: PrefixCache) -> Tensor:
    """P x V logits of the first completion tokens, from all prompts in one row."""
    no_completions = torch.zeros(len(prompts), 1, dtype=torch.bool, device=prompts.input_ids.device)
    row = pack(prompts, no_completions.long(), no_completions)
    row["logits_to_keep"] = cache.prompts.offsets[1:].long() - 1  # the last token of each prompt
    row["shared_prefix"] = cache
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
        self._model = model
        self._cache = cache
        self._compiled = compiled
        self._cuda_graph = cuda_graph
        self._run: Callable[..., Tensor] = GraphedForward(self._forward) if cuda_graph else self._forward
        self._slots = cache.filled  # of each completion

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """R tokens and their positions (3 x R) -> float32 logits, R x V."""
        self._cache.advance()
        return self._in_slots(tokens[:, None], positions[..., None])[:, -1].float()

    def several(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The newest token of R completions and their drafts, R x W, at positions 3 x R x W -> logits, R x W x V.

        ``accept`` then says how many of them stay.
        """
        self._cache.advance_drafts(tokens.shape[1])
        return self._in_slots(tokens, positions)

    def _in_slots(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Runs R x W tokens in the slots of their completions. Slots without one get zeros, which nothing reads."""
        prompts, group_size = self._cache.slots
        ids = tokens.new_zeros(prompts * group_size, tokens.shape[1])
        ids[self._slots] = tokens
        where = positions.new_zeros(len(positions), *ids.shape)
        where[:, self._slots] = positions
        return self._run(ids, where)[self._slots]

    def accept(self, counts: Tensor) -> None:
        """Keeps the first ``counts`` (R) tokens that the last forward brought of each completion."""
        self._cache.accept(self._slots, counts)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The logits of all slots, PG x W x V."""
        with _compiled_layers(self._model, self._cache) if self._compiled else nullcontext():
            return self._model(input_ids=ids, position_ids=positions, use_cache=False, shared_prefix=self._cache).logits

    def park(self, rows: Tensor) -> list[Parked]:
        """The part of the cache of each completion where ``rows`` (R bool) is True."""
        return [self._cache.parked(slot) for slot in self._slots[rows].tolist()]

    def keep(self, rows: Tensor) -> None:
        """Continues with the completions where ``rows`` (R bool) is True."""
        self._slots = self._slots[rows]
        prompts, group_size = self._cache.slots
        own_prompt = self._slots // group_size
        _, counts = own_prompt.unique_consecutive(return_counts=True)  # completions of each unfinished prompt
        width = int(counts.max())
        if self._compiled:
            width = max(width, 2)  # a size of 1 would be compiled separately
        smaller = len(counts) * width
        # Each size needs a capture of its own, which takes about as long as five tokens: the grid is halved at least.
        if smaller >= prompts * group_size or (self._cuda_graph and 2 * smaller > prompts * group_size):
            return
        # The slots that the smaller grid is made of, prompts x width. A prompt with fewer repeats its last one.
        kept = []
        for slots in self._slots.split(counts.tolist()):
            own = slots.tolist()
            kept.append(own + own[-1:] * (width - len(own)))
        grid = torch.tensor(kept, device=self._slots.device)
        self._cache.select(grid)
        self._run = GraphedForward(self._forward) if self._cuda_graph else self._forward
        places = torch.arange(grid.numel(), device=grid.device).view(grid.shape)
        is_filled = torch.arange(width, device=grid.device) < counts[:, None]
        self._slots = places[is_filled]


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
    cos, sin = position_embeddings
    # P and G separately: the one size P G would be compiled for each product.
    return _compiled_forward()(
        layer,
        hidden.unflatten(0, slots),
        cos.unflatten(-3, slots),
        sin.unflatten(-3, slots),
        shared_prefix=own,
        **arguments,
    )


def _forward(layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, **arguments) -> Tensor:
    """The forward of a layer on the grid of P x G slots.

    Args:
        hidden: P x G x 1 x width.
        cos, sin: position embeddings, .. x P x G x 1 x D.

    Returns:
        PG x 1 x width.
    """
    embeddings = cos.flatten(-4, -3), sin.flatten(-4, -3)
    return type(layer).forward(layer, hidden.flatten(0, 1), position_embeddings=embeddings, **arguments)


@cache
def _compiled_forward() -> Callable[..., Tensor]:
    # Made when first used: making it loads the compiler, which takes seconds.
    return torch.compile(_forward, dynamic=True)
