"""The parity check: engine and trainer must give the same log-probs to the same tokens.

It catches positions, frames or templates that differ between the two, on the first step of a run. ``probe`` has what is
compared in float32 besides the completions of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from qwenvl.grpo.diagnostics import logprob_gap
from qwenvl.model.inputs import PromptInputs
from qwenvl.step.meter import Meter
from qwenvl.step.probe import CAUSES, Probe, kinds_of_media, probe_rows
from qwenvl.step.types import Experience

logger = logging.getLogger(__name__)

# (largest, mean) differences that rounding alone does not reach. Half precision rounds single tokens far off, so there
# the mean decides.
FULL_PRECISION = (1e-2, 1e-3)
HALF_PRECISION = (2.0, 5e-2)
NOISE = 2.0
"""Means of the trainer's own rounding by which a server in half precision may differ on average.

Two that round alike differ by sqrt(2) = 1.4 of them, and 2 allow for a server that rounds 1.7 times as much. Measured
with vLLM: 1.1 to 1.3; positions off by one 3 to 14, frames in another order 8 to 31.
"""


class ParityError(RuntimeError):
    """Sampler and trainer give the same tokens different log-probabilities."""


class ParityCheck:
    """Compares completions where the settings ask for it: of the first step, and of the first of each server's start.

    Completions that older weights sampled ahead legitimately have other log-probs: they are not compared. Dropout on
    adapters makes the two differ by design: then none are.

    Args:
        when: whether every step is compared, only the first ones, or none (``check_parity``).
        half_precision: the trainer computes in bfloat16 or float16.
        dropout: adapters are trained with dropout.
        meter: counts the differences.
    """

    def __init__(
        self, when: Literal["every", "first", "off"], *, half_precision: bool, dropout: bool, meter: Meter
    ) -> None:
        if dropout and when != "off":
            logger.warning("check_parity: left out, because lora_dropout changes the trainer's log-probs on purpose")
        self._when = "off" if dropout else when
        self._half_precision = half_precision
        self._meter = meter
        self._begun: dict[str, int] = {}  # by sampling process, the step before which it was first compared
        self._probed: set[str] = set()  # the kinds of media that were compared

    def probe(self, prompts: PromptInputs, compare: Callable[[list[int]], Probe | None]) -> None:
        """Checks a few tokens behind prompts with media, once for each kind, in the step that is compared first.

        Args:
            prompts: of a micro-batch.
            compare: samples and compares completions of some rows of them. None: this run has no way to.

        Raises:
            ParityError: the differences are above what the trainer's own rounding explains.
        """
        if self._when == "off":
            return
        rows = probe_rows(prompts, self._probed)
        if not rows:
            return
        for row in rows:
            self._probed |= kinds_of_media(prompts, row)
        found = compare(rows)
        problem = None if found is None else found.problem()
        if problem is not None:
            raise ParityError(problem)

    def check(
        self, finished_steps: int, experience: Experience, logprobs: Tensor, exact: Callable[[], Tensor | None]
    ) -> None:
        """Checks fresh completions. Logs ``parity/max`` and ``parity/mean``, the differences over all their tokens.

        In half precision a server's are held to the trainer's own rounding, logged as ``parity/noise``.

        Args:
            logprobs: N x T, the trainer's.
            exact: gives them in full precision. None: they cannot be computed, and the bounds are fixed.

        Raises:
            ParityError: a difference is above what rounding explains.
        """
        rollout = experience.rollout
        if self._when == "off" or experience.staleness or rollout.logprobs is None:
            return
        new = [self._begun.setdefault(boot, finished_steps) == finished_steps for boot in rollout.boots]
        first = finished_steps == 0 or any(new)
        if self._when == "first" and not first:
            return
        if not logprobs[rollout.completion_mask].isfinite().all():
            return  # what is not finite is reported with the loss
        tokens = int(rollout.completion_mask.sum())
        largest, mean = logprob_gap(rollout.logprobs, logprobs, rollout.completion_mask)
        self._meter.max("parity/max", largest)
        self._meter.mean("parity/mean", mean, weight=tokens)
        most, most_mean = HALF_PRECISION if self._half_precision else FULL_PRECISION
        from_server = bool(rollout.boots)
        if from_server and self._half_precision:
            in_full_precision = exact()
            if in_full_precision is not None:
                furthest, noise = logprob_gap(in_full_precision, logprobs, rollout.completion_mask)
                self._meter.mean("parity/noise", noise, weight=tokens)
                most = max(most, NOISE * furthest)
                # The mean is held to the measured rounding instead of the fixed bound.
                most_mean = max(FULL_PRECISION[1], NOISE * noise)
        if not (largest <= most and mean <= most_mean):  # true of NaN too
            raise ParityError(
                f"the sampler's and the trainer's log-probs of the same tokens differ by {largest:.3g} at most and "
                f"{mean:.3g} on average; expected at most {most:g} and {most_mean:g}. They do not see the same prompt: "
                f"{CAUSES}"
            )
