"""A few tokens that sampler and trainer compute alike: what the parity check compares behind images and clips.

The completions of a step are compared in the precision of the run, where rounding may hide what wrong positions of an
image do. So a few tokens are also sampled and compared in float32, behind prompts with media.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from qwenvl.grpo.diagnostics import logprob_gap
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.model.logprobs import completion_likelihood as plain_likelihood
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.engine import RolloutEngine, SamplingRequest
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.types import RolloutBatch, SamplingParams

PROBE_PROMPTS = 2
PROBE_SAMPLES = 2
PROBE_TOKENS = 16
# Means of the trainer's own rounding by which half of the probe's tokens may differ. Measured with tiny models: a
# sampler that is right differs by 0.5 to 2 of them, one that drops height and width by 40 and more in float32, and in
# half precision by 12 (Qwen3-VL) or by no more than rounding (the other families).
PROBE_NOISE = {"float32": 8.0, "half": 3.0}
PROBE_FLOOR = {"float32": 2e-6, "half": 1e-3}  # a few units in the last place of a log-prob
UNKNOWN_NOISE = 1e-4  # in float32, where the trainer has no second path to measure its rounding by

CAUSES = (
    "look for different positions, frames or templates in the two, for a layer that acts differently in train mode "
    "(dropout), for weights that changed in between, or for a server (--vllm_server) of another checkpoint. "
    "--check_parity off continues regardless"
)
"""What to look for where the two differ, for messages."""


@dataclass(frozen=True)
class Probe:
    """Log-probs of a few sampled tokens behind prompts with media.

    Attributes:
        sampled, trained: N x T, of the sampler and of the trainer.
        again: N x T, of the trainer by its other path, whose difference is rounding alone. None: it has no other.
        mask: N x T bool, the tokens that were sampled.
        temperature: that logits are divided by, their rounding too.
        precision: of all three.
    """

    sampled: Tensor
    trained: Tensor
    again: Tensor | None
    mask: Tensor
    temperature: float
    precision: Literal["float32", "half"]

    def problem(self) -> str | None:
        """The message of an error of parity. None: sampler and trainer agree.

        The median is compared. It does not see the few tokens that rounding sends to another expert.
        """
        if not self.trained[self.mask].isfinite().all():
            return None  # what is not finite is reported with the loss
        differences = (self.sampled.float() - self.trained.float()).abs()[self.mask]
        median = differences.median().item()
        bound = UNKNOWN_NOISE
        if self.again is not None:
            _, noise = logprob_gap(self.again, self.trained, self.mask)
            floor = PROBE_FLOOR[self.precision] / min(1.0, self.temperature)
            bound = max(floor, PROBE_NOISE[self.precision] * noise)
        if median <= bound:
            return None
        return (
            f"behind prompts with media the sampler's and the trainer's log-probs of half of the tokens differ by more "
            f"than {median:.3g} in {self.precision} precision; expected at most {bound:.3g}, as the trainer's own "
            f"rounding is. They do not see the same prompt: {CAUSES}"
        )


def kinds_of_media(prompts: PromptInputs, row: int) -> set[str]:
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
        rows = [row for row in range(len(prompts)) if kind in kinds_of_media(prompts, row)]
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
    [rollout] = engine.sample(model, SamplingRequest([prompts], PROBE_SAMPLES, short, seed=0))
    if rollout.logprobs is None:
        return None
    return Probe(
        sampled=rollout.logprobs,
        trained=_logprobs(likelihood, model, prompts, rollout, params.temperature),
        again=None if other is None else _logprobs(other, model, prompts, rollout, params.temperature),
        mask=rollout.completion_mask,
        temperature=params.temperature,
        precision=precision,
    )


def _logprobs(
    likelihood: Callable[..., Likelihood],
    model: nn.Module,
    prompts: PromptInputs,
    rollout: RolloutBatch,
    temperature: float,
) -> Tensor:
    """N x T log-probs of the completions by one of the trainer's two paths."""
    found = likelihood(
        model,
        prompts,
        rollout.completion_ids,
        rollout.completion_mask,
        temperature=temperature,
        logit_chunk_tokens=PROBE_TOKENS,
    )
    return found.logprobs
