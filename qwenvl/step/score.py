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
from qwenvl.types import FinishReason, PromptBatch, Record, RewardBatch, RolloutBatch, Turn


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
        texts, columns = texts_and_columns(batches, rollouts, self.rubric)
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
    batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch], rubric: Rubric
) -> tuple[list[str], dict[str, list[Any]]]:
    """Arguments of the reward functions: the N completions of all prompts, and the columns.

    A field that the rubric requires is a column too where no record of these prompts has it: others of the data do.
    """
    # Of each completion.
    texts: list[str] = []
    ids: list[list[int]] = []
    finish_reasons: list[FinishReason] = []
    turns: list[tuple[Turn, ...]] = []
    for rollout in rollouts:
        texts += rollout.texts
        ids += real_tokens(rollout.completion_ids, rollout.completion_mask)
        finish_reasons += rollout.finish_reasons
        turns += rollout.turns or [(Turn(text),) for text in rollout.texts]  # without tools there is one turn

    # Of each prompt.
    records: list[Record] = []
    opened_think: list[bool] = []
    pictures: list[Pictures] = []
    for batch in batches:
        records += batch.records
        opened_think += batch.opened_think
        for record, clips in zip(batch.records, batch.frames, strict=True):
            pictures.append(Pictures(tuple(clips), record.images))

    size = len(texts) // max(1, len(records))
    shown: list[Pictures] = []
    for of_prompt in pictures:
        shown += [of_prompt] * size
    columns = reward_columns(
        records,
        size,
        shown=shown,
        opened_think=opened_think,
        completion_ids=ids,
        finish_reasons=finish_reasons,
        turns=turns,
    )
    for name in rubric.required_fields:
        columns.setdefault(name, [None] * len(texts))
    return texts, columns
