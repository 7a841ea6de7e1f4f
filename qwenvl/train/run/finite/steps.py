"""An optimizer step whose loss or gradients are not finite ends the run or is left out: ``--on_nonfinite``."""

from __future__ import annotations

import logging
import math

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.train.log.journal import Journal
from qwenvl.train.log.meter import Meter
from qwenvl.train.run.finite.report import NonFiniteError, nonfinite, write_report
from qwenvl.train.step import MicroBatch

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 3
SKIPPED = "nonfinite/skipped_steps"


class FiniteSteps:
    """Looks at each optimizer step after its last backward pass and before its update. All processes decide alike.

    The gradients of a step that is left out are dropped, so that no optimizer changes a weight or its own state. The
    learning rate goes on: it stays a function of the step.

    With fp16 the loss scaler leaves out steps whose gradients overflow, as a matter of course, and lowers its scale.
    They are none of those that are counted here. A loss that is not finite is.
    """

    def __init__(self, args: GRPOConfig, journal: Journal, meter: Meter, accelerator: Accelerator):
        """
        Args:
            journal: knows the losses of the present step.
            meter: counts the steps that are left out, ``nonfinite/skipped_steps``.
        """
        self._args, self._journal, self._meter, self._accelerator = args, journal, meter, accelerator
        self._in_a_row, self._last_window = 0, -1

    def check(self, model: nn.Module, step: int) -> None:
        """Leaves the gradients of the step as they are if they and the losses are finite, on all processes.

        Args:
            step: from 1.

        Raises:
            NonFiniteError: they are not, and ``on_nonfinite`` is ``stop``, or three steps in a row were left out.
        """
        skips = self._args.on_nonfinite == "skip"
        if skips and self._args.process_index == 0:
            self._meter.count(SKIPPED, 0)
        gradients = ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        bad = [] if self._args.fp16 else nonfinite(gradients)
        own = self._losses(self._journal.trained_on)
        if bad:
            own.append(f"the gradient of parameter {bad[0][0]}" + (f" and {len(bad) - 1} others" if bad[1:] else ""))
        if not self._any(bool(own)):
            self._in_a_row = 0
            return
        what = [each for process in gather_object([own]) for each in process]
        report = write_report(self._args, step, own, bad, self._journal.trained_on)
        window = (step - 1) // self._args.num_iterations  # steps on the same completions fail together
        self._in_a_row += window != self._last_window or not self._in_a_row
        self._last_window = window
        said = f"step {step}: {what[0]} {'is' if len(what) == 1 else f'and {len(what) - 1} more are'} not finite"
        said += f"; {report} has what the step was made of"
        if not skips or self._in_a_row > MOST_IN_A_ROW:
            raise NonFiniteError(f"{said}. {self._remedy(skips)}")
        self._drop_gradients(model)
        if self._args.process_index == 0:
            self._meter.count(SKIPPED, 1)
            logger.warning(f"{said}. The step was left out, {self._in_a_row} in a row of at most {MOST_IN_A_ROW}")

    def _losses(self, trained_on: list[MicroBatch]) -> list[str]:
        rank = f" of process {self._args.process_index}" if self._args.world_size > 1 else ""
        return [
            f"the loss of micro-batch {n} of {len(trained_on)}{rank} ({', '.join(each.metrics_that_are_not_finite)})"
            for n, each in enumerate(trained_on, 1)
            if not math.isfinite(each.loss)
        ]

    def _any(self, here: bool) -> bool:
        if self._args.world_size == 1:
            return here
        flag = torch.tensor(float(here), device=self._accelerator.device)
        return self._accelerator.reduce(flag, "sum").item() > 0

    def _drop_gradients(self, model: nn.Module) -> None:
        if not self._args.fp16:
            model.zero_grad(set_to_none=True)
            return
        # The scaler refuses to go on without gradients, and makes no update of those that are infinite.
        next(p.grad for p in model.parameters() if p.grad is not None).fill_(math.inf)

    def _remedy(self, skips: bool) -> str:
        lower = f"a lower --learning_rate (it is {self._args.learning_rate:g})"
        if skips:
            return (
                f"{MOST_IN_A_ROW} steps in a row were left out before it, so it is not a single bad sample: go on from "
                f"an earlier checkpoint with {lower}"
            )
        return (
            "No checkpoint of this step was saved. Go on from the last one with --on_nonfinite skip, which leaves out "
            f"such a step, or with {lower} or a lower --max_grad_norm (it is {self._args.max_grad_norm:g})"
        )
