"""Weights that are not finite end a run at the step that made them, before they are saved or sampled with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from qwenvl.runlog import RunLogError, read_rollouts

REPORT = "nonfinite.json"


class NonFiniteError(FloatingPointError):
    """Weights are NaN or infinite. The message names the first of them, and the step."""


class FiniteWeights(TrainerCallback):
    """Looks at every trained weight after each step, and at all weights when training begins.

    It reads the weights once, which takes milliseconds beside a step of seconds.

    Raises:
        NonFiniteError: after it has written ``nonfinite.json`` into the run folder: the step, the weights, the seed and
            the records of the step. The completions of the step are among the rollouts.
    """

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """The weights that training begins with, frozen ones too."""
        if bad := nonfinite(model.named_parameters()):
            name, count, size = bad[0]
            raise NonFiniteError(
                f"step {state.global_step}: before any update {_counted(name, count, size)}{_others(bad)}: the weights "
                f"that training begins with are broken; load them from the source again"
            )

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """The weights that learn, after their update and before a checkpoint of them is saved."""
        learning = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
        if bad := nonfinite(learning):
            name, count, size = bad[0]
            report = write_report(args, state.global_step, bad)
            raise NonFiniteError(
                f"step {state.global_step}: after its update {_counted(name, count, size)}{_others(bad)}. No "
                f"checkpoint of this step was saved; {report} says what the step was made of. Go on from the last "
                f"checkpoint with a lower --max_grad_norm (it is {args.max_grad_norm:g}), or begin anew with a lower "
                f"--learning_rate (it is {args.learning_rate:g})"
            )


def nonfinite(parameters: Iterable[tuple[str, Tensor]]) -> list[tuple[str, int, int]]:
    """Name, count of values that are NaN or infinite, and size, of each parameter that has any.

    Of parameters that are split among processes it sees the part of this process.
    """
    held = {name: _held(parameter) for name, parameter in parameters}
    if not held or torch.stack([torch.isfinite(values).all() for values in held.values()]).all():
        return []  # a GPU is waited for once
    counts = [(name, int((~torch.isfinite(values)).sum()), values.numel()) for name, values in held.items()]
    return [each for each in counts if each[1]]


def write_report(args: Any, step: int, bad: list[tuple[str, int, int]]) -> Path:
    """Write what is needed to make the step again, and return the file."""
    folder = Path(args.output_dir)
    try:
        rows = list(read_rollouts(folder, step=step))
    except RunLogError:
        rows = []
    records: dict[str, dict[str, Any]] = {}
    for row in rows:
        record = records.setdefault(row.where, {"id": row.record_id, "epoch": row.epoch, "rewards": []})
        record["rewards"].append(row.total)
    name = REPORT if args.process_index == 0 else f"rank-{args.process_index}-{REPORT}"
    content = {
        "step": step,
        "parameters": [{"name": name, "nonfinite": count, "of": size} for name, count, size in bad],
        "seed": args.seed,
        "learning_rate": args.learning_rate,
        "records": [{"where": where} | record for where, record in records.items()],
        "settings": "run.json",
        "completions": f'the rows of rollouts/ with "step": {step}',
    }
    path = folder / name
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _held(parameter: Tensor) -> Tensor:
    """What this process has of a parameter."""
    values = getattr(parameter, "ds_tensor", parameter.detach())  # ZeRO-3 keeps a flat part of it there
    return values.to_local() if hasattr(values, "to_local") else values


def _counted(name: str, count: int, size: int) -> str:
    return f"parameter {name} has {count} of {size} values that are NaN or infinite"


def _others(bad: list[tuple[str, int, int]]) -> str:
    return f" (and so have {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
