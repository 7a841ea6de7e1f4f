"""Which weights a server is given, in which parts, and that nothing of them is left behind."""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from qwenvl.model.loading import lora_config
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.rollout import weights as weights_module
from qwenvl.rollout.servers import Server
from qwenvl.rollout.weights import give_weights, in_parts, policy_weights
from qwenvl.vllm_server.wire import memory_file
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
    monkeypatch.setattr(weights_module, "PART_BYTES", 24)
    weights = [(str(size), torch.zeros(size)) for size in (2, 4, 1, 9, 3, 3)]  # 4 bytes a number
    parts = [([*part], last) for part, last in in_parts(weights)]
    assert parts == [(["2", "4"], False), (["1"], False), (["9"], False), (["3"], True)]


def test_a_file_in_memory_is_gone_with_its_block():
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    with memory_file(tensors) as path:
        found = load_file(path)
        assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert not os.path.exists(path)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl_moe"])
def test_adapters_are_folded_in_and_stay_as_they_are(tiny_pair, family):
    from peft import get_peft_model

    model, _ = tiny_pair(family, initializer_range=0.1)
    policy = get_peft_model(
        model, lora_config(model, TuneOptions(), LoraOptions(lora_enable=True, lora_r=4, lora_dropout=0.0))
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    values = dict(policy_weights(policy, torch.float32))
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    whole = language_model(copy.deepcopy(policy).merge_and_unload())
    assert values.keys() == whole.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, whole[name], rtol=0, atol=1e-6)


def test_adapters_that_cannot_be_folded_in(tiny_pair):
    from peft import LoraConfig, get_peft_model

    model, _ = tiny_pair()
    target = "model.language_model.layers.0.mlp.up_proj"
    policy = get_peft_model(model, LoraConfig(target_modules=[target], modules_to_save=["lm_head"]))
    with pytest.raises(ValueError, match="only LoRA adapters of linear layers and experts are merged"):
        dict(policy_weights(policy, torch.float32))


@pytest.mark.parametrize("messages", [False, True])
def test_what_a_run_hands_over(tiny_pair, fake, monkeypatch, messages):
    """All weights for each new version, by files in memory or in messages, in several parts."""
    if messages:
        monkeypatch.setattr(Server, "shares_memory", False)
    monkeypatch.setattr(weights_module, "PART_BYTES", 30_000)
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
        for name, value in language_model(each.model).items():
            assert torch.equal(value, language_model(model)[name]), name


def test_two_processes_give_the_same_weights_to_a_server(tiny_pair, fake, monkeypatch):
    """Each of them has found it without. It takes a part from whoever sends it first."""
    monkeypatch.setattr(weights_module, "PART_BYTES", 30_000)
    model, _ = tiny_pair(initializer_range=0.1)
    server = fake(initializer_range=0.1)
    processes = [Server(server.address) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        lost = [*pool.map(lambda own: give_weights(model, 5, [(own, server.health())]), processes)]
    assert lost == [[], []] and server.version == 5
    loaded = [name for _, names in server.given for name in names]
    assert sorted(loaded) == sorted(language_model(model))  # each once
