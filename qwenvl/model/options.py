"""The options of the model: which one, what of it learns, how it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, no_effect, option, set_among

Part = Literal["llm", "vision", "mlp"]
"""The language model with embeddings and head, the vision tower's blocks and patch embedding, the mergers between."""


@dataclass
class TuneOptions(Options):
    """Trained parts of the model."""

    tune_mm_llm: bool = option(True, "Train the language model, its embeddings and the language-model head.")
    tune_mm_vision: bool = option(False, "Train the vision tower: patch embedding and blocks.")
    tune_mm_mlp: bool = option(True, "Train the merger that carries vision features into the language model.")

    def parts(self) -> set[Part]:
        """The parts that learn."""
        flags: dict[Part, bool] = {"llm": self.tune_mm_llm, "vision": self.tune_mm_vision, "mlp": self.tune_mm_mlp}
        return {part for part, learns in flags.items() if learns}


@dataclass
class LoraOptions(Options):
    """Low-rank adapters."""

    lora_enable: bool = option(
        False,
        "Freeze the model and train low-rank adapters (LoRA) on the linear layers of the parts that the tune flags "
        "name, or of the language model where all three are False. The reference is the model without adapters.",
    )
    lora_r: int = option(64, "Rank of the adapters, at least 1. Needs --lora_enable.", least=1)
    lora_alpha: int = option(
        128,
        "Scale of the adapters, above 0: their output is multiplied by lora_alpha / lora_r. Needs --lora_enable.",
        above=0,
    )
    lora_dropout: float = option(
        0.0,
        "Dropout on the adapters' input, 0 to below 1. Above 0 the trained log-probs differ from the sampled ones. "
        "Needs --lora_enable.",
        least=0,
        below=1,
    )
    lora_targets: list[str] | None = option(
        None,
        "Which layers of these parts get adapters, by any part of their names: q_proj, self_attn, in_proj_qkv, "
        "linear_attn, experts, experts.down_proj, shared_expert. Experts have adapters of rank lora_r each. Needs "
        "--lora_enable.",
        unset="all linear layers and experts",
    )
    load_in_4bit: bool = option(
        False,
        "Keep the frozen layers of the language model in 4 bits under the adapters (QLoRA): a quarter of the memory "
        "of bfloat16 weights, slower products, and a policy that differs slightly from the checkpoint. The reference "
        "is the same model. Needs a CUDA device and bitsandbytes. Not for mixtures of experts. Needs --lora_enable. "
        "Not with --deepspeed. Not with --fsdp. Not with --ref_model_name_or_path. Needs --rollout_engine local.",
    )

    def problems(self) -> Iterator[str]:
        if not self.lora_enable:
            for name in set_among(self, "lora_r", "lora_alpha", "lora_dropout", "lora_targets", "load_in_4bit"):
                yield no_effect(f"--{name}", without="--lora_enable")


@dataclass
class ReferenceOptions(Options):
    """The reference model of the KL term."""

    ref_model_name_or_path: str | None = option(
        None,
        "Checkpoint that the KL term keeps the policy near, a folder or hub name of the same family, vocabulary and "
        "shapes. It is a second model in memory. Needs --grpo_beta above 0 or --teacher reference.",
        unset="the policy as it was before training, or --model_name_or_path with --start_from_weights",
    )
    sync_ref_model: bool = option(
        False,
        "Move the reference towards the policy every --ref_model_sync_steps (TR-DPO), so that the KL term limits how "
        "fast the policy moves and not how far. Checkpoints then hold the reference. Needs --grpo_beta above 0 or "
        "--teacher reference. Not with --lora_enable. Needs --max_steps below 0 or --max_steps above "
        "--ref_model_sync_steps.",
    )
    ref_model_mixup_alpha: float = option(
        0.6,
        "Share of the policy in a new weight of the reference, above 0, at most 1; the old weight has the remainder. "
        "1: a copy of the policy. Needs --sync_ref_model.",
        above=0,
        most=1,
    )
    ref_model_sync_steps: int = option(
        512, "Optimizer steps from one mixing to the next, at least 1. Needs --sync_ref_model.", least=1
    )

    def problems(self) -> Iterator[str]:
        if not self.sync_ref_model:
            for name in set_among(self, "ref_model_mixup_alpha", "ref_model_sync_steps"):
                yield no_effect(f"--{name}", without="--sync_ref_model")


@dataclass
class KernelOptions(Options):
    """How the model is computed."""

    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2"] = option(
        "auto",
        "Attention kernel. auto: flash_attention_2 where flash-attn is installed, the CUDA device has compute "
        "capability 8.0 or more and products are in bfloat16 or float16, else sdpa.",
    )
    shared_prefix: Literal["auto", "off"] = option(
        "auto",
        "auto: each prompt, and each frame while the vision tower is frozen, is computed once for all its completions, "
        "with the same numbers; where a model cannot, the reason is logged. off: once per completion and pass.",
    )


@dataclass
class ModelOptions(Options):
    """The model and its computation."""

    model_name_or_path: str | None = option(
        None,
        "Checkpoint of Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5, mixtures of experts too: a folder or a name on the "
        "Hugging Face hub.",
    )
    start_from_weights: str | None = option(
        None,
        "Checkpoint of an earlier run whose weights a new run begins with, its steps, optimizer and schedule anew. The "
        "reference stays --model_name_or_path, or is --ref_model_name_or_path.",
        unset="the weights of --model_name_or_path",
    )
    mm_projector_lr: float | None = option(
        None, "Learning rate of the merger, above 0. Needs --tune_mm_mlp.", unset="that of --learning_rate", above=0
    )
    vision_tower_lr: float | None = option(
        None,
        "Learning rate of the vision tower, above 0. Needs --tune_mm_vision.",
        unset="that of --learning_rate",
        above=0,
    )
    activation_offload: bool = option(
        False,
        "Keep the input of each checkpointed layer in CPU memory until the backward pass: GPU memory then does not "
        "grow with layers x tokens, and the copies take time. Needs --gradient_checkpointing.",
    )
    logit_memory_gb: float = option(
        1.0,
        "Memory for logits in GB, above 0: completion tokens meet the language-model head in chunks of memory / "
        "(16 bytes x vocabulary). Less: less memory, same result.",
        above=0,
    )
