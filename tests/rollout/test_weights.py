"""Which weights a server is given, in which form, and that nothing of them is left behind."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from safetensors.torch import load_file

from qwenvl.model.loading import lora_config
from qwenvl.model.merging import merged
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.rollout import weights as weights_module
from qwenvl.rollout.servers import Server
from qwenvl.rollout.weights import layer_of, policy_weights
from qwenvl.vllm_server.wire import memory_file
from tests.rollout.served import engine_of


def language_model(model):
    return {name: p.detach() for name, p in model.named_parameters() if ".visual." not in name}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_weights_of_the_language_model(tiny_pair, family, tied, dtype):
    model, _ = tiny_pair(family, tie_word_embeddings=tied)
    found = {each.name: each.tensor() for each in policy_weights(model, dtype, learning=False)}
    expected = language_model(model)
    assert found.keys() == expected.keys() and ("lm_head.weight" in found) is not tied
    assert all(torch.equal(found[name], expected[name].to(dtype)) for name in found)


def test_a_file_in_memory_is_gone_with_its_block():
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    with memory_file(tensors) as path:
        found = load_file(path)
        assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert not os.path.exists(path)


def test_what_learns(tiny_pair):
    model, _ = tiny_pair()
    model.requires_grad_(False)
    model.model.visual.requires_grad_(True)
    assert policy_weights(model, torch.float32, learning=True) == []
    mlp = model.model.language_model.layers[0].mlp
    mlp.down_proj.requires_grad_(True)
    names = {each.name for each in policy_weights(model, torch.float32, learning=True)}
    assert names == {"model.language_model.layers.0.mlp.down_proj.weight"}
    mlp.up_proj.requires_grad_(True)  # which vLLM holds as one layer with the gate
    names = {each.name for each in policy_weights(model, torch.float32, learning=True)}
    assert names == {f"model.language_model.layers.0.mlp.{each}_proj.weight" for each in ("gate", "up", "down")}


def test_adapters_of_a_part_of_a_layer(tiny_pair):
    """Queries alone are adapted: keys, values and their biases go with them, since vLLM holds them as one layer."""
    from peft import LoraConfig, get_peft_model

    model, _ = tiny_pair()
    policy = get_peft_model(model, LoraConfig(target_modules=["model.language_model.layers.1.self_attn.q_proj"]))
    names = {each.name for each in policy_weights(policy, torch.float32, learning=True)}
    prefix = "model.language_model.layers.1.self_attn."
    assert names == {f"{prefix}{which}_proj.{kind}" for which in "qkv" for kind in ("weight", "bias")}


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
    weights = policy_weights(policy, torch.float32, learning=False)
    learning = policy_weights(policy, torch.float32, learning=True)
    values = {each.name: each.tensor() for each in weights}
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    whole = language_model(merged(copy.deepcopy(policy)))
    assert values.keys() == whole.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, whole[name], rtol=0, atol=1e-6)
    assert {each.name for each in learning} == {name for name in whole if "_proj" in name}


def test_adapters_that_cannot_be_folded_in(tiny_pair):
    from peft import LoraConfig, get_peft_model

    model, _ = tiny_pair()
    target = "model.language_model.layers.0.mlp.up_proj"
    policy = get_peft_model(model, LoraConfig(target_modules=[target], modules_to_save=["lm_head"]))
    with pytest.raises(ValueError, match=r"modules_to_save.*--rollout_engine local"):
        policy_weights(policy, torch.float32, learning=False)


def test_what_a_run_hands_over(tiny_pair, fake):
    """All weights first, then what learns."""
    model, processor = tiny_pair(initializer_range=0.1)
    model.requires_grad_(False)
    model.model.language_model.norm.requires_grad_(True)
    servers = [fake(initializer_range=0.1) for _ in range(2)]
    engine = engine_of(model, processor, servers)
    for version in (0, 1, 1, 2, None):
        with torch.no_grad():
            model.model.language_model.norm.weight.add_(1.0)
        engine.sync(model, version)
    for each in servers:
        assert [len(names) for _, names in each.given] == [len(language_model(model)), 1, 1, 1]
        for name, value in language_model(each.model).items():
            assert torch.equal(value, language_model(model)[name]), name
        bases = [request.base for request, _ in each.given]
        assert bases == [None, *(request.version for request, _ in each.given[:-1])]


def test_messages_for_a_server_on_another_host(tiny_pair, fake, monkeypatch):
    monkeypatch.setattr(Server, "shares_memory", False)
    monkeypatch.setattr(weights_module, "PART_BYTES", 30_000)
    model, processor = tiny_pair(initializer_range=0.1)
    server = fake(initializer_range=0.1)
    engine_of(model, processor, [server]).sync(model, 0)
    assert len(server.given) > 3 and all(request.path is None for request, _ in server.given)
    for name, value in language_model(server.model).items():
        assert torch.equal(value, language_model(model)[name]), name


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.v_proj.bias", True),
        ("layers.0.self_attn.q_proj.weight", "layers.1.self_attn.q_proj.weight", False),
        ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.o_proj.weight", False),
        ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight", True),
        ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight", False),
        ("layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj", True),
        ("layers.0.linear_attn.in_proj_qkv.weight", "layers.0.linear_attn.in_proj_z.weight", True),
        ("layers.0.linear_attn.in_proj_b.weight", "layers.0.linear_attn.in_proj_z.weight", False),
        ("norm.weight", "embed_tokens.weight", False),
    ],
)
def test_weights_that_vllm_holds_in_one_layer(one, other, together):
    assert (layer_of(one) == layer_of(other)) is together
