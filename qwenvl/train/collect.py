"""Exploration: prompts become scored completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.seeds import stable_random
from qwenvl.grpo.advantages import group_advantages
from qwenvl.model.inputs import InputBuilder, PromptInputs
from qwenvl.rewards import Rubric, reward_columns
from qwenvl.rollout.engine import Sampler, SamplingParams, split_rollouts
from qwenvl.train.contrast import NAME, TemporalContrast
from qwenvl.train.meter import Meter
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass
class Experience:
    """A micro-batch of prompts with what the policy made of them: N completions, their rewards and advantages (N).

    Attributes:
        old_logprobs, ref_logprobs: N x T, of the policy before it was trained on them, and of the reference; each step
            on the experience but the first finds them here.
    """

    batch: PromptBatch
    prompts: PromptInputs
    rollout: RolloutBatch
    rewards: RewardBatch
    advantages: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None

    def scored(self) -> tuple[PromptInputs, RolloutBatch]:
        """What the models give log-probs to: a token where there is nothing, as other processes wait for a forward."""
        if len(self.batch):
            return self.prompts, self.rollout
        token = torch.zeros(1, 1, dtype=torch.long, device=self.advantages.device)
        stand_in = RolloutBatch(token, torch.ones_like(token, dtype=torch.bool), texts=[""], finish_reasons=["length"])
        return PromptInputs.of_text(token), stand_in


@dataclass(frozen=True)
class Explorer:
    """Samples completions with a sampler, scores them with a rubric and compares them within their groups.

    Attributes:
        encode: runs the vision tower once per prompt; None where it has to run in every forward.
    """

    args: GRPOConfig
    build_inputs: InputBuilder
    encode: Callable[[nn.Module, PromptInputs], PromptInputs] | None
    sampler: Sampler
    rubric: Rubric
    accelerator: Accelerator
    meter: Meter
    contrast: TemporalContrast | None = None

    def explore(self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState) -> list[Experience]:
        """One experience for each micro-batch of an optimizer step; all processes must call it together."""
        size = self.args.grpo_sample_size
        with self.meter.time("time/vision_s") if self.encode is not None else nullcontext():
            prompts = [self._encode(model, batch) for batch in batches]
        sizes = [len(batch) * size for batch in batches]
        with self.meter.time("time/sample_s"):
            rollouts = self._sample(model, batches, prompts, size, self.args.generation_temperature)
        with self.meter.time("time/reward_s"):
            rewards = self._score(batches, rollouts, state, group_size=size)
        if self.contrast is not None:
            rewards = self._contrast(self.contrast, model, batches, rollouts, rewards, state)
        parts = zip(batches, prompts, rollouts, split_rewards(rewards, sizes), strict=True)
        advantages = self._advantages(rewards.total).split(sizes)
        return [Experience(*part, advantages=a) for part, a in zip(parts, advantages, strict=True)]

    def evaluate(self, model: nn.Module, batch: PromptBatch, state: TrainerState) -> tuple[RolloutBatch, RewardBatch]:
        """``eval_sample_size`` completions per prompt, greedy if that is 1, and their rewards."""
        size = self.args.eval_sample_size
        temperature = 0.0 if size == 1 else self.args.generation_temperature
        (rollout,) = self._sample(model, [batch], [self._encode(model, batch)], size, temperature)
        return rollout, self._score([batch], [rollout], state)

    def _contrast(
        self,
        contrast: TemporalContrast,
        model: nn.Module,
        batches: Sequence[PromptBatch],
        rollouts: Sequence[RolloutBatch],
        rewards: RewardBatch,
        state: TrainerState,
    ) -> RewardBatch:
        """The rewards with the bonus for answers that need the order of the frames."""
        size = contrast.group_size(self.args.grpo_sample_size)
        parts = [contrast.shuffled(batch, self.args.seed) for batch in batches]
        with self.meter.time("time/contrast_s"):
            prompts = [self._encode(model, part) for part in parts]
            again = self._sample(model, parts, prompts, size, self.args.generation_temperature, NAME)
            (other,) = contrast.correctness.values(*_texts_and_columns(parts, again), trainer_state=state)
            (ordered,) = contrast.correctness.values(*_texts_and_columns(batches, rollouts), trainer_state=state)
        known = [[v for v in other[n : n + size] if v is not None] for n in range(0, len(other), size)]
        means = iter([sum(values) / len(values) if values else None for values in known])
        videos = [count > 0 for batch in batches for count in batch.videos_per_prompt]
        return contrast.add(rewards, ordered, [next(means) if video else None for video in videos])

    def _encode(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """Model inputs on the device; where the tower is frozen, its features in the place of pixels."""
        return self._features(model, self.build_inputs(batch.to(self.args.device)))

    def _features(self, model: nn.Module, prompts: PromptInputs) -> PromptInputs:
        if self.encode is None:
            return prompts
        with self.accelerator.autocast():
            return self.encode(model, prompts)

    def _sample(
        self,
        model: nn.Module,
        batches: Sequence[PromptBatch],
        prompts: Sequence[PromptInputs],
        size: int,
        temperature: float,
        *purpose: str,
    ) -> list[RolloutBatch]:
        """Rollouts of all micro-batches, drawn together; those of the same prompts for another purpose are others."""
        drawn = [pair for batch in batches for pair in zip(batch.epochs, (r.id for r in batch.records), strict=True)]
        if not drawn:  # all samples were bad
            empty = torch.zeros(0, 1, dtype=torch.long, device=self.args.device)
            return [RolloutBatch(empty, empty.bool(), texts=[], finish_reasons=[]) for _ in batches]
        params = SamplingParams(
            max_new_tokens=self.args.generation_max_length,
            temperature=temperature,
            top_k=self.args.generation_top_k,
            top_p=self.args.generation_top_p,
            min_p=self.args.generation_min_p,
            repetition_penalty=self.args.generation_repetition_penalty,
            stop_strings=tuple(self.args.stop_strings or ()),
            token_budget=self.args.rollout_token_budget,
        )
        # The process is part of the seed: two that draw the same prompt should not draw the same completions.
        seed = stable_random(self.args.seed, self.args.process_index, *drawn, *purpose).getrandbits(63)
        with self.accelerator.autocast():
            joined = PromptInputs.join([part for part in prompts if len(part)])
            rollout = self.sampler.sample(model, joined, size, params, seed)
        return split_rollouts(rollout, [len(batch) * size for batch in batches])

    def _score(
        self,
        batches: Sequence[PromptBatch],
        rollouts: Sequence[RolloutBatch],
        state: TrainerState,
        group_size: int | None = None,
    ) -> RewardBatch:
        """Rewards of all completions in one call; ``group_size`` where they are groups to be compared."""
        texts, columns = _texts_and_columns(batches, rollouts)
        return self.rubric.score(texts, columns, group_size=group_size, trainer_state=state)

    def _advantages(self, totals: Tensor) -> Tensor:
        """N advantages; with ``scale_rewards batch`` the spread is that of the whole step, on all processes."""
        shared = self.args.scale_rewards == "batch"
        by_process = gather_object([totals.tolist()]) if shared else [totals.tolist()]
        joined = torch.tensor([total for process in by_process for total in process], dtype=totals.dtype)
        advantages = group_advantages(joined, self.args.grpo_sample_size, self.args.scale_rewards)
        own = self.args.process_index if shared else 0
        return advantages.split([len(process) for process in by_process])[own].to(self.args.device)


def _texts_and_columns(
    batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch]
) -> tuple[list[str], dict[str, list[Any]]]:
    """What reward functions take: the N completions of all prompts, and the columns beside them."""
    rows = [
        (text, ids[mask].tolist(), reason)
        for each in rollouts
        for text, ids, mask, reason in zip(
            each.texts, each.completion_ids, each.completion_mask, each.finish_reasons, strict=True
        )
    ]
    columns = reward_columns(
        [record for batch in batches for record in batch.records],
        len(rows) // max(1, sum(len(batch) for batch in batches)),
        opened_think=[opened for batch in batches for opened in batch.opened_think],
        completion_ids=[ids for _, ids, _ in rows],
        finish_reasons=[reason for _, _, reason in rows],
    )
    return [text for text, _, _ in rows], columns


def split_rewards(rewards: RewardBatch, sizes: Sequence[int]) -> list[RewardBatch]:
    """The rows of ``rewards`` cut into consecutive batches of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        components = [values[rows] for values in rewards.components]
        parts.append(replace(rewards, components=components, total=rewards.total[rows]))
        start += size
    return parts
