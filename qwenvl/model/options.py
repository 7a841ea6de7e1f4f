"""The options of the model: which one, what of it learns, how it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option

Part = Literal["llm", "vision", "mlp"]
"""The language model with embeddings and head, the vision tower's blocks and patch embedding, the mergers between."""

WITH_REFERENCE = "grpo_beta > 0 or teacher == 'reference': there is no reference otherwise"


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
    lora_r: int = option(64, "Rank of the adapters, at least 1.", least=1, needs="lora_enable")
    lora_alpha: int = option(
        128,
        "Scale of the adapters, above 0: their output is multiplied by lora_alpha / lora_r.",
        above=0,
        needs="lora_enable",
    )
    lora_dropout: float = option(
        0.0,
        "Dropout on the adapters' input, 0 to below 1. Above 0 the trained log-probs differ from the sampled ones.",
        least=0,
        below=1,
        needs="lora_enable",
    )
    lora_targets: list[str] | None = option(
        None,
        "Which layers of these parts get adapters, by any part of their names: q_proj, self_attn, in_proj_qkv, "
        "linear_attn, experts, experts.down_proj, shared_expert. Experts have adapters of rank lora_r each.",
        unset="all linear layers and experts",
        needs="lora_enable",
    )
    load_in_4bit: bool = option(
        False,
        "Keep the frozen layers of the language model in 4 bits under the adapters (QLoRA): a quarter of the memory of "
        "bfloat16 weights, slower products, and a policy that begins a little off the checkpoint. The reference is the "
        "same model. Needs a CUDA device and bitsandbytes. Not for mixtures of experts.",
        needs=(
            "lora_enable",
            "not deepspeed: weights in 4 bits are not split or gathered",
            "not fsdp: weights in 4 bits are not split or gathered",
            "not ref_model_name_or_path: the reference is the model without its adapter",
        ),
    )


@dataclass
class ReferenceOptions(Options):
    """The reference model of the KL term."""

    ref_model_name_or_path: str | None = option(
        None,
        "Checkpoint that the policy is held near, a folder or hub name of the same family, vocabulary and shapes. It "
        "is a second model in memory.",
        unset="the policy as it was before training, or --model_name_or_path with --start_from_weights",
        needs=WITH_REFERENCE,
    )
    sync_ref_model: bool = option(
        False,
        "Move the reference towards the policy every --ref_model_sync_steps (TR-DPO), so that the KL term limits how "
        "fast the policy moves and not how far. Checkpoints then hold the reference.",
        needs=(
            WITH_REFERENCE,
            "not lora_enable: the frozen weights of the reference do not change",
            "max_steps < 0 or max_steps > ref_model_sync_steps: the run ends before the reference moves otherwise",
        ),
    )
    ref_model_mixup_alpha: float = option(
        0.6,
        "What a weight of the reference becomes: this share of the policy's and the rest of its own, above 0, at most "
        "1, a copy of the policy.",
        above=0,
        most=1,
        needs="sync_ref_model",
    )
    ref_model_sync_steps: int = option(
        512, "Optimizer steps from one mixing to the next, at least 1.", least=1, needs="sync_ref_model"
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
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2"] = option(
        "auto",
        "Attention kernel. auto: flash_attention_2 where flash-attn is installed, the CUDA device has compute "
        "capability 8.0 or more and products are in bfloat16 or float16, else sdpa.",
    )
    mm_projector_lr: float | None = option(
        None, "Learning rate of the merger, above 0.", unset="that of --learning_rate", above=0, needs="tune_mm_mlp"
    )
    vision_tower_lr: float | None = option(
        None,
        "Learning rate of the vision tower, above 0.",
        unset="that of --learning_rate",
        above=0,
        needs="tune_mm_vision",
    )
    shared_prefix: Literal["auto", "off"] = option(
        "auto",
        "auto: each prompt, and each frame while the vision tower is frozen, is computed once for all its completions, "
        "with the same numbers; where a model cannot, the reason is logged. off: once per completion and pass.",
    )
    activation_offload: bool = option(
        False,
        "Keep the input of each checkpointed layer in CPU memory until the backward pass: GPU memory then does not "
        "grow with layers x tokens, and the copies take time.",
        needs="gradient_checkpointing",
    )
    logit_memory_gb: float = option(
        1.0,
        "Memory for logits in GB, above 0: completion tokens meet the language-model head in chunks of memory / "
        "(16 bytes x vocabulary). Less: less memory, same result.",
        above=0,
    )
