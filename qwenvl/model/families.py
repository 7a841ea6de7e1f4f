"""The model families that are supported, and what the rest of the code needs to know of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """One family of Qwen-VL models.

    Attributes:
        model_type: ``config.model_type`` of its checkpoints.
        time: how the temporal row of M-RoPE counts (see ``positions``).
        mergers: names under ``model.visual`` of the modules that project vision features into the language model.
    """

    model_type: str
    time: Literal["index", "seconds", "timestamp"]
    mergers: tuple[str, ...] = ("merger",)


FAMILIES = {
    family.model_type: family
    for family in (
        Family("qwen2_vl", time="index"),
        Family("qwen2_5_vl", time="seconds"),
        Family("qwen3_vl", time="timestamp", mergers=("merger", "deepstack_merger_list")),
    )
}


def family_of(config) -> Family:
    """The family of a transformers configuration.

    Raises:
        ValueError: for any other kind of model, naming those supported.
    """
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        raise ValueError(
            f"model type {config.model_type!r} is not supported: expected one of {', '.join(FAMILIES)}"
        ) from None
