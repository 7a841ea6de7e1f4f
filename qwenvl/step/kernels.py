"""Which computations a run takes: each prompt once where the model can, the plain way where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Comparison, EntropyUse, Likelihood
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import accept_features, blank_vision, encode_vision, supports_encode_once
from qwenvl.rollout.engine import RolloutEngine
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


def likelihood_of(
    args: GRPOConfig, paths: Paths, bare: nn.Module, accelerator: Accelerator
) -> Callable[..., Likelihood]:
    """What policy or reference make of completions, by the path that the run takes, in its precision.

    Args:
        bare: the model without adapter or engine.

    Returns:
        A function of (model, prompts, ids, mask, temperature, entropy, whole, comparison) that gives the log-probs and
        entropies of completions (``ids`` and ``mask``, N x T).
    """
    chunk = logprobs.tokens_within(args.logit_memory_gb, bare.config.get_text_config().vocab_size)

    def likelihood(
        model: nn.Module,
        prompts: PromptInputs,
        ids: Tensor,
        mask: Tensor,
        temperature: float,
        entropy: EntropyUse = "none",
        whole: PromptInputs | None = None,
        comparison: Comparison | None = None,
    ) -> Likelihood:
        if args.world_size > 1:  # whose forwards wait for each other
            prompts = blank_vision(model, prompts, encoded=paths.encode is not None)
        twice = comparison is not None and comparison.states is not None  # the logits of two models
        settings: dict[str, Any] = {"temperature": temperature, "entropy": entropy, "comparison": comparison}
        settings["logit_chunk_tokens"] = max(1, chunk // 2) if twice else chunk
        with accelerator.autocast():  # of itself the reference has none, nor has the policy under FSDP
            return paths.completion_likelihood(model, prompts, ids, mask, whole=whole, **settings)

    return likelihood


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
            engine = SharedPrefixEngine(tokenizer, bare, token_budget=budget)
            if args.compile_decoding:
                engine.compile(args.device)
            likelihood = shared_prefix.completion_likelihood
    accept_features(policy)
    if args.engine_has_own_weights:
        engine = _engine_of(args, policy, engine)
    return Paths(likelihood, engine, encode)


def _engine_of(args: GRPOConfig, policy: nn.Module, local: Any) -> RolloutEngine:
    """The servers that the flags name."""
    from qwenvl.rollout.vllm import vllm_engine

    prompt, most = args.max_prompt_length, args.generation_max_length + (args.look_tokens if args.tools else 0)
    return vllm_engine(
        args,
        local,
        model=unwrap(policy).name_or_path,
        process=args.process_index,
        device=args.device,
        dtype=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32,
        max_tokens=None if prompt is None else prompt + most,
    )
