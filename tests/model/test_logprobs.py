"""The plain log-probs against a forward without any of our machinery."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model import logprobs
from qwenvl.model.logprobs import completion_likelihood, completion_logprobs, selected_logprobs
from qwenvl.model.positions import completion_positions


def by_hand(model, prompts, ids, mask, temperature):
    """Each completion alone behind its prompt, unpadded, log_softmax, gather, and -sum p log p. N x T x 2."""
    group_size, rows = len(ids) // len(prompts), []
    for n in range(len(ids)):
        prompt = prompts.select([n // group_size])
        length = int(mask[n].sum())
        own = ids[n : n + 1, :length]
        logits = model(
            input_ids=torch.cat([prompt.input_ids, own], 1),
            position_ids=torch.cat([prompt.position_ids, completion_positions(prompt.position_ids, 1, length)], 2),
            use_cache=False,
            **prompt.vision(),
        ).logits[:, -length - 1 : -1]
        every = (logits / temperature).log_softmax(-1)[0]
        both = torch.stack([every.gather(1, own[0, :, None])[:, 0], -(every.exp() * every).sum(1)], dim=1)
        rows.append(torch.cat([both, both.new_zeros(ids.shape[1] - length, 2)]))
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_equal_a_plain_forward(exact_model, random_prompts, random_completions, family):
    model = exact_model(family)
    prompts = random_prompts(model, ["tvt", "tit", "tt"])
    ids, mask = random_completions(6, 5)
    expected = by_hand(model, prompts, ids, mask, temperature=0.7)
    for chunk in (1, 4, 1000):
        settings = {"temperature": 0.7, "logit_chunk_tokens": chunk}
        result = torch.stack(completion_likelihood(model, prompts, ids, mask, **settings, entropy="trained"), dim=-1)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-9)
    alone = completion_likelihood(model, prompts, ids, mask, **settings)
    assert alone.entropies is None and torch.equal(alone.logprobs, result[..., 0])
    assert torch.equal(completion_logprobs(model, prompts, ids, mask, **settings), alone.logprobs)
    twin = copy.deepcopy(model)
    weights = torch.randn_like(expected)
    (by_hand(twin, prompts, ids, mask, 0.7) * weights).sum().backward()
    (result * weights).sum().backward()
    for (name, ours), plain in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (plain.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-7, atol=1e-9, msg=name)


def test_tokens_after_the_end_do_not_count(exact_model, random_prompts, random_completions):
    model = exact_model("qwen2_5_vl")
    prompts = random_prompts(model, ["tv"])
    ids, mask = random_completions(3, 6)
    first = completion_logprobs(model, prompts, ids, mask, temperature=1.0, logit_chunk_tokens=8)
    other = torch.where(mask, ids, (ids + 17) % 250)
    second = completion_logprobs(model, prompts, other, mask, temperature=1.0, logit_chunk_tokens=8)
    assert torch.equal(first, second)
    assert (first[~mask] == 0).all()


def test_no_more_logits_exist_at_a_time_than_the_chunk(exact_model, random_prompts, random_completions):
    model = exact_model("qwen2_5_vl")
    prompts = random_prompts(model, ["tv", "t"])
    ids, mask = random_completions(8, 9)
    sizes = []
    head = model.lm_head
    handle = torch.nn.functional.linear

    def linear(hidden, weight, bias=None):
        if weight is head.weight:
            sizes.append(hidden.shape[0])
        return handle(hidden, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", linear)
        completion_logprobs(model, prompts, ids, mask, temperature=1.0, logit_chunk_tokens=4).sum().backward()
    assert max(sizes) == 4
    assert sum(sizes) == 2 * int(mask.sum())  # forward, and once more in the backward pass


def test_an_entropy_that_is_only_measured_costs_the_backward_pass_nothing(
    exact_model, random_prompts, random_completions, monkeypatch
):
    model = exact_model("qwen2_5_vl")
    prompts = random_prompts(model, ["tv", "t"])
    ids, mask = random_completions(8, 9)
    chunks = -(-int(mask.sum()) // 4)
    calls, compute = [], logprobs.entropy_of
    monkeypatch.setattr(logprobs, "entropy_of", lambda *args: calls.append(args) or compute(*args))

    def run(entropy):
        calls.clear()
        model.zero_grad()
        settings = {"temperature": 0.7, "logit_chunk_tokens": 4}
        result = completion_likelihood(model, prompts, ids, mask, **settings, entropy=entropy)
        forward = len(calls)
        result.logprobs.sum().backward()
        return result, forward, len(calls) - forward, {n: p.grad.clone() for n, p in model.named_parameters()}

    none, *counts, expected = run("none")
    assert counts == [0, 0] and none.entropies is None
    measured, *counts, gradients = run("measured")
    assert counts == [chunks, 0]
    assert torch.equal(measured.logprobs, none.logprobs)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)
    trained, *counts, _ = run("trained")
    assert counts == [chunks, chunks]
    assert torch.equal(trained.entropies, measured.entropies)


PEAK = """
from pathlib import Path

import torch

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import completion_likelihood, tokens_within

VOCABULARY = 60_000
model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"), hidden_size=32, num_layers=1)
model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
chunk = tokens_within(0.1, VOCABULARY)
settings = {"temperature": 0.7, "logit_chunk_tokens": chunk, "entropy": "trained"}


def run(rows):
    ids = torch.zeros(rows, 16, dtype=torch.long)
    mask = torch.ones_like(ids, dtype=torch.bool)
    result = completion_likelihood(model, PromptInputs.of_text(ids[:1]), ids, mask, **settings)
    (result.logprobs.sum() + result.entropies.sum()).backward()


def kilobytes(name):
    return next(int(row.split()[1]) for row in Path("/proc/self/status").open() if row.startswith(name))


def peak(rows):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = kilobytes("VmRSS")
    run(rows)
    return (kilobytes("VmHWM") - before) / 1e6


def least(rows):
    # Pages that the system took back meanwhile can only add: one time within the bound is enough.
    found = peak(rows)
    for _ in range(3):
        found = found if found < BOUND else min(found, peak(rows))
    return found


run(12)
print(least(12), least(48))
"""
BOUND = 0.1 * 1.4  # GB: the budget, and the rest of the model


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_for_logits_stays_within_its_budget_whatever_the_number_of_completions():
    """With the entropy in the gradient, which takes the most."""
    # Without the variable freed blocks of this size may stay with the process, and its peak says little.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    code = f"BOUND = {BOUND}\n{PEAK}"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    few, many = map(float, printed.split()[-2:])
    everything = 48 * 16 * 60_000 * 16 / 1e9
    assert many < BOUND < everything / 5
    assert many < few * 1.2


def test_the_head_is_itself_again_afterwards(exact_model, random_completions):
    model = exact_model("qwen2_5_vl")
    ids, mask = random_completions(2, 3)
    hidden = torch.randn(2, 3, model.config.text_config.hidden_size, dtype=torch.float64)
    before = model.lm_head(hidden)
    with pytest.raises(ValueError, match="expected hidden states"), selected_logprobs(model, ids, mask, 1.0, 8):
        model.lm_head(hidden[:1])
    assert torch.equal(model.lm_head(hidden), before)
