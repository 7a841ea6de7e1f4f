"""The families of models that the server takes, and what is special about each in vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qwenvl.vllm_server.wire.body import Refusal
from qwenvl.vllm_server.wire.health import sizes_of


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        tower: vLLM must load the vision tower, though no picture ever reaches it. Without it Qwen3-VL would leave out
            its deepstack features.
    """

    tower: bool


FAMILIES = {
    "qwen2_vl": Family(tower=False),
    "qwen2_5_vl": Family(tower=False),
    "qwen3_vl": Family(tower=True),
}

REFUSED = {
    "qwen3_vl_moe": "vLLM takes the matrices of its experts turned, as its first checkpoints have them, and not as the "
    "trainer's library saves them",
    "qwen3_5": "vLLM computes its linear attention in bfloat16 alone on a CPU, so that it was never held to the "
    "trainer's numbers closer than 0.06",
    "qwen3_5_moe": "as qwen3_5, its linear attention was never held to the trainer's numbers",
}


def family_of(model_type: str) -> Family:
    """
    Raises:
        Refusal: for a model that this server would not sample exactly.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    reason = f" ({REFUSED[model_type]})" if model_type in REFUSED else ""
    raise Refusal(
        "request", f"this server does not sample model type {model_type!r}{reason}: it takes {', '.join(FAMILIES)}"
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
        """It is above all token ids."""
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
