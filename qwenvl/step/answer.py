"""Completions without training: what evaluation, probe, try, label and serve share with a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qwenvl.rollout.engine import SamplingParams, within_budget
from qwenvl.step.sample import SampleNow
from qwenvl.step.score import Score
from qwenvl.step.types import EncodedPrompts, StepContext
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass(frozen=True)
class Answer:
    """Samples completions for an evaluation, and scores them, by the stages of training.

    Processes may have different numbers of batches: none of its calls is collective. Enter ``Sampler.ready`` before.
    """

    sample: SampleNow
    score: Score

    def complete(
        self, batches: Sequence[PromptBatch], size: int, step: StepContext, params: SamplingParams | None = None
    ) -> list[RolloutBatch]:
        """``size`` completions per prompt. The batches are sampled together.

        Args:
            params: how completions are drawn. None: greedily where the size is 1, else as in training.
        """
        if params is None:
            params = self.sample.params
            if size == 1:
                params = replace(params, temperature=0.0)
        encode = self.sample.encode
        encoded = [EncodedPrompts(batch, encode.inputs(step.policy, batch)) for batch in batches]
        rollouts = self.sample.completions(encoded, size, params, step)
        require_finite(rollouts)
        return rollouts

    def __call__(
        self, batches: Sequence[PromptBatch], size: int, step: StepContext
    ) -> list[tuple[RolloutBatch, RewardBatch]]:
        """``size`` completions per prompt, greedy if that is 1, and their rewards.

        With size > 1 the random draws depend on which batches are sampled together.
        """
        answers = []
        for batch, rollout in zip(batches, self.complete(batches, size, step), strict=True):
            # Scored batch by batch: a reward that fails takes no other batch with it.
            answers.append((rollout, self.score.rewards([batch], [rollout], step)))
        return answers


def require_finite(rollouts: Sequence[RolloutBatch]) -> None:
    """Check the log-probs of completions that no loss is computed from.

    Raises:
        FloatingPointError: the model gives sampled tokens log-probs that are NaN or infinite.
    """
    bad = [each for each in rollouts if each.logprobs is not None and not each.logprobs.isfinite().all()]
    if bad:
        raise FloatingPointError(
            "the model's log-probs of sampled tokens are NaN or infinite: its weights are, or its logits overflow in "
            "this precision; evaluate an earlier checkpoint, or use --bf16 True or full precision in place of --fp16"
        )


def in_budget(batches: Iterable[PromptBatch], *, new_tokens: int, budget: int) -> Iterator[list[PromptBatch]]:
    """Consecutive batches that are sampled together. One that exceeds the budget alone is a group.

    Args:
        new_tokens: most that the completions of a prompt may have together.
        budget: of prompts and completions, each prompt padded to the longest.
    """
    return within_budget(
        batches,
        budget,
        cost=lambda batch: batch.input_ids.shape[1] + new_tokens,
        members=len,
    )
