"""Which computations a run takes: each prompt once where the model can, the plain way where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import EntropyUse, Likelihood
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import accept_features, blank_vision, encode_vision, supports_encode_once
from qwenvl.rollout.engine import Drawing, RolloutEngine
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Paths:
    """The three computations that a fast path and a plain path exist for.

    Attributes:
        completion_likelihood: see ``qwenvl.model.logprobs``.
        engine: samples completions.
        encode: runs the vision tower once per prompt, see ``encode_vision``. None where it runs in every forward.
    """

    completion_likelihood: Callable[..., Likelihood]
    engine: RolloutEngine
    encode: Callable[..., PromptInputs] | None


@dataclass(frozen=True)
class PathLikelihood:
    """What policy or reference make of completions, by the path that the run takes.

    Attributes:
        paths: of the run.
        logit_chunk_tokens: tokens whose logits exist at one time.
        several: whether several processes train together, whose forwards wait for each other.
        autocast: the precision of forwards.
    """

    paths: Paths
    logit_chunk_tokens: int
    several: bool = False
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    @classmethod
    def of(cls, args: GRPOConfig, paths: Paths, bare: nn.Module, accelerator: Accelerator) -> PathLikelihood:
        """As the flags ask for it. ``bare`` is the model without adapter or engine."""
        chunk = logprobs.tokens_within(args.logit_memory_gb, bare.config.get_text_config().vocab_size)
        return cls(paths, chunk, several=args.world_size > 1, autocast=accelerator.autocast)

    def __call__(
        self,
        model: nn.Module,
        prompts: PromptInputs,
        ids: Tensor,
        mask: Tensor,
        temperature: float,
        entropy: EntropyUse = "none",
    ) -> Likelihood:
        """Log-probs and entropies of completions (``ids`` and ``mask``, N x T)."""
        if self.several:
            prompts = blank_vision(model, prompts, encoded=self.paths.encode is not None)
        with self.autocast():  # of itself the reference has none, nor has the policy under FSDP
            return self.paths.completion_likelihood(
                model,
                prompts,
                ids,
                mask,
                temperature=temperature,
                logit_chunk_tokens=self.logit_chunk_tokens,
                entropy=entropy,
            )


def build_paths(args: GRPOConfig, policy: nn.Module, tokenizer: Any) -> Paths:
    """The paths that the flags ask for, as far as the model can take them. The model then takes features as input.

    With ``shared_prefix auto`` a warning says what keeps the model from a fast path.

    Raises:
        ValueError: ``compile_decoding`` where there is nothing to compile, or settings of servers that do not fit.
        RuntimeError: nothing can be compiled on this machine.
    """
    bare, budget = unwrap(policy), args.rollout_token_budget
    engine: Any = LocalEngine(tokenizer, bare, token_budget=budget)
    likelihood: Callable[..., Likelihood] = logprobs.completion_likelihood
    encode = None
    if args.shared_prefix == "auto":
        if reason := supports_encode_once(policy):
            logger.warning(f"the vision tower runs in every pass: {reason}")
        else:
            encode = encode_vision
        if reason := shared_prefix.supports_shared_prefix(policy):
            logger.warning(f"each completion computes its prompt again: {reason}")
            if args.compile_decoding:
                raise ValueError(f"--compile_decoding cannot be used: {reason}")
        else:
            device = args.device if args.compile_decoding else None
            engine = SharedPrefixEngine(tokenizer, bare, token_budget=budget, compile_for=device)
            likelihood = shared_prefix.completion_likelihood
    accept_features(policy)
    if args.engine_has_own_weights:
        engine = _engine_of(args, policy, engine)
    return Paths(likelihood, engine, encode)


def _engine_of(args: GRPOConfig, policy: nn.Module, local: Any) -> RolloutEngine:
    """The servers that the flags name."""
    from qwenvl.rollout.vllm import vllm_engine

    prompt = args.max_prompt_length
    return vllm_engine(
        args,
        local,
        model=unwrap(policy).name_or_path,
        process=args.process_index,
        device=args.device,
        dtype=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32,
        max_tokens=None if prompt is None else prompt + args.generation_max_length,
    )


def drawing_of(paths: Paths) -> Drawing | None:
    """How far the engine is with a draw. None where other processes sample."""
    return paths.engine.drawing if isinstance(paths.engine, LocalEngine) else None
