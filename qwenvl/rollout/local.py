"""Sampling from the policy itself: by transformers' ``generate``, or with each prompt computed once. Stop strings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import evaluating
from qwenvl.model.logprobs import Likelihood
from qwenvl.model.sharing.linear_attention import state_tokens
from qwenvl.rollout.drafts import DraftCounts, Drafter, DraftLengths
from qwenvl.rollout.engine import (
    Drawing,
    SamplingParams,
    SamplingRequest,
    completion_mask,
    end_token,
    join_rollouts,
    no_completions,
    real_tokens,
    split_rollouts,
    within_budget,
)
from qwenvl.rollout.next_token import NextToken
from qwenvl.rollout.shared_sampling import SharedSampler, tokens_of
from qwenvl.rollout.turns import GrowingCompletion, Resume, behind_prompts, sample_turns
from qwenvl.tools.toolbox import Conversations
from qwenvl.types import RolloutBatch


class LocalEngine:
    """Samples from the model that is being trained, in eval mode and without gradient, and leaves it as it was."""

    def __init__(
        self, tokenizer, model: nn.Module, *, token_budget: int | None = None, turn_end: int | None = None
    ):
        """
        Args:
            tokenizer: decodes completions. Its pad token fills finished rows.
            model: the unwrapped model. Its configuration has the tokens that end a completion and those that must not
                be sampled: a sampled vision token would be taken for an image in the next pass.
            token_budget: prompts are sampled together as long as their tokens, as the engine holds them, stay below
                this, those that ``state_tokens`` counts included. A single prompt may exceed it. None: all together.
            turn_end: the token that the chat template ends a turn with, see ``turn_end_id``. None: not known.

        Attributes:
            drawing: progress of the current sampling.
            end_ids: the tokens that end a completion: those of the model's files, and the end of a turn.
        """
        self.token_budget = token_budget
        self.tokenizer = tokenizer
        of_turn = set() if turn_end is None else {turn_end}
        self.end_ids = sorted(ends_of_files(tokenizer, model) | of_turn)
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        self.vision_ids = [model.config.to_dict()[name] for name in names]
        self.drawing = Drawing()
        self._stops: dict[tuple[str, ...], StopStrings] = {}  # made once: they look at the whole vocabulary

    def sample(self, model: nn.Module, request: SamplingRequest) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. The prompts of all micro-batches are sampled together."""
        prompts = request.joined()
        if prompts is None:
            return [no_completions() for _ in request.prompts]
        rollout = self.draw(
            model, prompts, request.group_size, request.params, request.seed, conversations=request.conversations
        )
        return split_rollouts(rollout, request.sizes)

    @torch.no_grad()
    def draw(
        self,
        model: nn.Module,
        prompts: PromptInputs,
        group_size: int,
        params: SamplingParams,
        seed: int,
        conversations: Conversations | None = None,
    ) -> RolloutBatch:
        """Completions of P prompts. Log-probs are those of the trainer: over all tokens, at the temperature."""
        if params.repetition_penalty != 1.0:
            prompts = padded_with_own(prompts)
        most = params.max_new_tokens + (0 if conversations is None else conversations.most_tokens)
        parts = []
        with evaluating(model) as bare, seeded(seed, prompts.input_ids.device):
            costs = self._costs(prompts, group_size, most + state_tokens(bare))
            for rows in within_budget(range(len(prompts)), self.token_budget, cost=lambda row: costs[row]):
                self.drawing.begin(rows, len(prompts), params.max_new_tokens)
                own = prompts.select(rows)
                part, resume = self._first_turn(bare, own, group_size, params, resumable=conversations is not None)
                if conversations is not None:
                    completions: list[int] = []  # numbers of the completions of these prompts
                    for row in rows:
                        completions += range(row * group_size, (row + 1) * group_size)
                    answers = conversations.select(completions)
                    part = sample_turns(part, own, params, answers, resume, self.tokenizer)
                parts.append(part)
            self.drawing.end()
        rollout = join_rollouts(parts, self.tokenizer.pad_token_id)
        self._remember(prompts, rollout, group_size)
        return rollout

    def _remember(self, prompts: PromptInputs, rollout: RolloutBatch, group_size: int) -> None:
        """Called with all completions that were drawn. This engine learns nothing from them."""

    def _costs(self, prompts: PromptInputs, group_size: int, most: int) -> list[int]:
        """Tokens that are held for each prompt and its completions of ``most`` tokens."""
        return [group_size * (prompts.input_ids.shape[1] + most)] * len(prompts)

    def _first_turn(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams, resumable: bool
    ) -> tuple[RolloutBatch, Resume]:
        """The first turn of each completion, and what samples further ones: each computes all tokens before it."""

        def resume(rows: list[int], completions: list[GrowingCompletion], room: list[int]) -> RolloutBatch:
            return self._turn(model, behind_prompts(prompts, group_size, rows, completions), params, max(room))

        return self._turn(model, prompts.repeat(group_size), params, params.max_new_tokens), resume

    def stops(self, params: SamplingParams) -> StopStrings | None:
        """The matcher of the stop strings, if there are any."""
        strings = params.stop_strings
        if strings and strings not in self._stops:
            self._stops[strings] = StopStrings(self.tokenizer, strings)
        return self._stops.get(strings)

    def _turn(self, model: nn.Module, rows: PromptInputs, params: SamplingParams, most: int) -> RolloutBatch:
        """Samples at most ``most`` tokens behind each row, by ``generate``."""
        drawn = DrawnTokens(NextToken(params, self.vision_ids, rows.input_ids.device), self.drawing)
        stops = self.stops(params)
        prompt_tokens = rows.input_ids.shape[1]
        criteria = [lambda ids, scores, **_: stops(ids[:, prompt_tokens:])] if stops else []
        # ``generate`` takes positions of text before those of time, height and width: 4 x rows x L.
        text_positions = (rows.attention_mask.cumsum(1) - 1).clamp(min=0)
        settings = GenerationConfig(
            max_new_tokens=most,
            do_sample=False,  # the processor has drawn
            eos_token_id=self.end_ids,
            pad_token_id=self.tokenizer.pad_token_id,
            use_cache=True,
        )
        with generation_settings(model, settings):
            sequences = model.generate(
                input_ids=rows.input_ids,
                attention_mask=rows.attention_mask,
                position_ids=torch.cat([text_positions[None], rows.position_ids]),
                logits_processor=LogitsProcessorList([drawn]),
                stopping_criteria=StoppingCriteriaList(criteria),
                synced_gpus=False,  # with ZeRO-3 and FSDP it would wait for processes that may have nothing to sample
                **rows.vision(),
            )
        completion_ids = sequences[:, prompt_tokens:]
        return self._finish(completion_ids, drawn.likelihood(), stops)

    def _finish(self, completion_ids: Tensor, likelihood: Likelihood, stops: StopStrings | None) -> RolloutBatch:
        """Masks and decodes N x T sampled tokens, and finds why each row ended."""
        is_end = torch.isin(completion_ids, torch.tensor(self.end_ids, device=completion_ids.device))
        if stops is not None:
            is_end |= stops.each_token(completion_ids)
        mask = completion_mask(is_end)
        kept = real_tokens(completion_ids, mask)
        return RolloutBatch(
            completion_ids=completion_ids.masked_fill(~mask, self.tokenizer.pad_token_id),
            completion_mask=mask,
            texts=self.tokenizer.batch_decode(kept, skip_special_tokens=True),
            finish_reasons=["stop" if ended else "length" for ended in is_end.any(1).tolist()],
            ended_by=[end_token(ids, self.end_ids, self.tokenizer) for ids in kept],
            logprobs=likelihood.logprobs.masked_fill(~mask, 0.0),
            entropies=None if likelihood.entropies is None else likelihood.entropies.masked_fill(~mask, 0.0),
        )


def ends_of_files(tokenizer, model: nn.Module) -> set[int]:
    """The tokens that end a text by the files of a model: its generation config and its tokenizer."""
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return {end for end in [*ends, tokenizer.eos_token_id] if end is not None}


def missing_end(tokenizer, model: nn.Module, turn_end: int | None) -> str | None:
    """A warning where the files of a model do not name the token that its chat template ends a turn with, or None."""
    by_files = ends_of_files(tokenizer, model)
    if turn_end is None or turn_end in by_files:
        return None
    named = ", ".join(tokenizer.convert_ids_to_tokens(sorted(by_files))) or "nothing"
    return (
        f"the chat template ends a turn with {tokenizer.convert_ids_to_tokens(turn_end)}; generation_config.json and "
        f"the tokenizer name {named} as the end: both end a completion here, and a warm-up teaches the template's; add "
        "its number to eos_token_id of generation_config.json for programs that read that file alone"
    )


class DrawnTokens(LogitsProcessor):
    """Draws each token of ``generate``, which then takes the only one that it is left, and records its likelihood."""

    def __init__(self, next_token: NextToken, drawing: Drawing):
        self._next_token = next_token
        self._drawing = drawing
        self._found: list[Likelihood] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Raw logits, rows x V -> 1 at the drawn token of each row, and 0 elsewhere."""
        self._drawing.token()
        tokens, found = self._next_token.draw(input_ids, scores.float())
        self._found.append(found)
        return torch.zeros_like(scores).scatter_(1, tokens[:, None], 1)

    def likelihood(self) -> Likelihood:
        """The likelihood of the tokens so far, N x T. Behind the end of a row it is of tokens that nobody sees."""
        logprobs = torch.stack([found.logprobs for found in self._found], dim=1)
        entropies = [found.entropies for found in self._found if found.entropies is not None]
        return Likelihood(logprobs, torch.stack(entropies, dim=1) if entropies else None)


def padded_with_own(prompts: PromptInputs) -> PromptInputs:
    """The prompts with their first token as padding, which a repetition penalty would count."""
    mask = prompts.attention_mask.bool()
    first = prompts.input_ids.gather(1, mask.long().argmax(1, keepdim=True))
    return replace(prompts, input_ids=prompts.input_ids.where(mask, first))


@contextmanager
def generation_settings(model: nn.Module, settings: GenerationConfig) -> Iterator[None]:
    """Exactly these settings for ``generate``, which would fill in missing ones from the model's own configuration."""
    own = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers come from ``seed`` inside the block. The state outside does not change."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


class StopStrings:
    """Finds the completions that contain one of ``strings``. Their prompts do not count.

    The token that completes a string may contain more: ``>.`` completes ``</answer>`` too.

    Example:
        >>> stops = StopStrings(tokenizer, ("</answer>",))
        >>> ids = tokenizer(["<answer>3</answer>", "<answer>3</answer"], padding=True, return_tensors="pt").input_ids
        >>> stops(ids)
        tensor([ True, False])
    """

    def __init__(self, tokenizer, strings: tuple[str, ...]):
        self._match = StopStringCriteria(tokenizer, list(strings))

    @property
    def no_token(self) -> int:
        """A number that matches nothing."""
        return self._match.embedding_vec.shape[0]

    def __call__(self, completion_ids: Tensor) -> Tensor:
        """rows x tokens -> rows bool: True where the last token completes a string."""
        return self._match(completion_ids, None)

    def each_token(self, completion_ids: Tensor) -> Tensor:
        """N x T -> N x T bool: True for every token that completes a string."""
        width = self._match.maximum_token_len  # no string takes more tokens than it has characters
        windows = nn.functional.pad(completion_ids, (width - 1, 0), value=self.no_token).unfold(1, width, 1)
        return torch.cat([self(some) for some in windows.flatten(0, 1).split(2**16)]).view(completion_ids.shape)


class SharedPrefixEngine(LocalEngine):
    """Samples as ``LocalEngine`` does, with each prompt computed once. The model needs ``supports_shared_prefix``.

    Attributes:
        compiled: the decode step is compiled (``compile``).
        drafter: what drafts are taken from (``draft``). None: each forward gives one token.
    """

    compiled = False
    drafter: Drafter | None = None

    def draft(self, model: nn.Module, most: int) -> None:
        """From now on a forward verifies drafts of at most ``most`` tokens of each completion.

        Raises:
            ValueError: the model has layers of linear attention.
        """
        if states := state_tokens(model):
            raise ValueError(
                f"--draft_tokens {most} needs full attention in all layers: to take back a token of a draft, linear "
                f"attention would keep its state at each one, {most + 1} times the memory of {states:,} tokens for "
                "each completion; leave it out"
            )
        self.drafter = Drafter(DraftLengths(most))

    def compile(self, device: torch.device) -> None:
        """From now on the decode step is compiled.

        Raises:
            RuntimeError: nothing can be compiled on this machine, for this device.
        """
        try:
            torch.compile(lambda x: x + 1)(torch.ones(4, device=device))
        except Exception as error:  # a missing compiler raises many kinds
            raise RuntimeError(
                f"decoding cannot be compiled on this machine: torch.compile failed: {str(error).splitlines()[0]}. "
                "On a CPU it needs a C++ compiler (g++), on a GPU Triton; or leave out --compile_decoding."
            ) from error
        self.compiled = True

    def take_counts(self) -> DraftCounts:
        """See ``CountsDrafts``."""
        return DraftCounts() if self.drafter is None else self.drafter.take_counts()

    def _remember(self, prompts: PromptInputs, rollout: RolloutBatch, group_size: int) -> None:
        """Later drafts are taken from these completions, if the drafter learns now."""
        if self.drafter is not None:
            completions = real_tokens(rollout.completion_ids, rollout.completion_mask)
            self.drafter.remember(tokens_of(prompts), completions, group_size, frozenset(self.vision_ids))

    def _costs(self, prompts: PromptInputs, group_size: int, most: int) -> list[int]:
        if self.drafter is not None:
            most += self.drafter.lengths.most  # a draft may reach over the end of a completion
        return [length + group_size * most for length in prompts.attention_mask.sum(1).tolist()]

    def _first_turn(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams, resumable: bool
    ) -> tuple[RolloutBatch, Resume]:
        """The first turn of each completion, and what samples further ones: nothing is computed again."""
        stops = self.stops(params)
        drafter = None if self.drafter is None else self.drafter.begin()
        sampler = SharedSampler(
            model,
            prompts,
            group_size,
            params,
            suppress=self.vision_ids,
            end_ids=self.end_ids,
            pad_id=self.tokenizer.pad_token_id,
            stopping=stops,
            compiled=self.compiled,
            drawing=self.drawing,
            resumable=resumable,
            drafter=drafter,
            no_token=0 if stops is None else stops.no_token,
        )

        def resume(rows: list[int], completions: list[GrowingCompletion], room: list[int]) -> RolloutBatch:
            fresh = PromptInputs.join([each.unseen for each in completions])
            ids, likelihood = sampler.resume(rows, fresh, max(room))
            return self._finish(ids, likelihood, stops)

        ids, likelihood = sampler.first()
        return self._finish(ids, likelihood, stops), resume
