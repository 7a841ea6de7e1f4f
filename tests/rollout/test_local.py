"""Both engines against plain forwards and stock ``generate``, and stop strings in their text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from qwenvl.data.chat import turn_end_id
from qwenvl.demo.tiny import FAMILIES, make_tokenizer
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.model.positions import completion_positions
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import encode_vision
from qwenvl.rollout.engine import SamplingParams, split_rollouts, within_budget
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine, StopStrings, missing_end
from tests.rollout.drafted import DraftedEngine

ENGINES = [LocalEngine, SharedPrefixEngine, DraftedEngine]
LINEAR = ("qwen3_5", "qwen3_5_moe")  # families with linear attention, which takes no drafts
SAMPLED = SamplingParams(max_new_tokens=12, temperature=0.7, top_p=0.9)


@pytest.fixture
def load(tiny_pair, random_prompts):
    """``load(kind, family)``: a model of strong weights, so that tokens differ, an engine, and prompts."""

    def make(kind=LocalEngine, family="qwen2_5_vl", **settings):
        model, processor = tiny_pair(family, initializer_range=0.25)
        return model, kind(processor.tokenizer, model, **settings), random_prompts(model, ["tvi", "t", "vit"])

    return make


def kept(rollout):
    return [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]


def greedy_by_hand(model, prompts, tokens, banned):
    """Row by row, token by token, a whole forward without cache for each."""
    rows = []
    for p in range(len(prompts)):
        prompt = prompts.select([p])
        own = prompt.input_ids.new_zeros(1, 0)
        for length in range(tokens):
            positions = completion_positions(prompt.position_ids, 1, length)
            logits = model(
                input_ids=torch.cat([prompt.input_ids, own], 1),
                position_ids=torch.cat([prompt.position_ids, positions], 2),
                use_cache=False,
                **prompt.vision(),
            ).logits[:, -1]
            logits[:, banned] = -torch.inf
            own = torch.cat([own, logits.argmax(-1, keepdim=True)], 1)
        rows.append(own[0])
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_greedy_tokens_are_those_of_plain_forwards_with_log_probs_of_the_trainer(load, family):
    model, engine, prompts = load(LocalEngine, family)
    model.requires_grad_(False)
    expected = greedy_by_hand(model.eval(), prompts, 6, engine.vision_ids)
    assert len(expected.unique()) > 6, "a model that repeats itself shows little"
    linear = family in LINEAR
    for kind in ENGINES[:2] if linear else ENGINES:
        engine = kind(engine.tokenizer, model)
        for inputs in (prompts, encode_vision(model, prompts)):
            greedy = engine.draw(model, inputs, 1, SamplingParams(6, temperature=0.0), seed=0)
            mask = greedy.completion_mask
            assert torch.equal(greedy.completion_ids[mask], expected[:, : mask.shape[1]][mask])
        drawn = engine.draw(model, inputs, 2, SAMPLED, seed=1)
        batch = (prompts, drawn.completion_ids, drawn.completion_mask)
        trainer = completion_likelihood(model, *batch, temperature=0.7, logit_chunk_tokens=16)
        torch.testing.assert_close(drawn.logprobs, trainer.logprobs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ENGINES)
def test_logprobs_and_entropies_equal_those_of_the_trainer_under_all_settings(kind, load):
    model, engine, prompts = load(kind, token_budget=1)
    settings = {"top_k": 6, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.5, "stop_strings": ("a", "e")}
    params = SamplingParams(12, temperature=0.7, entropies=True, **settings)
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
def test_vision_tokens_are_never_sampled(load, kind):
    model, engine, prompts = load(kind)
    loved = engine.vision_ids
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor(loved), 50.0))
    rollout = engine.draw(model, prompts, 4, SAMPLED, seed=0)
    assert len(loved) == 4 and not torch.isin(rollout.completion_ids, torch.tensor(loved)).any()


def test_draws_repeat_by_seed_and_restore_modes_and_settings_of_the_model(load):
    """Seeds repeat and differ. The generator, the modes and the settings of the model come back as they were."""
    model, engine, prompts = load()
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    model.eval()
    one, again, other = (engine.draw(model, prompts, 2, SAMPLED, seed=s).completion_ids for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), first) and torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)
    model.train()
    model.model.visual.eval()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.text_config.use_cache = False
    model.generation_config.repetition_penalty = 5.0
    settings = model.generation_config
    result = engine.draw(model, prompts, 2, SAMPLED, seed=1).completion_ids
    assert torch.equal(result, one)  # neither checkpointing nor the model's own settings changed the draw
    assert model.training and model.lm_head.training and not model.model.visual.training
    assert model.generation_config is settings and model.config.text_config.use_cache is False


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
def test_greedy_with_repetition_penalty_is_that_of_generate_without_padding(kind, load):
    model, engine, prompts = load(kind)
    expected = stock_greedy(model, engine, prompts, repetition_penalty=1.8)
    assert expected != stock_greedy(model, engine, prompts), "a penalty that changes nothing shows nothing"
    params = SamplingParams(12, temperature=0, repetition_penalty=1.8, top_k=5, top_p=0.5, min_p=0.1)
    assert kept(engine.draw(model, prompts, 1, params, seed=0)) == expected
    # The pad token is what the model loves: a short prompt beside a long one must not be punished for its padding.
    pad = engine.tokenizer.pad_token_id
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor([pad]), 100.0))
    assert (prompts.attention_mask[1] == 0).any()
    prompts.input_ids[prompts.attention_mask == 0] = pad
    params = SamplingParams(3, temperature=0, repetition_penalty=1e9)
    assert engine.draw(model, prompts, 1, params, seed=0).completion_ids[1, 0] == pad
    prompts.input_ids[1, -2] = pad
    assert engine.draw(model, prompts, 1, params, seed=0).completion_ids[1, 0] != pad


def spelled(tokenizer, ids, start, tokens=1):
    """A text that ``tokens`` tokens in a row spell, from ``start`` on or as soon after as they are whole letters."""
    for at in range(start, len(ids) - tokens + 1):
        text = tokenizer.decode(ids[at : at + tokens])
        if text.isascii() and text.strip() and not set(tokenizer.all_special_ids) & set(ids[at : at + tokens].tolist()):
            return text
    raise AssertionError("the model wrote nothing that can be read")


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("budget", [None, 1])
def test_greedy_with_stop_strings_is_that_of_generate(kind, budget, load):
    model, engine, prompts = load(kind, token_budget=budget)
    tokenizer = engine.tokenizer
    free = engine.draw(model, prompts, 1, SamplingParams(12, temperature=0), seed=0)
    strings = (spelled(tokenizer, free.completion_ids[0], 2, 2), spelled(tokenizer, free.completion_ids[1], 5))
    expected = stock_greedy(model, engine, prompts, stop_strings=list(strings))
    rollout = engine.draw(model, prompts, 2, SamplingParams(12, temperature=0, stop_strings=strings), seed=0)
    rows = kept(rollout)
    assert rows == [row for row in expected for _ in range(2)]
    assert len(rows[0]) < 12 and len(rows[2]) < 12 and len(rows[0]) != len(rows[2])
    for ids, text, reason in zip(rows, rollout.texts, rollout.finish_reasons, strict=True):
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
        assert reason == ("stop" if ids[-1] in engine.end_ids or any(s in text for s in strings) else "length")
    assert rollout.texts[0].endswith(strings) and rollout.finish_reasons[0] == "stop"
    padding = ~rollout.completion_mask
    assert (rollout.completion_ids[padding] == tokenizer.pad_token_id).all() and rollout.logprobs[padding].eq(0).all()


@pytest.mark.parametrize("kind", ENGINES[:2])
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


def test_a_group_costs_its_dearest_member_times_its_members():
    for costs, budget, groups in (
        ([2, 5, 4], 12, [[2, 5], [4]]),  # three that are padded to 5
        ([5, 4], None, [[5, 4]]),
        ([5, 4], 0, [[5], [4]]),
        ([], 10, []),
    ):
        assert list(within_budget(iter(costs), budget, cost=lambda cost: cost)) == groups
    pairs = [(2, 3), (4, 1), (1, 0), (3, 1)]  # cost of a member, members
    found = list(within_budget(pairs, 16, cost=lambda pair: pair[0], members=lambda pair: pair[1]))
    assert found == [[(2, 3), (4, 1), (1, 0)], [(3, 1)]], "4 x (3 + 1 + 0) fit, 4 x 5 do not"


TEXT = "<think> two </think>\n\n<answer>(2) insert the fan</answer>\nand more é 日本"


@pytest.mark.parametrize(
    "strings", [("</answer>",), ("\n\n", "fan"), ("é", "本"), ("never",), ("t",), ("er>(2) insert",)], ids=str
)
def test_a_stop_string_is_complete_at_the_token_that_holds_its_end(strings):
    """A string is complete at the first token with which the text so far holds one occurrence more."""
    tokenizer = make_tokenizer()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    whole = [tokenizer.decode(ids[0, : t + 1]) for t in range(ids.shape[1])]
    counts = [[0, *(text.count(string) for text in whole)] for string in strings]
    expected = [any(count[t + 1] > count[t] for count in counts) for t in range(ids.shape[1])]
    stops = StopStrings(tokenizer, strings)
    assert stops.each_token(ids)[0].tolist() == expected
    assert [bool(stops(ids[:, : t + 1])) for t in range(ids.shape[1])] == expected
    assert any(expected) == (strings != ("never",))
    assert tokenizer.tokenize("<answer>") == ["<answer", ">"]  # a token may hold more than the end of a string
    ids = tokenizer("<answer>", return_tensors="pt").input_ids
    assert StopStrings(tokenizer, ("<ans",)).each_token(ids).tolist() == [[True, False]]


@pytest.mark.parametrize("kind", ENGINES)
def test_the_end_of_a_turn_by_the_template_ends_a_completion_whose_files_name_another_token(kind, load):
    model, engine, prompts = load(kind)
    tokenizer = engine.tokenizer
    params = SamplingParams(12, temperature=0.0)
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = "<|endoftext|>"
    endless = kind(tokenizer, model).draw(model, prompts, 1, params, seed=0)
    # As if the template ended turns with a token that the first completion has in its middle.
    turn_end = endless.completion_ids[0, 4].item()
    first = endless.completion_ids[0].tolist().index(turn_end)
    ended = kind(tokenizer, model, turn_end=turn_end).draw(model, prompts, 1, params, seed=0)
    assert kept(ended)[0] == kept(endless)[0][: first + 1]
    assert ended.finish_reasons[0] == "stop" and endless.finish_reasons[0] == "length"
    assert ended.ended_by[0] == tokenizer.convert_ids_to_tokens(turn_end) and endless.ended_by[0] == ""


def test_files_without_the_end_of_a_turn_are_reported(tiny_pair):
    model, processor = tiny_pair("qwen3_vl")
    turn_end = turn_end_id(processor)
    assert missing_end(processor.tokenizer, model, turn_end) is None
    assert missing_end(processor.tokenizer, model, None) is None
    processor.tokenizer.eos_token = "<|endoftext|>"
    assert missing_end(processor.tokenizer, model, turn_end) is None
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    told = missing_end(processor.tokenizer, model, turn_end)
    assert "<|im_end|>" in told and "<|endoftext|>" in told and "generation_config.json" in told


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_no_deprecated_name_of_transformers_is_called(family, load):
    model, engine, prompts = load(SharedPrefixEngine, family)
    drawn = engine.draw(model, prompts, 2, SAMPLED, seed=1)
    tokens = drawn.completion_ids, drawn.completion_mask
    likelihood = shared_prefix.completion_likelihood(
        model, prompts, *tokens, temperature=0.7, logit_chunk_tokens=16
    )
    likelihood.logprobs.sum().backward()
