"""Adapters merged into weights: sums and dtypes. tests/train/test_merge.py compares logits."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from qwenvl.model.loading import lora_config, merged_weights, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.rollout.vllm import policy_weights

ATTENTION = r".*language_model.*\.(q_proj|v_proj)"


def adapted(model, **settings):
    """The model with an adapter of random weights, none of them 0."""
    torch.manual_seed(1)
    policy = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, init_lora_weights=False, **settings))
    return policy.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"modules_to_save": ["merger"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["embed_tokens"]},
    ],
    ids=str,
)
def test_adapters_of_other_kinds_are_refused(tiny_pair, settings):
    with pytest.raises(ValueError, match="only LoRA adapters of linear layers and experts are merged"):
        merged_weights(adapted(tiny_pair()[0], **{"target_modules": ATTENTION, **settings}))


def test_sums_are_rounded_once_to_the_type_of_each_weight(tiny_pair):
    model = tiny_pair(initializer_range=0.1)[0].to(torch.bfloat16)
    policy = adapted(model, target_modules=ATTENTION)
    layer = unwrap(policy).model.language_model.layers[0].self_attn.q_proj
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    exact = layer.base_layer.weight.float() + 16 / 4 * up.float() @ down.float()
    whole = merged_weights(policy)
    assert {weight.dtype for weight in whole.values()} == {torch.bfloat16}
    weight = whole["model.language_model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(weight, exact.to(torch.bfloat16))
    next(p for name, p in policy.named_parameters() if "lora_A" in name).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        merged_weights(policy)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl_moe"])
def test_adapters_of_linear_attention_and_of_experts_are_folded_in(tiny_pair, family):
    model, _ = tiny_pair(family)
    before = {name: value.clone() for name, value in model.to(torch.bfloat16).state_dict().items()}
    config = lora_config(model, TuneOptions(), LoraOptions(True, 2, 4))
    config.init_lora_weights = False
    policy = get_peft_model(model, config)
    learned = {name: value.clone() for name, value in policy.state_dict().items()}
    ours = merged_weights(policy)
    for name, value in policy_weights(policy, torch.bfloat16):  # what vLLM servers get
        assert torch.equal(value, ours[name]), name
    assert all(torch.equal(value, learned[name]) for name, value in policy.state_dict().items()), "the policy stays"
    changed = {name for name, value in ours.items() if not torch.equal(value, before[name])}
    assert changed == {*(config.target_parameters or ()), *(f"{name}.weight" for name in config.target_modules)}
    whole = policy.merge_and_unload().state_dict()  # of peft, in bfloat16
    torch.testing.assert_close(ours, dict(whole), rtol=0.01, atol=0.01)
