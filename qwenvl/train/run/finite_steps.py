"""A loss, gradients or weights that are not finite end the run or skip the step (``--on_nonfinite``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.step.meter import Meter
from qwenvl.train.journal import Journal

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 3
SKIPPED = "nonfinite/skipped_steps"


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
        FloatingPointError: a step is not finite. ``rollouts/`` of the run folder has its completions.
    """

    def __init__(self, args: GRPOConfig, journal: Journal, meter: Meter, accelerator: Accelerator):
        self._args = args
        self._journal = journal
        self._meter = meter
        self._accelerator = accelerator
        self._in_a_row = 0
        self._last_window = -1

    def check(self, model: nn.Module, step: int) -> None:
        """Leave the gradients of the step as they are if they and the losses are finite, on all processes.

        Args:
            step: from 1.

        Raises:
            FloatingPointError: they are not, and ``on_nonfinite`` is ``stop``, or three steps in a row were left out.
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
        for n, (batch, loss, metrics) in enumerate(micro_batches, 1):
            if not math.isfinite(loss):
                terms = ", ".join(f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value))
                records = ", ".join(record.where for record in batch.records)
                own.append(f"the loss of micro-batch {n} of {len(micro_batches)}{rank} ({terms}; {records})")
        if bad:
            own.append(f"the gradient of parameter {bad[0][0]}" + (f" and {len(bad) - 1} others" if bad[1:] else ""))
        everywhere = torch.tensor(float(bool(own)))
        if args.world_size > 1:
            everywhere = self._accelerator.reduce(everywhere.to(self._accelerator.device), "sum")
        if not everywhere:
            self._in_a_row = 0
            return
        what = [each for process in gather_object([own]) for each in process]
        window = (step - 1) // args.num_iterations  # steps on the same completions fail together
        self._in_a_row += window != self._last_window or not self._in_a_row
        self._last_window = window
        said = f"step {step}: {what[0]} {'is' if len(what) == 1 else f'and {len(what) - 1} more are'} not finite"
        if not skips or self._in_a_row > MOST_IN_A_ROW:
            remedy = f"{MOST_IN_A_ROW} steps in a row were left out before it, so it is not a single bad sample. "
            remedy = remedy if skips else "--on_nonfinite skip leaves out such a step. "
            raise FloatingPointError(f"{said}. {remedy}{self._go_on()}")
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
            name, count, size = bad[0]
            others = f" (and so have {len(bad) - 1} other parameters)" if bad[1:] else ""
            raise FloatingPointError(
                f"step {state.global_step}: after its update parameter {name} has {count} of {size} values that are "
                f"NaN or infinite{others}. {self._go_on()}"
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


def _local(tensor: Tensor) -> Tensor:
    """The shard of a tensor in this process."""
    values = getattr(tensor, "ds_tensor", tensor.detach())  # ZeRO-3's flat shard of a weight
    return values.to_local() if hasattr(values, "to_local") else values
