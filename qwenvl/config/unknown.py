"""What to say of a setting that does not exist: its name here, or names that are near to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SUCCESSORS = {
    "warmup_ratio": "--warmup_steps with a value below 1, which is a share of all steps",
    "evaluation_strategy": "--eval_strategy",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "lr": "--learning_rate",
    "num_generations": "--grpo_sample_size",
    "max_completion_length": "--generation_max_length",
    "beta": "--grpo_beta",
    "temperature": "--generation_temperature",
    "top_k": "--generation_top_k",
    "top_p": "--generation_top_p",
    "min_p": "--generation_min_p",
    "repetition_penalty": "--generation_repetition_penalty",
}
"""Flags of earlier transformers versions and of other trainers, and what to use here."""


def unknown_flag(token: str, known: Iterable[str]) -> str:
    """What to say of a flag that does not exist, or of a word that belongs to none."""
    name = token.split("=")[0].lstrip("-").replace("-", "_")
    if name in SUCCESSORS:
        return f"unknown flag {name}; use {SUCCESSORS[name]}"
    near = get_close_matches(name, list(known))
    return f"unknown flag {token}; " + (f"near: {', '.join(near)}" if near else "docs/flags.md lists them all")
