"""Which weights a server is given, in which parts, and that nothing of them is left behind."""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from qwenvl.rollout import vllm
from qwenvl.rollout.servers import Server
from qwenvl.rollout.vllm import give_weights, in_parts, policy_weights
from tests.rollout.served import engine_of


def language_model(model):
    return {name: p.detach() for name, p in model.named_parameters() if ".visual." not in name}


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_weights_of_the_language_model(tiny_pair, family, tied, dtype):
    model, _ = tiny_pair(family, tie_word_embeddings=tied)
    found, expected = dict(policy_weights(model, dtype)), language_model(model)
    assert found.keys() == expected.keys() and ("lm_head.weight" in found) is not tied
    assert all(torch.equal(found[name], expected[name].to(dtype)) for name in found)


def test_parts_are_as_large_as_they_may_be(monkeypatch):
    monkeypatch.setattr(vllm, "PART_BYTES", 24)
    weights = [(str(size), torch.zeros(size)) for size in (2, 4, 1, 9, 3, 3)]  # 4 bytes a number
    parts = [([*part], last) for part, last in in_parts(weights)]
    assert parts == [(["2", "4"], False), (["1"], False), (["9"], False), (["3"], True)]


@pytest.mark.parametrize("messages", [False, True])
def test_what_a_run_hands_over(tiny_pair, fake, monkeypatch, messages):
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
