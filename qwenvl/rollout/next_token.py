"""Draws the next token of completions from the logits of a forward, and says how likely it was.

Both engines draw here, with drafts and without. Two ways have the same distribution: *plain* draws with the processors
of transformers, which sort the vocabulary for top-p, and with one random number for each token of the vocabulary.
*Large* draws from the real vocabularies on a CPU, with few passes over the logits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qwenvl.model.logprobs import Likelihood, entropy_of
from qwenvl.rollout.engine import SamplingParams

PLAIN_VOCABULARY = 4096
"""Largest vocabulary of the plain way on a CPU, where it costs less than a tenth of a millisecond a row."""

_BLOCK = 512
"""Tokens of a block. A draw takes one of 297 blocks of Qwen3's vocabulary, and then one of 512 tokens."""


def logits_processors(
    params: SamplingParams, suppress: list[int], device: torch.device | str = "cpu"
) -> LogitsProcessorList:
    """The processors of transformers for these settings, in the order of ``generate``. A setting that is off has none.

    Args:
        params: a temperature of 0 leaves out all but the repetition penalty and ``suppress``.
        suppress: tokens that are never sampled.
        device: that of the logits. On another one ``suppress`` would be copied for each token.
    """
    chosen = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty)))
    if suppress:
        chosen.append(SuppressTokensLogitsProcessor(suppress, device=device))
    if params.temperature == 0:
        return chosen
    if params.temperature != 1.0:
        chosen.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chosen.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chosen.append(MinPLogitsWarper(params.min_p))
    return chosen


class NextToken:
    """Draws the next token of completions, or takes the most probable one at temperature 0.

    Logits that are not finite raise no error. Their token is any one and its log-prob is NaN, which the trainer reports
    (``--on_nonfinite``).
    """

    def __init__(self, params: SamplingParams, suppress: list[int], device: torch.device | str):
        """
        Args:
            params: their stop strings and lengths are not read.
            suppress: tokens that are never sampled.
            device: that of the logits.
        """
        self._params = params
        self._suppress = torch.tensor(suppress, dtype=torch.long, device=device)
        self._processors = logits_processors(params, suppress, device)

    def draw(self, seen: Tensor, logits: Tensor) -> tuple[Tensor, Likelihood]:
        """Draws a token for each of r completions.

        Args:
            seen: r x s, the tokens that a repetition penalty counts.
            logits: r x V, float32. They are left as they are.

        Returns:
            r tokens, and their likelihood, r, under softmax(logits / temperature), before truncation. At temperature 0
            it is that of temperature 1.
        """
        # A GPU sorts fast, and would be waited for: the large way draws again where a draw is outside of top-p.
        if logits.shape[1] <= PLAIN_VOCABULARY or logits.device.type != "cpu":
            return self.draw_plain(seen, logits)
        return self.draw_large(seen, logits)

    def draw_plain(self, seen: Tensor, logits: Tensor) -> tuple[Tensor, Likelihood]:
        """``draw`` by the processors of transformers and a race of all tokens."""
        scores = self._processors(seen, logits)
        tokens = (scores if self._params.temperature == 0 else exponential_race(scores)).argmax(-1)
        return tokens, self._likelihood(tokens, logits / (self._params.temperature or 1.0))

    def draw_large(self, seen: Tensor, logits: Tensor) -> tuple[Tensor, Likelihood]:
        """``draw`` with few passes over a large vocabulary. It waits for the device."""
        params = self._params
        scaled = logits if params.temperature in (0, 1.0) else logits / params.temperature
        scores = self._penalised(seen, scaled)
        tokens = scores.argmax(1) if params.temperature == 0 else draw_truncated(scores, params)
        return tokens, self._likelihood(tokens, scaled)

    def _likelihood(self, tokens: Tensor, scaled: Tensor) -> Likelihood:
        """The likelihood of the drawn tokens, r, under softmax(scaled), r x V."""
        # On a CPU this is one fast kernel: the whole distribution takes half the time of ``logsumexp``.
        scores = scaled.log_softmax(-1)
        logprobs = scores.gather(1, tokens[:, None])[:, 0]
        # Log-probs are logits that need no normaliser.
        entropies = entropy_of(scores, scores.new_zeros(())) if self._params.entropies else None
        return Likelihood(logprobs, entropies)

    def _penalised(self, seen: Tensor, scaled: Tensor) -> Tensor:
        """Logits at the temperature, after repetition penalty and suppression."""
        scores = scaled
        penalty = self._params.repetition_penalty
        # The penalty is a factor, so it may as well come behind the temperature.
        if penalty != 1.0:
            scores = RepetitionPenaltyLogitsProcessor(float(penalty))(seen, scores)
        if len(self._suppress):
            scores = scores.index_fill(1, self._suppress, -torch.inf)
        return scores


def exponential_race(scores: Tensor) -> Tensor:
    """Rows x V logits -> rows x V numbers whose argmax is a draw from softmax(logits).

    Of independent exponential variables with rates p that sum to 1, each is the smallest with probability p. On a CPU
    the draws equal those of ``Tensor.multinomial``, bit for bit. Logits that are not finite raise no error here, while
    ``multinomial`` ends the process on a GPU.
    """
    probs = scores.softmax(-1)
    return probs / torch.empty_like(probs).exponential_()


def draw_truncated(scores: Tensor, params: SamplingParams) -> Tensor:
    """Draws from softmax(scores), r x V, after top-k, top-p and min-p, as the processors of transformers have them.

    Returns:
        r tokens. Rows with scores that are not finite, but for -inf, get token 0.
    """
    weights = scores.softmax(-1)
    if params.top_k:
        least = scores.topk(min(params.top_k, scores.shape[1]), dim=1).values[:, -1:]
        weights *= _compared(torch.ge, scores, least)
    # Top-p is a share of what top-k keeps. Min-p comes behind it.
    mass = weights.sum(1)
    if params.min_p:
        least = params.min_p * weights.amax(1, keepdim=True)
        weights *= _compared(torch.ge, weights, least)
    tokens = draw_by_weight(weights) if params.top_p >= 1 else draw_nucleus(weights, params.top_p * mass)
    return tokens.masked_fill(~mass.isfinite(), 0)


def draw_nucleus(weights: Tensor, bound: Tensor) -> Tensor:
    """Draws by weight among the tokens of each row before which others weigh less than ``bound``.

    Larger weights come before smaller ones, and of equal weights the later token, as transformers sorts them. A token
    is drawn among all and tried. If it is outside, so are all that come behind it, and the next try leaves them out. No
    try leaves out a token that is inside, so the accepted one is drawn by the weights inside. A share p of the mass
    takes 1 + log(1 / p) tries at most, on average: 1.1 for 0.9. Nothing is sorted.

    Args:
        weights: r x V, at least 0.
        bound: r, at least 0: top_p of the mass.

    Returns:
        r tokens. A row with a weight that is not finite gets any.
    """
    drawn = draw_by_weight(weights).tolist()
    # Row by row: what is made of one row of 600 KB stays in the cache of the CPU.
    for row, (candidates, token, most) in enumerate(zip(weights, drawn, bound.tolist(), strict=True)):
        before = weights_before(candidates, token)
        mass_before = float(before.sum())
        # The first token is inside whatever the bound, which may be too small for a number. False where a weight is not
        # finite: no row is tried forever.
        while mass_before > 0 and mass_before >= most:
            candidates = before
            token = int(draw_by_weight(candidates[None]))
            before = weights_before(candidates, token)
            mass_before = float(before.sum())
        drawn[row] = token
    return torch.tensor(drawn, device=weights.device)


def weights_before(weights: Tensor, token: int) -> Tensor:
    """The weights, V, of tokens before ``token``: larger ones, and equal ones of later tokens. 0 for others."""
    earlier, itself, later = weights.split([token, 1, len(weights) - token - 1])
    larger = earlier * _compared(torch.gt, earlier, itself)
    at_least = later * _compared(torch.ge, later, itself)
    return torch.cat([larger, torch.zeros_like(itself), at_least])


def draw_by_weight(weights: Tensor) -> Tensor:
    """Draws a token of each row, r x V, with a probability that is proportional to its weight: first its block.

    Returns:
        r tokens, none of weight 0. A row with a weight that is not finite, or of zeros, gets any.
    """
    vocabulary = weights.shape[1]
    whole = vocabulary // _BLOCK
    blocks = weights[:, : whole * _BLOCK].unflatten(1, (whole, _BLOCK))
    rest = weights[:, whole * _BLOCK :]
    masses = torch.cat([blocks.sum(2), rest.sum(1, keepdim=True)], dim=1)
    block = _drawn_place(masses)
    places = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    is_there = places < vocabulary  # the last block is shorter
    places = places.clamp(max=vocabulary - 1)
    inside = weights.gather(1, places) * is_there
    return places.gather(1, _drawn_place(inside)[:, None])[:, 0]


def _drawn_place(weights: Tensor) -> Tensor:
    """A place of each row, r x K -> r, by its weight: the first at which the sum passes a random share of the whole."""
    sums = weights.cumsum(1, dtype=torch.float64)
    # A double has bits enough for the rarest token. It is below 1, so a place without weight is never the first.
    share = torch.rand(len(weights), 1, dtype=torch.float64, device=weights.device)
    places = torch.searchsorted(sums, share * sums[:, -1:], right=True)[:, 0]
    return places.clamp(max=weights.shape[1] - 1)


def _compared(compare: Callable[..., Tensor], one: Tensor, other: Tensor) -> Tensor:
    """1.0 where the comparison holds, and else 0.0, of the shape of ``one``."""
    # Weights are masked by a product with floats: one with bools takes fifty times as long on a CPU.
    return compare(one, other, out=torch.empty(one.shape, device=one.device))
