"""Log-probs of completions as a run computes them: a kernel, in the precision of the run, within its memory.

There are two layers. The kernel, plain or with shared prompts, is a forward (``LikelihoodKernel``).
``CompletionLikelihood`` calls it as the flags and the processes of a run need it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.logprobs import EntropyUse, Extras, Likelihood, LikelihoodKernel
from qwenvl.model.sharding import shares_weights
from qwenvl.model.vision_tower import blank_vision
from qwenvl.rollout.background import BackgroundEngine
from qwenvl.rollout.engine import EngineWithWeights, RolloutEngine
from qwenvl.step.probe import Probe, probe_of
from qwenvl.types import RolloutBatch, SamplingParams


@dataclass(frozen=True)
class CompletionLikelihood:
    """The log-probs of completions under a model, computed as the settings and the processes of a run need it.

    Attributes:
        kernel: the forward.
        autocast: the precision of forwards. A reference has none of itself, nor has the policy under FSDP.
        temperature: that completions are sampled at.
        logit_chunk_tokens: tokens whose logits of one model exist at a time.
        needs_media: processes wait for each other's forwards, and each must run the vision tower: a prompt without
            media gets blank ones.
        media_are_features: features stand in the place of pixels.
        observe: called with log-probs that have a gradient, their prompts and completions. None: nothing is.
    """

    kernel: LikelihoodKernel
    autocast: Callable[[], AbstractContextManager[Any]]
    temperature: float
    logit_chunk_tokens: int
    needs_media: bool
    media_are_features: bool
    observe: Callable[[Likelihood, PromptInputs, Tensor], None] | None = None

    def __call__(
        self,
        model: nn.Module,
        prompts: PromptInputs,
        ids: Tensor,
        mask: Tensor,
        *,
        whole: PromptInputs | None = None,
        entropy: EntropyUse = "none",
        extras: Extras | None = None,
    ) -> Likelihood:
        """Log-probs and entropies of completions (``ids`` and ``mask``, N x T). See ``LikelihoodKernel``."""
        if self.needs_media:
            prompts = blank_vision(model, prompts, encoded=self.media_are_features)
        chunk = self.logit_chunk_tokens
        if extras is not None and extras.states is not None:
            chunk = max(1, chunk // 2)  # the logits of two models exist at a time
        with self.autocast():
            found = self.kernel(
                model,
                prompts,
                ids,
                mask,
                temperature=self.temperature,
                logit_chunk_tokens=chunk,
                entropy=entropy,
                whole=whole,
                extras=extras,
            )
        if self.observe is not None and found.logprobs.requires_grad:
            self.observe(found, prompts, ids)
        return found

    def of_rollout(
        self,
        model: nn.Module,
        prompts: PromptInputs,
        rollout: RolloutBatch,
        *,
        entropy: EntropyUse = "none",
        extras: Extras | None = None,
    ) -> Likelihood:
        """The same for completions that were sampled, with what tools have appended to them."""
        return self(
            model,
            prompts,
            rollout.completion_ids,
            rollout.completion_mask,
            whole=rollout.whole,
            entropy=entropy,
            extras=extras,
        )

    @torch.no_grad()
    def exact_logprobs(self, model: nn.Module, prompts: PromptInputs, rollout: RolloutBatch) -> Tensor | None:
        """The model's log-probs without autocast. None: its weights are rounded, or shared by processes."""
        plain = in_float32(model)
        if plain is None:
            return None
        whole = rollout.whole
        found = self.kernel(
            plain,
            prompts.media_to(torch.float32),
            rollout.completion_ids,
            rollout.completion_mask,
            temperature=self.temperature,
            logit_chunk_tokens=self.logit_chunk_tokens,
            whole=None if whole is None else whole.media_to(torch.float32),
        )
        return found.logprobs

    @torch.no_grad()
    def probe(
        self, model: nn.Module, prompts: PromptInputs, engine: RolloutEngine, params: SamplingParams
    ) -> Probe | None:
        """A few tokens behind some prompts, in the most exact way that the weights of a run allow.

        Returns:
            None where the weights are shared by processes, or where the engine has weights and a precision of its own.
        """
        bare = unwrap(model)
        if shares_weights(bare):
            return None
        if isinstance(engine, EngineWithWeights | BackgroundEngine):
            return None
        # Where features stand in the place of pixels, the weights of the vision tower are not read.
        exact = in_float32(model, tower_runs=not self.media_are_features)
        if exact is not None:
            return probe_of(exact, prompts.media_to(torch.float32), engine, params, self.kernel, "float32")
        with self.autocast():
            return probe_of(bare, prompts, engine, params, self.kernel, "half")


def in_float32(model: nn.Module, tower_runs: bool = True) -> nn.Module | None:
    """A model without autocast. None: its weights are rounded, or shared by processes.

    Args:
        tower_runs: False: prompts hold features of the vision tower, whose weights are not read.
    """
    bare = unwrap(model)
    read = [each for name, each in bare.named_parameters() if tower_runs or part_of(name) != "vision"]
    if shares_weights(bare) or any(each.dtype != torch.float32 for each in read):
        return None
    plain = copy(bare)
    plain.__dict__.pop("forward", None)  # accelerate's, with autocast
    return plain
