"""Log-probabilities of completions: the plain path, one row per completion, the prompt repeated for each.

Slow and obvious. The fast path in ``shared_prefix`` has the same signature and is held to this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.positions import completion_positions

EntropyUse = Literal["none", "measured", "trained"]
"""``measured``: without gradient, and not computed again in the backward pass. ``trained``: with gradient."""

BYTES_PER_LOGIT = 16
"""What a logit takes at the peak of its backward pass.

That is four values where an entropy is trained or a teacher compared: as the head gave it, in float32, divided by the
temperature, and its gradient. Log-probs alone take the first of them, of ``KEPT_CHUNKS`` chunks.
"""


KEPT_CHUNKS = 2
"""Chunks whose logits a forward pass keeps where log-probs alone have a gradient, which then takes their place.

They take no more memory than a chunk that is computed again and has a gradient besides, and the head's product is not
made a second time for them.
"""

CACHED_LOGITS = 2**18
"""Logits on a CPU that passes are made over together. In float32 they are 1 MB, half of a usual cache of a core."""


@dataclass(frozen=True)
class Extras:
    """The further results of a pass, to hold two models against each other: the likeliest token, and more.

    Attributes:
        keep_states: return the hidden states that the head is called on.
        states: those of a teacher, K x H for the K tokens of the mask: compute KL(model || teacher), with gradient.
        head: of the teacher, a linear layer from hidden states to logits. None: the model's own.
    """

    keep_states: bool = False
    states: Tensor | None = None
    head: torch.nn.Linear | None = None


class Likelihood(NamedTuple):
    """Log-probs and entropies of N completions, token by token, at the sampling temperature.

    Attributes:
        logprobs: N x T, log p(token | prompt, tokens before it). 0.0 where the mask is False.
        entropies: N x T, of the distribution that a token is drawn from, in nats. 0.0 where the mask is False. None
            where they were not asked for.
        divergences: N x T, KL(model || teacher) in nats. None without a teacher's states.
        top: N x T, the number of the likeliest token. None without ``Extras``.
        states: N x T x H, hidden states that the head is called on. None where they are not kept.
    """

    logprobs: Tensor
    entropies: Tensor | None = None
    divergences: Tensor | None = None
    top: Tensor | None = None
    states: Tensor | None = None


class LikelihoodKernel(Protocol):
    """The signature that the plain path, ``completion_likelihood``, and the path with shared prompts have."""

    def __call__(
        self,
        model: torch.nn.Module,
        prompts: PromptInputs,
        completion_ids: Tensor,
        completion_mask: Tensor,
        *,
        temperature: float,
        logit_chunk_tokens: int,
        entropy: EntropyUse = "none",
        whole: PromptInputs | None = None,
        extras: Extras | None = None,
    ) -> Likelihood:
        """See ``completion_likelihood``."""
        ...


def completion_likelihood(
    model: torch.nn.Module,
    prompts: PromptInputs,
    completion_ids: Tensor,
    completion_mask: Tensor,
    *,
    temperature: float,
    logit_chunk_tokens: int,
    entropy: EntropyUse = "none",
    whole: PromptInputs | None = None,
    extras: Extras | None = None,
) -> Likelihood:
    """Log-probs and entropies of all completion tokens, of softmax(logits / temperature).

    Top-p and the suppression of vision tokens are part of sampling, not of this distribution.

    Args:
        model: a Qwen-VL model for conditional generation, wrapped or not. Its forward is called once.
        prompts: P prompts.
        completion_ids, completion_mask: N x T, padded on the right. Row n belongs to prompt n // (N / P). Where tools
            have appended tokens, the mask has the sampled ones only.
        temperature: the sampling temperature, above 0.
        logit_chunk_tokens: tokens whose logits exist at one time. ``tokens_within`` gives it for a memory budget.
        entropy: whether entropies are computed, from the same logits, and have a gradient.
        whole: the completions with what tools have appended to them. None: every token was sampled.
        extras: what to compute besides. None: nothing.

    Returns:
        float32 or the model's type if that is wider, with gradient in grad mode.
    """
    group_size = len(completion_ids) // len(prompts)
    prompt_length = prompts.input_ids.shape[1]
    length = completion_ids.shape[1]
    if whole is None:
        whole = sampled_alone(prompts, completion_ids, completion_mask)
    rows = prompts.repeat(group_size).followed_by(whole)  # N x (L + T)
    columns = HeadColumns.of(entropy, extras)
    with selected_logprobs(
        model, completion_ids, completion_mask, temperature, logit_chunk_tokens, entropy=entropy, extras=extras
    ):
        output = model(
            input_ids=rows.input_ids,
            attention_mask=rows.attention_mask,
            position_ids=rows.position_ids,
            # The token at column c is predicted by the hidden state at c - 1.
            logits_to_keep=torch.arange(length, device=completion_ids.device) + prompt_length - 1,
            use_cache=False,
            **rows.vision(),
        )
    return columns.unstack(output.logits)


def sampled_alone(prompts: PromptInputs, completion_ids: Tensor, completion_mask: Tensor) -> PromptInputs:
    """Completions to which nothing was appended: N x T tokens that count on from the positions of their prompts."""
    rows, length = completion_ids.shape
    positions = completion_positions(prompts.position_ids, rows // len(prompts), length)
    return replace(PromptInputs.of_text(completion_ids), attention_mask=completion_mask, position_ids=positions)


def logprobs_by(likelihood: Callable[..., Likelihood]) -> Callable[..., Tensor]:
    """The log-probs alone, N x T, of a path that has the arguments of ``completion_likelihood``."""
    return lambda *args, **settings: likelihood(*args, **settings).logprobs


completion_logprobs = logprobs_by(completion_likelihood)
"""The log-probs of ``completion_likelihood``, N x T. Its arguments but for ``entropy``."""


@dataclass(frozen=True)
class HeadColumns:
    """The result of the head within ``selected_logprobs``: one number of each kind for a token, and its hidden state.

    They leave the model as one tensor, in the place of logits, because wrappers of the model may hook its output.

    Attributes:
        divergences, entropies, top: whether there is such a column. That of the log-probs is always there.
        states: whether hidden states follow the columns.
    """

    divergences: bool = False
    entropies: bool = False
    top: bool = False
    states: bool = False

    @classmethod
    def of(cls, entropy: EntropyUse, extras: Extras | None) -> HeadColumns:
        """The columns of a pass."""
        return cls(
            divergences=extras is not None and extras.states is not None,
            entropies=entropy != "none",
            top=extras is not None,
            states=extras is not None and extras.keep_states,
        )

    def stack(self, found: Likelihood) -> Tensor:
        """K tokens -> K x columns, in one type."""
        columns = [found.logprobs, found.divergences, found.entropies, found.top]
        stacked = torch.stack([column for column in columns if column is not None], dim=1)
        return stacked if found.states is None else torch.cat([stacked, found.states], dim=1)

    def unstack(self, stacked: Tensor) -> Likelihood:
        """... x columns -> the values of each kind, ... each. It undoes ``stack``."""
        numbers = 1 + self.divergences + self.entropies + self.top
        following = iter(stacked[..., :numbers].unbind(-1))
        logprobs = next(following)
        divergences = next(following) if self.divergences else None
        entropies = next(following) if self.entropies else None
        top = next(following) if self.top else None
        states = stacked[..., numbers:] if self.states else None
        return Likelihood(logprobs, entropies=entropies, divergences=divergences, top=top, states=states)


def spread_out(values: Tensor, mask: Tensor) -> Tensor:
    """Values of K tokens, K x ..., scattered into rows x T x ..., with 0 where the mask is False."""
    rest = values.shape[1:]
    ones = [1] * len(rest)
    in_rows = values.new_zeros(*mask.shape, *rest)
    return in_rows.masked_scatter(mask.view(*mask.shape, *ones), values)


def entropy_of(logits: Tensor, normaliser: Tensor) -> Tensor:
    """The entropy of softmax(logits) in nats, ... x V -> ...

    Args:
        normaliser: ``logits.logsumexp(-1)``, which the log-probs of the tokens are made with too.

    Example:
        >>> round(entropy_of(torch.zeros(2), torch.tensor(2.0).log()).item(), 4)  # two of the same probability: log 2
        0.6931
    """
    return normaliser - (logits.softmax(-1) * logits).sum(-1)


def reverse_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(p || q) in nats of p = softmax(logits) and q = softmax(teacher), ... x V -> ... (arXiv:2306.08543).

    Example:
        >>> round(reverse_kl(torch.zeros(2), torch.tensor([3.0, 1.0]).log()).item(), 4)  # log(1/2) - log(3/4 1/4) / 2
        0.1438
    """
    size = min(logits.shape[-1], teacher.shape[-1])  # one tokenizer may be padded to several sizes
    own, other = (each[..., :size].log_softmax(-1) for each in (logits, teacher))
    return (own.exp() * (own - other)).sum(-1)


def tokens_within(memory_gb: float, vocabulary: int) -> int:
    """The number of tokens whose logits fit into ``memory_gb``, with all that their backward pass makes. At least 1.

    Example:
        >>> tokens_within(1.0, 151_936)
        411
    """
    return max(1, int(memory_gb * 1e9 / (BYTES_PER_LOGIT * vocabulary)))


@contextmanager
def selected_logprobs(
    model: torch.nn.Module,
    targets: Tensor,
    mask: Tensor,
    temperature: float,
    chunk_tokens: int,
    entropy: EntropyUse = "none",
    extras: Extras | None = None,
) -> Iterator[None]:
    """Within it, the head of ``model`` returns the log-probs of ``targets`` in the place of logits.

    What it returns is rows x T x columns, which ``HeadColumns.unstack`` takes apart.

    The stock forward calls the head as ever, so that wrappers which gather or watch its weights go on working. The
    logits of ``chunk_tokens`` tokens are made at a time. The backward pass recomputes them, but for the last
    ``KEPT_CHUNKS`` where log-probs alone have a gradient.

    Args:
        targets, mask: rows x T. The head must be called on rows x T x hidden. Where the mask is False no logits are
            computed and the result is 0.0.
    """
    head = unwrap(model).get_output_embeddings()
    of_tokens = _HeadOfTokens(head.forward, temperature, chunk_tokens, entropy, extras)

    def forward(hidden: Tensor) -> Tensor:
        return of_tokens(hidden, targets, mask)

    wrapped = head.__dict__.get("forward")  # set by accelerate's hooks on offloaded models
    head.forward = forward
    try:
        yield
    finally:
        if wrapped is None:
            del head.forward
        else:
            head.forward = wrapped


@dataclass(frozen=True)
class _HeadOfTokens:
    """A head that is called on chosen tokens, some at a time, and says of each what ``HeadColumns`` names.

    Attributes:
        logits_of: the head, from hidden states to logits.
        temperature, chunk_tokens, entropy, extras: as ``selected_logprobs`` takes them.
    """

    logits_of: Callable[[Tensor], Tensor]
    temperature: float
    chunk_tokens: int
    entropy: EntropyUse
    extras: Extras | None

    def __call__(self, hidden: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """rows x T x hidden -> rows x T x columns, 0 where the mask is False."""
        if hidden.shape[:-1] != targets.shape:
            raise ValueError(f"expected hidden states of {tuple(targets.shape)} tokens, got {tuple(hidden.shape[:-1])}")
        wanted = targets[mask]
        # Without a teacher any tensor of K rows stands in: it is not read.
        teacher = wanted if self.extras is None or self.extras.states is None else self.extras.states
        size = self.chunk_tokens
        pieces = list(zip(hidden[mask].split(size), wanted.split(size), teacher.split(size), strict=True))
        kept = KEPT_CHUNKS if self._trains_logprobs_alone else 0
        # The last chunks: the backward pass begins with them and frees them before it computes others again.
        first_kept = max(0, len(pieces) - kept)
        parts = [checkpoint(self._chunk, *piece, use_reentrant=False) for piece in pieces[:first_kept]]
        parts += [self._chunk(*piece) for piece in pieces[first_kept:]]
        return spread_out(torch.cat(parts), mask)

    @property
    def _trains_logprobs_alone(self) -> bool:
        """No other column has a gradient."""
        return self.entropy != "trained" and not HeadColumns.of(self.entropy, self.extras).divergences

    def _chunk(self, hidden: Tensor, wanted: Tensor, teacher: Tensor) -> Tensor:
        """K x hidden -> K x columns, for the K tokens ``wanted`` and, where they are asked for, a teacher's states."""
        columns = HeadColumns.of(self.entropy, self.extras)
        raw = self.logits_of(hidden)
        divergences = entropies = top = states = None
        if not self._trains_logprobs_alone:
            # Autograd takes the gradient of each operation.
            logits = at_temperature(raw, self.temperature)
            normaliser = logits.logsumexp(1)
            logprobs = logits.gather(1, wanted[:, None])[:, 0] - normaliser
            if columns.divergences:
                divergences = reverse_kl(logits, self._teacher_logits(hidden, teacher))
            if self.entropy == "trained":
                entropies = entropy_of(logits, normaliser)
        else:
            logprobs, normaliser = LogprobsOfTokens.apply(raw, wanted, self.temperature)
        # Last: the backward pass recomputes a chunk only as far as gradients need it.
        with torch.no_grad():
            if self.entropy == "measured":
                entropies = torch.cat([
                    entropy_of(at_temperature(logits, self.temperature), own)
                    for logits, own in zip(in_rows(raw, raw), in_rows(normaliser, raw), strict=True)
                ])
            if columns.top:
                likeliest = [at_temperature(logits, self.temperature).argmax(1) for logits in in_rows(raw, raw)]
                top = torch.cat(likeliest).to(logprobs.dtype)
        if columns.states:
            states = hidden.to(logprobs.dtype)
        return columns.stack(Likelihood(logprobs, entropies, divergences, top, states))

    @torch.no_grad()
    def _teacher_logits(self, hidden: Tensor, teacher: Tensor) -> Tensor:
        """Logits of a teacher's states, K x H. States are kept in float32, heads without autocast in half precision."""
        other = None if self.extras is None else self.extras.head
        if other is None:
            return at_temperature(self.logits_of(teacher.to(hidden.dtype)), self.temperature)
        return at_temperature(other(teacher.to(other.weight.dtype)), self.temperature)


class LogprobsOfTokens(torch.autograd.Function):
    """The log-probs of chosen tokens under softmax(logits / temperature), and what they are normalised by.

    The numbers and the gradient of logits.gather(tokens) - logits.logsumexp(1), bit for bit. Autograd would make six
    tensors as large as the logits, each written to memory and read back. Here a few rows at a time stay in the CPU's
    cache, and the gradient takes the place of the logits, which nothing else reads. So there is one backward pass:
    PyTorch refuses a second one.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """K x V logits and K tokens -> K log-probs, and K normalisers, which have no gradient."""
        logprobs, normalisers = [], []
        for rows, tokens in zip(in_rows(logits, logits), in_rows(wanted, logits), strict=True):
            scaled = at_temperature(rows, temperature)
            normaliser = scaled.logsumexp(1)
            logprobs.append(scaled.gather(1, tokens[:, None])[:, 0] - normaliser)
            normalisers.append(normaliser)
        found = torch.cat(normalisers)
        ctx.temperature = temperature
        ctx.save_for_backward(logits, wanted, found)
        ctx.mark_non_differentiable(found)
        return torch.cat(logprobs), found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """d log p(token) / d logits = (1 at the token, else 0) - softmax, divided by the temperature."""
        logits, wanted, normalisers = ctx.saved_tensors
        pieces = (in_rows(each, logits) for each in (logits, wanted, normalisers, grads[0]))
        for rows, tokens, normaliser, grad in zip(*pieces, strict=True):
            probs = (at_temperature(rows, ctx.temperature) - normaliser[:, None]).exp_()
            own = probs.mul_(-grad[:, None]).scatter_add_(1, tokens[:, None], grad[:, None])
            rows.copy_(own if ctx.temperature == 1 else own.div_(ctx.temperature))
        return logits, None, None


def at_temperature(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, in float32 or wider. They are the given ones where nothing is to be done."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1 else wide / temperature


def in_rows(values: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """K x ... values of K x V logits, some rows at a time: on a CPU as many as stay in its cache, else all."""
    rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    return values.split(max(1, rows))
