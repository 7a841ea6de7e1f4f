"""Completions from servers are those that the local engine draws by the same seeds, to the token and the log-prob."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from qwenvl.rollout.engine import EngineWithWeights, SamplingParams
from qwenvl.rollout.vllm import seed_of
from tests.rollout.served import WAYS, WORDS, assert_same, engine_of, local_completions


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_every_family_and_way_of_drawing(tiny_pair, fake, random_prompts, family):
    model, processor = tiny_pair(family, initializer_range=0.1)
    inputs = random_prompts(model, WORDS)
    engine = engine_of(model, processor, [fake(family, initializer_range=0.1)])
    assert isinstance(engine, EngineWithWeights)
    engine.sync(model, 0)
    for params in WAYS.values() if family == "qwen2_5_vl" else [WAYS["sampled"]]:
        size = 1 if params.temperature == 0 else 3
        batches = [inputs.select(rows) for rows in ([0, 1], [], [2, 3])]
        one, none, two = engine.sample(model, batches, size, params, seed=5)
        expected = local_completions(model, processor, inputs, size, params, 5)
        assert_same(one, expected[:2], size)
        assert_same(two, expected[2:], size)
        assert not none.texts and one.boots and one.boots == two.boots


def test_the_same_seeds_whatever_servers_there_are(tiny_pair, fake, random_prompts):
    model, processor = tiny_pair(initializer_range=0.1)
    inputs, params = random_prompts(model, WORDS), WAYS["sampled"]
    texts = []
    for number in (1, 2):
        servers = [fake(initializer_range=0.1) for _ in range(number)]
        engine = engine_of(model, processor, servers)
        engine.sync(model, 0)
        (rollout,) = engine.sample(model, [inputs], 4, params, 7)
        texts.append(rollout.texts)
        assert [sum(len(asked.prompts) for asked in each.asked) for each in servers] == [4 // number] * number
    assert texts[0] == texts[1]
    seeds = sorted(seed_of(seed, p) for seed in range(20) for p in range(50))
    assert all(after - before >= 2**16 for before, after in pairwise(seeds)) and seeds[-1] < 2**62


def test_no_entropies(tiny_pair, fake, random_prompts):
    model, processor = tiny_pair()
    engine = engine_of(model, processor, [fake()])
    engine.sync(model, 0)
    with pytest.raises(ValueError, match="no entropies"):
        engine.sample(model, [random_prompts(model, ["t"])], 2, SamplingParams(4, entropies=True), 0)


def test_a_request_has_the_features_of_its_time_and_needs_no_model_any_more(tiny_pair, fake, random_prompts):
    """The tower learns in the trainer alone. A request is answered in another thread, while the policy learns on."""
    model, processor = tiny_pair(initializer_range=0.1)
    server = fake(initializer_range=0.1)
    engine = engine_of(model, processor, [server])
    engine.sync(model, 0)
    with torch.no_grad():
        for parameter in model.model.visual.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    inputs, params = random_prompts(model, ["tv", "t"]), WAYS["sampled"]
    expected = local_completions(model, processor, inputs, 2, params, 1)
    ahead = engine.request(model, [inputs], 2, params, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    (rollout,) = ahead()
    assert_same(rollout, expected, 2)
    assert not any("visual" in name for _, names in server.given for name in names)
