"""What is written down of an optimizer step that had numbers that are not finite, so that it can be made again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.files import written_whole
from qwenvl.train.step import MicroBatch


class NonFiniteError(FloatingPointError):
    """A loss, gradients or weights are NaN or infinite. The message names the step and where."""


def nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, int, int]]:
    """Name, count of values that are NaN or infinite, and size, of each tensor that has any.

    Of tensors that are split among processes it sees the part of this process.

    Args:
        tensors: weights or gradients, by the name of the parameter.
    """
    held = {name: _held(tensor) for name, tensor in tensors}
    if not held or torch.stack([torch.isfinite(values).all() for values in held.values()]).all():
        return []  # a GPU is waited for once
    counts = [(name, int((~torch.isfinite(values)).sum()), values.numel()) for name, values in held.items()]
    return [each for each in counts if each[1]]


def write_report(
    args: GRPOConfig,
    step: int,
    what: Sequence[str],
    parameters: Sequence[tuple[str, int, int]],
    micro_batches: Sequence[MicroBatch],
) -> Path:
    """Write what an optimizer step was made of in this process.

    Args:
        step: from 1.
        what: where numbers are not finite, in words.
        parameters: as ``nonfinite`` returns them.
        micro_batches: of the step, in this process.

    Returns:
        The file, ``nonfinite/step-000012.json``. Processes other than the first add their number to its name.
    """
    rank = f".rank-{args.process_index}" if args.process_index else ""
    path = Path(args.output_dir) / "nonfinite" / f"step-{step:06d}{rank}.json"
    content = {
        "step": step,
        "what": list(what),
        "process": args.process_index,
        "seed": args.seed,
        "learning_rate": args.learning_rate,
        "parameters": [{"name": name, "nonfinite": count, "of": size} for name, count, size in parameters],
        "micro_batches": [each.report() for each in micro_batches],
        "settings": "run.json",
    }
    with written_whole(path) as unfinished:
        unfinished.write_text(json.dumps(_words(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _held(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    values = getattr(tensor, "ds_tensor", tensor.detach())  # ZeRO-3 keeps a flat part of a weight there
    return values.to_local() if hasattr(values, "to_local") else values


def _words(value: Any) -> Any:
    """The value with NaN and infinity as words, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {name: _words(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_words(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
