"""The supported model families and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

FamilyName = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
"""``config.model_type`` of the checkpoints of each family."""


@dataclass(frozen=True)
class Family:
    """One family of Qwen-VL models.

    Attributes:
        model_type: of its checkpoints.
        name: for people.
        time: how the temporal row of M-RoPE counts (see ``positions``).
        mergers: names under ``model.visual`` of the modules that project vision features into the language model.
    """

    model_type: FamilyName
    name: str
    time: Literal["index", "seconds", "timestamp"]
    mergers: tuple[str, ...] = ("merger",)


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("qwen2_vl", "Qwen2-VL", time="index"),
        Family("qwen2_5_vl", "Qwen2.5-VL", time="seconds"),
        Family("qwen3_vl", "Qwen3-VL", time="timestamp", mergers=("merger", "deepstack_merger_list")),
        Family("qwen3_vl_moe", "Qwen3-VL-MoE", time="timestamp", mergers=("merger", "deepstack_merger_list")),
        Family("qwen3_5", "Qwen3.5", time="timestamp"),
        Family("qwen3_5_moe", "Qwen3.5-MoE", time="timestamp"),
    )
}

REFUSED = {
    "qwen2_5_omni": "it also hears and speaks, and its positions are tied to its sound",
    "qwen3_omni_moe": "it also hears and speaks, and its positions are tied to its sound",
    "qwen4_exp": "its n-gram embedding table, in Qwen3.8-Flash-Next for one, is not supported here",
}
"""Models that look like one of the families, and why they are refused."""


def family_of(config: Any) -> Family:
    """The family of a transformers configuration, or of its ``model_type`` alone.

    Raises:
        ValueError: for any other kind of model, naming those supported.
    """
    name = getattr(config, "model_type", config)
    if name in FAMILIES:
        return FAMILIES[name]
    reason = f" ({REFUSED[name]})" if name in REFUSED else ""
    raise ValueError(f"model type {name!r} is not supported{reason}: expected one of {', '.join(FAMILIES)}")
