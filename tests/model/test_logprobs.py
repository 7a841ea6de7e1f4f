"""The plain log-probs against a forward without any of our machinery."""

import copy

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model import logprobs
from qwenvl.model.logprobs import Extras, completion_likelihood, completion_logprobs, selected_logprobs
from qwenvl.model.positions import completion_positions
from qwenvl.model.sharing import shared_prefix


def distributions(model, prompts, ids, mask, temperature):
    """Log-softmax t x V of each completion, alone behind its prompt, unpadded."""
    for n, length in enumerate(mask.sum(1).tolist()):
        prompt = prompts.select([n * len(prompts) // len(ids)])
        logits = model(
            input_ids=torch.cat([prompt.input_ids, ids[n : n + 1, :length]], 1),
            position_ids=torch.cat([prompt.position_ids, completion_positions(prompt.position_ids, 1, length)], 2),
            use_cache=False,
            **prompt.vision(),
        ).logits
        yield (logits[0, -length - 1 : -1] / temperature).log_softmax(-1)


def by_hand(model, prompts, ids, mask, temperature):
    """Log-probs by gather and entropies by -sum p log p, N x T x 2."""
    rows = []
    for own, every in zip(ids, distributions(model, prompts, ids, mask, temperature), strict=True):
        both = torch.stack([every.gather(1, own[: len(every), None])[:, 0], -(every.exp() * every).sum(1)], dim=1)
        rows.append(torch.cat([both, both.new_zeros(len(own) - len(both), 2)]))
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_equal_a_plain_forward(exact_model, random_prompts, random_completions, family):
    model = exact_model(family)
    prompts = random_prompts(model, ["tvt", "tit", "tt"])
    ids, mask = random_completions(6, 5)
    expected = by_hand(model, prompts, ids, mask, temperature=0.7)
    for chunk in (1, 4, 1000):
        settings = {"temperature": 0.7, "logit_chunk_tokens": chunk}
        found = completion_likelihood(model, prompts, ids, mask, **settings, entropy="trained")
        result = torch.stack(found[:2], dim=-1)
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
    of_kept_chunks = logprobs.KEPT_CHUNKS * 4
    assert sum(sizes) == 2 * int(mask.sum()) - of_kept_chunks  # forward, and the others once more in the backward pass


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_logprobs_alone_equals_a_plain_forward(
    exact_model, random_prompts, random_completions, temperature
):
    model = exact_model("qwen2_5_vl")
    prompts = random_prompts(model, ["tv", "t"])
    ids, mask = random_completions(8, 9)
    expected = by_hand(model, prompts, ids, mask, temperature)[..., 0]
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    by_name = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    for chunk in (4, 20, 1000):  # of 36 tokens: 8 kept and 28 computed again, all kept in two chunks and in one
        model.zero_grad()
        settings = {"temperature": temperature, "logit_chunk_tokens": chunk}
        (completion_logprobs(model, prompts, ids, mask, **settings) * weights).sum().backward()
        found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        torch.testing.assert_close(found, by_name, rtol=1e-7, atol=1e-9)


def test_a_second_backward_pass_over_kept_logits_is_refused(exact_model, random_prompts, random_completions):
    """The first one has put the gradient in their place."""
    model = exact_model("qwen2_5_vl")
    ids, mask = random_completions(4, 3)
    settings = {"temperature": 1.0, "logit_chunk_tokens": 100}
    total = completion_logprobs(model, random_prompts(model, ["t", "t"]), ids, mask, **settings).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        total.backward()


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


def test_the_head_is_restored_after_an_error(exact_model, random_completions):
    model = exact_model("qwen2_5_vl")
    ids, mask = random_completions(2, 3)
    hidden = torch.randn(2, 3, model.config.text_config.hidden_size, dtype=torch.float64)
    before = model.lm_head(hidden)
    with pytest.raises(ValueError, match="expected hidden states"), selected_logprobs(model, ids, mask, 1.0, 8):
        model.lm_head(hidden[:1])
    assert torch.equal(model.lm_head(hidden), before)


def test_the_exact_kl_in_half_precision_differs_only_by_rounding(exact_model, random_prompts, random_completions):
    """As FSDP and DeepSpeed compute. Logits of some units are rounded to 2^-8 of themselves."""
    model, teacher = (exact_model("qwen2_5_vl", **more).bfloat16() for more in ({}, {"num_layers": 4}))
    prompts, (ids, mask) = random_prompts(model, ["t", "t"]), random_completions(4, 5)
    settings = {"temperature": 0.7, "logit_chunk_tokens": 3}
    own, theirs = (torch.cat([*distributions(each, prompts, ids, mask, 0.7)]).detach() for each in (model, teacher))
    for other, expected in ((teacher, (own.exp() * (own - theirs)).sum(1)), (model, torch.zeros(len(own)))):
        with torch.no_grad():
            kept = completion_likelihood(other, prompts, ids, mask, **settings, extras=Extras(True))
        extras = Extras(states=kept.states[mask], head=None if other is model else other.lm_head)
        found = completion_likelihood(model, prompts, ids, mask, **settings, extras=extras)
        torch.testing.assert_close(found.divergences[mask], expected.float(), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5"])
def test_the_exact_kl_to_a_teacher_with_a_longer_prompt_equals_plain_forwards(
    exact_model, random_prompts, random_completions, family
):
    """Values and gradients against the logits of plain forwards and autograd, of a larger teacher."""
    model, teacher = exact_model(family), exact_model(family, num_layers=4)
    prompts, longer = random_prompts(model, ["t", "tit"]), random_prompts(model, ["tvt", "titvt"], seed=4)
    ids, mask = random_completions(6, 5)

    own = torch.cat([*distributions(model, prompts, ids, mask, 0.7)])
    theirs = torch.cat([*distributions(teacher, longer, ids, mask, 0.7)]).detach()
    expected = (own.exp() * (own - theirs)).sum(1)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    for path, chunk in ((logprobs, 2), (shared_prefix, 1000)):
        settings = {"temperature": 0.7, "logit_chunk_tokens": chunk}
        with torch.no_grad():
            kept = path.completion_likelihood(teacher, longer, ids, mask, **settings, extras=Extras(True))
        torch.testing.assert_close(
            kept.logprobs[mask], theirs.gather(1, ids[mask][:, None])[:, 0], rtol=0, atol=1e-9
        )
        assert torch.equal(kept.top[mask].long(), theirs.argmax(1))
        model.zero_grad()
        extras = Extras(states=kept.states[mask], head=teacher.get_output_embeddings())
        found = path.completion_likelihood(model, prompts, ids, mask, **settings, extras=extras)
        torch.testing.assert_close(found.divergences[mask], expected, rtol=0, atol=1e-9)
        (found.divergences[mask] * weights).sum().backward()
        for name, each in model.named_parameters():
            if name in gradients:
                torch.testing.assert_close(each.grad, gradients[name], rtol=1e-7, atol=1e-9, msg=name)
        assert all(each.grad is None for each in teacher.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_of_some_rows_at_a_time_equal_those_of_all_rows_at_once(dtype, temperature, monkeypatch):
    monkeypatch.setattr(logprobs, "CACHED_LOGITS", 3 * 700)  # three rows of eleven
    wide = torch.promote_types(dtype, torch.float32)
    logits = (3 * torch.randn(11, 700, generator=torch.Generator().manual_seed(0))).to(dtype)
    tokens, grad = torch.arange(11) * 63, torch.linspace(-2, 3, 11, dtype=wide)
    plain, ours = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    scaled = plain.to(wide) / temperature
    normaliser = scaled.logsumexp(1)
    expected = scaled.gather(1, tokens[:, None])[:, 0] - normaliser
    found, found_normaliser = logprobs.LogprobsOfTokens.apply(ours, tokens, temperature)
    assert torch.equal(found, expected) and torch.equal(found_normaliser, normaliser)
    assert not found_normaliser.requires_grad and torch.equal(ours, logits)
    expected.backward(grad)
    found.backward(grad)
    assert torch.equal(ours.grad, plain.grad)
    assert torch.equal(ours, ours.grad)  # in the place of the logits
    # By hand, for one row: (1 at the token, else 0) - softmax.
    by_hand = -(logits[4].double() / temperature).softmax(0)
    by_hand[tokens[4]] += 1
    by_hand *= grad[4].double() / temperature
    rounding = 2.0**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours.grad[4].double(), by_hand, rtol=rounding, atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy_and_extras_change_neither_log_probs_nor_their_gradient(
    tiny_pair, random_prompts, random_completions, monkeypatch, temperature
):
    model, _ = tiny_pair("qwen2_5_vl", initializer_range=0.1)
    monkeypatch.setattr(logprobs, "CACHED_LOGITS", 3 * model.config.text_config.vocab_size)
    prompts = random_prompts(model, ["tvt", "t"])
    ids, mask = random_completions(4, 5)
    gradients, likelihoods = [], []
    for entropy, extras in (("none", None), ("measured", Extras()), ("trained", Extras())):
        model.zero_grad()
        found = completion_likelihood(
            model, prompts, ids, mask, temperature=temperature, logit_chunk_tokens=8, entropy=entropy, extras=extras
        )
        found.logprobs.sum().backward()
        likelihoods.append(found)
        gradients.append(model.lm_head.weight.grad.clone())
    none, measured, trained = likelihoods
    assert torch.equal(none.logprobs, measured.logprobs) and torch.equal(none.logprobs, trained.logprobs)
    assert torch.equal(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(measured.entropies, trained.entropies, rtol=1e-6, atol=1e-6)
    assert torch.equal(measured.top, trained.top)
