"""Adapters folded into weights: the whole model gives the logits that the adapter gave, however it was made."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from qwenvl.model.loading import lora_config, unwrap
from qwenvl.model.merging import merged, merged_weights
from qwenvl.model.options import LoraOptions, TuneOptions

IDS = torch.tensor([[5, 6, 7, 8, 9]])
ATTENTION = r".*language_model.*\.(q_proj|v_proj)"


def adapted(model, **settings):
    """The model with an adapter of random weights, none of them 0."""
    torch.manual_seed(1)
    policy = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, init_lora_weights=False, **settings))
    for name, parameter in policy.named_parameters():
        if "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return policy.eval()


@pytest.mark.parametrize(
    ("settings", "tied"),
    [
        ({"target_modules": ATTENTION, "use_dora": True}, True),
        ({"target_modules": ATTENTION, "use_rslora": True, "modules_to_save": ["merger", "patch_embed"]}, False),
        ({"target_modules": ["q_proj", "lm_head"]}, True),
        ({"target_modules": ["q_proj", "lm_head"]}, False),
        ({"target_modules": ["q_proj", "embed_tokens"]}, True),
        ({"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}, True),
    ],
    ids=["dora", "merger and tower trained", "head", "untied head", "embeddings", "head trained"],
)
def test_the_saved_model_gives_the_logits_of_the_adapter(tiny_pair, random_prompts, tmp_path, tied, settings):
    model = tiny_pair(initializer_range=0.1, tie_word_embeddings=tied)[0]
    prompts = random_prompts(model, ["tvt"])
    inputs = {
        "input_ids": prompts.input_ids,
        "attention_mask": prompts.attention_mask,
        "position_ids": prompts.position_ids,
        **prompts.vision(),
    }
    with torch.no_grad():
        before = model(**inputs).logits
        policy = adapted(model, **settings)
        expected = policy(**inputs).logits
        merged(policy).save_pretrained(tmp_path)
        again = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
        assert (before - expected).abs().max() > 1e-2
        torch.testing.assert_close(again(**inputs).logits, expected, atol=1e-4, rtol=1e-4)
    changes_one_end = any(
        end in str(settings.get("target_modules")) + str(settings.get("modules_to_save"))
        for end in ("lm_head", "embed_tokens")
    )
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == (tied and not changes_one_end)


def test_sums_are_rounded_once_to_the_type_of_each_weight(tiny_pair):
    model = tiny_pair(initializer_range=0.1)[0].to(torch.bfloat16)
    policy = adapted(model, target_modules=ATTENTION)
    layer = unwrap(policy).model.language_model.layers[0].self_attn.q_proj
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    exact = layer.base_layer.weight.float() + 16 / 4 * up.float() @ down.float()
    whole = merged(policy)
    assert {weight.dtype for weight in whole.state_dict().values()} == {torch.bfloat16}
    weight = whole.model.language_model.layers[0].self_attn.q_proj.weight
    assert torch.equal(weight, exact.to(torch.bfloat16))


def test_weights_that_are_not_finite_are_refused(tiny_pair):
    policy = adapted(tiny_pair()[0], target_modules=ATTENTION)
    next(p for name, p in policy.named_parameters() if "lora_A" in name).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        merged(policy)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl_moe"])
def test_adapters_of_linear_attention_and_of_experts_are_folded_in(tiny_pair, family):
    model, _ = tiny_pair(family)
    before = {name: value.clone() for name, value in model.to(torch.bfloat16).state_dict().items()}
    config = lora_config(model, TuneOptions(), LoraOptions(True, 2, 4))
    config.init_lora_weights = False
    policy = get_peft_model(model, config)
    ours = merged_weights(policy)
    changed = {name for name, value in ours.items() if not torch.equal(value, before[name])}
    assert changed == {*(config.target_parameters or ()), *(f"{name}.weight" for name in config.target_modules)}
    whole = merged(policy).state_dict()
    assert {value.dtype for value in whole.values()} == {torch.bfloat16}
    torch.testing.assert_close(ours, whole, rtol=0.01, atol=0.01)
