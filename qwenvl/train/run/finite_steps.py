"""A loss, gradients or weights that are not finite end the run or skip the step (``--on_nonfinite``), with a report."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.files import written_whole
from qwenvl.runlog import plain
from qwenvl.train.journal import Journal, TrainedOn
from qwenvl.train.meter import Meter

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 3
SKIPPED = "nonfinite/skipped_steps"


class NonFiniteError(FloatingPointError):
    """A loss, gradients or weights are NaN or infinite. The message names the step and where."""


class FiniteSteps(TrainerCallback):
    """Checks each optimizer step between its last backward pass and its update. All processes decide alike.

    The gradients of a skipped step are dropped, so that no optimizer changes a weight or its own state. The learning
    rate stays a function of the step.

    With fp16 the loss scaler skips steps whose gradients overflow, and lowers its scale. These are not counted here.

    Checks every trained weight after each step too, which takes milliseconds.

    Args:
        journal: has the losses of the current step.
        meter: counts the skipped steps, ``nonfinite/skipped_steps``.

    Raises:
        NonFiniteError: after a report was written into the run folder (``write_report``).
    """

    def __init__(self, args: GRPOConfig, journal: Journal, meter: Meter, accelerator: Accelerator):
        self._args, self._journal, self._meter, self._accelerator = args, journal, meter, accelerator
        self._in_a_row, self._last_window = 0, -1

    def check(self, model: nn.Module, step: int) -> None:
        """Leave the gradients of the step as they are if they and the losses are finite, on all processes.

        Args:
            step: from 1.

        Raises:
            NonFiniteError: they are not, and ``on_nonfinite`` is ``stop``, or three steps in a row were left out.
        """
        args = self._args
        skips = args.on_nonfinite == "skip"
        if skips and args.process_index == 0:
            self._meter.count(SKIPPED, 0)
        gradients = ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        bad = [] if args.fp16 else nonfinite(gradients)
        rank = f" of process {args.process_index}" if args.world_size > 1 else ""
        micro_batches = self._journal.trained_on
        own = []
        for n, each in enumerate(micro_batches, 1):
            if not math.isfinite(each.loss):
                terms = (f"{name} {value}" for name, value in each.metrics.items() if not math.isfinite(value))
                own.append(f"the loss of micro-batch {n} of {len(micro_batches)}{rank} ({', '.join(terms)})")
        if bad:
            own.append(f"the gradient of parameter {bad[0][0]}" + (f" and {len(bad) - 1} others" if bad[1:] else ""))
        everywhere = torch.tensor(float(bool(own)))
        if args.world_size > 1:
            everywhere = self._accelerator.reduce(everywhere.to(self._accelerator.device), "sum")
        if not everywhere:
            self._in_a_row = 0
            return
        what = [each for process in gather_object([own]) for each in process]
        report = write_report(args, step, own, bad, micro_batches)
        window = (step - 1) // args.num_iterations  # steps on the same completions fail together
        self._in_a_row += window != self._last_window or not self._in_a_row
        self._last_window = window
        said = f"step {step}: {what[0]} {'is' if len(what) == 1 else f'and {len(what) - 1} more are'} not finite"
        said += f"; {report} has what the step was made of"
        if not skips or self._in_a_row > MOST_IN_A_ROW:
            remedy = f"{MOST_IN_A_ROW} steps in a row were left out before it, so it is not a single bad sample. "
            remedy = remedy if skips else "--on_nonfinite skip leaves out such a step. "
            raise NonFiniteError(f"{said}. {remedy}{self._go_on()}")
        if args.fp16:  # the scaler needs gradients, and makes no update with infinite ones
            next(p.grad for p in model.parameters() if p.grad is not None).fill_(math.inf)
        else:
            model.zero_grad(set_to_none=True)
        if args.process_index == 0:
            self._meter.count(SKIPPED, 1)
            logger.warning(f"{said}. The step was left out, {self._in_a_row} in a row of at most {MOST_IN_A_ROW}")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """The weights that learn, after their update and before a checkpoint of them is saved."""
        learning = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
        if bad := nonfinite(learning):
            what = f"after its update {_counted(bad)}"
            report = write_report(args, state.global_step, [what], bad, self._journal.trained_on)
            raise NonFiniteError(
                f"step {state.global_step}: {what}; {report} has what the step was made of. {self._go_on()}"
            )

    def _go_on(self) -> str:
        return (
            "No checkpoint of this step was saved. Resume from an earlier one with a lower --max_grad_norm (it is "
            f"{self._args.max_grad_norm:g}), or begin anew with a lower --learning_rate (it is "
            f"{self._args.learning_rate:g})"
        )


def nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, int, int]]:
    """Name, count of values that are NaN or infinite, and size, of each tensor that has any.

    Of sharded tensors it sees the shard of this process.

    Args:
        tensors: weights or gradients, by the name of the parameter.
    """
    local = {name: _local(tensor) for name, tensor in tensors}
    if not local or torch.stack([torch.isfinite(values).all() for values in local.values()]).all():
        return []  # a GPU is waited for once
    counts = [(name, int((~torch.isfinite(values)).sum()), values.numel()) for name, values in local.items()]
    return [each for each in counts if each[1]]


def write_report(
    args: GRPOConfig,
    step: int,
    what: Sequence[str],
    parameters: Sequence[tuple[str, int, int]],
    micro_batches: Sequence[TrainedOn],
) -> Path:
    """Write everything needed to compute an optimizer step of this process again.

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
        unfinished.write_text(json.dumps(plain(content), indent=1) + "\n", encoding="utf-8")
    return path


def _local(tensor: Tensor) -> Tensor:
    """The shard of a tensor in this process."""
    values = getattr(tensor, "ds_tensor", tensor.detach())  # ZeRO-3's flat shard of a weight
    return values.to_local() if hasattr(values, "to_local") else values


def _counted(bad: list[tuple[str, int, int]]) -> str:
    name, count, size = bad[0]
    others = f" (and so have {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
    return f"parameter {name} has {count} of {size} values that are NaN or infinite{others}"
