"""The next token by few passes over a large vocabulary: the distribution of the processors of transformers."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chi2

from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rollout import next_token
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine
from qwenvl.rollout.next_token import PLAIN_VOCABULARY, NextToken, draw_by_weight, draw_nucleus, draw_truncated
from tests.rollout.drafted import DraftedEngine

LARGE = 5000
SUPPRESSED = [3, 4999]


def random_logits(rows, vocabulary, scale, seed=0):
    return scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def params_of(**settings):
    return SamplingParams(8, **settings)


# ---- which tokens can be drawn


def draws_one(scores, params, monkeypatch):
    """For each token whether it is drawn where the first try is that token. scores: V."""
    every = torch.arange(len(scores))
    tries = []

    def scripted(weights):
        tries.append(weights)
        # The first call tries each token once, in a row of its own. A later try is the token that comes first, which
        # is always kept: the last one of the likeliest.
        return every if len(tries) == 1 else weights.shape[1] - 1 - weights.flip(1).argmax(1)

    monkeypatch.setattr(next_token, "draw_by_weight", scripted)
    drawn = draw_truncated(scores.expand(len(scores), -1), params)
    has_weight = tries[0][0] > 0
    return (drawn == every) & has_weight


def kept_by_transformers(scores, settings, off=0.0):
    """The logits of the tokens that the library's processors keep at temperature 1, from small to large.

    Args:
        off: added to top-p and subtracted from min-p: below 0 for fewer tokens, above 0 for more.
    """
    moved = {name: value - off for name, value in settings.items() if name == "min_p"}
    moved |= {name: min(1.0, max(1e-9, value + off)) for name, value in settings.items() if name == "top_p"}
    processors = next_token.logits_processors(params_of(**settings | moved), [])
    kept = processors(torch.zeros(1, 0, dtype=torch.long), scores[None])[0]
    return kept[kept > -torch.inf].sort().values


def scores_of(kind, vocabulary=1200):
    made = random_logits(1, vocabulary, 2.0)[0]
    if kind == "peaked":
        made = 4 * made
    if kind == "bfloat16":  # most of the logits have an equal
        made = made.bfloat16().float()
    if kind == "three values":
        made = torch.arange(vocabulary) % 3 * 0.5
    if kind == "equal":
        made = torch.full((vocabulary,), 7.0)
    if kind == "minus infinity":
        made[::3] = -torch.inf
        made[-5:] = -torch.inf
    if kind == "one":
        made = torch.full((vocabulary,), -torch.inf)
        made[700] = -3.0
    if kind == "halves":  # 1/2, 1/4, ...: their sums are exact
        made = torch.full((vocabulary,), -torch.inf)
        made[[600, 5, 1199, 512, 511, 80, 81, 900]] = -math.log(2.0) * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 7])
    return made


KINDS = ["random", "peaked", "bfloat16", "three values", "equal", "minus infinity", "one", "halves"]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.9},
        {"top_p": 0.3},
        {"top_p": 1e-6},
        {"top_p": 0.999},
        {"top_k": 2},
        {"top_k": 1100},
        {"top_k": 5000},
        {"min_p": 0.05},
        {"min_p": 0.9},
        {"top_k": 50, "top_p": 0.7},
        {"top_k": 300, "top_p": 0.8, "min_p": 0.02},
        {"top_p": 0.2, "min_p": 0.001},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_that_can_be_drawn_equal_those_of_transformers(kind, settings, monkeypatch):
    scores = scores_of(kind)
    # Which of several equal logits the library keeps is up to its sort; how many of them is not.
    found = scores[draws_one(scores, params_of(**settings), monkeypatch)].sort().values
    # A border within the rounding of float32 sums may fall on either side of a token.
    fewest, most = (kept_by_transformers(scores, settings, off) for off in (-1e-6, 1e-6))
    assert len(fewest) <= len(found) <= len(most) <= len(fewest) + 1
    assert torch.equal(found, most[len(most) - len(found) :])


@pytest.mark.parametrize("top_p", [0.5, 0.75, 0.96875, 0.984375])
def test_a_token_at_which_the_sum_is_exactly_top_p_is_the_last(top_p, monkeypatch):
    scores = scores_of("halves")
    found = draws_one(scores, params_of(top_p=top_p), monkeypatch)
    assert torch.equal(scores[found].sort().values, kept_by_transformers(scores, {"top_p": top_p}))
    assert 1 - 2.0 ** -int(found.sum()) == top_p


# ---- the law


def assert_law(counts: Counter, expected: torch.Tensor):
    """Chi-square of counted tokens. Tokens that are expected less than ten times are counted by their block of 512."""
    total = counts.total()
    assert not [token for token in counts if expected[token] == 0], "tokens that cannot be drawn"
    observed = torch.zeros(len(expected), dtype=torch.float64)
    for token, count in counts.items():
        observed[token] = count
    wanted = expected.double() * total
    is_rare = wanted < 10
    seen, means = [observed[~is_rare]], [wanted[~is_rare]]
    for block in torch.arange(len(expected)).split(512):
        rare = block[is_rare[block]]
        seen.append(observed[rare].sum()[None])
        means.append(wanted[rare].sum()[None])
    seen, means = torch.cat(seen), torch.cat(means)
    seen = torch.cat([seen[means >= 10], seen[means < 10].sum()[None]])
    means = torch.cat([means[means >= 10], means[means < 10].sum()[None]])
    seen, means = seen[means > 5], means[means > 5]
    assert len(means) > 2, "too few tokens to compare"
    statistic = ((seen - means).square() / means).sum()
    assert chi2.sf(float(statistic), len(means) - 1) > 1e-4


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.2},
    {"temperature": 1.3, "top_k": 30},
    {"temperature": 1.0, "top_k": 2000, "top_p": 0.95},
    {"temperature": 0.8, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 400, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5},
    {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("scale", [2.0, 0.1], ids=["peaked", "flat"])
def test_draws_have_the_law_of_the_processors(settings, scale):
    params = params_of(**settings)
    logits = random_logits(1, LARGE, scale)
    seen = torch.tensor([[7, 8, 9, 4000, *range(100, 400)]])
    expected = next_token.logits_processors(params, SUPPRESSED)(seen, logits).softmax(-1)[0]
    drawing = NextToken(params, SUPPRESSED, "cpu")
    rows = 200
    counts: Counter = Counter()
    torch.manual_seed(1)
    for _ in range(60):
        tokens, _ = drawing.draw(seen.expand(rows, -1), logits.expand(rows, -1))
        counts.update(tokens.tolist())
    assert_law(counts, expected)


def test_rows_are_drawn_independently_each_from_its_own_distribution():
    # Of two tokens that are equally likely in each row, far from each other and in the shorter last block.
    logits = torch.full((4, LARGE), -torch.inf)
    pairs = torch.tensor([[0, 4999], [511, 512], [4607, 4608], [1, 2]])
    logits.scatter_(1, pairs, 5.0)
    drawing = NextToken(params_of(top_p=0.9), [], "cpu")
    torch.manual_seed(2)
    bits = torch.stack([drawing.draw(logits[:, :0].long(), logits)[0] for _ in range(4000)]) == pairs[:, 1]
    kinds = Counter((bits.long() * torch.tensor([1, 2, 4, 8])).sum(1).tolist())
    statistic = sum((kinds[kind] - 250) ** 2 / 250 for kind in range(16))
    assert kinds.total() == 4000 and chi2.sf(statistic, 15) > 1e-4


def test_a_weight_of_zero_is_never_drawn_and_the_rarest_token_is():
    weights = torch.zeros(1, 1024)
    weights[0, [3, 700]] = torch.tensor([1.0, 2.0**-60])
    assert {int(draw_by_weight(weights)) for _ in range(50)} == {3}
    # At the ends of the range of random numbers.
    for share, token in ((0.0, 3), (1 - 2.0**-53, 700)):
        weights[0, 700] = 2.0**-40
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "rand", lambda *size, share=share, **how: torch.full(size, share, dtype=how["dtype"]))
            assert int(draw_by_weight(weights)) == token


def test_a_nucleus_takes_as_many_tries_as_said(monkeypatch):
    calls = []

    def counted(weights):
        calls.append(len(weights))
        return draw_by_weight(weights)

    monkeypatch.setattr(next_token, "draw_by_weight", counted)
    torch.manual_seed(3)
    rows = 2000
    for share in (0.9, 0.1):
        calls.clear()
        weights = random_logits(rows, 600, 1.0).softmax(-1)
        draw_nucleus(weights, share * weights.sum(1))
        # Retries are as many as records of uniform numbers down to the share: Poisson, of this mean and variance.
        most = math.log(1 / share)
        assert sum(calls) / rows < 1 + most + 5 * math.sqrt(most / rows)


@pytest.mark.parametrize("top_p", [1e-30, 1e-46, 1e-300])
def test_a_share_that_is_smaller_than_any_weight_takes_the_first_token(top_p):
    logits = random_logits(3, 2 * PLAIN_VOCABULARY, 3.0)
    drawn = draw_truncated(logits, params_of(top_p=top_p))
    assert torch.equal(drawn, logits.argmax(1))


# ---- both ways, and the border between them


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 7, "min_p": 0.01}], ids=str)
def test_a_small_vocabulary_is_drawn_from_as_transformers_does(settings):
    params = params_of(temperature=0.7, **settings)
    logits = random_logits(6, PLAIN_VOCABULARY, 3.0)
    none = torch.zeros(6, 0, dtype=torch.long)
    torch.manual_seed(4)
    drawn, likelihood = NextToken(params, [5], "cpu").draw(none, logits)
    after = torch.rand(1)
    torch.manual_seed(4)
    expected = next_token.logits_processors(params, [5])(none, logits).softmax(-1).multinomial(1)[:, 0]
    assert torch.equal(drawn, expected) and torch.equal(torch.rand(1), after)
    wanted = (logits / 0.7).log_softmax(-1).gather(1, drawn[:, None])[:, 0]
    assert torch.equal(likelihood.logprobs, wanted) and likelihood.entropies is None


def test_a_large_vocabulary_is_drawn_from_without_a_sort_or_a_number_for_each_token(monkeypatch):
    used = []
    monkeypatch.setattr(next_token, "exponential_race", lambda scores: used.append(scores.shape) or scores)
    drawing = NextToken(params_of(top_p=0.9), [5], "cpu")
    for vocabulary in (PLAIN_VOCABULARY, PLAIN_VOCABULARY + 1):
        drawing.draw(torch.zeros(2, 0, dtype=torch.long), random_logits(2, vocabulary, 1.0))
    assert used == [(2, PLAIN_VOCABULARY)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_both_ways_have_the_same_likelihood_and_the_same_greedy_token(temperature):
    params = params_of(temperature=temperature, top_p=0.9, repetition_penalty=1.3, entropies=True)
    logits = random_logits(5, LARGE, 3.0)
    logits[1, [17, 40, 41]] = 60.0  # equal, and the likeliest: the first one is greedy
    logits[2, 3] = 500.0  # never drawn, but part of the distribution that log-probs are taken of
    before = logits.clone()
    seen = torch.tensor([[17, 30]]).expand(5, -1)
    drawing = NextToken(params, SUPPRESSED, "cpu")
    torch.manual_seed(5)
    tokens, likelihood = drawing.draw_large(seen, logits)
    assert torch.equal(logits, before)
    expected = (logits / (temperature or 1.0)).log_softmax(-1)
    assert torch.equal(likelihood.logprobs, expected.gather(1, tokens[:, None])[:, 0])
    by_hand = -(expected.double().exp() * expected.double()).sum(1)
    torch.testing.assert_close(likelihood.entropies, by_hand.float(), rtol=1e-5, atol=1e-5)
    assert tokens[2] != 3 and likelihood.logprobs[2] < -300
    if temperature == 0:
        plain, of_plain = drawing.draw_plain(seen, logits)
        assert torch.equal(tokens, plain) and tokens[1] == 40
        assert torch.equal(likelihood.logprobs, of_plain.logprobs)


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}, {"temperature": 0.0}], ids=str)
def test_logits_that_are_not_finite_raise_nothing_and_leave_no_log_prob(settings):
    logits = random_logits(5, LARGE, 1.0)
    logits[0, 70] = torch.nan
    logits[1, 70] = torch.inf
    logits[2] = -torch.inf
    logits[3, 1:] = -torch.inf  # a certain token is none of these
    drawing = NextToken(params_of(**settings), [5], "cpu")
    none = torch.zeros(5, 0, dtype=torch.long)
    tokens, likelihood = drawing.draw_large(none, logits)
    by_plain, of_plain = drawing.draw_plain(none, logits)
    assert torch.equal(tokens[:4], by_plain[:4])
    assert torch.equal(likelihood.logprobs[:4].isnan(), of_plain.logprobs[:4].isnan())
    assert likelihood.logprobs[:3].isnan().all() and likelihood.logprobs[3] == 0 and likelihood.logprobs[4].isfinite()


# ---- in the engines


@pytest.fixture
def large_pair(tiny_pair):
    """Makes a model and a processor with a vocabulary above the bound of the plain way."""
    return lambda **more: tiny_pair("qwen2_5_vl", initializer_range=0.25, vocabulary=LARGE, **more)


def test_engines_take_the_same_greedy_tokens_and_have_the_log_probs_of_the_trainer(large_pair, random_prompts):
    model, processor = large_pair()
    prompts = random_prompts(model, ["tvi", "t", "vit"])
    drawn = []
    for kind in (LocalEngine, SharedPrefixEngine, DraftedEngine):
        engine = kind(processor.tokenizer, model)
        params = SamplingParams(6, temperature=0.0)
        drawn.append(engine.draw(model, prompts, 1, params, seed=0).completion_ids)
        settings = {"top_k": 600, "top_p": 0.8, "min_p": 0.001, "repetition_penalty": 1.5, "entropies": True}
        rollout = engine.draw(model, prompts, 3, SamplingParams(12, temperature=0.7, **settings), seed=1)
        assert (rollout.completion_ids >= len(processor.tokenizer)).any()
        batch = (prompts, rollout.completion_ids, rollout.completion_mask)
        trainer = completion_likelihood(model, *batch, temperature=0.7, logit_chunk_tokens=16, entropy="measured")
        torch.testing.assert_close(rollout.logprobs, trainer.logprobs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rollout.entropies, trainer.entropies, rtol=1e-4, atol=1e-4)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
