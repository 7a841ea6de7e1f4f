"""The flags of this library by topic, each with its unit, range and effect; data and rewards have files of their own.

Each group is a dataclass without behaviour except ``problems``, which says what is wrong with its values or which of
them would have no effect. ``GRPOConfig`` joins the groups with the ``TrainingArguments`` of transformers; the help text
and ``docs/flags.md`` are made from them. Standard library only, so that ``--help`` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qwenvl.config.checks import misfits, out_of_range, was_set
from qwenvl.config.data_flags import DataArguments
from qwenvl.config.reward_flags import RewardArguments
from qwenvl.option import flag

FULL_LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5


@dataclass
class ModelArguments:
    """The model and which of its parts learn."""

    model_name_or_path: str | None = flag(
        None, "Qwen2-VL, Qwen2.5-VL or Qwen3-VL checkpoint: a folder or a name on the Hugging Face hub."
    )
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2"] = flag(
        "auto", "Attention kernel. auto: flash_attention_2 where flash-attn and a CUDA device are there, else sdpa."
    )
    tune_mm_llm: bool = flag(True, "Train the language model, its embeddings and the language-model head.")
    tune_mm_vision: bool = flag(False, "Train the vision tower: patch embedding and blocks.")
    tune_mm_mlp: bool = flag(True, "Train the merger that carries vision features into the language model.")
    mm_projector_lr: float | None = flag(
        None, "Learning rate of the merger, above 0. Needs --tune_mm_mlp.", unset="the one of --learning_rate"
    )
    vision_tower_lr: float | None = flag(
        None, "Learning rate of the vision tower, above 0. Needs --tune_mm_vision.", unset="the one of --learning_rate"
    )
    vision_cache: str | None = flag(
        None,
        "Folder that keeps the features of a frozen vision tower over epochs and runs, by content. It pays where a "
        "tower takes longer than a read; frames drawn anew each epoch (dynamic_sample) are rarely found again.",
        unset="not kept",
    )
    vision_cache_gb: float = flag(50.0, "Most that --vision_cache may hold, in GB, above 0; what is old goes first.")
    lora_enable: bool = flag(
        False,
        "Freeze the model and train low-rank adapters (LoRA) on the linear layers of the parts that the tune flags "
        "name, or of the language model where all three are False. The reference is the model without adapters.",
    )
    lora_r: int = flag(64, "Rank of the adapters, at least 1.")
    lora_alpha: int = flag(128, "Scale of the adapters, above 0: their output is multiplied by lora_alpha / lora_r.")
    lora_dropout: float = flag(
        0.0, "Dropout on the adapters' input, 0 to below 1. Above 0 the trained log-probs differ from the sampled ones."
    )

    def problems(self) -> Iterator[str]:
        if not (self.tune_mm_llm or self.tune_mm_vision or self.tune_mm_mlp or self.lora_enable):
            yield "nothing is trained: set one of --tune_mm_llm, --tune_mm_mlp, --tune_mm_vision, or --lora_enable"
        if self.vision_tower_lr is not None and not self.tune_mm_vision:
            yield "--vision_tower_lr has no effect on a frozen vision tower: set --tune_mm_vision True or leave it out"
        if self.mm_projector_lr is not None and not self.tune_mm_mlp:
            yield "--mm_projector_lr has no effect on a frozen merger: set --tune_mm_mlp True or leave it out"
        yield from out_of_range(self, "mm_projector_lr", above=0)
        yield from out_of_range(self, "vision_tower_lr", above=0)
        if self.vision_cache is not None and self.tune_mm_vision:
            yield "--vision_cache has no effect on a vision tower that learns: leave it out or freeze the tower"
        if self.vision_cache is None and was_set(self, "vision_cache_gb"):
            yield "--vision_cache_gb has no effect without --vision_cache"
        yield from out_of_range(self, "vision_cache_gb", above=0)
        yield from out_of_range(self, "lora_r", least=1)
        yield from out_of_range(self, "lora_alpha", above=0)
        yield from out_of_range(self, "lora_dropout", least=0, below=1)
        for name in ("lora_r", "lora_alpha", "lora_dropout"):
            if not self.lora_enable and was_set(self, name):
                yield f"--{name} has no effect without LoRA: add --lora_enable or leave it out"


@dataclass
class SamplingArguments:
    """How completions are sampled."""

    grpo_sample_size: int = flag(
        4, "Completions sampled per prompt in training (the group), at least 2. More: steadier advantages, more time."
    )
    generation_temperature: float = flag(
        0.7, "Sampling temperature, above 0. Log-probs are taken at the same temperature. Lower: groups more alike."
    )
    generation_top_p: float = flag(
        0.9,
        "Sample among the likeliest tokens that hold this much probability, above 0 to 1; 1 samples among all. "
        "Log-probs stay those of sampling among all; so they do with top-k, min-p and the repetition penalty.",
    )
    generation_top_k: int = flag(0, "Sample among this many of the likeliest tokens, at least 2; 0 samples among all.")
    generation_min_p: float = flag(
        0.0,
        "Sample among tokens that have at least this share of the likeliest token's probability, 0 to below 1; 0 "
        "samples among all.",
    )
    generation_repetition_penalty: float = flag(
        1.0,
        "Divide logits of tokens that stand in the prompt or the completion by this (multiply negative ones), above 0, "
        "in greedy evaluation too. 1: none. Above: less repetition, and fewer words of the question in the answer.",
    )
    stop_strings: list[str] | None = flag(
        None,
        "Texts that end a completion, such as </answer>. They stay in its text, and their tokens are trained like all "
        "others. It saves what is written after them; a policy that they end is not taught to end by itself.",
        unset="only the model's end tokens",
    )
    generation_max_length: int = flag(512, "Longest completion in new tokens, at least 1; what is longer is cut.")
    eval_sample_size: int = flag(
        1, "Completions per prompt in evaluation, at least 1. 1: the greedy one. More: sampled as in training."
    )
    rollout_token_budget: int = flag(
        65536,
        "Prompts of an optimizer step are sampled together while their tokens, completions in full length included, "
        "stay below this, at least 1; a prompt counts once, padded to the longest, with --shared_prefix off once per "
        "completion. "
        "Less: less memory, more time.",
    )
    compile_decoding: bool = flag(
        False,
        "Compile the layers of the sampling step from token to token (torch.compile). The first batch of one prompt "
        "and the first of several wait for it, up to 20 seconds: it pays in long runs of long completions. Needs a "
        "C++ compiler, on a GPU Triton.",
    )

    def problems(self) -> Iterator[str]:
        if self.grpo_sample_size < 2:
            yield (
                f"--grpo_sample_size must be at least 2, got {self.grpo_sample_size}: the advantage of a completion is "
                "relative to its group, and in a group of one it is always 0"
            )
        yield from out_of_range(self, "generation_temperature", above=0)
        yield from out_of_range(self, "generation_top_p", above=0, most=1)
        yield from out_of_range(self, "generation_top_k", least=0)
        if self.generation_top_k == 1:
            yield "--generation_top_k 1 makes all completions of a group the same: give at least 2, or 0 for all tokens"
        yield from out_of_range(self, "generation_min_p", least=0, below=1)
        yield from out_of_range(self, "generation_repetition_penalty", above=0)
        if not all(isinstance(text, str) and text for text in self.stop_strings or ()):
            yield f"--stop_strings must be texts of at least one character, got {self.stop_strings}"
        yield from out_of_range(self, "generation_max_length", least=1)
        yield from out_of_range(self, "eval_sample_size", least=1)
        yield from out_of_range(self, "rollout_token_budget", least=1)


@dataclass
class ObjectiveArguments:
    """Advantages, loss and the checks around them."""

    grpo_alpha: float = flag(0.5, "Weight of the policy-gradient term, above 0.")
    grpo_beta: float = flag(
        0.1, "Weight of the KL term that holds the policy near the reference, at least 0. 0: no reference is kept."
    )
    num_iterations: int = flag(
        1,
        "Optimizer steps on the same completions, at least 1; from the second on the importance ratio is clipped. An "
        "epoch has that many times the steps. More: less sampling for as many steps, by a policy further behind.",
    )
    grpo_epsilon: float = flag(
        0.2,
        "How far the importance ratio of a token may fall below 1 before its advantage pushes it no further, above 0 "
        "and below 1. Less: steps on the same completions change less. Needs --num_iterations above 1.",
    )
    grpo_epsilon_high: float | None = flag(
        None,
        "How far the ratio may rise above 1, above 0. More than --grpo_epsilon: rare tokens may become likely sooner. "
        "Needs --num_iterations above 1.",
        unset="the one of --grpo_epsilon",
    )
    scale_rewards: Literal["group", "batch", "none"] = flag(
        "group",
        "What a reward minus its group's mean is divided by. group: the group's standard deviation. batch: that of "
        "all rewards of the batch. none: nothing.",
    )
    loss_type: Literal["grpo", "dr_grpo"] = flag(
        "grpo",
        "How token losses are averaged. grpo: over the tokens of each completion, then over completions. dr_grpo: "
        "their sum divided by completions x --generation_max_length, so that long completions are not favoured.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = flag(
        "k3",
        "Estimator of the KL divergence from d = reference - policy log-prob. k1: -d. k2: d^2 / 2. "
        "k3: exp(d) - d - 1, never negative and of low variance.",
    )
    check_parity: Literal["every", "first", "off"] = flag(
        "first",
        "Compare the sampler's log-probs with the trainer's for the same tokens, on every step, the first or none, "
        "and stop where they differ: it catches wrong positions, frames and templates.",
    )
    shared_prefix: Literal["auto", "off"] = flag(
        "auto",
        "auto: each prompt, and each frame while the vision tower is frozen, is computed once for all its completions, "
        "with the same numbers; where a model cannot, the reason is logged. off: once per completion and pass.",
    )
    logit_memory_gb: float = flag(
        1.0,
        "Memory for logits in GB, above 0: completion tokens meet the language-model head in chunks of memory / "
        "(16 bytes x vocabulary). Less: less memory, same result.",
    )

    def problems(self) -> Iterator[str]:
        yield from out_of_range(self, "grpo_alpha", above=0)
        yield from out_of_range(self, "grpo_beta", least=0)
        yield from out_of_range(self, "num_iterations", least=1)
        yield from out_of_range(self, "grpo_epsilon", above=0, below=1)
        yield from out_of_range(self, "grpo_epsilon_high", above=0)
        for name in ("grpo_epsilon", "grpo_epsilon_high"):
            if self.num_iterations == 1 and was_set(self, name):
                yield f"--{name} has no effect with --num_iterations 1: the ratio is 1 then; leave one of the two out"
        if self.num_iterations > 1:
            yield from saves_within_windows(self, self.save_steps, self.eval_steps or self.logging_steps)
            if self.dataloader_drop_last:
                yield "--dataloader_drop_last has no effect with --num_iterations above 1: short steps are filled up"
        yield from out_of_range(self, "logit_memory_gb", above=0)
        if self.shared_prefix == "off" and self.vision_cache is not None:
            yield "--vision_cache has no effect with --shared_prefix off: the tower then runs in every pass"
        if self.shared_prefix == "off" and self.compile_decoding:
            yield "--compile_decoding has no effect with --shared_prefix off: it compiles the shared sampling"
        if self.grpo_beta == 0 and was_set(self, "kl_estimator"):
            yield "--kl_estimator has no effect with --grpo_beta 0: there is no KL term"


@dataclass
class TrainerArguments:
    """Settings of the Trainer that have another default here; all its others keep theirs."""

    learning_rate: float | None = flag(
        None, "Peak learning rate, above 0.", unset=f"{FULL_LEARNING_RATE:g}, with LoRA {LORA_LEARNING_RATE:g}"
    )
    bf16: bool | None = flag(
        None, "Compute in bfloat16.", unset="where a CUDA device has it, never on a CPU", nargs="?", const=True
    )
    num_train_epochs: float = flag(1.0, "Passes over the data, above 0; --max_steps overrides it.")
    per_device_train_batch_size: int = flag(
        1, "Prompts per process and micro-batch, at least 1; each has --grpo_sample_size completions."
    )
    per_device_eval_batch_size: int = flag(1, "Prompts per process in evaluation, at least 1.")
    logging_steps: float = flag(1, "Optimizer steps between log entries. A step takes seconds, so each is logged.")
    logging_nan_inf_filter: bool = flag(False, "Hide losses that are not numbers from the log, where they should show.")
    save_steps: float = flag(100, "Optimizer steps between checkpoints.")
    remove_unused_columns: bool = flag(False, "Must stay False: reward functions see every field of a record.")
    ddp_find_unused_parameters: bool | None = flag(
        False,
        "Search each forward for trained parameters without gradient. All have one here, that of prompts without "
        "images or videos being 0 in the merger and the vision tower.",
        nargs="?",
        const=True,
    )
    ddp_broadcast_buffers: bool | None = flag(
        False,
        "Send buffers to all processes before each forward. They never change here, and processes may run different "
        "numbers of forwards.",
        nargs="?",
        const=True,
    )

    def problems(self) -> Iterator[str]:
        yield from out_of_range(self, "learning_rate", above=0)
        yield from out_of_range(self, "per_device_train_batch_size", least=1)
        yield from out_of_range(self, "per_device_eval_batch_size", least=1)
        yield from out_of_range(self, "gradient_accumulation_steps", least=1)
        yield from out_of_range(self, "num_train_epochs", above=0)
        yield from out_of_range(self, "dataloader_num_workers", least=0)
        if self.max_steps == 0:  # to the Trainer any number below 1 means none
            yield "--max_steps must be at least 1, got 0; -1, the default, leaves it to --num_train_epochs"
        if self.remove_unused_columns:
            yield "--remove_unused_columns must stay False: it would strip the prompts from the batch"


def saves_within_windows(config: Any, save_steps: float, eval_steps: float) -> Iterator[str]:
    """Problems with checkpoints between the steps on the same completions: they lack those, and none could be resumed.

    Args:
        save_steps, eval_steps: in steps; what is below 1 is a share of a run that is not known yet, and passes.
    """
    if getattr(config, "enable_jit_checkpoint", False):
        yield (
            "--enable_jit_checkpoint saves at any step, with --num_iterations above 1 also between the steps on the "
            "same completions, and such a checkpoint could not be resumed: leave one of the two out"
        )
    saving = [("save_steps", save_steps)] if config.save_strategy == "steps" else []
    if config.save_strategy == "best" and config.eval_strategy == "steps":
        saving = [("eval_steps", eval_steps)]
    for name, steps in saving:
        if steps >= 1 and (over := int(steps) % config.num_iterations):
            near = [whole for whole in (int(steps) - over, int(steps) - over + config.num_iterations) if whole]
            yield (
                f"--{name} {steps:g} is no multiple of --num_iterations {config.num_iterations}: a checkpoint between "
                f"the steps on the same completions could not be resumed; give {' or '.join(map(str, near))}"
            )


FLAG_GROUPS = (ModelArguments, DataArguments, RewardArguments, SamplingArguments, ObjectiveArguments, TrainerArguments)


def all_problems(config: Any) -> list[str]:
    """Everything wrong with ``config``, an object with the fields of all groups; empty where all is well."""
    wrong_types = [problem for group in FLAG_GROUPS for problem in misfits(config, group)]
    return wrong_types or [problem for group in FLAG_GROUPS for problem in group.problems(config)]
