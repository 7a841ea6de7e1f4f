"""The stage *score*: completions get their rewards, all of a step in one call of the reward functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qwenvl.data.dataset import Pictures
from qwenvl.rewards import Rubric, reward_columns
from qwenvl.rollout.engine import real_tokens
from qwenvl.step.groups import rewards_of_rows, without_pixels
from qwenvl.step.sample import Sampler
from qwenvl.step.types import Sampled, Scored, Stage, StepContext
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch, Turn


@dataclass(frozen=True)
class Score:
    """Scores completions by the rubric of the run. One call for a whole step lets slow functions run side by side."""

    rubric: Rubric

    def __call__(self, batches: Sequence[Sampled], step: StepContext) -> list[Scored]:
        """The micro-batches with their rewards."""
        with step.meter.time("time/reward_s"):
            rewards = self.rewards([each.batch for each in batches], [each.rollout for each in batches], step)
        scored = []
        done = 0
        for each in batches:
            rows = range(done, done + len(each.rollout.texts))
            done = rows.stop
            scored.append(
                Scored(
                    batch=without_pixels(each.batch),
                    prompts=each.prompts,
                    rollout=each.rollout,
                    staleness=each.staleness,
                    rewards=rewards_of_rows(rewards, rows),
                )
            )
        return scored

    def rewards(
        self, batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch], step: StepContext
    ) -> RewardBatch:
        """The rewards of all completions, by one call."""
        texts, columns = texts_and_columns(batches, rollouts)
        return self.rubric.score(texts, columns, trainer_state=step.trainer_state)


@dataclass(frozen=True)
class ScoredGroups:
    """Two stages in a row: prompts are sampled, and their completions scored."""

    sample: Sampler
    score: Stage[Sampled, Scored]

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> Sequence[Scored]:
        """The micro-batches with completions and rewards."""
        return self.score(self.sample(batches, step), step)


def texts_and_columns(
    batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch]
) -> tuple[list[str], dict[str, list[Any]]]:
    """Arguments of the reward functions: the N completions of all prompts, and the columns."""
    texts = [text for each in rollouts for text in each.texts]
    records = [record for batch in batches for record in batch.records]
    frames = [clips for batch in batches for clips in batch.frames]
    size = len(texts) // max(1, len(records))
    shown = []
    for record, clips in zip(records, frames, strict=True):
        shown += [Pictures(tuple(clips), record.images)] * size
    turns: list[Any] = []
    ids: list[list[int]] = []
    for each in rollouts:
        turns += each.turns or [(Turn(text),) for text in each.texts]
        ids += real_tokens(each.completion_ids, each.completion_mask)
    columns = reward_columns(
        records,
        size,
        shown=shown,
        opened_think=[opened for batch in batches for opened in batch.opened_think],
        completion_ids=ids,
        finish_reasons=[reason for each in rollouts for reason in each.finish_reasons],
        turns=turns,
    )
    return texts, columns
