"""The parity check: engine and trainer must give the same log-probs to the same tokens.

It catches positions, frames or templates that differ between the two, on the first step of a run.

The completions of a step are compared in the precision of the run, where rounding may hide what wrong positions of an
image do. So a few tokens are also sampled and compared in float32, behind prompts with media.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.diagnostics import logprob_gap
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.model.logprobs import completion_likelihood as plain_likelihood
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.engine import RolloutEngine
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.train.meter import Meter
from qwenvl.train.step import Experience
from qwenvl.types import SamplingParams

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


PROBE_PROMPTS, PROBE_SAMPLES, PROBE_TOKENS = 2, 2, 16
# Means of the trainer's own rounding by which half of the probe's tokens may differ. Measured with tiny models: a
# sampler that is right differs by 0.5 to 2 of them, one that drops height and width by 40 and more in float32, and in
# half precision by 12 (Qwen3-VL) or by no more than rounding (the other families).
PROBE_NOISE = {"float32": 8.0, "half": 3.0}
PROBE_FLOOR = {"float32": 2e-6, "half": 1e-3}  # a few units in the last place of a log-prob
UNKNOWN_NOISE = 1e-4  # in float32, where the trainer has no second path to measure its rounding by


class ParityError(RuntimeError):
    """Sampler and trainer give the same tokens different log-probabilities."""


class ParityCheck:
    """Compares completions where the settings ask for it: of the first step, and of the first of each server's start.

    Completions that older weights sampled ahead legitimately have other log-probs: they are not compared. Dropout on
    adapters makes the two differ by design: then none are.
    """

    def __init__(self, args: GRPOConfig, meter: Meter):
        self._args, self._meter = args, meter
        self._dropout = args.lora_enable and args.lora_dropout > 0
        if self._dropout and args.check_parity != "off":
            logger.warning("check_parity: left out, because lora_dropout changes the trainer's log-probs on purpose")
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
        if self._dropout or self._args.check_parity == "off":
            return
        rows = probe_rows(prompts, self._probed)
        if not rows:
            return
        self._probed |= {kind for row in rows for kind in _kinds(prompts, row)}
        if (found := compare(rows)) is not None and (problem := found.problem()):
            raise ParityError(problem)

    def __call__(self, finished_steps: int, experience: Experience, exact: Callable[[], Tensor | None]) -> None:
        """Checks fresh completions. Logs ``parity/max`` and ``parity/mean``, the differences over all their tokens.

        In half precision a server's are held to the trainer's own rounding, logged as ``parity/noise``.

        Args:
            experience: with the trainer's log-probs as the old ones.
            exact: gives them in full precision. None: they cannot be computed, and the bounds are fixed.

        Raises:
            ParityError: a difference is above what rounding explains.
        """
        rollout, logprobs, args = experience.rollout, experience.old_logprobs, self._args
        if self._dropout or experience.staleness or rollout.logprobs is None or logprobs is None:
            return
        new = [self._begun.setdefault(boot, finished_steps) == finished_steps for boot in rollout.boots]
        first = finished_steps == 0 or any(new)
        if args.check_parity == "off" or (args.check_parity == "first" and not first):
            return
        if not logprobs[rollout.completion_mask].isfinite().all():
            return  # what is not finite is reported with the loss
        largest, mean = logprob_gap(rollout.logprobs, logprobs, rollout.completion_mask)
        self._meter.max("parity/max", largest)
        self._meter.mean("parity/mean", mean, weight=int(rollout.completion_mask.sum()))
        most, most_mean = HALF_PRECISION if args.bf16 or args.fp16 else FULL_PRECISION
        if rollout.boots and (args.bf16 or args.fp16) and (precise := exact()) is not None:
            furthest, noise = logprob_gap(precise, logprobs, rollout.completion_mask)
            self._meter.mean("parity/noise", noise, weight=int(rollout.completion_mask.sum()))
            most, most_mean = max(most, NOISE * furthest), max(FULL_PRECISION[1], NOISE * noise)
        if not (largest <= most and mean <= most_mean):
            raise ParityError(
                f"the sampler's and the trainer's log-probs of the same tokens differ by {largest:.3g} at most and "
                f"{mean:.3g} on average; expected at most {most:g} and {most_mean:g}. They do not see the same prompt: "
                f"{_CAUSES}"
            )


_CAUSES = (
    "look for different positions, frames or templates in the two, for a layer that acts differently in train mode "
    "(dropout), for weights that changed in between, or for a server (--vllm_server) of another checkpoint. "
    "--check_parity off continues regardless"
)


@dataclass(frozen=True)
class Probe:
    """Log-probs of a few sampled tokens behind prompts with media.

    Attributes:
        sampled, trained: N x T, of the sampler and of the trainer.
        again: N x T, of the trainer by its other path, whose difference is rounding alone. None: it has no other.
        mask: N x T bool, the tokens that were sampled.
        precision: of all three.
    """

    sampled: Tensor
    trained: Tensor
    again: Tensor | None
    mask: Tensor
    precision: Literal["float32", "half"]

    def problem(self) -> str | None:
        """What is wrong, or None.

        The median is compared. It does not see the few tokens that rounding sends to another expert.
        """
        differences = (self.sampled.float() - self.trained.float()).abs()[self.mask]
        median = differences.median().item()
        bound = UNKNOWN_NOISE
        if self.again is not None:
            _, noise = logprob_gap(self.again, self.trained, self.mask)
            bound = max(PROBE_FLOOR[self.precision], PROBE_NOISE[self.precision] * noise)
        if median <= bound:
            return None
        return (
            f"behind prompts with media the sampler's and the trainer's log-probs of half of the tokens differ by more "
            f"than {median:.3g} in {self.precision} precision; expected at most {bound:.3g}, as the trainer's own "
            f"rounding is. They do not see the same prompt: {_CAUSES}"
        )


def _kinds(prompts: PromptInputs, row: int) -> set[str]:
    """The kinds of media in a prompt."""
    counts = {"image": prompts.images_per_prompt[row], "video": prompts.videos_per_prompt[row]}
    return {kind for kind, count in counts.items() if count}


def probe_rows(prompts: PromptInputs, known: Collection[str] = ()) -> list[int]:
    """The prompts to probe: the shortest row for each kind of media that is not known yet, at most ``PROBE_PROMPTS``.

    Example:
        >>> probe_rows(prompts)  # of a text, an image and a clip
        [1, 2]
    """
    lengths = prompts.attention_mask.sum(1).tolist()
    chosen: dict[int, None] = {}
    for kind in ("image", "video"):
        rows = [row for row in range(len(prompts)) if kind in _kinds(prompts, row)]
        if rows and kind not in known:
            chosen[min(rows, key=lengths.__getitem__)] = None
    return list(chosen)[:PROBE_PROMPTS]


def probe_of(
    model: nn.Module,
    prompts: PromptInputs,
    engine: RolloutEngine,
    params: SamplingParams,
    likelihood: Callable[..., Likelihood],
    precision: Literal["float32", "half"],
) -> Probe | None:
    """Sample a few tokens behind prompts, and compute their log-probs as training does. Call it without gradient.

    Args:
        model: the policy, and ``prompts``, in this precision.
        likelihood: the path that training takes.

    Returns:
        None where the engine gives no log-probs, or rounding in half precision cannot be measured.
    """
    other = None
    if shared_prefix.supports_shared_prefix(model) is None:
        shared = likelihood is shared_prefix.completion_likelihood
        other = plain_likelihood if shared else shared_prefix.completion_likelihood
    if other is None and precision == "half":
        return None
    if isinstance(engine, SharedPrefixEngine) and engine.compiled:
        engine = copy(engine)
        engine.compiled = False  # to compile it for another precision would take minutes
    short = replace(params, max_new_tokens=min(params.max_new_tokens, PROBE_TOKENS), entropies=False)
    [rollout] = engine.sample(model, [prompts], PROBE_SAMPLES, short, 0)
    if rollout.logprobs is None:
        return None
    settings: dict[str, Any] = {"temperature": params.temperature, "logit_chunk_tokens": PROBE_TOKENS}
    tokens = rollout.completion_ids, rollout.completion_mask
    return Probe(
        sampled=rollout.logprobs,
        trained=likelihood(model, prompts, *tokens, **settings).logprobs,
        again=None if other is None else other(model, prompts, *tokens, **settings).logprobs,
        mask=rollout.completion_mask,
        precision=precision,
    )
