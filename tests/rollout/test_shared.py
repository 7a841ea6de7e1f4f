"""The fast engine against the plain one, and both against stock ``generate`` and distributions written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rollout.engine import SamplingParams, split_rollouts, within_budget
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine

ENGINES = [LocalEngine, SharedPrefixEngine]
WORDS = ["tvi", "t", "vit"]


@pytest.fixture
def tiny(tiny_pair, random_prompts):
    """Model, tokenizer, prompts; strong weights, so that tokens differ."""
    model, processor = tiny_pair(initializer_range=0.25)
    return model, processor.tokenizer, random_prompts(model, WORDS)


def spelled(tokenizer, ids, start, tokens=1):
    """A text that ``tokens`` tokens in a row spell, from ``start`` on or as soon after as they are whole letters."""
    for at in range(start, len(ids) - tokens + 1):
        text = tokenizer.decode(ids[at : at + tokens])
        if text.isascii() and text.strip() and not set(tokenizer.all_special_ids) & set(ids[at : at + tokens].tolist()):
            return text
    raise AssertionError("the model wrote nothing that can be read")


def stock_greedy(model, engine, prompts, **settings):
    """One prompt at a time, so that there is no padding, by the settings of ``generate`` alone."""
    rows = []
    for p in range(len(prompts)):
        prompt = prompts.select([p])
        positions = torch.cat([torch.arange(prompt.input_ids.shape[1])[None, None], prompt.position_ids])
        model.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=engine.end_ids,
            pad_token_id=engine.tokenizer.pad_token_id,
            suppress_tokens=engine.vision_ids,
            **settings,
        )
        inputs = {"input_ids": prompt.input_ids, "attention_mask": prompt.attention_mask, "position_ids": positions}
        ids = model.eval().generate(**inputs, **prompt.vision(), tokenizer=engine.tokenizer)
        rows.append(ids[0, prompt.input_ids.shape[1] :].tolist())
    return rows


@pytest.mark.parametrize("kind", ENGINES)
def test_greedy_with_repetition_penalty_is_that_of_generate_without_padding(kind, tiny):
    model, tokenizer, prompts = tiny
    engine = kind(tokenizer, model)
    expected = stock_greedy(model, engine, prompts, repetition_penalty=1.8)
    assert expected != stock_greedy(model, engine, prompts), "a penalty that changes nothing shows nothing"
    params = SamplingParams(12, temperature=0, repetition_penalty=1.8, top_k=5, top_p=0.5, min_p=0.1)
    rollout = engine.draw(model, prompts, 1, params, seed=0)
    kept = [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]
    assert kept == expected


@pytest.mark.parametrize("kind", ENGINES)
def test_padding_is_no_token_that_stood_in_the_prompt(kind, tiny):
    """The pad token is what the model loves; a short prompt beside a long one must not be punished for padding."""
    model, tokenizer, prompts = tiny
    pad = tokenizer.pad_token_id
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor([pad]), 100.0))
    engine = kind(tokenizer, model)
    assert (prompts.attention_mask[1] == 0).any()
    prompts.input_ids[prompts.attention_mask == 0] = pad
    params = SamplingParams(3, temperature=0, repetition_penalty=1e9)
    assert engine.draw(model, prompts, 1, params, seed=0).completion_ids[1, 0] == pad
    prompts.input_ids[1, -2] = pad
    assert engine.draw(model, prompts, 1, params, seed=0).completion_ids[1, 0] != pad


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("budget", [None, 1])
def test_greedy_with_stop_strings_is_that_of_generate(kind, budget, tiny):
    model, tokenizer, prompts = tiny
    engine = kind(tokenizer, model, token_budget=budget)
    free = engine.draw(model, prompts, 1, SamplingParams(12, temperature=0), seed=0)
    strings = (spelled(tokenizer, free.completion_ids[0], 2, 2), spelled(tokenizer, free.completion_ids[1], 5))
    expected = stock_greedy(model, engine, prompts, stop_strings=list(strings))
    params = SamplingParams(12, temperature=0, stop_strings=strings)
    rollout = engine.draw(model, prompts, 2, params, seed=0)
    kept = [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]
    assert kept == [row for row in expected for _ in range(2)]
    assert len(kept[0]) < 12 and len(kept[2]) < 12 and len(kept[0]) != len(kept[2])
    for ids, text, reason in zip(kept, rollout.texts, rollout.finish_reasons, strict=True):
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
        assert reason == ("stop" if ids[-1] in engine.end_ids or any(s in text for s in strings) else "length")
    assert rollout.texts[0].endswith(strings) and rollout.finish_reasons[0] == "stop"
    padding = ~rollout.completion_mask
    assert (rollout.completion_ids[padding] == tokenizer.pad_token_id).all() and rollout.logprobs[padding].eq(0).all()


def narrowed(logits, seen, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, temperature=1.0):
    """The distribution of one token, V, in plain steps: penalty, temperature, top-k, top-p, min-p."""
    logits = logits.double().clone()
    for token in set(seen):
        logits[token] = logits[token] / repetition_penalty if logits[token] > 0 else logits[token] * repetition_penalty
    p = (logits / temperature).softmax(0)
    order = p.argsort(descending=True).tolist()
    if top_k:
        p[order[top_k:]] = 0
    if top_p < 1:
        p, mass = p / p.sum(), 0.0
        for token in order:
            if mass >= top_p:
                p[token] = 0
            mass += float(p[token])
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [{"top_k": 5}, {"min_p": 0.2}, {"repetition_penalty": 2.0}, {"top_k": 12, "top_p": 0.8, "min_p": 0.1}],
    ids=str,
)
def test_draws_follow_the_narrowed_distribution(kind, settings, tiny_pair, random_prompts):
    """First tokens of 3,000 completions against the distribution by hand, in a chi-square test."""
    model, processor = tiny_pair(initializer_range=0.1)
    prompt = random_prompts(model, ["t"])
    engine = kind(processor.tokenizer, model)
    draws = 3000
    rollout = engine.draw(model, prompt, draws, SamplingParams(1, temperature=0.5, **settings), seed=3)
    with torch.no_grad():
        logits = model(input_ids=prompt.input_ids, position_ids=prompt.position_ids, use_cache=False).logits[0, -1]
    logits[engine.vision_ids] = -torch.inf
    expected = narrowed(logits, prompt.input_ids[0].tolist(), temperature=0.5, **settings) * draws
    observed = torch.bincount(rollout.completion_ids[:, 0], minlength=len(expected)).double()
    assert (observed[expected == 0] == 0).all()
    likely = expected > 5
    statistic = ((observed - expected) ** 2 / expected)[likely].sum().item()
    degrees = int(likely.sum())
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("kind", ENGINES)
def test_logprobs_and_entropies_stay_those_of_the_trainer(kind, tiny):
    model, tokenizer, prompts = tiny
    settings = {"top_k": 6, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.5, "stop_strings": ("a", "e")}
    params = SamplingParams(12, temperature=0.7, entropies=True, **settings)
    engine = kind(tokenizer, model, token_budget=1)
    rollout = engine.draw(model, prompts, 3, params, seed=1)
    assert "stop" in rollout.finish_reasons
    batch = (prompts, rollout.completion_ids, rollout.completion_mask)
    trainer = completion_likelihood(model, *batch, temperature=0.7, logit_chunk_tokens=16, entropy="measured")
    torch.testing.assert_close(rollout.logprobs, trainer.logprobs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rollout.entropies, trainer.entropies, rtol=1e-4, atol=1e-4)
    again = engine.draw(model, prompts, 3, replace(params, entropies=False), seed=1)
    assert again.entropies is None and torch.equal(again.logprobs, rollout.logprobs)
    first, rest = split_rollouts(rollout, [3, 6])
    assert torch.equal(first.entropies, rollout.entropies[:3, : first.logprobs.shape[1]]) and len(rest.entropies) == 6


@pytest.mark.parametrize("kind", ENGINES)
def test_states_of_completions_count_as_the_tokens_of_their_memory(kind, tiny_pair, random_prompts):
    model, processor = tiny_pair("qwen3_5")
    prompts = random_prompts(model, ["t", "t"])
    group, length, state = 2, 3, 12  # of a completion, see the test of ``state_tokens``
    prompt = prompts.input_ids.shape[1]
    each = prompt + group * (length + state) if kind is SharedPrefixEngine else group * (prompt + length + state)
    steps = []
    model.model.language_model.register_forward_hook(lambda *of_one_forward: steps.append(1))
    for budget, batches in ((2 * each, 1), (2 * each - 1, 2)):
        steps.clear()
        engine = kind(processor.tokenizer, model, token_budget=budget)
        engine.end_ids = []
        engine.draw(model, prompts, group, SamplingParams(length), seed=0)
        assert len(steps) == batches * length


@pytest.mark.parametrize(
    ("costs", "budget", "groups"),
    [
        ([5, 4, 3, 20, 1], 10, [[5, 4], [3], [20], [1]]),
        ([2, 4, 4, 9], 12, [[2, 4, 4], [9]]),  # three that are padded to 4
        ([2, 5, 4], 12, [[2, 5], [4]]),
        ([5, 4], None, [[5, 4]]),
        ([5, 4], 0, [[5], [4]]),
        ([], 10, []),
    ],
)
def test_groups_cost_what_their_dearest_member_does_times_their_members(costs, budget, groups):
    assert list(within_budget(iter(costs), budget, cost=lambda cost: cost)) == groups


def test_an_item_may_have_several_members():
    pairs = [(2, 3), (4, 1), (1, 0), (3, 1)]  # cost of a member, members
    found = list(within_budget(pairs, 16, cost=lambda pair: pair[0], members=lambda pair: pair[1]))
    assert found == [[(2, 3), (4, 1), (1, 0)], [(3, 1)]], "4 x (3 + 1 + 0) fit, 4 x 5 do not"
