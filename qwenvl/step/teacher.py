"""The teacher of a run: what it makes of the policy's own completions, token by token (on-policy distillation).

The policy lowers KL(policy || teacher) on completions that it has sampled itself (arXiv:2306.13649,
https://thinkingmachines.ai/blog/on-policy-distillation). The teacher may see more than the policy: more frames, the
right span, the solution (arXiv:2601.18734) or what the rewards gave the completion (arXiv:2601.20802).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qwenvl.data.chat import VISION_END, render_end
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.views import View, sentence_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Extras, Likelihood
from qwenvl.model.positions import first_positions
from qwenvl.model.sharding import shares_weights, whole_weights
from qwenvl.model.vision_tower import grey_media
from qwenvl.step.encode import Encode
from qwenvl.step.likelihood import CompletionLikelihood
from qwenvl.step.meter import Meter
from qwenvl.step.processes import GatherWeights
from qwenvl.step.types import Experience, FixedLogprobs, StepContext, TeacherScores
from qwenvl.types import TOTAL, Record


@dataclass(frozen=True)
class TeacherInputs:
    """Prompts and completions as a teacher reads them.

    Attributes:
        prompts: P, or N where each completion has its own.
        whole: the completions with what tools have appended to them. None without tools.
    """

    prompts: PromptInputs
    whole: PromptInputs | None


@dataclass(frozen=True)
class Teacher:
    """Scores the policy's completions under a teacher, and makes of these scores what the policy learns from.

    Attributes:
        encode: makes batches the teacher's inputs.
        gather_weights: the context in which a model can run whose weights processes share.
        model: context manager with the teacher in eval mode, without gradients.
        likelihood: log-probs of completions under the teacher.
        prompts_of: makes prompts, for both models.
        view: makes a sentence for each completion (``feedback``). None: prompts are those of the data set's ``view``.
        bound: largest difference of the log-probs of a token that counts. None: the exact KL is a term of the loss.
        weight: of the advantages that the teacher gives.
        moves: its weights change between the iterations on the same completions: those of the policy (``self``), or of
            a reference that follows it. Hidden states of earlier weights would meet the head of the newest.
        on_vision: a token is taught as much as the teacher's pictures matter for it (``distill_on vision``).
    """

    encode: Encode
    gather_weights: GatherWeights
    model: Callable[[], AbstractContextManager[nn.Module]]
    likelihood: CompletionLikelihood
    prompts_of: GRPOCollator
    view: View | None
    bound: float | None
    weight: float
    moves: bool
    on_vision: bool

    @torch.no_grad()
    def scores(self, experience: Experience, known: FixedLogprobs | None, step: StepContext) -> TeacherScores:
        """Log-probs of the completions under the teacher's prompts, by one forward. Collective.

        Args:
            known: of an earlier iteration, whose scores are reused. The states of a teacher that moves are renewed.
        """
        if known is not None and known.teacher is not None and not (self.moves and self.bound is None):
            return known.teacher
        with step.meter.time("time/teacher_s"), self.model() as model:
            inputs, grey_inputs = self._inputs(model, experience, step)
            rollout = replace(experience.rollout, whole=inputs.whole)
            kept = Extras(keep_states=self.bound is None)  # the exact KL needs the whole distribution of each token
            found = self.likelihood.of_rollout(model, inputs.prompts, rollout, extras=kept)
            weights = None
            if grey_inputs is not None:
                grey_rollout = replace(experience.rollout, whole=grey_inputs.whole)
                grey = self.likelihood.of_rollout(model, grey_inputs.prompts, grey_rollout)
                # 1 - min(p, q) / max(p, q), of a token's probability with the pictures and without
                weights = 1 - torch.exp(-(found.logprobs - grey.logprobs).abs())
        states = None if found.states is None else found.states[rollout.completion_mask]
        assert found.top is not None
        return TeacherScores(logprobs=found.logprobs, top=found.top, weights=weights, states=states)

    def _inputs(
        self, model: nn.Module, experience: Experience, step: StepContext
    ) -> tuple[TeacherInputs, TeacherInputs | None]:
        """The teacher's prompts and completions, and the same with grey pictures. None without ``on_vision``."""
        whole = experience.rollout.whole
        completions = len(experience.rollout.texts)
        # Its tower runs where a process has media, and layers that processes share would wait for each other.
        gather_weights = self.gather_weights if shares_weights(model) else whole_weights
        with gather_weights(model, step.wrapped):
            prompts = self._prompts(model, experience)
            if whole is not None:
                # The positions of completions go on from the end of the prompt, and the teacher's prompt is longer.
                of_teacher = first_positions(prompts.position_ids, completions // len(prompts))
                of_policy = first_positions(
                    experience.prompts.position_ids, completions // len(experience.prompts)
                )
                whole = whole.moved((of_teacher - of_policy)[:, None])
            inputs = TeacherInputs(prompts, whole)
            if not self.on_vision:
                return inputs, None
            scales = self.encode.build_inputs.scales
            are_features = self.encode.encode_vision is not None
            with self.encode.autocast():
                grey_prompts = grey_media(model, prompts, scales, encoded=are_features)
                grey_whole = None if whole is None else grey_media(model, whole, scales, encoded=are_features)
        return inputs, TeacherInputs(grey_prompts, grey_whole)

    def extras(self, policy: nn.Module, scores: TeacherScores, *, fresh: bool) -> Extras | None:
        """The extras that the policy's pass has to compute beside log-probs. None: there are none.

        Args:
            fresh: the policy was not trained on the completions yet.
        """
        if scores.states is None:
            return Extras() if fresh else None
        own = unwrap(policy).get_output_embeddings()
        with self.model() as model:
            head = unwrap(model).get_output_embeddings()
        return Extras(states=scores.states, head=None if head is own else head)

    def advantages(
        self, experience: Experience, scores: TeacherScores, policy: Likelihood, old_logprobs: Tensor, meter: Meter
    ) -> Tensor | None:
        """The advantages that the teacher gives the tokens of fresh completions, N x T. Its metrics go to the meter.

        A_t = weight x clip(log p_teacher - log p_policy, -bound, bound), beside the advantage of the rewards. In
        expectation over tokens its gradient is that of weight x KL(policy || teacher). None: the exact KL is a term of
        the loss, or the weight is 0.
        """
        mask = experience.loss_mask
        gap = (scores.logprobs - old_logprobs).masked_fill(~mask, 0.0)
        shown = {"agree_frac": scores.top == policy.top}
        # -gap is the estimate k1 of the KL, from the sampled tokens alone.
        shown["kl"] = -gap if policy.divergences is None else policy.divergences.detach()
        if scores.weights is not None:
            shown["vision_frac"] = scores.weights
        advantages = None
        if self.bound is not None:
            shown["clipped_frac"] = gap.abs() > self.bound
            if self.weight:
                token_weights = 1.0 if scores.weights is None else scores.weights
                advantages = self.weight * token_weights * gap.clamp(-self.bound, self.bound)
        tokens = int(mask.sum())
        if tokens:
            for name, values in shown.items():
                meter.mean(f"teacher/{name}", values[mask].double().mean().item(), weight=tokens)
        return advantages

    def _prompts(self, model: nn.Module, experience: Experience) -> PromptInputs:
        """The prompts as the teacher sees them: P, or N where each completion has its own."""
        batch = experience.batch
        prompts = experience.prompts
        if batch.teacher is not None:
            prompts = self.encode.inputs(model, batch.teacher)
        if self.view is None or not len(batch):  # a stand-in
            return prompts
        columns = experience.rewards.columns()
        del columns[TOTAL]
        texts = experience.rollout.texts
        group_size = len(texts) // len(batch)
        rows = []
        for n, text in enumerate(texts):
            p = n // group_size
            record = batch.records[p]
            rewards = {name: values[n] for name, values in columns.items()}
            sentence = sentence_of(self.view, record, text, rewards)
            rows.append(with_sentence(prompts.select([p]), record, sentence, self.prompts_of))
        return PromptInputs.join(rows)


def with_sentence(prompt: PromptInputs, record: Record, sentence: str, collator: GRPOCollator) -> PromptInputs:
    """One prompt without padding, with a sentence on a line of its own at the end of its last user turn.

    All text behind the last image or clip is tokenised anew: a token may hold the end of the question and the new line.
    """
    tokenizer = collator.processor.tokenizer
    ids = prompt.input_ids[0]
    end_of_media = (ids == tokenizer.convert_tokens_to_ids(VISION_END)).nonzero()
    kept = int(end_of_media[-1]) + 1 if len(end_of_media) else 0  # tokens up to the last image or clip

    end = render_end(collator.processor, record, sentence, collator.ruler.template_arguments)
    more = ids.new_tensor(tokenizer(end)["input_ids"])
    # Behind the last media there is text alone, whose positions rise by one with each token, on every axis.
    positions = prompt.position_ids
    positions_of_more = positions[..., kept, None] + torch.arange(len(more), device=ids.device)
    return replace(
        prompt,
        input_ids=torch.cat([ids[:kept], more])[None],
        attention_mask=prompt.attention_mask.new_ones(1, kept + len(more)),
        position_ids=torch.cat([positions[..., :kept], positions_of_more], dim=-1),
    )
