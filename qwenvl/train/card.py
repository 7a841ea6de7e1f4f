"""The model card, ``README.md``, beside the weights: how they were trained, how they see clips, how they did.

``card.jinja`` has the text of our sections. They stand between marks, so that the other text of a card stays as it is.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard import metadata_load
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings, bounds_whole_clips
from qwenvl.model.loading import unwrap
from qwenvl.option import all_options, was_set
from qwenvl.rewards import Rubric
from qwenvl.rewards.function import parsed, written
from qwenvl.runlog import AS_IT_IS, installed_versions, read_evaluation

CARD = "README.md"
METHOD = "GRPO"
TASK = "video-text-to-text"
EVALUATE = {"made by": "qwenvl evaluate"}  # marks its results in the metadata of a card
_TOTAL = "_total_reward"
# Of a machine or a person, and not of the training.
_PRIVATE = {"dataset_catalog", "overwrite_output_dir"}
_PRIVATE_ARGUMENTS = ("base_url", "cache")
_OF_THE_TRAINER = ("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "seed")

logger = logging.getLogger(__name__)


def open_card(folder: str | Path, title: str = "") -> ModelCard:
    """The card of a folder, or a new one with a title.

    Raises:
        ValueError: its metadata is not YAML that the hub reads.
    """
    path = Path(folder) / CARD
    if not path.is_file():
        return ModelCard(f"---\n{{}}\n---\n\n# {title}\n")
    try:
        return ModelCard.load(path)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata can't be read: {error}") from None


def put_section(card: ModelCard, name: str, text: str) -> None:
    """Put a section into a card, in the place of the earlier one of this name. An empty text removes that one."""
    begin, end = f"<!-- {name}: written by qwenvl -->", f"<!-- end of {name} -->"
    earlier = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    section = f"{begin}\n{text}\n{end}" if text else ""
    if earlier.search(card.text):
        card.text = earlier.sub(lambda _: section, card.text)
    elif text:
        card.text = f"{card.text.rstrip()}\n\n{section}\n"


def put_metadata(
    card: ModelCard, base_model: str | None, adapter: bool, tags: Sequence[str], datasets: Sequence[str] = ()
) -> None:
    """Put what we know of a model into the metadata of its card, where other entries stay.

    Args:
        base_model: a name on the hub, or None: a path means nothing to others.
        adapter: the weights are those of an adapter.
        datasets: names on the hub. Empty: those of the card stay.
    """
    data: Any = card.data
    of_adapters = ("base_model:adapter:", *(() if adapter else ("lora",)))  # peft writes them
    others = [tag for tag in data.tags or [] if not str(tag).startswith(of_adapters)]
    data.tags = list(dict.fromkeys([*others, *tags]))
    data.library_name = "peft" if adapter else "transformers"
    data.pipeline_tag = TASK
    data.base_model = base_model
    data.base_model_relation = None if base_model is None else "adapter" if adapter else "finetune"
    data.datasets = list(datasets) or data.datasets


def put_results(card: ModelCard, name: str, results: Sequence[EvalResult]) -> None:
    """Put results into the metadata of a card, in the place of those that it has, of the model with this name."""
    data: Any = card.data
    data.eval_results, data.model_name = list(results) or None, name if results else None


def hub_name(model: str) -> str | None:
    """``model`` if it is a name on the hub, ``organisation/model``, and no folder. Else None."""
    return model if re.fullmatch(r"\w[\w.-]*/[\w.-]+", model) and not Path(model).exists() else None


def base_on_the_hub(model: str) -> str | None:
    """The hub name of a model or of its base, by the card in its folder. None: not known."""
    if found := hub_name(model):
        return found
    try:
        above = (metadata_load(Path(model) / CARD) or {}).get("base_model")
    except (OSError, yaml.YAMLError, ValueError):
        return None
    return above if isinstance(above, str) and hub_name(above) else None


def describe_model(trainer: Any, folder: str | Path) -> None:
    """Write the settings of prompts beside the model that ``trainer``, a ``PolicyTrainer``, has saved, and its card.

    A card with unreadable metadata stays as it is, with a warning: it must not end a run.
    """
    settings, args, method = trainer.prompt_settings, trainer.args, trainer.trained_by
    settings.save(folder)
    try:
        card = open_card(folder, f"{Path(settings.base_model).name}, trained by {method}")
    except ValueError as error:
        logger.warning(f"{error}; the card is left as it is")
        return
    step = trainer.state.global_step
    latest = {each.split: each for each in evaluations(trainer.state.log_history, step)}
    put_section(card, "training", training_section(args, method, settings.base_model, trainer))
    put_section(card, "inputs", inputs_section(settings, trainer.processing_class))
    put_section(card, "evaluation", "")  # of other weights
    # A warm-up saves its adapter merged, beside checkpoints that have the adapter itself.
    adapter = unwrap(trainer.model) is not trainer.model and not (Path(folder) / "config.json").is_file()
    names = (args.dataset_use or "").split(",")
    put_metadata(
        card,
        base_on_the_hub(settings.base_model),
        adapter,
        tags=("qwenvl", "grpo" if method == METHOD else "sft"),
        datasets=[name.split(":")[1].split("%")[0] for name in names if name.startswith("hf:")],
    )
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type="held-out",
            dataset_name=args.eval_dataset_use or split,
            dataset_split=split,
            metric_type=f"{name}_reward",
            metric_name=f"{name} reward, mean of {each.prompts} prompts"
            + ("" if reward.half_width is None else f", 95 % interval ± {reward.half_width:.3f}"),
            metric_value=round(reward.mean, 4),
        )
        for split, each in latest.items()
        for name, reward in each.rewards.items()
    ]
    put_results(card, Path(args.output_dir).resolve().name, results)
    card.save(Path(folder) / CARD)


class MeanReward(NamedTuple):
    """The mean of a reward over prompts, with the half width of its 95 % interval. None: there is one prompt."""

    mean: float
    half_width: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


class Evaluated(NamedTuple):
    """One evaluation during a run: its split, the optimizer steps before it, and mean rewards by name."""

    split: str
    step: int
    prompts: int
    rewards: dict[str, MeanReward]


def evaluations(log: Sequence[Mapping[str, Any]], step: int) -> list[Evaluated]:
    """For each split the evaluation before training, if there is one, and the latest until ``step``."""
    found: dict[str, dict[int, Evaluated]] = {}
    for row in log:
        for total in row:
            if not total.endswith(_TOTAL) or row["step"] > step:
                continue
            split = total.removesuffix(_TOTAL)
            keys = [key for key in row if key.startswith(f"{split}_") and key.endswith("_reward")]
            rewards = {}
            for key in sorted(keys, key=lambda key: key != total):
                half = row.get(f"{key}_ci95")
                known = isinstance(half, float) and half == half  # one prompt has no interval: NaN
                name = key.removeprefix(f"{split}_").removesuffix("_reward")
                rewards[name] = MeanReward(row[key], half if known else None)
            prompts = max(int(row.get(f"{key}_n", 0)) for key in keys)
            found.setdefault(split, {})[row["step"]] = Evaluated(split, row["step"], prompts, rewards)
    return [by_step[at] for by_step in found.values() for at in sorted({0, max(by_step)} & set(by_step))]


def training_section(args: GRPOConfig, method: str, base_model: str, trainer: Any) -> str:
    """What the card says of the training."""
    rubric = trainer.rewards if isinstance(trainer.rewards, Rubric) else None  # None: of a warm-up
    names = {"llm": "the language model", "mlp": "the merger", "vision": "the vision tower"}
    learning = ", ".join(name for part, name in names.items() if part in (args.parts() or {"llm"}))
    if args.lora_enable:
        learning = f"low-rank adapters (rank {args.lora_r}, alpha {args.lora_alpha}) on {learning}"
    step = trainer.state.global_step
    return _section("training")(
        base_model=base_model,
        method=method,
        learns=learning,
        data=args.dataset_use,
        held_out=args.eval_dataset_use,
        rewards=[] if rubric is None else list(zip(rubric.names, rubric.weights, strict=True)),
        step=step,
        prompts=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        group_size=args.grpo_sample_size,
        answers=args.eval_sample_size,
        settings=yaml.safe_dump(_settings_of(args), sort_keys=True, allow_unicode=True).strip(),
        evaluations=evaluations(trainer.state.log_history, step),
        versions=", ".join(f"{name} {version}" for name, version in installed_versions().items()),
    )


def _settings_of(args: GRPOConfig) -> dict[str, Any]:
    """The flags that differ from their defaults, as a settings file has them, without private ones."""
    names = dict.fromkeys(each.name for group in FLAG_GROUPS for each in all_options(group))
    values = {name: getattr(args, name) for name in names if name not in _PRIVATE and was_set(args, name)}
    if values.get("reward_funcs"):
        rewards = [parsed(written(each)) for each in values["reward_funcs"]]
        public = [{key: value for key, value in given.items() if key not in _PRIVATE_ARGUMENTS} for _, given in rewards]
        values["reward_funcs"] = [written({name: given}) for (name, _), given in zip(rewards, public, strict=True)]
    values |= {name: getattr(args, name) for name in _OF_THE_TRAINER}
    return {name: getattr(value, "value", value) for name, value in values.items() if value is not None}


def inputs_section(settings: PromptSettings, processor: Any) -> str:
    """What the card says of frames, sizes and prompts, with code that asks about a clip.

    Args:
        processor: that is saved beside the card.
    """
    whole = bounds_whole_clips(processor)  # not those of Qwen2-VL and Qwen2.5-VL
    return _section("inputs")(settings, settings.frames, settings.prompts, SETTINGS_FILE, whole)


def update_cards(evaluation: str | Path) -> tuple[list[Path], list[str]]:
    """Write the numbers of a finished evaluation into the cards of its models.

    Args:
        evaluation: the folder of the evaluation.

    Returns:
        The cards that were written, and the paths of models without one.

    Raises:
        ValueError: the metadata of a card can't be read.
    """
    found = read_evaluation(evaluation)
    cards, without = [], []
    for model in found["models"]:
        folder, name = Path(model["path"]), model["name"]
        if not (folder / CARD).is_file():
            without.append(model["path"])
            continue
        card = open_card(folder)
        data: Any = card.data
        own = {each["control"]: each for each in found["numbers"] if each["model"] == name}
        drops = {each["control"]: each for each in found["drops"] if each["model"] == name}
        compared = [each for each in found["differences"] if (each["after"], each["control"]) == (name, AS_IT_IS)]
        put_section(card, "evaluation", _section("evaluation")(found, model, own, drops, compared))
        others = [result for result in data.eval_results or [] if result.metric_args != EVALUATE]
        results = [
            EvalResult(
                task_type=TASK,
                dataset_type="held-out",
                dataset_name=found["protocol"]["data"]["dataset_use"],
                metric_type=metric,
                metric_name=f"{metric}, 95 % interval {_bounds(interval)}",
                metric_value=round(interval["mean"], 4),
            )
            for metric, interval in own[AS_IT_IS]["scores"].items()
            if interval is not None
        ]
        marked = [replace(result, metric_args=EVALUATE) for result in results]
        put_results(card, data.model_name or folder.resolve().name, [*others, *marked])
        card.save(folder / CARD)
        cards.append(folder / CARD)
    return cards, without


def describe_merged(adapter: str | Path, folder: str | Path, base: str) -> None:
    """Write into ``folder`` what the folder of an adapter says of its training, and that it is merged now.

    Args:
        adapter: whose card and settings of prompts are copied, where it has them.
        folder: of the merged model.
        base: the model that the adapter was merged into.
    """
    for name in (CARD, SETTINGS_FILE):
        if (Path(adapter) / name).is_file():
            shutil.copyfile(Path(adapter) / name, Path(folder) / name)
    card = open_card(folder, f"{Path(base).name} with an adapter merged")
    merged = f"## Merged\n\nThe adapter of these sections is merged into `{base}`: these are whole weights."
    put_section(card, "merged", merged)
    put_metadata(card, base_on_the_hub(base), adapter=False, tags=("qwenvl", "merged"))
    card.save(Path(folder) / CARD)


def _bounds(interval: Mapping[str, Any]) -> str:
    return "(one cluster)" if interval["low"] is None else f"[{interval['low']:.3f}, {interval['high']:.3f}]"


def _section(name: str) -> Any:
    """A macro of ``card.jinja``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "thousands": "{:,}".format,
        "plural": lambda count, noun: f"{count:,} {noun}{'' if count == 1 else 's'}",
        "code": lambda name: "none named" if name is None else f"`{name}`",
        "repr": repr,
        "bounds": _bounds,
        "share": lambda interval: "an unknown share" if interval is None else f"{interval['mean']:.1%}",
        "interval": lambda interval: f"{interval['mean']:.3f} {_bounds(interval)}" if interval else "",
    }
    return getattr(environment.get_template("card.jinja").module, name)
