"""Log-probabilities of completions: the plain path, one row per completion, the prompt repeated for each.

Slow and obvious. The fast path in ``shared_prefix`` has the same signature and is held to this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.positions import completion_positions

BYTES_PER_LOGIT = 16
"""What a logit takes at the peak of its backward pass.

That is four values: as the head gave it, in float32, divided by the temperature, and its gradient. It was measured to
be the same in float32 and in bfloat16.
"""


def completion_logprobs(
    model: torch.nn.Module,
    prompts: PromptInputs,
    completion_ids: Tensor,
    completion_mask: Tensor,
    *,
    temperature: float,
    logit_chunk_tokens: int,
) -> Tensor:
    """log p(token | prompt, tokens before it) of every completion token, of softmax(logits / temperature).

    Top-p and the suppression of vision tokens are part of sampling, not of this distribution.

    Args:
        model: a Qwen-VL model for conditional generation, wrapped or not. Its forward is called once.
        prompts: P prompts.
        completion_ids, completion_mask: N x T, padded on the right. Row n belongs to prompt n // (N / P).
        temperature: the sampling temperature, above 0.
        logit_chunk_tokens: tokens whose logits exist at one time. ``tokens_within`` gives it for a memory budget.

    Returns:
        N x T, float32 or the model's type if that is wider, with gradient in grad mode. 0.0 where the mask is False.
    """
    group_size = len(completion_ids) // len(prompts)
    length = completion_ids.shape[1]
    rows = prompts.repeat(group_size)
    with selected_logprobs(model, completion_ids, completion_mask, temperature, logit_chunk_tokens):
        output = model(
            input_ids=torch.cat([rows.input_ids, completion_ids], dim=1),
            attention_mask=torch.cat([rows.attention_mask, completion_mask.to(rows.attention_mask.dtype)], dim=1),
            position_ids=torch.cat(
                [rows.position_ids, completion_positions(prompts.position_ids, group_size, length)], dim=2
            ),
            # The token at column c is predicted by the hidden state at c - 1.
            logits_to_keep=torch.arange(length, device=completion_ids.device) + rows.input_ids.shape[1] - 1,
            use_cache=False,
            **rows.vision(),
        )
    return output.logits


def tokens_within(memory_gb: float, vocabulary: int) -> int:
    """How many tokens' logits fit into ``memory_gb``, with all that their backward pass makes of them. At least 1.

    Example:
        >>> tokens_within(1.0, 151_936)
        411
    """
    return max(1, int(memory_gb * 1e9 / (BYTES_PER_LOGIT * vocabulary)))


@contextmanager
def selected_logprobs(
    model: torch.nn.Module, targets: Tensor, mask: Tensor, temperature: float, chunk_tokens: int
) -> Iterator[None]:
    """Within it, the head of ``model`` returns the log-probs of ``targets`` in the place of logits.

    The stock forward calls the head as ever, so that wrappers which gather or watch its weights go on working. The
    logits of only ``chunk_tokens`` tokens exist at a time. The backward pass recomputes them.

    Args:
        targets, mask: rows x T. The head must be called on rows x T x hidden. Where the mask is False no logits are
            computed and the result is 0.0.
    """
    head = unwrap(model).get_output_embeddings()
    logits_of = head.forward

    def chunk_logprobs(hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = logits_of(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        return logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)

    def forward(hidden: Tensor) -> Tensor:
        if hidden.shape[:-1] != targets.shape:
            raise ValueError(f"expected hidden states of {tuple(targets.shape)} tokens, got {tuple(hidden.shape[:-1])}")
        parts = [
            checkpoint(chunk_logprobs, h, w, use_reentrant=False)
            for h, w in zip(hidden[mask].split(chunk_tokens), targets[mask].split(chunk_tokens), strict=True)
        ]
        chosen = torch.cat(parts)
        return chosen.new_zeros(targets.shape).masked_scatter(mask, chosen)

    wrapped = head.__dict__.get("forward")  # set by accelerate's hooks on offloaded models
    head.forward = forward
    try:
        yield
    finally:
        if wrapped is None:
            del head.forward
        else:
            head.forward = wrapped
