"""The kernels of a run: each prompt is computed once where the model can, in the plain way where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import ProcessorMixin

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import turn_end_id
from qwenvl.data.options import PromptOptions
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Likelihood, LikelihoodKernel
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import accept_features, encode_vision, supports_encode_once
from qwenvl.rollout.engine import RolloutEngine
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine, missing_end
from qwenvl.step.likelihood import CompletionLikelihood

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kernels:
    """The three computations that a fast and a plain form exist for.

    Attributes:
        likelihood: log-probs of completions, see ``qwenvl.model.logprobs``.
        engine: samples completions.
        encode_vision: runs the vision tower once per prompt. None where it runs in every forward.
    """

    likelihood: LikelihoodKernel
    engine: RolloutEngine
    encode_vision: Callable[..., PromptInputs] | None


def build_likelihood(
    args: GRPOConfig,
    kernels: Kernels,
    bare: nn.Module,
    accelerator: Accelerator,
    *,
    temperature: float,
    observe: Callable[[Likelihood, PromptInputs, Tensor], None] | None = None,
) -> CompletionLikelihood:
    """The log-probs of completions by the kernel of the run, in its precision and within its memory.

    Args:
        bare: the model without adapter or engine.
        temperature: that completions are sampled at.
        observe: called with log-probs that have a gradient, their prompts and completions. None: nothing is.
    """
    return CompletionLikelihood(
        kernel=kernels.likelihood,
        autocast=accelerator.autocast,
        temperature=temperature,
        logit_chunk_tokens=logprobs.tokens_within(args.logit_memory_gb, bare.config.get_text_config().vocab_size),
        needs_media=args.world_size > 1,
        media_are_features=kernels.encode_vision is not None,
        observe=observe,
    )


def build_kernels(args: GRPOConfig, policy: nn.Module, processor: ProcessorMixin) -> Kernels:
    """The kernels that the flags ask for, as far as the model can take them. The model then takes features as input.

    With ``shared_prefix auto`` a warning says what keeps the model from a fast kernel.

    Raises:
        ValueError: ``compile_decoding`` where there is nothing to compile, ``draft_tokens`` that the model can't take
            back, or settings of servers that do not fit.
        RuntimeError: nothing can be compiled on this machine.
    """
    bare = unwrap(policy)
    tokenizer = processor.tokenizer
    turn_end = turn_end_id(processor, PromptOptions.of(args).template_arguments)
    note = missing_end(tokenizer, bare, turn_end)
    if note is not None:
        logger.warning(note)
    local = LocalEngine(tokenizer, bare, token_budget=args.rollout_token_budget, turn_end=turn_end)
    likelihood: LikelihoodKernel = logprobs.completion_likelihood
    encode = None
    if args.shared_prefix == "auto":
        no_encode_once = supports_encode_once(policy)
        if no_encode_once is None:
            encode = encode_vision
        else:
            logger.warning(f"the vision tower runs in every pass: {no_encode_once}")

        no_shared_prefix = shared_prefix.supports_shared_prefix(policy)
        if no_shared_prefix is None:
            likelihood = shared_prefix.completion_likelihood
            local = shared = SharedPrefixEngine(
                tokenizer, bare, token_budget=args.rollout_token_budget, turn_end=turn_end
            )
            if args.compile_decoding:
                shared.compile(args.device)
            if args.draft_tokens:
                shared.draft(bare, args.draft_tokens)
        else:
            logger.warning(f"each completion computes its prompt again: {no_shared_prefix}")
            if args.compile_decoding:
                raise ValueError(f"--compile_decoding cannot be used: {no_shared_prefix}")
            if args.draft_tokens:
                raise ValueError(f"--draft_tokens {args.draft_tokens} cannot be used: {no_shared_prefix}")
    accept_features(policy)
    engine = server_engine(args, policy, local) if args.engine_has_own_weights else local
    return Kernels(likelihood=likelihood, engine=engine, encode_vision=encode)


def server_engine(args: GRPOConfig, policy: nn.Module, local: LocalEngine) -> RolloutEngine:
    """The servers that the flags name."""
    from qwenvl.rollout.vllm import vllm_engine

    max_tokens = None  # of prompt and completion
    if args.max_prompt_length is not None:
        max_tokens = args.max_prompt_length + args.generation_max_length
        if args.tools:
            max_tokens += args.look_tokens
    dtype = torch.float32
    if args.bf16:
        dtype = torch.bfloat16
    elif args.fp16:
        dtype = torch.float16
    return vllm_engine(
        args,
        local,
        model=unwrap(policy).name_or_path,
        process=args.process_index,
        device=args.device,
        dtype=dtype,
        max_tokens=max_tokens,
    )
