"""The model card of a run: how the model was trained, how it sees clips, and what is written beside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult
from transformers import ProcessorMixin

from qwenvl.config.flags import FLAG_GROUPS
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.saved_processor import SETTINGS_FILE, PromptSettings, bounds_whole_clips
from qwenvl.model.loading import unwrap
from qwenvl.option import all_options, was_set
from qwenvl.rewards import Rubric
from qwenvl.rewards.function import parsed, written
from qwenvl.runlog import installed_versions
from qwenvl.train.card.document import TASK, Metadata, hub_name, read_metadata, write_card

_TOTAL = "_total_reward"
# Of a machine or a person, and not of the training.
_PRIVATE = {"dataset_catalog", "frame_cache", "overwrite_output_dir"}
_PRIVATE_ARGUMENTS = ("base_url", "cache")
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
    args: GRPOConfig, method: str, base_model: str, rewards: Any, step: int, log: Sequence[Mapping[str, Any]]
) -> TrainingFacts:
    """The facts of a run at a step.

    Args:
        rewards: the rubric, or the targets of a warm-up.
        log: rows of the Trainer's history.
    """
    rubric = rewards if isinstance(rewards, Rubric) else None
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
    if chosen.get("reward_funcs"):
        chosen["reward_funcs"] = [_public(each) for each in chosen["reward_funcs"]]
    own = {name: getattr(args, name) for name in _OF_THE_TRAINER}
    return {name: getattr(value, "value", value) for name, value in (chosen | own).items() if value is not None}


def _public(reward: Any) -> str:
    """A reward function with its arguments, without those that are private."""
    name, given = parsed(written(reward))
    return written({name: {each: value for each, value in given.items() if each not in _PRIVATE_ARGUMENTS}})


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


PLACES = {
    "uniform": "evenly from the first to the last",
    "change": "half of them evenly and half where the picture changes (`frame_sampler change`)",
}
"""Where frames are taken, by ``frame_sampler``."""


def inputs_section(settings: PromptSettings, processor: ProcessorMixin) -> str:
    """Return what the card says of frames, sizes and prompts, with code that asks about a clip.

    Args:
        processor: that is saved beside the card.
    """
    frames, prompts = settings.frames, settings.prompts
    lines = [
        "## Inputs",
        "",
        f"- Frames: {settings.frames_per_second:g} per second of a clip, {frames.video_min_frames} to "
        f"{frames.video_max_frames} in all, {PLACES[frames.frame_sampler]}.",
        f"- Pixels of a frame: {prompts.video_min_frame_pixels:,} to {prompts.video_max_frame_pixels:,}.",
        f"- Pixels of an image: {prompts.min_pixels:,} to {prompts.max_pixels:,}.",
    ]
    if prompts.template_arguments:
        lines.append(f"- Chat template: {prompts.template_arguments}, which are now its defaults.")
    if settings.system is not None:
        lines.append(f"- System turn of every prompt: {settings.system!r}.")
    if settings.prompt_template is not None:
        lines.append(f"- Template of the last user turn: {settings.prompt_template!r}.")
    lines += [
        "",
        "The processor saved here has these bounds: of the same frames and images `AutoProcessor` makes the inputs of "
        f"training. `{SETTINGS_FILE}` holds all settings. What training took from single records (`meta`, or fewer "
        "frames by `--fit_frames`) is not among them.",
        "",
        "The processor takes all frames that it is given (`do_sample_frames` is off). Given the path of a video it "
        "would take every frame, so read the frames first:",
        "",
        "```python",
        ASK.strip(),
        "```",
    ]
    if not bounds_whole_clips(processor):  # Qwen2-VL and Qwen2.5-VL
        lines += [
            "",
            "`generate` of transformers places the text after a clip elsewhere than training did, by more the longer "
            "the clip is. About clips of more than a few seconds ask by `qwenvl try` or vLLM: they do as training did.",
        ]
    if bounds_whole_clips(processor):
        lines += [
            "",
            "One difference is left. This family's processor has a lower bound on the pixels of a whole clip and none "
            f"on those of a frame. Frames below {prompts.video_min_frame_pixels:,} pixels in clips of more than two "
            "frames are therefore scaled up less than in training, or not at all. Scale such frames up before.",
        ]
    return "\n".join(lines)


ASK = """
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl import read_clip

folder = "."  # of this model
model = AutoModelForImageTextToText.from_pretrained(folder)
processor = AutoProcessor.from_pretrained(folder)
clip = read_clip("clip.mp4", folder)
content = [{"type": "video"}, {"type": "text", "text": "\\nWhich steps are shown?"}]
text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
inputs = processor(text=[text], videos=[clip.frames], video_metadata=[clip.metadata], return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=512)
print(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


METHOD = "GRPO"


def describe_model(trainer: Any, folder: str | Path) -> None:
    """Write the settings of prompts beside the model that ``trainer``, a ``PolicyTrainer``, has saved, and its card."""
    settings, args, method = trainer.prompt_settings, trainer.args, trainer.trained_by
    settings.save(folder)
    state = trainer.state
    facts = training_facts(args, method, settings.base_model, trainer.rewards, state.global_step, state.log_history)
    # A warm-up saves its adapter folded in, beside checkpoints that have it as it is.
    adapter = unwrap(trainer.model) is not trainer.model and not (Path(folder) / "config.json").is_file()
    names = (args.dataset_use or "").split(",")
    metadata = Metadata(
        name=Path(args.output_dir).resolve().name,
        library="peft" if adapter else "transformers",
        base_model=base_on_the_hub(settings.base_model),
        adapter=adapter,
        tags=("qwenvl", "grpo" if method == METHOD else "sft"),
        datasets=tuple(name.split(":")[1].split("%")[0] for name in names if name.startswith("hf:")),
        results=results_of(facts),
    )
    sections = {
        "training": training_section(facts),
        "inputs": inputs_section(settings, trainer.processing_class),
        "evaluation": "",  # of other weights
    }
    write_card(folder, f"# {title(settings.base_model, method)}\n", sections, metadata)


def title(base_model: str, trained_by: str) -> str:
    """The first line of a card."""
    return f"{Path(base_model).name}, trained by {trained_by}"


def base_on_the_hub(model: str) -> str | None:
    """The model on the hub that a model is or comes from, as far as cards in folders tell. None where they do not."""
    if found := hub_name(model):
        return found
    above = read_metadata(model).get("base_model") if Path(model).is_dir() else None
    return above if isinstance(above, str) and hub_name(above) else None
