"""Versions of what decides the numbers of a run."""

from __future__ import annotations

import platform
from importlib import metadata


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes. Those not installed are left out."""
    names = ("qwenvl", "torch", "torchvision", "transformers", "accelerate", "peft", "av", "decord", "torchcodec")
    versions = {"python": platform.python_version()}
    for name in (*names, "deepspeed", "flash-attn", "vllm"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
