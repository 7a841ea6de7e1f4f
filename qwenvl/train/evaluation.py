"""From scored completions of an evaluation to metrics with intervals."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qwenvl.data.errors import RecordError
from qwenvl.grpo.diagnostics import mean_interval
from qwenvl.rollout.engine import within_budget
from qwenvl.types import PromptBatch, RewardBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoredPrompt:
    """One prompt of an evaluation: where its record stands, and its rewards, the mean over its completions."""

    where: str
    rewards: dict[str, float]


def in_budget(batches: Iterable[PromptBatch], *, new_tokens: int, budget: int | None) -> Iterator[list[PromptBatch]]:
    """Consecutive batches that are sampled together. One that exceeds the budget alone is a group.

    Args:
        new_tokens: most that the completions of a prompt may have together.
        budget: of prompts and completions, each prompt padded to the longest. None: each batch by itself.
    """
    return within_budget(
        batches,
        0 if budget is None else budget,
        cost=lambda batch: batch.input_ids.shape[1] + new_tokens,
        members=len,
    )


def scored_prompts(batch: PromptBatch, rewards: RewardBatch) -> list[ScoredPrompt]:
    """P prompts. A reward that applies to none of a prompt's completions is left out for it.

    A completion that no function gave a value, because it failed and ``on_reward_error`` is ``skip``, has no total.
    """
    group_size = rewards.total.numel() // max(1, len(batch))
    columns = rewards.columns()
    prompts = []
    for p, record in enumerate(batch.records):
        rows = slice(p * group_size, (p + 1) * group_size)
        groups = {name: [v for v in values[rows] if v is not None] for name, values in columns.items()}
        means = {name: sum(values) / len(values) for name, values in groups.items() if values}
        prompts.append(ScoredPrompt(record.where, means))
    return prompts


def evaluation_metrics(prompts: list[ScoredPrompt], prefix: str, needed: str | None = None) -> dict[str, float]:
    """``{prefix}_{name}_reward`` for each reward and ``total``, its 95 % interval (``_ci95``, half the width), ``_n``.

    A prompt counts once, however many processes or completions it had: completions of one prompt are not independent.
    Where no completion has a reward there is no metric, and a warning.

    Args:
        needed: the metric that checkpoints or the learning rate go by, with or without ``eval_`` before it.

    Raises:
        RecordError: it is one of this evaluation, and no completion has a reward.
    """
    unique = {prompt.where: prompt for prompt in prompts}.values()
    names = list(dict.fromkeys(name for prompt in unique for name in prompt.rewards))
    if not names:
        _tell_of_nothing(len(unique), prefix, needed)
    metrics: dict[str, float] = {}
    for name in names:
        interval = mean_interval([prompt.rewards[name] for prompt in unique if name in prompt.rewards])
        metrics[f"{prefix}_{name}_reward"] = interval.mean
        metrics[f"{prefix}_{name}_reward_ci95"] = interval.half_width
        metrics[f"{prefix}_{name}_reward_n"] = interval.n
    return metrics


def _tell_of_nothing(prompts: int, prefix: str, needed: str | None) -> None:
    what = f"{prompts} prompts, and no completion has a reward" if prompts else "every record was left out"
    told = f"{prefix}: {what}, for the reasons given above. There is no {prefix}_total_reward"
    if needed is not None and f"eval_{needed.removeprefix('eval_')}".startswith(f"{prefix}_"):
        raise RecordError(f"{told}, and --metric_for_best_model {needed} can't be told: mend the rewards or the data")
    logger.warning(told)
