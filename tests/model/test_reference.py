"""The reference stays what it was, and shares what is not trained."""

import torch
from peft import get_peft_model

from qwenvl.model.loading import apply_tuning, lora_config, part_of
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.reference import Reference


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


def test_with_an_adapter_the_reference_is_the_base(tiny_pair, random_prompts, random_completions):
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
