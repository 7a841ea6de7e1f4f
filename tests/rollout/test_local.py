"""Sampling: the policy's own distribution, its own settings, nothing left behind, and stop strings in their text."""

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES, make_tokenizer
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.positions import completion_positions
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine, StopStrings

SAMPLED = SamplingParams(max_new_tokens=12, temperature=0.7, top_p=0.9)


@pytest.fixture
def load(tiny_pair, random_prompts):
    """``load(family)``: a model, the engine, and a prompt with a video before a shorter one of text."""

    def make(family="qwen2_5_vl"):
        model, processor = tiny_pair(family, initializer_range=0.1)
        return model, LocalEngine(processor.tokenizer, model), random_prompts(model, ["tvt", "t"])

    return make


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
def test_greedy_is_the_argmax_of_plain_forwards(load, family):
    model, engine, prompts = load(family)
    rollout = engine.draw(model, prompts, 1, SamplingParams(8, temperature=0.0), seed=0)
    with torch.no_grad():
        expected = greedy_by_hand(model.eval(), prompts, 8, engine.vision_ids)
    keep = rollout.completion_mask
    assert torch.equal(rollout.completion_ids[keep], expected[:, : keep.shape[1]][keep])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engines_logprobs_are_the_trainers(load, family):
    model, engine, prompts = load(family)
    rollout = engine.draw(model, prompts, 3, SAMPLED, seed=1)
    trainer = completion_logprobs(
        model, prompts, rollout.completion_ids, rollout.completion_mask, temperature=0.7, logit_chunk_tokens=16
    )
    torch.testing.assert_close(rollout.logprobs, trainer, rtol=0, atol=2e-5)


def test_seeds_repeat_and_differ_and_leave_the_generator_alone(load):
    model, engine, prompts = load()
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (engine.draw(model, prompts, 2, SAMPLED, seed=s).completion_ids for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), first)
    assert torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_vision_tokens_are_never_sampled(load):
    model, engine, prompts = load()
    loved = engine.vision_ids
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor(loved), 50.0))
    rollout = engine.draw(model, prompts, 4, SAMPLED, seed=0)
    assert len(loved) == 4 and not torch.isin(rollout.completion_ids, torch.tensor(loved)).any()


def test_modes_and_settings_come_back(load):
    model, engine, prompts = load()
    expected = engine.draw(model.eval(), prompts, 2, SAMPLED, seed=1).completion_ids
    model.train()
    model.model.visual.eval()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.text_config.use_cache = False
    model.generation_config.repetition_penalty = 5.0
    settings = model.generation_config
    result = engine.draw(model, prompts, 2, SAMPLED, seed=1).completion_ids
    assert torch.equal(result, expected)  # neither checkpointing nor the model's own settings changed the draw
    assert model.training and model.lm_head.training and not model.model.visual.training
    assert model.generation_config is settings and model.config.text_config.use_cache is False


def test_ends(load):
    model, engine, prompts = load()
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    steps = {"n": 0}

    def hook(module, args, logits):
        steps["n"] += 1
        if steps["n"] == 3:
            logits[0, :, end] = 100.0  # the first row ends with its third token
        return logits

    model.lm_head.register_forward_hook(hook)
    rollout = engine.draw(model, prompts, 1, SamplingParams(6, temperature=0.0), seed=0)
    assert rollout.completion_mask.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    assert rollout.finish_reasons == ["stop", "length"]
    assert rollout.completion_ids[0, 2:].tolist() == [end] + [engine.tokenizer.pad_token_id] * 3
    assert "<|im_end|>" not in rollout.texts[0] and (rollout.logprobs[0, 3:] == 0).all()


TEXT = "<think> two </think>\n\n<answer>(2) insert the fan</answer>\nand more é 日本"


@pytest.mark.parametrize(
    "strings", [("</answer>",), ("\n\n", "fan"), ("é", "本"), ("never",), ("t",), ("er>(2) insert",)], ids=str
)
def test_each_token_that_completes_a_string(strings):
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


def test_a_token_may_hold_more_than_the_end_of_a_string():
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("<answer>") == ["<answer", ">"]
    ids = tokenizer("<answer>", return_tensors="pt").input_ids
    assert StopStrings(tokenizer, ("<ans",)).each_token(ids).tolist() == [[True, False]]
