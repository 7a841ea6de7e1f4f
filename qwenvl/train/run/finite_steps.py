"""Ends the run, or skips the step, where a loss, gradients or weights are not finite (``--on_nonfinite``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import counted
from qwenvl.step.meter import Meter
from qwenvl.train.journal import Journal

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 3  # skipped steps: more are not the doing of a single bad sample
SKIPPED = "nonfinite/skipped_steps"


class FiniteSteps(TrainerCallback):
    """Checks each optimizer step between its last backward pass and its update. All processes decide alike.

    The gradients of a skipped step are dropped, so that no optimizer changes a weight or its own state. The learning
    rate stays a function of the step.

    With fp16 the loss scaler skips steps whose gradients overflow, and lowers its scale. These are not counted here.

    Every trained weight is checked after each step too, which takes milliseconds.

    Args:
        journal: holds the losses of the current step.
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
            step: its number, from 1.

        Raises:
            FloatingPointError: a loss or a gradient is not finite, and ``on_nonfinite`` is ``stop``, or three steps in
                a row were left out.
        """
        args = self._args
        skips = args.on_nonfinite == "skip"
        if skips and args.process_index == 0:
            self._meter.count(SKIPPED, 0)  # so that the log has the metric from the first step on
        own = self._found(model)
        # A number is reduced first: the texts are gathered only if some process has found something.
        everywhere = torch.tensor(float(bool(own)))
        if args.world_size > 1:
            everywhere = self._accelerator.reduce(everywhere.to(self._accelerator.device), "sum")
        if not everywhere:
            self._in_a_row = 0
            return
        found = list(chain.from_iterable(gather_object([own])))
        window = (step - 1) // args.num_iterations
        if window != self._last_window or self._in_a_row == 0:  # steps on the same completions fail together
            self._in_a_row += 1
        self._last_window = window
        verb = "is" if len(found) == 1 else f"and {len(found) - 1} more are"
        problem = f"step {step}: {found[0]} {verb} not finite"
        if not skips:
            raise FloatingPointError(f"{problem}. --on_nonfinite skip leaves out such a step. {self._go_on()}")
        if self._in_a_row > MOST_IN_A_ROW:
            reason = f"{MOST_IN_A_ROW} steps in a row were left out before it, so it is not a single bad sample"
            raise FloatingPointError(f"{problem}. {reason}. {self._go_on()}")
        if args.fp16:  # the scaler needs gradients, and makes no update with infinite ones
            next(p.grad for p in model.parameters() if p.grad is not None).fill_(math.inf)
        else:
            model.zero_grad(set_to_none=True)
        if args.process_index == 0:
            self._meter.count(SKIPPED, 1)
            logger.warning(f"{problem}. The step was left out, {self._in_a_row} in a row of at most {MOST_IN_A_ROW}")

    def _found(self, model: nn.Module) -> list[str]:
        """The losses and gradients of this process that are not finite, in words."""
        args = self._args
        rank = f" of process {args.process_index}" if args.world_size > 1 else ""
        micro_batches = self._journal.trained_on
        found = []
        for number, (batch, loss, metrics) in enumerate(micro_batches, start=1):
            if not math.isfinite(loss):
                terms = ", ".join(f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value))
                records = ", ".join(record.where for record in batch.records)
                found.append(f"the loss of micro-batch {number} of {len(micro_batches)}{rank} ({terms}; {records})")
        if args.fp16:  # the loss scaler looks at gradients itself
            return found
        bad = nonfinite((name, each.grad) for name, each in model.named_parameters() if each.grad is not None)
        if bad:
            others = f" (and {counted(len(bad) - 1, 'other')})" if len(bad) > 1 else ""
            found.append(f"the gradient of parameter {bad[0].name}{others}")
        return found

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Check the weights that learn, after their update and before a checkpoint of them is saved."""
        bad = nonfinite((name, each) for name, each in model.named_parameters() if each.requires_grad)
        if bad:
            first = bad[0]
            others = f" (and so have {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
            raise FloatingPointError(
                f"step {state.global_step}: after its update parameter {first.name} has {first.bad} of {first.size} "
                f"values that are NaN or infinite{others}. {self._go_on()}"
            )

    def _go_on(self) -> str:
        """The end of a message: how to resume."""
        return (
            "No checkpoint of this step was saved. Resume from an earlier one with a lower --max_grad_norm (it is "
            f"{self._args.max_grad_norm:g}), or begin anew with a lower --learning_rate (it is "
            f"{self._args.learning_rate:g})"
        )


class NonFinite(NamedTuple):
    """A tensor with values that are NaN or infinite: the name of its parameter, their number, and its size."""

    name: str
    bad: int
    size: int


def nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> list[NonFinite]:
    """The tensors that have values that are NaN or infinite. Sharded tensors count by the shard of this process.

    Args:
        tensors: weights or gradients, by the name of the parameter.
    """
    local = {name: _local(tensor) for name, tensor in tensors}
    if not local:
        return []
    # One question for all of them, as each one waits for the GPU.
    if torch.stack([torch.isfinite(values).all() for values in local.values()]).all():
        return []
    found: list[NonFinite] = []
    for name, values in local.items():
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            found.append(NonFinite(name, bad, values.numel()))
    return found


def _local(tensor: Tensor) -> Tensor:
    """The shard of a tensor in this process."""
    values = getattr(tensor, "ds_tensor", tensor.detach())  # ZeRO-3's flat shard of a weight
    return values.to_local() if hasattr(values, "to_local") else values
