"""Makes metrics with intervals from the scored completions of an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.run_log.intervals import clustered_interval, clusters_by
from qwenvl.types import EVALUATED, EVALUATED_LOSS, PromptBatch, RewardBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt of an evaluation.

    Attributes:
        where: the place of its record.
        rewards: for each reward the mean over its completions.
        media: its clips and images.
    """

    where: str
    rewards: dict[str, float]
    media: tuple[str, ...] = ()


def scored_prompts(batch: PromptBatch, rewards: RewardBatch) -> list[ScoredPrompt]:
    """The P prompts of a batch with their mean rewards. A reward that no completion of a prompt has is left out for it.

    A completion that no function gave a value, because it failed and ``on_reward_error`` is ``skip``, has no total.
    """
    group_size = rewards.total.numel() // max(1, len(batch))
    columns = rewards.columns()
    prompts = []
    for p, record in enumerate(batch.records):
        rows = slice(p * group_size, (p + 1) * group_size)
        means: dict[str, float] = {}
        for name, values in columns.items():
            given = [value for value in values[rows] if value is not None]
            if given:
                means[name] = sum(given) / len(given)
        prompts.append(ScoredPrompt(record.where, means, (*record.videos, *record.images)))
    return prompts


def require_metric(wanted: str, evaluation: Any, metrics_of: Callable[[str], list[str]]) -> None:
    """Refuse a ``metric_for_best_model`` that no evaluation of the run will have.

    The Trainer looks for it after the first evaluation only.

    Args:
        wanted: its name, with or without ``eval_`` before it.
        evaluation: the data set that the run evaluates on, or several by name.
        metrics_of: from a prefix to the metrics of an evaluation, without the intervals and numbers beside them.

    Raises:
        ValueError: the message has the names of those that there are.
    """
    names: list[str] = []
    if isinstance(evaluation, dict):
        for each in evaluation:
            names += metrics_of(f"eval_{each}")
    else:
        names += metrics_of("eval")
    name = f"eval_{wanted.removeprefix('eval_')}"
    # What stands beside the means may be followed too, though hardly anybody would.
    beside = [f"{each}_n" for each in names]
    beside += [f"{each}_ci95" for each in names if not each.endswith(EVALUATED_LOSS)]  # a mean loss has no interval
    if name not in (*names, *beside):
        raise ValueError(
            f"--metric_for_best_model {wanted}: an evaluation of this run is measured by no {name}; expected one of "
            f"{', '.join(names)}"
        )


def evaluation_metrics(prompts: list[ScoredPrompt], prefix: str, needed: str | None = None) -> dict[str, float]:
    """Metrics of the rewards: ``{prefix}_{name}_reward`` for each and ``total``, with ``_ci95`` and ``_n`` behind it.

    ``_ci95`` is half the width of the 95 % interval and ``_n`` the number of prompts. A prompt counts once, however
    many processes or completions it had. The interval is that of ``qwenvl evaluate``: a bootstrap over prompts that
    share no clip or image. Where no completion has a reward there is no metric, and a warning.

    Args:
        needed: the metric that checkpoints or the learning rate follow, with or without ``eval_`` before it.

    Raises:
        RecordError: it is one of this evaluation, and no completion has a reward.
    """
    unique = {prompt.where: prompt for prompt in prompts}
    names: dict[str, None] = {}  # in the order in which they come first
    for prompt in unique.values():
        names |= dict.fromkeys(prompt.rewards)
    if not names:
        what = f"{len(unique)} prompts, and no completion has a reward" if unique else "every record was left out"
        message = f"{prefix}: {what}, for the reasons given above. There is no {prefix}{EVALUATED}"
        if needed is not None and f"eval_{needed.removeprefix('eval_')}".startswith(f"{prefix}_"):
            raise RecordError(f"{message}, and --metric_for_best_model {needed} needs it: mend the rewards or the data")
        logger.warning(message)
    metrics: dict[str, float] = {}
    clusters = clusters_by({where: prompt.media or (where,) for where, prompt in unique.items()})
    for name in names:
        values = {where: prompt.rewards[name] for where, prompt in unique.items() if name in prompt.rewards}
        interval = clustered_interval(list(values.values()), [clusters[where] for where in values])
        metrics[f"{prefix}_{name}_reward"] = interval.mean
        metrics[f"{prefix}_{name}_reward_ci95"] = (interval.high - interval.low) / 2
        metrics[f"{prefix}_{name}_reward_n"] = len(values)
    return metrics
