"""The models that the server takes, and what a prompt for them must fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qwenvl.vllm_server.wire import Prompt, require, sizes_of

NEEDS_TOWER = {"qwen2_vl": False, "qwen2_5_vl": False, "qwen3_vl": True}
"""The families that the server takes, and whether vLLM must load the vision tower, though no pixels ever reach it:
without it Qwen3-VL would leave out its deepstack features."""

REFUSED = {
    "qwen3_vl_moe": "vLLM takes the matrices of its experts transposed, as its first checkpoints have them, and not as "
    "the trainer's library saves them",
    "qwen3_5": "vLLM computes its linear attention in bfloat16 alone on a CPU, so that it was never held to the "
    "trainer's numbers closer than 0.06",
    "qwen3_5_moe": "as qwen3_5, its linear attention was never held to the trainer's numbers",
}


def require_family(model_type: str) -> None:
    """
    Raises:
        Refusal: the model would not be sampled exactly.
    """
    reason = f" ({REFUSED[model_type]})" if model_type in REFUSED else ""
    require(
        model_type in NEEDS_TOWER,
        f"this server does not sample model type {model_type!r}{reason}: it takes {', '.join(NEEDS_TOWER)}",
    )


@dataclass(frozen=True)
class Shape:
    """What a request must fit.

    Attributes:
        sizes: see ``sizes_of``.
        merge_size: patches merged along each side.
        feature_width: of a row of features, those of the deepstack mergers included.
        max_model_len: most tokens of a prompt and a completion together.
        tied: the head is the embedding.
    """

    model_type: str
    sizes: dict[str, int | None]
    merge_size: int
    feature_width: int
    max_model_len: int
    tied: bool

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.sizes["vocab_size"] or 0

    @classmethod
    def of(cls, config: Any, max_model_len: int) -> Shape:
        """From a Qwen-VL configuration of transformers."""
        text, vision = config.get_text_config(), config.vision_config
        levels = len(getattr(vision, "deepstack_visual_indexes", None) or ())
        return cls(
            model_type=config.model_type,
            sizes=sizes_of(config),
            merge_size=vision.spatial_merge_size,
            feature_width=text.hidden_size * (1 + levels),
            max_model_len=max_model_len,
            tied=bool(config.tie_word_embeddings or getattr(text, "tie_word_embeddings", False)),
        )


def check_prompt(prompt: Prompt, shape: Shape, max_new_tokens: int, where: str) -> None:
    """Refuses what the model cannot take: vLLM would truncate a prompt that is too long, and fail on other things.

    Raises:
        Refusal: saying what is wrong.
    """
    length = len(prompt.ids)
    require(
        length + max_new_tokens <= shape.max_model_len,
        f"{where}: {length} tokens and {max_new_tokens} new ones exceed the server's --max_model_len "
        f"{shape.max_model_len}",
    )
    low, high = int(prompt.ids.min()), int(prompt.ids.max())
    require(low >= 0 and high < shape.vocab_size, f"{where}: token ids {low} to {high} of {shape.vocab_size}")
    for number, medium in enumerate(prompt.media):
        width, rows = medium.features.shape[1], len(medium.features)
        at = f"{where}.media[{number}]"
        require(width == shape.feature_width, f"{at}: features are {width} wide, expected {shape.feature_width}")
        t, h, w = medium.grid
        expected = t * h * w // shape.merge_size**2
        require(rows == expected, f"{at}: {rows} rows of features, the grid {medium.grid} has {expected}")
    if not prompt.media:
        plain = torch.arange(length).expand(3, -1)
        require(prompt.positions.equal(plain), f"{where}: positions of a prompt of text must count up from 0")
