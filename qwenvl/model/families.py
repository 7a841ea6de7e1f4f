"""The supported model families and their differences."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

FamilyName = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
"""``config.model_type`` of the checkpoints of each family."""


class Family(NamedTuple):
    """One family of Qwen-VL models.

    Attributes:
        name: for people.
        time: how the temporal row of M-RoPE counts (see ``positions``).
    """

    name: str
    time: Literal["index", "seconds", "timestamp"]


FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family("Qwen2-VL", time="index"),
    "qwen2_5_vl": Family("Qwen2.5-VL", time="seconds"),
    "qwen3_vl": Family("Qwen3-VL", time="timestamp"),
    "qwen3_vl_moe": Family("Qwen3-VL-MoE", time="timestamp"),
    "qwen3_5": Family("Qwen3.5", time="timestamp"),
    "qwen3_5_moe": Family("Qwen3.5-MoE", time="timestamp"),
}

MERGERS = ("merger", "deepstack_merger_list")
"""Names under ``model.visual`` of the modules that project vision features into the language model."""

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
