"""Sampling from the policy itself with transformers' ``generate``: the plain path, one row per completion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.rollout.base import SamplingParams, completion_mask
from qwenvl.types import RolloutBatch


class LocalSampler:
    """Samples from the model that is being trained, in eval mode and without gradient, and leaves it as it was."""

    def __init__(self, tokenizer, model: nn.Module):
        """
        Args:
            tokenizer: decodes completions; its pad token fills finished rows.
            model: the unwrapped model; it names the tokens that end a completion and those that must not be sampled.
        """
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self._tokenizer = tokenizer
        self._end_ids = sorted({end for end in [*ends, tokenizer.eos_token_id] if end is not None})
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        self._vision_ids = [model.config.to_dict()[name] for name in names]

    @torch.no_grad()
    def sample(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams, seed: int
    ) -> RolloutBatch:
        """See ``Sampler.sample``; log-probs are recorded as the trainer computes them: before top-p and suppression."""
        recorder = LogprobRecorder(params.temperature or 1.0)
        rows = prompts.repeat(group_size)
        text_positions = (rows.attention_mask.cumsum(1) - 1).clamp(min=0)
        with sampling_mode(model, self._generation_config(params)) as bare, seeded(seed, rows.input_ids.device):
            sequences = bare.generate(
                input_ids=rows.input_ids,
                attention_mask=rows.attention_mask,
                position_ids=torch.cat([text_positions[None], rows.position_ids]),
                logits_processor=LogitsProcessorList([recorder, SuppressTokens(self._vision_ids)]),
                **rows.vision(),
            )
        return self.finish(sequences[:, rows.input_ids.shape[1] :], recorder)

    def finish(self, completion_ids: Tensor, recorder: LogprobRecorder) -> RolloutBatch:
        """Masks, decodes and names the ends of N x T sampled tokens."""
        mask = completion_mask(completion_ids, self._end_ids)
        completion_ids = completion_ids.masked_fill(~mask, self._tokenizer.pad_token_id)
        ended = torch.isin(completion_ids, torch.tensor(self._end_ids, device=mask.device)) & mask
        return RolloutBatch(
            completion_ids=completion_ids,
            completion_mask=mask,
            texts=self._tokenizer.batch_decode(
                [row[keep].tolist() for row, keep in zip(completion_ids, mask, strict=True)], skip_special_tokens=True
            ),
            finish_reasons=["stop" if row else "length" for row in ended.any(1).tolist()],
            logprobs=recorder.logprobs(completion_ids).masked_fill(~mask, 0.0),
        )

    def _generation_config(self, params: SamplingParams) -> GenerationConfig:
        greedy = params.temperature == 0
        return GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            do_sample=not greedy,
            temperature=1.0 if greedy else params.temperature,
            top_p=1.0 if greedy else params.top_p,
            top_k=0,
            eos_token_id=self._end_ids,
            pad_token_id=self._tokenizer.pad_token_id,
            use_cache=True,
        )


class LogprobRecorder(LogitsProcessor):
    """Keeps log softmax(logits / temperature) of each token that is sampled.

    It must be the first processor, so that it sees the raw logits. A step's token is known only at the next step: the
    distribution is kept until then, and no more than one (rows x V) at a time.
    """

    def __init__(self, temperature: float):
        self._temperature = temperature
        self._columns: list[Tensor] = []
        self._last: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._last is not None:
            self._take(input_ids[:, -1])
        self._last = (scores.float() / self._temperature).log_softmax(-1)
        return scores

    def logprobs(self, completion_ids: Tensor) -> Tensor:
        """N x T, for the tokens that were sampled; call once, after ``generate``."""
        self._take(completion_ids[:, -1])
        return torch.stack(self._columns, dim=1)

    def _take(self, tokens: Tensor) -> None:
        self._columns.append(self._last.gather(1, tokens[:, None])[:, 0])


class SuppressTokens(LogitsProcessor):
    """Gives tokens no probability: a sampled vision token would be taken for a picture in the next pass."""

    def __init__(self, token_ids: list[int]):
        self._token_ids = token_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor(self._token_ids, device=scores.device), -torch.inf)


@contextmanager
def sampling_mode(model: nn.Module, generation: GenerationConfig) -> Iterator[nn.Module]:
    """The unwrapped model, in eval mode and with exactly the generation settings given.

    Eval mode matters beyond dropout: with gradient checkpointing, layers in train mode drop the cache without a word.
    The model's own generation settings are put aside because ``generate`` would fill in from them (a repetition
    penalty, say) what these leave open.
    """
    bare = unwrap(model)
    training = {module: module.training for module in model.modules()}
    settings = bare.generation_config
    model.eval()
    bare.generation_config = generation
    try:
        yield bare
    finally:
        bare.generation_config = settings
        for module, was_training in training.items():
            module.training = was_training


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from ``seed`` within; the state outside is as if nothing had been drawn."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
