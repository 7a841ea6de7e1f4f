"""Completions as rows of a run folder."""

from __future__ import annotations

from collections.abc import Iterator

from qwenvl.rewards.functions.looking import readable_evidence
from qwenvl.run_log.log import Rollout
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


def rollout_rows(
    step: int,
    split: str,
    batch: PromptBatch,
    rollout: RolloutBatch,
    rewards: RewardBatch,
    advantages: list[float] | None = None,
) -> Iterator[Rollout]:
    """The N completions as rows of the run folder."""
    size = len(rollout.texts) // max(1, len(batch))
    lengths = rollout.completion_mask.sum(1).tolist()
    totals = rewards.totals()
    for n, text in enumerate(rollout.texts):
        p = n // size
        record = batch.records[p]
        fitted = batch.fitted[p]
        yield Rollout(
            step=step,
            record_id=record.id,
            sample=n % size,
            prompt=tuple({"role": message.role, "text": message.text} for message in record.messages),
            solution=record.solution,
            completion=text,
            tokens=lengths[n],
            finish_reason=rollout.finish_reasons[n],
            ended_by="" if rollout.ended_by is None else rollout.ended_by[n],
            rewards={name: values[n] for name, values in zip(rewards.names, rewards.components, strict=True)},
            total=totals[n],
            advantage=None if advantages is None else advantages[n],
            clips=tuple(batch.frames[p]),
            images=record.images,
            epoch=batch.epochs[p],
            split=split,
            where=record.where,
            fitted=None if fitted is None else {"frames": fitted},
            turns=() if rollout.turns is None else tuple(rollout.turns[n]),
            evidence=() if rollout.turns is None else tuple(readable_evidence(record.fields)),
        )
