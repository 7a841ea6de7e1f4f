"""The teacher of a run: what it makes of the policy's own completions, token by token (on-policy distillation).

The policy lowers KL(policy || teacher) on completions that it has sampled itself (arXiv:2306.13649,
https://thinkingmachines.ai/blog/on-policy-distillation). The teacher may see more than the policy: more frames, the
right span, the solution (arXiv:2601.18734) or what the rewards gave the completion (arXiv:2601.20802).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from qwenvl.data.chat import TURN_END
from qwenvl.data.views import View
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Comparison, Likelihood
from qwenvl.model.positions import first_positions
from qwenvl.model.sharding import is_partitioned, sharded_modules, whole_weights
from qwenvl.model.vision_tower import grey_media
from qwenvl.step.collector import Collector
from qwenvl.step.count import Experience, TeacherScores
from qwenvl.step.meter import Meter
from qwenvl.types import TOTAL


@dataclass(frozen=True)
class Teacher:
    """Compares the policy with its teacher on the completions of a micro-batch.

    Attributes:
        collector: makes batches the teacher's inputs.
        model: context manager with the teacher in eval mode, without gradients.
        likelihood: log-probs of completions under it, see ``kernels.likelihood_of``.
        tokenizer: of both models.
        meter: gets KL, agreement and the share of clipped tokens.
        view: makes a sentence for each completion (``feedback``). None: prompts are those of the data set's ``view``.
        bound: largest difference of the log-probs of a token that counts. None: the exact KL is a term of the loss.
        moves: its weights are those of the policy (``self``).
    """

    collector: Collector
    model: Callable[[], AbstractContextManager[nn.Module]]
    likelihood: Callable[..., Likelihood]
    tokenizer: Any
    meter: Meter
    view: View | None
    bound: float | None
    moves: bool

    @torch.no_grad()
    def score(self, experience: Experience, engine: nn.Module | None = None) -> None:
        """Adds ``Experience.teacher``: log-probs of the completions under the teacher's prompts, by one forward.

        Later iterations reuse them, but for the states of a teacher that moves. Collective.

        Args:
            engine: the policy as DeepSpeed has wrapped it.
        """
        if experience.teacher is not None and (self.bound is not None or not self.moves):
            return
        collector, rollout, own = self.collector, experience.rollout, experience.prompts
        mask, whole, rows = rollout.completion_mask, rollout.whole, len(rollout.texts)
        with self.meter.time("time/teacher_s"), self.model() as model:
            shared = is_partitioned(model) or bool(sharded_modules(model))
            # Its tower runs where a process has media, and layers that processes share would wait for each other.
            with ((shared and collector.lock_step) or whole_weights)(model, engine):
                prompts = self._prompts(model, experience)
                if whole is not None:  # what tools have appended counts on from the teacher's prompt, which is longer
                    starts, before = (first_positions(p.position_ids, rows // len(p)) for p in (prompts, own))
                    whole = whole.moved((starts - before)[:, None])
                blind: list[Any] = []
                if collector.args.distill_on == "vision":
                    scales, encoded = collector.build_inputs.scales, collector.encode is not None
                    with collector.autocast():
                        blind = [p and grey_media(model, p, scales, encoded=encoded) for p in (prompts, whole)]
            given = (rollout.completion_ids, mask, collector.args.generation_temperature, "none")
            kept = Comparison(keep_states=self.bound is None)
            found = self.likelihood(model, prompts, *given, whole, kept)
            weights = None
            if blind:  # 1 - min(p, q) / max(p, q), with the pictures and without
                change = found.logprobs - self.likelihood(model, blind[0], *given, blind[1]).logprobs
                weights = 1 - torch.exp(-change.abs())
        states = None if found.states is None else found.states[mask]
        assert found.top is not None
        experience.teacher = TeacherScores(found.logprobs, found.top, weights, states)

    def comparison(self, policy: nn.Module, experience: Experience) -> Comparison | None:
        """What the policy's pass has to compute. None: log-probs alone."""
        if experience.teacher is None or experience.teacher.states is None:
            return Comparison() if experience.old_logprobs is None else None
        with self.model() as model:
            own, head = (unwrap(each).get_output_embeddings() for each in (policy, model))
        return Comparison(states=experience.teacher.states, head=None if head is own else head)

    def compare(self, experience: Experience, policy: Likelihood) -> None:
        """The advantages that the teacher gives the tokens of fresh completions, and the metrics of the comparison.

        A_t = weight x clip(log p_teacher - log p_policy, -bound, bound), N x T, beside the advantage of the rewards.
        In expectation over tokens its gradient is that of weight x KL(policy || teacher).
        """
        scores, mask, weight = experience.teacher, experience.loss_mask, self.collector.args.teacher_weight
        assert scores is not None and experience.old_logprobs is not None
        gap = (scores.logprobs - experience.old_logprobs).masked_fill(~mask, 0.0)
        shown = {"agree_frac": scores.top == policy.top}
        shown["kl"] = -gap if policy.divergences is None else policy.divergences.detach()
        if scores.weights is not None:
            shown["vision_frac"] = scores.weights
        if self.bound is not None:
            shown["clipped_frac"] = gap.abs() > self.bound
            if weight:
                taught = 1.0 if scores.weights is None else scores.weights
                scores.advantages = weight * taught * gap.clamp(-self.bound, self.bound)
        if tokens := int(mask.sum()):
            for name, values in shown.items():
                self.meter.mean(f"teacher/{name}", values[mask].double().mean().item(), weight=tokens)

    def _prompts(self, model: nn.Module, experience: Experience) -> PromptInputs:
        """The prompts as the teacher sees them: P, or N where each completion has its own."""
        batch, prompts, texts = experience.batch, experience.prompts, experience.rollout.texts
        if batch.teacher is not None:
            [prompts] = self.collector.encoded(model, [batch.teacher])
        if self.view is None or not len(batch):  # a stand-in
            return prompts
        rows, columns = [], experience.rewards.columns()
        del columns[TOTAL]
        for n, text in enumerate(texts):
            p = n * len(batch) // len(texts)
            sentence = self.view(batch.records[p], text, {name: values[n] for name, values in columns.items()})
            rows.append(with_sentence(prompts.select([p]), sentence, self.tokenizer))
        return PromptInputs.join(rows)


def with_sentence(prompt: PromptInputs, sentence: str, tokenizer: Any) -> PromptInputs:
    """One prompt without padding, with a sentence on a line of its own at the end of its last user turn."""
    ids, positions = prompt.input_ids[0], prompt.position_ids
    place = int((ids == tokenizer.convert_tokens_to_ids(TURN_END)).nonzero()[-1])
    more = ids.new_tensor(tokenizer(f"\n{sentence}")["input_ids"])
    added = positions[..., place, None] + torch.arange(len(more), device=ids.device)
    behind = positions[..., place:] + len(more)  # text alone
    return replace(
        prompt,
        input_ids=torch.cat([ids[:place], more, ids[place:]])[None],
        attention_mask=prompt.attention_mask.new_ones(1, len(ids) + len(more)),
        position_ids=torch.cat([positions[..., :place], added, behind], dim=-1),
    )
