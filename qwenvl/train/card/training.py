"""The section of a model card that says how the model was trained, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from huggingface_hub import EvalResult

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.option import all_options, was_set
from qwenvl.rewards import Rubric
from qwenvl.runlog import installed_versions
from qwenvl.train.card.document import TASK

_TOTAL = "_total_reward"
# Of a machine or a person, and not of the training.
_PRIVATE = {"judge_base_url", "dataset_catalog", "frame_cache", "vision_cache", "judge_cache", "overwrite_output_dir"}
_OF_THE_TRAINER = ("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "seed")


@dataclass(frozen=True)
class Reward:
    """The mean of one reward in an evaluation.

    Attributes:
        name: of the reward, or ``total``.
        half_width: of the 95 % interval. None where one prompt has none.
        prompts: that it is the mean of.
    """

    name: str
    mean: float
    half_width: float | None
    prompts: int

    def text(self) -> str:
        """As the card shows it."""
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


@dataclass(frozen=True)
class Evaluated:
    """One evaluation during the run.

    Attributes:
        split: its name: ``eval``, or ``eval_`` and that of the data set where there are several.
        step: optimizer steps before it.
    """

    split: str
    step: int
    rewards: tuple[Reward, ...]


@dataclass(frozen=True)
class TrainingFacts:
    """All that the section says.

    Attributes:
        method: how it was trained.
        base_model: what the run started from.
        learns: which weights have learned, in words.
        rewards: names and weights. Empty for a warm-up.
        step: optimizer steps so far.
        settings: flags that are not at their defaults, and some of the Trainer's.
        evaluations: for each split the one before training, if there is one, and the latest.
    """

    method: str
    base_model: str
    learns: str
    data: str | None
    held_out: str | None
    rewards: tuple[tuple[str, float], ...]
    step: int
    prompts_per_step: int
    group_size: int
    answers: int
    settings: Mapping[str, Any]
    evaluations: tuple[Evaluated, ...]


def training_facts(
    args: GRPOConfig, method: str, base_model: str, learned_by: Any, step: int, log: Sequence[Mapping[str, Any]]
) -> TrainingFacts:
    """The facts of a run at a step.

    Args:
        learned_by: the rubric, or the targets of a warm-up.
        log: rows of the Trainer's history.
    """
    rubric = learned_by if isinstance(learned_by, Rubric) else None
    parts = {"llm": "the language model", "mlp": "the merger", "vision": "the vision tower"}
    learning = [parts[part] for part in ("llm", "mlp", "vision") if part in (args.parts() or {"llm"})]
    low_rank = f"low-rank adapters (rank {args.lora_r}, alpha {args.lora_alpha}) on " if args.lora_enable else ""
    return TrainingFacts(
        method=method,
        base_model=base_model,
        learns=low_rank + ", ".join(learning),
        data=args.dataset_use,
        held_out=args.eval_dataset_use,
        rewards=() if rubric is None else tuple(zip(rubric.names, rubric.weights, strict=True)),
        step=step,
        prompts_per_step=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        group_size=args.grpo_sample_size,
        answers=args.eval_sample_size,
        settings=settings_of(args),
        evaluations=tuple(evaluations(log, step)),
    )


def settings_of(args: GRPOConfig) -> dict[str, Any]:
    """The flags that are not at their defaults, as a settings file has them, without what is private."""
    names = [each.name for group in FLAG_GROUPS for each in all_options(group)]
    chosen = {
        name: getattr(args, name) for name in dict.fromkeys(names) if name not in _PRIVATE and was_set(args, name)
    }
    own = {name: getattr(args, name) for name in _OF_THE_TRAINER}
    return {name: getattr(value, "value", value) for name, value in (chosen | own).items() if value is not None}


def evaluations(log: Sequence[Mapping[str, Any]], step: int) -> Iterator[Evaluated]:
    """For each split the evaluation before training, if there is one, and the latest until ``step``."""
    found: dict[str, dict[int, Evaluated]] = {}
    for row in log:
        for key in row:
            if key.endswith(_TOTAL) and row["step"] <= step:
                split = key.removesuffix(_TOTAL)
                found.setdefault(split, {})[row["step"]] = Evaluated(split, row["step"], tuple(_rewards(row, split)))
    for by_step in found.values():
        for at in sorted({0, max(by_step)} & set(by_step)):
            yield by_step[at]


def _rewards(row: Mapping[str, Any], split: str) -> Iterator[Reward]:
    """The rewards of one row, the total first."""
    ends = [key for key in row if key.startswith(f"{split}_") and key.endswith("_reward")]
    for key in sorted(ends, key=lambda key: key != split + _TOTAL):
        name = key.removeprefix(f"{split}_").removesuffix("_reward")
        half = row.get(f"{key}_ci95")
        known = isinstance(half, float) and half == half  # one prompt has no interval: NaN
        yield Reward(name, row[key], half if known else None, int(row.get(f"{key}_n", 0)))


def training_section(facts: TrainingFacts) -> str:
    """Return what the card says of the training."""
    lines = [
        "## Training",
        "",
        f"Trained from `{facts.base_model}` by {facts.method} with qwenvl: {_count(facts.step, 'optimizer step')}, "
        f"each of {_count(facts.prompts_per_step, 'prompt')}"
        + (f" with {facts.group_size} completions." if facts.rewards else "."),
        "",
        f"- What learned: {facts.learns}.",
        f"- Data: {_code(facts.data)}. Held out: {_code(facts.held_out)}.",
    ]
    if facts.rewards:
        weighed = " + ".join(f"{weight:g} x `{name}`" for name, weight in facts.rewards)
        lines.append(f"- Reward of a completion: {weighed}.")
    settings = yaml.safe_dump(dict(facts.settings), sort_keys=True, allow_unicode=True).strip()
    lines += ["", "Settings that are not the defaults, and some that are:", "", "```yaml", settings, "```"]
    lines += _results(facts)
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    return "\n".join([*lines, "", f"Made with {versions}."])


def _results(facts: TrainingFacts) -> list[str]:
    if not facts.evaluations:
        return ["", "It was not evaluated on held-out data during training."]
    names = list(dict.fromkeys(reward.name for each in facts.evaluations for reward in each.rewards))
    how = "the greedy answer" if facts.answers == 1 else f"the mean of {facts.answers} sampled answers"
    lines = [
        "",
        f"Mean rewards on held-out prompts, {how} to each, with the 95 % interval:",
        "",
        f"| evaluation | step | prompts | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for each in facts.evaluations:
        shown = {reward.name: reward.text() for reward in each.rewards}
        prompts = max(reward.prompts for reward in each.rewards)
        cells = " | ".join(shown.get(name, "") for name in names)
        lines.append(f"| {each.split} | {each.step:,} | {prompts:,} | {cells} |")
    return lines


def results_of(facts: TrainingFacts) -> list[EvalResult]:
    """The latest evaluation of each split, as the hub's ``model-index`` has results."""
    latest = {each.split: each for each in facts.evaluations}
    return [
        EvalResult(
            task_type=TASK,
            dataset_type="held-out",
            dataset_name=facts.held_out or split,
            dataset_split=split,
            metric_type=f"{reward.name}_reward",
            metric_name=f"{reward.name} reward, mean of {reward.prompts} prompts"
            + ("" if reward.half_width is None else f", 95 % interval ± {reward.half_width:.3f}"),
            metric_value=round(reward.mean, 4),
        )
        for split, each in latest.items()
        for reward in each.rewards
    ]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _code(name: str | None) -> str:
    return "none named" if name is None else f"`{name}`"
