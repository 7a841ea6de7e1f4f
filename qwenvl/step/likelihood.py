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
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import EntropyUse, Extras, Likelihood, LikelihoodKernel
from qwenvl.model.sharding import sharded_modules
from qwenvl.model.vision_tower import blank_vision
from qwenvl.types import RolloutBatch


@dataclass(frozen=True)
class CompletionLikelihood:
    """What a model makes of completions, token by token.

    Attributes:
        kernel: the forward.
        autocast: the precision of forwards. A reference has none of itself, nor has the policy under FSDP.
        temperature: that completions are sampled at.
        logit_chunk_tokens: tokens whose logits of one model exist at a time.
        needs_media: processes wait for each other's forwards, and each must run the vision tower: a prompt without
            media gets blank ones.
        media_are_features: features stand in the place of pixels.
    """

    kernel: LikelihoodKernel
    autocast: Callable[[], AbstractContextManager[Any]]
    temperature: float
    logit_chunk_tokens: int
    needs_media: bool
    media_are_features: bool

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
            return self.kernel(
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
        bare = unwrap(model)
        if sharded_modules(bare) or any(p.dtype != torch.float32 or hasattr(p, "ds_id") for p in bare.parameters()):
            return None
        plain = copy(bare)
        plain.__dict__.pop("forward", None)  # accelerate's, with autocast
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
