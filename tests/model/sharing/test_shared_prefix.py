"""The shared path is held to the plain one: log-probs, the gradient of every parameter, and tokens computed."""

from __future__ import annotations

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.sharing import shared_prefix

MIXES = {
    "ragged": (["tv", "t", "tit"], 2, 7),
    "many": (["titv", "vtv"], 4, 7),
    "single tokens": (["tv", "t"], 2, 1),
}


def likelihood_and_gradients(path, model, prompts, completions, whole=None):
    model.zero_grad()
    settings = {"temperature": 0.7, "logit_chunk_tokens": 5, "entropy": "trained", "whole": whole}
    values = torch.stack(path.completion_likelihood(model, prompts, *completions, **settings)[:2], dim=-1)
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(3)).to(values)
    (values * weights).sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return values.detach(), grads


def largest_errors(model, prompts, completions, whole=None) -> tuple[float, float]:
    """Of log-probs and entropies, and of any parameter's gradient: shared against plain, relative to the plain norm."""
    plain, plain_grads = likelihood_and_gradients(logprobs, model, prompts, completions, whole)
    shared, shared_grads = likelihood_and_gradients(shared_prefix, model, prompts, completions, whole)
    assert plain_grads.keys() == shared_grads.keys() and plain_grads
    assert shared[~completions[1]].eq(0).all()
    error = ((plain - shared).norm() / plain.norm()).item()
    return error, max(
        ((grad - shared_grads[name]).norm() / scale(name, plain_grads).clamp(min=1e-12)).item()
        for name, grad in plain_grads.items()
    )


def scale(name, grads):
    """The norm of a gradient, by which its errors are measured.

    In float32 that of all gradients, for two parameters of Gated DeltaNet. Each is a sum over all tokens in which terms
    a thousand times as large cancel: the stock layer itself is 1e-4 of their norm off its float64.
    """
    cancels = name.endswith(("A_log", "dt_bias")) and grads[name].dtype == torch.float32
    return torch.stack([grad.norm() for grad in (grads.values() if cancels else [grads[name]])]).norm()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mix", MIXES)
def test_the_shared_prefix_equals_the_plain_path_in_float64(
    family, mix, exact_model, random_prompts, random_completions
):
    words, group_size, length = MIXES[mix]
    model = exact_model(family)
    errors = largest_errors(model, random_prompts(model, words), random_completions(len(words) * group_size, length))
    assert max(errors) < 1e-9


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_the_shared_prefix_equals_the_plain_path_in_float32_on_stock_classes(
    family, random_prompts, random_completions
):
    words, group_size, length = MIXES["ragged"]
    model = make_model(family, make_processor(family), initializer_range=0.1).train()
    errors = largest_errors(model, random_prompts(model, words), random_completions(len(words) * group_size, length))
    assert max(errors) < 1e-4  # rounding, which hangs on the weights: float64 is held to 1e-9 above


def with_looks(model, prompts, random_prompts, words):
    """Completions of text, videos and images of which text alone was sampled: ids, mask, and the whole of them."""
    whole = random_prompts(model, words, seed=5)
    rows = [whole.select([n]) for n in range(len(whole))]
    whole = PromptInputs.join(rows, left=False)
    starts = prompts.position_ids[:, :, -1].amax(0).repeat_interleave(len(words) // len(prompts)) + 1
    whole.position_ids += starts[:, None]
    text = whole.attention_mask.bool() & (whole.input_ids < 250)
    sampled = text & (torch.rand(text.shape, generator=torch.Generator().manual_seed(2)) < 0.7)
    return (whole.input_ids, sampled), whole


LOOKS = ["tvtvt", "t", "tvt", "tvtitvt", "titt", "tt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_completions_with_media_that_were_appended_equal_the_plain_path(family, exact_model, random_prompts):
    model = exact_model(family)
    prompts = random_prompts(model, ["titv", "t"])
    completions, whole = with_looks(model, prompts, random_prompts, LOOKS)
    assert max(largest_errors(model, prompts, completions, whole)) < 1e-9


@pytest.mark.parametrize(
    "family, vision, mlp", [("qwen3_vl", False, False), ("qwen3_5", False, True), ("qwen3_vl", True, False)]
)
def test_frozen_parts_equal_the_plain_path(family, vision, mlp, exact_model, random_prompts, random_completions):
    model = exact_model(family)
    apply_tuning(model, TuneOptions(tune_mm_llm=True, tune_mm_vision=vision, tune_mm_mlp=mlp))
    errors = largest_errors(model, random_prompts(model, ["tv", "ti"]), random_completions(6, 5))
    assert max(errors) < 1e-9


@pytest.mark.parametrize("family, reentrant", [("qwen2_5_vl", True), ("qwen3_5", False), ("qwen3_5", True)])
def test_gradient_checkpointing_equals_the_plain_path(
    family, reentrant, exact_model, random_prompts, random_completions
):
    model = exact_model(family)
    prompts, completions = random_prompts(model, ["tv", "t"]), random_completions(6, 5)
    expected = likelihood_and_gradients(logprobs, model, prompts, completions)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    got = likelihood_and_gradients(shared_prefix, model, prompts, completions)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5_moe"])
def test_lora_equals_the_plain_path(family, exact_model, random_prompts, random_completions):
    from peft import get_peft_model

    model = exact_model(family)
    prompts, completions = random_prompts(model, ["tv", "t"]), random_completions(6, 5)
    model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 4, 8))).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, which would leave lora_A without gradient
            torch.nn.init.normal_(parameter, std=0.1)
    assert max(largest_errors(model, prompts, completions)) < 1e-9


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5"])
def test_autocast_to_bfloat16_is_as_near_to_float32_as_the_plain_path(family, random_prompts, random_completions):
    model = make_model(family, make_processor(family), initializer_range=0.1)
    prompts, completions = random_prompts(model, ["tv", "t"]), random_completions(6, 9)
    exact, _ = likelihood_and_gradients(logprobs, model, prompts, completions)
    with torch.autocast("cpu", torch.bfloat16):
        plain, _ = likelihood_and_gradients(logprobs, model, prompts, completions)
        shared, _ = likelihood_and_gradients(shared_prefix, model, prompts, completions)
    assert (plain - exact).norm() > 0, "autocast did nothing"
    assert (shared - exact).norm() < 1.5 * (plain - exact).norm()


def test_each_prompt_token_passes_the_language_model_once(random_prompts, random_completions):
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"))
    prompts = random_prompts(model, ["tv", "tit"])
    ids, mask = random_completions(8, 6)
    seen = {"language": 0, "vision": 0}
    model.model.language_model.layers[0].register_forward_hook(
        lambda module, args, out: seen.update(language=seen["language"] + out.shape[0] * out.shape[1])
    )
    model.model.visual.blocks[0].register_forward_hook(
        lambda module, args, out: seen.update(vision=seen["vision"] + len(out))
    )
    shared_prefix.completion_logprobs(model, prompts, ids, mask, temperature=1.0, logit_chunk_tokens=64)
    # A completion's last token predicts nothing: it is not computed.
    assert seen["language"] == prompts.attention_mask.sum() + mask.sum() - 8
    assert seen["vision"] == len(prompts.pixel_values) + len(prompts.pixel_values_videos)


def test_a_row_packs_prompts_before_completions_that_continue_their_positions(random_prompts):
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"))
    prompts = random_prompts(model, ["t", "t"])
    first, second = (int(n) for n in prompts.attention_mask.sum(1))
    ids = torch.tensor([[11, 12, 13], [21, 22, 0], [31, 0, 0], [41, 42, 43]])
    row = shared_prefix.pack(prompts, ids, torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool())
    start = first + second
    assert row["input_ids"][0, start:].tolist() == [11, 12, 21, 41, 42]
    last = first - 1, start - 1
    places = [last[0], start, start + 1, last[0], start + 2, last[1], last[1], start + 3, start + 4]
    assert row["logits_to_keep"].tolist() == places
    # Text positions count on from the prompt's last, in each completion anew.
    assert row["position_ids"][:, 0, start:].tolist() == [[first, first + 1, first, second, second + 1]] * 3


def test_completions_with_holes_are_refused(random_prompts):
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"))
    with pytest.raises(ValueError, match="padded on the right"):
        shared_prefix.pack(random_prompts(model, ["t"]), torch.zeros(1, 3).long(), torch.tensor([[True, False, True]]))


def test_another_kind_of_attention_is_the_reason_for_the_plain_path(tiny_pair):
    model, _ = tiny_pair("qwen2_5_vl")
    assert shared_prefix.supports_shared_prefix(model) is None
    model.config.text_config.layer_types[1] = "sliding_attention"
    assert "sliding_attention" in shared_prefix.supports_shared_prefix(model)
    model.config.text_config.layer_types[1] = "full_attention"
    model.set_attn_implementation("eager")
    assert "'eager'" in shared_prefix.supports_shared_prefix(model)


def test_attention_without_the_keyword_is_untouched(random_prompts):
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"))
    prompts = random_prompts(model, ["tv", "t"])
    arguments = {name: getattr(prompts, name) for name in ("input_ids", "attention_mask", "position_ids")}
    before = model(**arguments, **prompts.vision()).logits
    shared_prefix.install_sharing(model)
    shared_prefix.install_sharing(model)
    assert torch.equal(model(**arguments, **prompts.vision()).logits, before)
