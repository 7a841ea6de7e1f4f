"""The teacher of a run: what it makes of the policy's own completions, token by token (on-policy distillation).

The policy learns from KL(policy || teacher) on completions that it has sampled itself (arXiv:2306.13649,
https://thinkingmachines.ai/blog/on-policy-distillation). The teacher may see more than the policy: more frames, the
right span, the solution (arXiv:2601.18734) or what the rewards gave the completion (arXiv:2601.20802).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.views import ScoredCompletion, View
from qwenvl.model.inputs import InputBuilder, PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Comparison, Likelihood
from qwenvl.model.positions import first_positions, prompt_positions
from qwenvl.model.vision_tower import features_or_pixels, grey_media
from qwenvl.train.meter import Meter
from qwenvl.train.step import Experience, TeacherScores
from qwenvl.types import places_of


@dataclass(frozen=True)
class Teacher:
    """Compares the policy with its teacher on the completions of a micro-batch.

    Attributes:
        args: the settings.
        model: context manager with the teacher in eval mode, without gradients.
        likelihood: log-probs of completions under it, see ``fast_paths.likelihood_of``.
        encode: runs its vision tower once per prompt. None where the tower runs in every forward.
        build: makes a batch its inputs.
        collator: makes the prompts of ``view``.
        autocast: the precision of forwards.
        meter: gets KL, agreement and the share of clipped tokens.
        view: makes a prompt for each completion (``feedback``). None: prompts are those of the data set's ``view``.
        bound: largest difference of the log-probs of a token that counts. None: the exact KL is a term of the loss.
        moves: its weights are those of the policy (``self``).
        own_head: its head is another one than the policy's.
    """

    args: GRPOConfig
    model: Callable[[], AbstractContextManager[nn.Module]]
    likelihood: Callable[..., Likelihood]
    encode: Callable[..., PromptInputs] | None
    build: InputBuilder
    collator: GRPOCollator
    autocast: Callable[[], AbstractContextManager]
    meter: Meter
    view: View | None = None
    bound: float | None = None
    moves: bool = False
    own_head: bool = True

    @torch.no_grad()
    def score(self, experience: Experience) -> None:
        """Adds ``Experience.teacher``: log-probs of the completions under the teacher's prompts, by one forward.

        Later iterations reuse them, but for the states of a teacher that moves.
        """
        if experience.teacher is not None and (self.bound is not None or not self.moves):
            return
        rollout = experience.rollout
        with self.meter.time("time/teacher_s"), self.model() as model:
            prompts = self._prompts(model, experience)
            # What tools have appended counts on from the teacher's prompt, which is longer.
            further = first_positions(prompts.position_ids, len(rollout.texts) // len(prompts)) - first_positions(
                experience.prompts.position_ids, len(rollout.texts) // len(experience.prompts)
            )
            whole = rollout.whole
            whole = whole and replace(whole, position_ids=whole.position_ids + further[:, None])
            ids, mask = rollout.completion_ids, rollout.completion_mask
            given = (model, prompts, ids, mask, self.args.generation_temperature, "none", whole)
            found = self.likelihood(*given, comparison=Comparison(keep_states=self.bound is None))
            weights = None
            if self.args.distill_on == "vision":
                grey = partial(grey_media, model, scales=self.build.scales, encoded=self.encode is not None)
                with self.autocast():
                    blind = (model, grey(prompts), *given[2:6], whole and grey(whole))
                weights = share_changed(found.logprobs, self.likelihood(*blind).logprobs)
        states = None if found.states is None else found.states[mask]
        experience.teacher = TeacherScores(found.logprobs, found.top, weights, states)

    def comparison(self, experience: Experience) -> Comparison | None:
        """What the policy's pass has to compute. None: log-probs alone."""
        scores = experience.teacher
        if scores is None or scores.states is None:
            return Comparison() if experience.old_logprobs is None else None
        if not self.own_head:
            return Comparison(states=scores.states)
        with self.model() as model:
            return Comparison(states=scores.states, head=unwrap(model).get_output_embeddings())

    def compare(self, experience: Experience, policy: Likelihood) -> None:
        """The advantages that the teacher gives the tokens of fresh completions, and the metrics of the comparison.

        A_t = weight x clip(log p_teacher - log p_policy, -bound, bound), N x T, beside the advantage of the rewards.
        In expectation over tokens its gradient is that of weight x KL(policy || teacher).
        """
        scores, mask = experience.teacher, experience.loss_mask
        assert scores is not None and experience.old_logprobs is not None
        gap = (scores.logprobs - experience.old_logprobs).masked_fill(~mask, 0.0)
        shown = {"teacher/kl": -gap if policy.divergences is None else policy.divergences.detach()}
        if scores.top is not None and policy.top is not None:
            shown["teacher/agree_frac"] = scores.top == policy.top
        if self.bound is not None:
            shown["teacher/clipped_frac"] = gap.abs() > self.bound
            if self.args.teacher_weight:
                gap = gap.clamp(-self.bound, self.bound)
                scores.advantages = self.args.teacher_weight * (gap if scores.weights is None else gap * scores.weights)
        if scores.weights is not None:
            shown["teacher/vision_frac"] = scores.weights
        if tokens := int(mask.sum()):
            for name, values in shown.items():
                self.meter.mean(name, values[mask].double().mean().item(), weight=tokens)

    def _prompts(self, model: nn.Module, experience: Experience) -> PromptInputs:
        """The prompts as the teacher sees them: P, or N where each completion has its own."""
        batch, prompts = experience.batch, experience.prompts
        if not len(batch):  # a stand-in
            return prompts
        if batch.teacher is not None:
            encode = self.encode
            prompts = features_or_pixels(model, batch.teacher, self.args.device, self.build, encode, self.autocast)
        if self.view is None:
            return prompts
        columns, texts = experience.rewards.columns(), experience.rollout.texts
        size = len(texts) // len(batch)
        records = [
            self.view(
                batch.records[n // size],
                ScoredCompletion(
                    text, {name: columns[name][n] for name in experience.rewards.names}, columns["total"][n]
                ),
            )
            for n, text in enumerate(texts)
        ]
        ids, mask = self.collator.retold(batch, records, prompts.image_grid_thw, prompts.video_grid_thw)
        rows = prompts.repeat(size)
        videos = places_of(batch.videos_per_prompt, [n // size for n in range(len(texts))])
        seconds = None if batch.seconds_per_grid is None else batch.seconds_per_grid[videos]
        grids = (rows.image_grid_thw, rows.video_grid_thw)
        positions = prompt_positions(self.build.rule, ids, mask, *grids, seconds)
        there = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return replace(rows, **{name: value.to(prompts.input_ids.device) for name, value in there.items()})


def share_changed(seen: Tensor, blind: Tensor) -> Tensor:
    """1 - min(p, q) / max(p, q) of two log-probs: the share of a token's probability that the pictures decide, 0 to 1.

    Example:
        >>> share_changed(torch.tensor([0.5]).log(), torch.tensor([0.25]).log())
        tensor([0.5000])
    """
    return 1 - torch.exp(-(seen - blind).abs())
