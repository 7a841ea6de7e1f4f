"""Sampling from the policy itself, each prompt computed once for all its completions: the fast path of ``local``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.rollout.decoding import require_compiler
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.prefill import sample_shared


class SharedPrefixEngine(LocalEngine):
    """As ``LocalEngine``. Ask ``supports_shared_prefix`` whether the model can."""

    def __init__(
        self,
        tokenizer,
        model: nn.Module,
        *,
        token_budget: int | None = None,
        compile_for: torch.device | None = None,
    ):
        """
        Args:
            tokenizer, model, token_budget: see ``LocalEngine``.
            compile_for: compile the step from token to token, for the device where the model will be.

        Raises:
            RuntimeError: if nothing can be compiled here.
        """
        super().__init__(tokenizer, model, token_budget=token_budget)
        self._compiled = compile_for is not None
        if compile_for is not None:
            require_compiler(compile_for)

    def _draw(
        self, model: nn.Module, prompts: PromptInputs, group_size: int, params: SamplingParams
    ) -> tuple[Tensor, Likelihood]:
        return sample_shared(
            model,
            prompts,
            group_size,
            params,
            suppress=self.vision_ids,
            end_ids=self.end_ids,
            pad_id=self.tokenizer.pad_token_id,
            stopping=self.stops(params),
            token_budget=self.token_budget,
            compiled=self._compiled,
            drawing=self.drawing,
        )
