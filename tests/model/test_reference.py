"""The reference stays what it was, or moves by the formula, and shares what is not trained."""

import pytest
import torch
from peft import get_peft_model

from qwenvl.model.loading import apply_tuning, lora_config, part_of
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.reference import Reference, matched


def logprobs(model, prompts, ids, mask):
    return completion_logprobs(model, prompts, ids, mask, temperature=1.0, logit_chunk_tokens=64)


def one_update(model, *batch):
    trained = [p for p in model.parameters() if p.requires_grad]
    logprobs(model, *batch).sum().backward()
    torch.optim.SGD(trained, lr=0.1).step()


def test_a_copy_shares_frozen_tensors_and_does_not_move(tiny_pair, random_prompts, random_completions):
    policy, _ = tiny_pair()
    apply_tuning(policy, TuneOptions())
    batch = (random_prompts(policy, ["tvt", "t"]), *random_completions(4, 5))
    reference = Reference(policy)
    before = logprobs(policy, *batch).detach()
    with reference.model() as frozen:
        owned = dict(policy.named_parameters())
        for name, parameter in frozen.named_parameters():
            assert (parameter is owned[name]) == (part_of(name) == "vision"), name
            assert not parameter.requires_grad or parameter is owned[name]
        assert torch.equal(logprobs(frozen, *batch), before)
    one_update(policy, *batch)
    with reference.model() as frozen:
        assert not frozen.training
        assert torch.equal(logprobs(frozen, *batch), before)
    assert not torch.allclose(logprobs(policy, *batch), before)


def test_the_reference_of_an_adapter_is_the_base_model(tiny_pair, random_prompts, random_completions):
    base, _ = tiny_pair()
    batch = (random_prompts(base, ["tv"]), *random_completions(2, 4))
    before = logprobs(base, *batch).detach()
    policy = get_peft_model(base, lora_config(base, TuneOptions(), LoraOptions(True, 2, 4)))
    reference = Reference(policy)
    for _ in range(2):  # the first update leaves lora_A without gradient, the second moves both
        one_update(policy, *batch)
    policy.train()
    base.model.visual.eval()
    with reference.model() as frozen:
        assert not any(module.training for module in frozen.modules())  # dropout in attention, say
        result = logprobs(frozen, *batch)
        assert not result.requires_grad
        torch.testing.assert_close(result, before)
    assert base.model.language_model.training and not base.model.visual.training
    assert not torch.allclose(logprobs(policy, *batch), before)


def test_a_copy_may_be_rounded_as_the_policy_is_in_its_forwards(tiny_pair):
    policy, _ = tiny_pair()
    apply_tuning(policy, TuneOptions())
    with Reference(policy, dtype=torch.bfloat16).model() as rounded:
        for (name, ours), theirs in zip(policy.named_parameters(), rounded.parameters(), strict=True):
            assert ours.dtype == torch.float32 and torch.equal(theirs, ours.to(torch.bfloat16)), name
        for (name, ours), theirs in zip(policy.named_buffers(), rounded.buffers(), strict=True):
            assert theirs.dtype == ours.dtype and torch.equal(theirs, ours), name


@pytest.mark.parametrize("adapter", [True, False])
def test_a_reference_from_another_checkpoint_does_not_move(adapter, tiny_pair, random_prompts, random_completions):
    policy, other = tiny_pair()[0], tiny_pair()[0]
    batch = (random_prompts(policy, ["tvt", "t"]), *random_completions(4, 5))
    with torch.no_grad():
        other.model.language_model.layers[0].mlp.up_proj.weight.add_(0.1)
    expected = logprobs(other, *batch).detach()
    if adapter:
        policy = get_peft_model(policy, lora_config(policy, TuneOptions(), LoraOptions(True, 2, 4)))
    else:
        apply_tuning(policy, TuneOptions())
    reference = Reference(policy, other=matched(other, policy, one_tower=True))
    one_update(policy, *batch)
    with reference.model() as frozen:
        assert torch.equal(logprobs(frozen, *batch), expected)
        assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_a_checkpoint_that_does_not_fit_is_refused(tiny_pair):
    policy, _ = tiny_pair()
    apply_tuning(policy, TuneOptions())
    with pytest.raises(ValueError, match="family, qwen2_5_vl, got qwen2_vl"):
        matched(tiny_pair("qwen2_vl")[0], policy, one_tower=False)
    with pytest.raises(ValueError, match=r"lm_head.weight is not there in it and \("):
        matched(tiny_pair(tie_word_embeddings=False)[0], policy, one_tower=False)
    with pytest.raises(ValueError, match=r"policy's shapes, .* is \(\d+.*\) in it and \(\d+"):
        matched(tiny_pair(hidden_size=32)[0], policy, one_tower=False)
    blind, _ = tiny_pair(seed=1)
    with pytest.raises(ValueError, match=r"its vision tower .*--shared_prefix off"):
        matched(blind, policy, one_tower=True)
    matched(blind, policy, one_tower=False)


def test_a_reference_is_mixed_by_the_formula_and_kept_in_a_file(tiny_pair, tmp_path):
    policy = tiny_pair()[0].double()
    apply_tuning(policy, TuneOptions())
    reference = Reference(policy)
    start = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    expected = dict(start)
    for alpha in (0.6, 0.3):
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        reference.mix(policy, alpha)
        for name, parameter in policy.named_parameters():
            expected[name] = alpha * parameter.detach() + (1 - alpha) * expected[name]
    with reference.model() as moved:
        for name, parameter in moved.named_parameters():
            torch.testing.assert_close(parameter, expected[name], rtol=1e-12, atol=1e-14)
        assert not torch.allclose(moved.lm_head.weight, start["model.language_model.embed_tokens.weight"])
    reference.save(tmp_path)
    again = Reference(policy)
    again.load(tmp_path)
    with reference.model() as moved, again.model() as read:
        for (name, ours), theirs in zip(moved.named_parameters(), read.parameters(), strict=True):
            assert torch.equal(ours, theirs), name
    apply_tuning(policy, TuneOptions(tune_mm_llm=False))
    with pytest.raises(ValueError, match=r"reference.safetensors: other tensors than the reference's"):
        Reference(policy).load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such file, and the reference"):
        Reference(policy).load(tmp_path / "none")
