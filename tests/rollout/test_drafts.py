"""Drafts: the law of sampling token by token, what is drafted, and bounds of what is kept."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rollout import shared_sampling
from qwenvl.rollout.drafts import (
    LEAST_CHANCE,
    TRY_EVERY,
    CompletionDrafts,
    Drafter,
    DraftHistory,
    DraftLengths,
    SuffixTable,
    add_text,
)
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.rollout.shared_sampling import SharedSampler, tokens_of
from tests.rollout.law import SETTINGS, assert_law, probabilities

BANNED = 3
GROUP, NEW = 3, 20


def strong_model(**options):
    """A model whose distributions differ from token to token, so that a wrong position shows."""
    made = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"), initializer_range=0.25, **options)
    return made.requires_grad_(False).eval()


@pytest.fixture
def model():
    """A tiny model whose weights are large enough for distinct tokens."""
    return strong_model()


def sample(model, prompts, drafter, params, *, group=GROUP, **how):
    how = {"suppress": [BANNED], "end_ids": [], "pad_id": 0} | how
    return SharedSampler(model, prompts, group, params, drafter=drafter, **how).first()


def taught(prompts, completions, group=GROUP, most=4) -> Drafter:
    """A drafter that has seen these completions, and expects drafts to be right."""
    drafter = Drafter(DraftLengths(most))
    drafter.lengths.right = [0.9] * len(drafter.lengths.right)
    with drafter.learning():
        drafter.remember(tokens_of(prompts), completions, group, [BANNED])
    return drafter


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_drafts_change_no_greedy_token_and_take_fewer_forwards(model, random_prompts, monkeypatch, penalty, fixed):
    monkeypatch.setattr(shared_sampling, "GraphedForward", lambda forward: forward)  # which a GPU would capture
    prompts = random_prompts(model, ["tvi", "t", "vit", "v"])
    params = SamplingParams(NEW, 0.0, repetition_penalty=penalty, entropies=True)
    plain, likelihood = sample(model, prompts, None, params)
    ends = [int(plain[0, 6]), int(plain[2 * GROUP, 9])]
    plain, likelihood = sample(model, prompts, None, params, end_ids=ends)
    right = taught(prompts, plain.tolist())
    # Wrong from the third token on, in every second place.
    wrong = plain.clone()
    wrong[:, 2::2] = (wrong[:, 2::2] + 1) % 250 + 4
    for drafter in (right, taught(prompts, wrong.tolist()), Drafter(DraftLengths(4))):
        widths = []
        hook = model.lm_head.register_forward_hook(lambda module, args, out, widths=widths: widths.append(out.shape[1]))
        ids, found = sample(model, prompts, drafter, params, end_ids=ends, cuda_graph=fixed)
        hook.remove()
        assert torch.equal(ids, plain)
        # Float32 of logits of some tens: the last bits of sums in another order.
        torch.testing.assert_close(found.logprobs, likelihood.logprobs, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(found.entropies, likelihood.entropies, rtol=1e-5, atol=2e-5)
        assert not fixed or set(widths[1:]) == {5}
        if drafter is right:
            assert len(widths) - 1 < NEW / 2
    assert 0 < drafter.counts.accepted <= drafter.counts.drafted or penalty > 1


@pytest.mark.parametrize(
    ("settings", "vocabulary"),
    # The last one draws with few passes over a large vocabulary.
    [*((settings, 0) for settings in SETTINGS), ({"temperature": 1.0, "top_k": 8, "top_p": 0.95}, 4200)],
    ids=str,
)
def test_the_first_three_tokens_have_the_law_of_plain_forwards(random_prompts, settings, vocabulary):
    model = strong_model(vocabulary=vocabulary)
    prompt = random_prompts(model, ["t"])
    params = SamplingParams(4, **settings)
    group = 4000
    first = probabilities(model, prompt, [], params, [BANNED])
    one = int(first.argmax())
    second = probabilities(model, prompt, [one], params, [BANNED])
    two = int(second.argmax())
    third = probabilities(model, prompt, [one, two], params, [BANNED])
    rows = []
    for seed in range(4):
        # Behind the likeliest token the two likeliest others are drafted, and right or wrong by chance.
        drafter = taught(prompt, [[one, two, int(third.argmax()), 7]], group=1)
        torch.manual_seed(seed)
        rows += sample(model, prompt, drafter, params, group=group)[0].tolist()
        assert 0 < drafter.counts.accepted < drafter.counts.drafted
    assert_law(Counter(row[0] for row in rows), first)
    assert_law(Counter(row[1] for row in rows if row[0] == one), second)
    assert_law(Counter(row[2] for row in rows if row[:2] == [one, two]), third)


def test_log_probs_of_drafted_tokens_equal_those_of_the_trainer(tiny_pair, random_prompts):
    model, processor = tiny_pair("qwen3_vl", initializer_range=0.1)
    prompts = random_prompts(model, ["tvi", "t"])
    engine = SharedPrefixEngine(processor.tokenizer, model)
    engine.draft(model, 4)
    params = SamplingParams(NEW, temperature=0.5, top_p=0.9, entropies=True)
    with engine.drafter.learning():
        for seed in (1, 1):
            rollout = engine.draw(model, prompts, GROUP, params, seed)
    assert engine.drafter.counts.accepted > 0
    batch = prompts, rollout.completion_ids, rollout.completion_mask
    settings = {"temperature": 0.5, "logit_chunk_tokens": 16, "entropy": "measured"}
    trained = completion_likelihood(model.eval(), *batch, **settings)
    torch.testing.assert_close(rollout.logprobs, trained.logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rollout.entropies, trained.entropies, rtol=1e-5, atol=1e-5)


def test_the_same_history_gives_the_same_draws_and_only_learning_changes_it(tiny_pair, random_prompts):
    model, processor = tiny_pair("qwen2_5_vl", initializer_range=0.1)
    prompts = random_prompts(model, ["tvi", "t"])
    params = SamplingParams(NEW, temperature=0.7)
    engine = SharedPrefixEngine(processor.tokenizer, model)
    engine.draft(model, 4)
    with engine.drafter.learning():
        engine.draw(model, prompts, GROUP, params, seed=1)
    state = json.dumps(engine.drafter.state())
    drawn = engine.draw(model, prompts, GROUP, params, seed=2)
    assert json.dumps(engine.drafter.state()) == state
    other = SharedPrefixEngine(processor.tokenizer, model)
    other.draft(model, 4)
    other.drafter.load(json.loads(state))
    assert torch.equal(other.draw(model, prompts, GROUP, params, seed=2).logprobs, drawn.logprobs)


def test_a_completion_is_watched_token_by_token(model, random_prompts):
    prompts = random_prompts(model, ["t", "vt"])
    params = SamplingParams(NEW, 0.0)
    plain = sample(model, prompts, None, params, group=1)[0].tolist()
    seen = {0: [], 1: []}

    def watch(rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            seen[row].append(token)
        return [row == 0 and len(seen[0]) == 7 for row in rows]

    drawing = shared_sampling.Drawing(watch=watch)
    drafter = taught(prompts, plain, group=1)
    ids, _ = sample(model, prompts, drafter, params, group=1, drawing=drawing)
    assert seen == {0: plain[0][:7], 1: plain[1]}
    assert ids[0].tolist() == plain[0][:7] + [0] * (NEW - 7) and drawing.drawn == NEW


def test_linear_attention_is_refused_with_a_number(tiny_pair):
    model, processor = tiny_pair("qwen3_5")
    with pytest.raises(ValueError, match=r"--draft_tokens 4 .* 5 times the memory of 12 tokens"):
        SharedPrefixEngine(processor.tokenizer, model).draft(model, 4)


def proposals(completion: CompletionDrafts, most=4):
    draft = completion.propose(most)
    return draft.tokens, draft.suffix


def test_the_longest_suffix_decides_and_then_the_nearest_text():
    lengths = DraftLengths(4)
    lengths.right = [0.9] * 7
    prompt, others = SuffixTable(), SuffixTable()
    add_text(prompt, [1, 2, 3, 4, 99, 99, 5, 6], media=[99])
    others.add([8, 1, 2, 7, 7])
    own = CompletionDrafts(prompt.suffix(), [prompt, others], lengths)
    assert proposals(own) == ([], 0), "nothing follows the prompt's own end"
    own.append(2)
    assert proposals(own) == ([3, 4], 1), "a draft ends where a picture stands"
    for token in (8, 1, 2):
        own.append(token)
    assert proposals(own) == ([7, 7], 3)
    assert proposals(own, most=1) == ([7], 3)
    for token in (5, 8, 1, 2):
        own.append(token)
    assert proposals(own)[0] == [5, 8, 1, 2], "of equal ones the completion's own comes first"


def test_a_suffix_has_at_most_six_tokens():
    table = SuffixTable()
    table.add([1, 2, 3, 4, 5, 6, 7, 8])
    assert table.behind((2, 3, 4, 5, 6, 7), 4) == [8] and table.behind((1, 2, 3, 4, 5, 6, 7), 4) == []
    assert table.suffix() == [3, 4, 5, 6, 7, 8]


def test_the_history_keeps_the_newest_within_its_bound():
    history = DraftHistory(most=100)
    for number in range(50):
        history.add(number, [number * 10 + k for k in range(7)])
        assert history.tokens <= 100
        assert history.tokens == sum(len(tokens) for _, tokens in history.state())
    assert history.table.behind((490,), 3) == [491, 492, 493] and history.table.behind((0,), 3) == []
    assert history.of_prompt(49).behind((490,), 1) == [491] and not history.of_prompt(0).behind((0,), 1)
    # The table has what is kept and no more: a token, up to six suffixes of it, and a break.
    assert len(history.table._tokens) <= 100 + len(history.state())
    assert len(history.table._places) <= 6 * history.tokens
    history.add(50, list(range(1000, 1300)))
    assert history.tokens <= 100 and history.table.behind((1298,), 3) == [1299]
    again = DraftHistory(most=100)
    again.load(json.loads(json.dumps(history.state())))
    assert json.dumps(again.state()) == json.dumps(history.state()) and again.tokens == history.tokens
    assert again.table._tokens == history.table._tokens and again.table._places == history.table._places


def test_drafts_get_longer_where_they_are_right_and_stop_where_they_fail():
    lengths = DraftLengths(8)
    assert lengths.choose(3) == 2, "0.5 and 0.25 of a first and a second token"
    for _ in range(100):
        lengths.seen(3, drafted=8, right=8)
    assert lengths.choose(3) == 8
    for _ in range(100):
        lengths.seen(1, drafted=1, right=0)
    assert lengths.right[1] < LEAST_CHANCE
    tries = [lengths.choose(1) for _ in range(2 * TRY_EVERY)]
    assert tries.count(1) == 2 and tries.count(0) == 2 * TRY_EVERY - 2
    assert lengths.choose(3) == 8, "each length of a suffix counts by itself"
