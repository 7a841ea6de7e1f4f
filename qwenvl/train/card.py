"""Writes the model card, ``README.md``, beside the weights: their training, what they see of clips, their scores.

``card.jinja`` has its text. Each save writes it anew. Metadata that are not ours stay, such as a license.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qwenvl.config.grpo_config import RunConfig, WarmupConfig
from qwenvl.config.settings import FLAG_GROUPS, WARMUP_GROUPS, prompts_per_step
from qwenvl.console import evaluated, with_interval
from qwenvl.data.prompt_settings import SETTINGS_FILE
from qwenvl.data.records.framing import framed_question
from qwenvl.data.saved_processor import bounds_whole_clips
from qwenvl.failure import counted
from qwenvl.model.loading import unwrap
from qwenvl.option import all_options, parse_row, row_text, was_set
from qwenvl.rewards import Rubric
from qwenvl.run_log.log import installed_versions
from qwenvl.run_log.run import each_once
from qwenvl.train.running_trainer import RunningTrainer
from qwenvl.types import EVALUATED, EVALUATED_LOSS

CARD = "README.md"
METHOD = "GRPO"
TASK = "video-text-to-text"
# Settings that tell of a machine or a person, and not of the training.
_PRIVATE = {"dataset_catalog", "overwrite_output_dir", "vllm_server"}
_PRIVATE_ARGUMENTS = ("base_url", "cache")
_OF_THE_TRAINER = ("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "seed")


def describe_model(trainer: RunningTrainer, folder: str | Path) -> None:
    """Write the settings of prompts beside the model that a trainer has saved, and its card."""
    args = trainer.args
    settings = trainer.prompt_settings
    method = trainer.trained_by
    step = trainer.state.global_step
    settings.save(folder)
    rubric = trainer.rewards if isinstance(trainer.rewards, Rubric) else None  # None: of a warm-up
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"thousands": "{:,}".format, "plural": counted, "repr": repr, "quoted": json.dumps}
    names = {"llm": "the language model", "mlp": "the merger", "vision": "the vision tower"}
    learning = ", ".join(name for part, name in names.items() if part in (args.parts() or {"llm"}))
    if args.lora_enable:
        learning = f"low-rank adapters (rank {args.lora_r}, alpha {args.lora_alpha}) on {learning}"
    scored = evaluations(trainer.state.log_history, step)
    # Not every evaluation has each reward: a judge may be gone, and records may have none of it.
    evaluated_rewards = each_once(each["rewards"] for each in scored)
    text = environment.get_template("card.jinja").render(
        title=f"{Path(settings.base_model).name}, trained by {method}",
        method=method,
        learns=learning,
        args=args,
        rewards=[] if rubric is None else list(zip(rubric.names, rubric.weights, strict=True)),
        step=step,
        prompts=prompts_per_step(args),
        shown_settings=yaml.safe_dump(_settings_of(args), sort_keys=True, allow_unicode=True).strip(),
        losses=evaluated_losses(trainer.state.log_history, step),
        evaluations=scored,
        evaluated_rewards=evaluated_rewards,
        versions=", ".join(f"{name} {version}" for name, version in installed_versions().items()),
        settings=settings,
        settings_file=SETTINGS_FILE,
        example_question=framed_question("Which steps are shown?", settings.framing),
        bounds_whole_clips=bounds_whole_clips(trainer.processing_class),  # not those of Qwen2-VL and Qwen2.5-VL
    )
    # A warm-up saves its adapter merged, beside checkpoints that have the adapter itself.
    adapter = unwrap(trainer.model) is not trainer.model and not (Path(folder) / "config.json").is_file()
    used = [name.strip() for name in (args.dataset_use or "").split(",")]
    datasets = [name.split(":")[1].split("%")[0] for name in used if name.startswith("hf:")]  # hf:NAME:split%NN
    tags = ("qwenvl", "grpo" if method == METHOD else "sft")
    write_card(folder, text, settings.base_model, adapter=adapter, tags=tags, datasets=datasets)


def describe_merged(adapter: str | Path, folder: str | Path, base: str) -> None:
    """Write the card of a merged model: that of its adapter, and that it is merged now.

    Args:
        adapter: a folder, whose card and settings of prompts are copied, where it has them.
        folder: that of the merged model.
        base: the model that the adapter was merged into.
    """
    for name in (CARD, SETTINGS_FILE):
        if (Path(adapter) / name).is_file():
            shutil.copyfile(Path(adapter) / name, Path(folder) / name)
    card = Path(folder) / CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else f"# {Path(base).name} with an adapter merged\n"
    text = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.DOTALL)
    text += f"\n## Merged\n\nThe adapter of these sections is merged into `{base}`: these are whole weights.\n"
    write_card(folder, text, base, adapter=False, tags=("qwenvl", "merged"))


def write_card(
    folder: str | Path, text: str, base: str, *, adapter: bool, tags: Sequence[str], datasets: Sequence[str] = ()
) -> None:
    """Write the card of a folder.

    Args:
        base: the model that was trained. Metadata name it if it is on the hub: a path means nothing to others.
        adapter: the weights are those of an adapter.
        datasets: names on the hub. Empty: those of the metadata stay.
    """
    known = _metadata(folder)
    base_model = base_on_the_hub(base)
    # Tags that peft writes beside an adapter.
    of_adapters = ("base_model:adapter:",) if adapter else ("base_model:adapter:", "lora")
    others = [tag for tag in known.get("tags") or [] if not str(tag).startswith(of_adapters)]
    relation = "adapter" if adapter else "finetune"
    own = {
        "tags": list(dict.fromkeys([*others, *tags])),
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": TASK,
        "base_model": base_model,
        "base_model_relation": None if base_model is None else relation,
        "datasets": list(datasets) or known.get("datasets"),
    }
    data = {name: value for name, value in {**known, **own}.items() if value is not None}
    head = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    (Path(folder) / CARD).write_text(f"---\n{head}---\n\n{text.strip()}\n", encoding="utf-8")


def hub_name(model: str) -> str | None:
    """``model`` if it has the form of a name on the hub, ``organisation/model``, and is no folder. Else None."""
    is_name = re.fullmatch(r"\w[\w.-]*/[\w.-]+", model) is not None
    return model if is_name and not Path(model).exists() else None


def base_on_the_hub(model: str) -> str | None:
    """The hub name of a model or of its base, by the card in its folder. None: not known."""
    found = hub_name(model)
    if found is not None:
        return found
    above = _metadata(model).get("base_model")
    return above if isinstance(above, str) and hub_name(above) else None


def _metadata(folder: str | Path) -> dict[str, Any]:
    """The metadata of the card in a folder. Empty without a card, or where the hub could not read them either."""
    try:
        return metadata_load(Path(folder) / CARD) or {}
    except (OSError, yaml.YAMLError, ValueError):
        return {}


def evaluations(log: Sequence[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    """For each split the evaluation before training, if there is one, and the latest until ``step``.

    Returns:
        Split, step, number of prompts, and the mean of each reward with its interval.
    """
    by_split: dict[str, dict[int, dict[str, Any]]] = {}  # evaluations by step, by split
    for row in log:
        for key in row:
            if key.endswith(EVALUATED) and row["step"] <= step:
                split = key.removesuffix(EVALUATED)
                by_split.setdefault(split, {})[row["step"]] = _evaluation(row, split)
    shown: list[dict[str, Any]] = []
    for by_step in by_split.values():
        latest = max(by_step)
        if 0 in by_step and latest != 0:
            shown.append(by_step[0])
        shown.append(by_step[latest])
    return shown


def evaluated_losses(log: Sequence[Mapping[str, Any]], step: int) -> dict[str, tuple[int, float]]:
    """The latest step until ``step`` at which each split of a warm-up was evaluated, and its mean loss in nats."""
    found: dict[str, tuple[int, float]] = {}
    for row in log:
        if row["step"] <= step:
            for key in evaluated(row):
                if key.endswith(EVALUATED_LOSS):
                    found[key.removesuffix(EVALUATED_LOSS)] = row["step"], row[key]
    return found


def _evaluation(row: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The evaluation of a split in an entry of the log: its total reward first, then the other rewards."""
    total = f"{split}{EVALUATED}"
    others = [key for key in row if key.startswith(f"{split}_") and key.endswith("_reward") and key != total]
    keys = [total, *others]
    rewards = {}
    for key in keys:
        name = key.removeprefix(f"{split}_").removesuffix("_reward")
        rewards[name] = with_interval(key, row).replace("+-", "±")
    prompts = max(int(row.get(f"{key}_n", 0)) for key in keys)
    return {"split": split, "step": row["step"], "prompts": prompts, "rewards": rewards}


def _settings_of(args: RunConfig) -> dict[str, Any]:
    """The flags that were set to other values than their defaults, as a settings file has them, without private ones.

    Those that have found their value on this machine are none of the training.
    """
    groups = WARMUP_GROUPS if isinstance(args, WarmupConfig) else FLAG_GROUPS
    names = dict.fromkeys(each.name for group in groups for each in all_options(group))
    values = {}
    for name in names:
        if name in args.set_by_user and name not in _PRIVATE and was_set(args, name):
            values[name] = getattr(args, name)
    if values.get("reward_funcs"):
        values["reward_funcs"] = [_public_row(each) for each in values["reward_funcs"]]
    values |= {name: getattr(args, name) for name in _OF_THE_TRAINER}
    return {name: getattr(value, "value", value) for name, value in values.items() if value is not None}


def _public_row(reward: str) -> str:
    """A reward as flags and settings files write it, without the arguments that tell of a machine."""
    name, given = parse_row(reward)
    return row_text({name: {key: value for key, value in given.items() if key not in _PRIVATE_ARGUMENTS}})
