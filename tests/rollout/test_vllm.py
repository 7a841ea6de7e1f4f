"""Completions from servers are those that the local engine draws by the same seeds; and which weights servers get."""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from qwenvl.rollout import vllm
from qwenvl.rollout.engine import EngineWithWeights, SamplingParams, SamplingRequest
from qwenvl.rollout.servers import Server
from qwenvl.rollout.vllm import give_weights, in_parts, policy_weights, seed_of_prompt
from tests.rollout.served import WAYS, WORDS, assert_same, engine_of, local_completions


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_servers_sample_as_the_local_engine_in_every_family_and_way_of_drawing(tiny_pair, fake, random_prompts, family):
    model, processor = tiny_pair(family, initializer_range=0.1)
    inputs = random_prompts(model, WORDS)
    engine = engine_of(model, processor, [fake(family, initializer_range=0.1)])
    assert isinstance(engine, EngineWithWeights)
    engine.sync(model, 0)
    for params in WAYS.values() if family == "qwen2_5_vl" else [WAYS["sampled"]]:
        size = 1 if params.temperature == 0 else 3
        batches = [inputs.select(rows) for rows in ([0, 1], [], [2, 3])]
        one, none, two = engine.sample(model, SamplingRequest(batches, size, params, seed=5))
        expected = local_completions(model, processor, inputs, size, params, 5)
        assert_same(one, expected[:2], size)
        assert_same(two, expected[2:], size)
        assert not none.texts and one.boots and one.boots == two.boots


def test_completions_do_not_depend_on_the_number_of_servers(tiny_pair, fake, random_prompts):
    model, processor = tiny_pair(initializer_range=0.1)
    inputs, params = random_prompts(model, WORDS), WAYS["sampled"]
    texts = []
    for number in (1, 2):
        servers = [fake(initializer_range=0.1) for _ in range(number)]
        engine = engine_of(model, processor, servers)
        engine.sync(model, 0)
        (rollout,) = engine.sample(model, SamplingRequest([inputs], 4, params, 7))
        texts.append(rollout.texts)
        assert [sum(len(asked.prompts) for asked in each.asked) for each in servers] == [4 // number] * number
    assert texts[0] == texts[1]
    seeds = sorted(seed_of_prompt(seed, p) for seed in range(20) for p in range(50))
    assert all(after - before >= 2**16 for before, after in pairwise(seeds)) and seeds[-1] < 2**62


def test_a_request_for_entropies_is_refused(tiny_pair, fake, random_prompts):
    model, processor = tiny_pair()
    engine = engine_of(model, processor, [fake()])
    engine.sync(model, 0)
    with pytest.raises(ValueError, match="no entropies"):
        engine.sample(model, SamplingRequest([random_prompts(model, ["t"])], 2, SamplingParams(4, entropies=True), 0))


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
    ahead = engine.request(model, SamplingRequest([inputs], 2, params, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    (rollout,) = ahead()
    assert_same(rollout, expected, 2)
    assert not any("visual" in name for _, names in server.given for name in names)


def language_model(model):
    return {name: p.detach() for name, p in model.named_parameters() if ".visual." not in name}


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_the_weights_for_servers_are_those_of_the_language_model(tiny_pair, family, tied, dtype):
    model, _ = tiny_pair(family, tie_word_embeddings=tied)
    found, expected = dict(policy_weights(model, dtype)), language_model(model)
    assert found.keys() == expected.keys() and ("lm_head.weight" in found) is not tied
    assert all(torch.equal(found[name], expected[name].to(dtype)) for name in found)


def test_weights_are_sent_in_parts_as_large_as_allowed(monkeypatch):
    monkeypatch.setattr(vllm, "PART_BYTES", 24)
    weights = [(str(size), torch.zeros(size)) for size in (2, 4, 1, 9, 3, 3)]  # 4 bytes a number
    parts = [([*part], last) for part, last in in_parts(weights)]
    assert parts == [(["2", "4"], False), (["1"], False), (["9"], False), (["3"], True)]


@pytest.mark.parametrize("messages", [False, True])
def test_each_new_version_hands_over_all_weights_in_parts(tiny_pair, fake, monkeypatch, messages):
    """All weights for each new version, by files in memory or in messages, in several parts."""
    if messages:
        monkeypatch.setattr(Server, "shares_memory", False)
    monkeypatch.setattr(vllm, "PART_BYTES", 30_000)
    model, processor = tiny_pair(initializer_range=0.1)
    servers = [fake(initializer_range=0.1) for _ in range(2)]
    engine = engine_of(model, processor, servers)
    for version in (0, 1, 1, None):
        with torch.no_grad():
            model.model.language_model.norm.weight.add_(1.0)
        engine.sync(model, version)
    for each in servers:
        given: dict[int, list[str]] = defaultdict(list)
        for request, names in each.given:
            given[request.version] += names
        assert [sorted(names) for names in given.values()] == [sorted(language_model(model))] * 3
        assert len(each.given) > 9
        assert all((request.path is None) is messages for request, _ in each.given)
        assert not any(request.path and os.path.exists(request.path) for request, _ in each.given)  # in memory no more
        for name, value in language_model(each.model).items():
            assert torch.equal(value, language_model(model)[name]), name


def test_two_processes_give_the_same_weights_to_a_server(tiny_pair, fake, monkeypatch):
    """Each of them has found it without. It takes a part from whoever sends it first."""
    monkeypatch.setattr(vllm, "PART_BYTES", 30_000)
    model, _ = tiny_pair(initializer_range=0.1)
    server = fake(initializer_range=0.1)
    processes = [Server(server.address) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        lost = [*pool.map(lambda own: give_weights(model, 5, [(own, server.health())]), processes)]
    assert lost == [[], []] and server.version == 5
    loaded = [name for _, names in server.given for name in names]
    assert sorted(loaded) == sorted(language_model(model))  # each once
