"""The model card, ``README.md``, beside the weights: how they were trained, how they see clips, how they did.

``card.jinja`` has the text of our sections. They stand between marks, so that the other text of a card stays as it is.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings, bounds_whole_clips
from qwenvl.failure import counted
from qwenvl.model.loading import unwrap
from qwenvl.option import all_options, parse_row, row_text, was_set
from qwenvl.rewards import Rubric
from qwenvl.runlog import installed_versions

CARD = "README.md"
METHOD = "GRPO"
TASK = "video-text-to-text"
_TOTAL = "_total_reward"
_END_OF_FORM = "## Model Card Contact\n\n[More Information Needed]\n"  # peft saves the hub's empty form with an adapter
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
    """Put a section into a card, in the place of the earlier one of this name, or at the end."""
    begin, end = f"<!-- {name}: written by qwenvl -->", f"<!-- end of {name} -->"
    earlier = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    section = f"{begin}\n{text}\n{end}"
    card.text, found = earlier.subn(lambda _: section, card.text)
    if not found:
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
        title = f"{Path(settings.base_model).name}, trained by {method}"
        card = open_card(folder, title)
    except ValueError as error:
        logger.warning(f"{error}; the card is left as it is")
        return
    of_peft = ""  # its version, and how the base was quantized
    form, end, rest = card.text.partition(_END_OF_FORM)
    if end and form.lstrip().startswith("# Model Card for Model ID"):
        of_peft, mark, sections = rest.partition("<!-- training:")
        card.text = f"\n# {title}\n\n{mark}{sections}"
    put_section(card, "training", training_section(args, method, settings.base_model, trainer))
    put_section(card, "inputs", inputs_section(settings, trainer.processing_class))
    card.text += f"\n{of_peft}" if of_peft else ""
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
    card.save(Path(folder) / CARD)


class Evaluated(NamedTuple):
    """One evaluation during a run: its split, the optimizer steps before it, and mean rewards with their intervals."""

    split: str
    step: int
    prompts: int
    rewards: dict[str, str]


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
                half = row.get(f"{key}_ci95", math.nan)  # NaN: one prompt has no interval
                interval = "" if math.isnan(half) else f" ± {half:.3f}"
                rewards[key.removeprefix(f"{split}_").removesuffix("_reward")] = f"{row[key]:.3f}{interval}"
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
        rewards = [parse_row(each) for each in values["reward_funcs"]]
        public = [{key: value for key, value in given.items() if key not in _PRIVATE_ARGUMENTS} for _, given in rewards]
        values["reward_funcs"] = [row_text({name: given}) for (name, _), given in zip(rewards, public, strict=True)]
    values |= {name: getattr(args, name) for name in _OF_THE_TRAINER}
    return {name: getattr(value, "value", value) for name, value in values.items() if value is not None}


def inputs_section(settings: PromptSettings, processor: Any) -> str:
    """What the card says of frames, sizes and prompts, with code that asks about a clip.

    Args:
        processor: that is saved beside the card.
    """
    whole = bounds_whole_clips(processor)  # not those of Qwen2-VL and Qwen2.5-VL
    return _section("inputs")(settings, settings.frames, settings.prompts, SETTINGS_FILE, whole)


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


def _section(name: str) -> Any:
    """A macro of ``card.jinja``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "thousands": "{:,}".format,
        "plural": counted,
        "code": lambda name: "none named" if name is None else f"`{name}`",
        "repr": repr,
    }
    return getattr(environment.get_template("card.jinja").module, name)
