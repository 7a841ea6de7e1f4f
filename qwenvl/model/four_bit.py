"""Frozen weights in 4 bits, under adapters that learn (QLoRA, arXiv:2305.14314)."""

from __future__ import annotations

from typing import Any

import torch

from qwenvl.files import require

SKIPPED = ["model.visual", "lm_head"]
"""Modules that stay as they are: the vision tower, whose features all passes share, and the head, which is exact."""
BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Of a weight: 4 bits, and of each block of 64 a scale, which is kept in 8 bits with a float32 for 256 of them
(section 3 of the paper)."""


def require_four_bit(device: torch.device | str) -> None:
    """Raise where weights cannot be kept in 4 bits.

    Raises:
        ValueError: the device is no CUDA device.
        ImportError: bitsandbytes is not installed.
    """
    if torch.device(device).type != "cuda":
        raise ValueError(
            "--load_in_4bit needs a CUDA device: the 4-bit products of bitsandbytes are kernels of a GPU; leave it out "
            "or take bfloat16 weights (--bf16 True)"
        )
    require("bitsandbytes", "qlora")


def four_bit_settings(compute: torch.dtype) -> Any:
    """The settings of transformers for NF4 weights with double quantization, in the layers of the language model.

    Args:
        compute: the type of products, to which weights are unpacked.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
        llm_int8_skip_modules=SKIPPED,
    )
