"""Checkpoints' shapes with random weights, by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench_model import Case, Step, video_prompt

from qwenvl.demo.tiny import FAMILIES, make_processor
from qwenvl.demo.tiny import make_model as make_tiny
from qwenvl.model.families import FamilyName
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions


@dataclass(frozen=True)
class Shape:
    """What makes the configuration of a checkpoint, beside the defaults of its class."""

    family: FamilyName
    text: dict[str, Any]
    vision: dict[str, Any]
    tied: bool = True


def _text(width: int, inner: int, layers: int, heads: int, shared: int) -> dict[str, Any]:
    """The sizes of a language model with ``heads`` query heads, which share ``shared`` key-value heads."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = dict(zip(names, (width, inner, layers, heads, shared), strict=True))
    return sizes | {"max_position_embeddings": 262144}


def _tower(width: int) -> dict[str, Any]:
    """The vision tower of Qwen2.5-VL, whose features are ``width`` wide."""
    sizes = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": width}
    return sizes | {"tokens_per_second": 2}


def _rope(theta: float, sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": sections, **more}}


OLD_ROPE = _rope(1e6, [16, 24, 24]) | {"vocab_size": 151936}
VL3_ROPE = _rope(5e6, [24, 20, 20], mrope_interleaved=True) | {"head_dim": 128}
Q35_ROPE = _rope(1e7, [11, 11, 10], mrope_interleaved=True, partial_rotary_factor=0.25)

SHAPES = {
    "3b": Shape("qwen2_5_vl", _text(2048, 11008, 36, 16, 2) | OLD_ROPE, _tower(2048)),
    "7b": Shape("qwen2_5_vl", _text(3584, 18944, 28, 28, 4) | OLD_ROPE | {"vocab_size": 152064}, _tower(3584), False),
    "qwen3_vl_4b": Shape(
        "qwen3_vl",
        _text(2560, 9728, 36, 32, 8) | VL3_ROPE,
        {
            **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560},
            **{"patch_size": 16, "deepstack_visual_indexes": [5, 11, 17]},
        },
    ),
    "qwen3_vl_8b": Shape(
        "qwen3_vl",
        _text(4096, 12288, 36, 32, 8) | VL3_ROPE,
        {
            **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096},
            **{"patch_size": 16, "deepstack_visual_indexes": [8, 16, 24]},
        },
        False,
    ),
    "qwen3_5_4b": Shape(
        "qwen3_5", _text(2560, 9216, 32, 16, 4) | Q35_ROPE, {"depth": 24, "hidden_size": 1024, "out_hidden_size": 2560}
    ),
}
"""About the checkpoints of these names. A shape is what is measured: where a checkpoint differs, so do its seconds."""


@dataclass(frozen=True)
class Wanted:
    """How a model is made.

    Attributes:
        name: of ``SHAPES``, or ``tiny_FAMILY`` for a rehearsal.
        device: where it is.
        lora: rank 16 on the language model instead of full fine-tuning.
        checkpointing: compute layers again in the backward pass.
        attention: of transformers.
        dtype: of the weights.
    """

    name: str = "3b"
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))
    lora: bool = False
    checkpointing: bool = True
    attention: str = "sdpa"
    dtype: torch.dtype = torch.bfloat16


NAMES = (*SHAPES, *(f"tiny_{family}" for family in FAMILIES))


def make_model(wanted: Wanted) -> nn.Module:
    """The model, ready to be trained."""
    model = _tiny(wanted) if wanted.name.startswith("tiny_") else _full_size(wanted)
    model.config.get_text_config().pad_token_id = 0
    apply_tuning(model, TuneOptions())
    if wanted.lora:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 16, 32)))
    if wanted.checkpointing:
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def make_step(wanted: Wanted, case: Case) -> Step:
    """A model with a prompt of one video, on its device."""
    return step_of(make_model(wanted), case)


def step_of(model: nn.Module, case: Case) -> Step:
    """A prompt of one video for ``model``, on its device."""
    return Step(model, on_device(video_prompt(unwrap(model), case.prompt), next(model.parameters()).device), case)


def on_device(prompts: PromptInputs, device: torch.device) -> PromptInputs:
    """The same prompts on ``device``."""
    tensors = {f.name: value for f in fields(prompts) if isinstance(value := getattr(prompts, f.name), torch.Tensor)}
    return replace(prompts, **{name: value.to(device) for name, value in tensors.items()})


def _tiny(wanted: Wanted) -> nn.Module:
    family = wanted.name.removeprefix("tiny_")
    model = make_tiny(family, make_processor(family), hidden_size=128)
    model.set_attn_implementation(wanted.attention)
    return model.to(wanted.device, wanted.dtype)


def _full_size(wanted: Wanted) -> nn.Module:
    shape = SHAPES[wanted.name]
    config = CONFIG_MAPPING[shape.family](
        text_config=shape.text, vision_config=shape.vision, tie_word_embeddings=shape.tied
    )
    with wanted.device:
        return AutoModelForImageTextToText.from_config(
            config, dtype=wanted.dtype, attn_implementation=wanted.attention
        ).eval()
