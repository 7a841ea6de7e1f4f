"""A layer of linear attention on a packed row and token by token, against the stock layer on each sequence alone."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import Cache

from qwenvl.model.sharing import linear_attention, shared_prefix
from qwenvl.model.sharing.linear_attention import Padding, state_tokens
from qwenvl.model.sharing.prefix_cache import PrefixCache
from qwenvl.model.sharing.shared_prefix import PrefixLayout
from qwenvl.model.sharing.varlen import Spans

PROMPTS, COMPLETIONS = (70, 2, 9), (3, 0, 66, 1, 5, 2)
"""Tokens: longer than a chunk of 64 and shorter than the convolution among the first, none at all among the second."""


@pytest.fixture
def layer(exact_model):
    """A linear attention layer with prompt sharing installed twice, which must be as once."""
    model = exact_model("qwen3_5")
    linear_attention.install(model)
    linear_attention.install(model)
    return model.model.language_model.layers[0].linear_attn


def alone(layer, prompts, completions):
    """The outputs of each prompt, and of each completion behind its prompt."""
    size = len(completions) // len(prompts)
    behind = [torch.cat([prompts[n // size], each]) for n, each in enumerate(completions)]
    outs = [layer(each[None])[0] for each in (*prompts, *behind)]
    tails = [out[len(out) - len(each) :] for out, each in zip(outs[len(prompts) :], completions, strict=True)]
    return torch.cat([*outs[: len(prompts)], *tails])


def rows(lengths):
    return [torch.randn(length, 64, dtype=torch.float64) for length in lengths]


def test_every_completion_goes_on_from_the_state_after_its_prompt(layer):
    prompts, completions = rows(PROMPTS), rows(COMPLETIONS)
    expected = alone(layer, prompts, completions)
    row = torch.cat([*prompts, *completions])[None]
    out = layer(row, shared_prefix=PrefixLayout(PROMPTS, COMPLETIONS))
    torch.testing.assert_close(out[0], expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_decoding_token_by_token_equals_full_sequences_after_completions_have_left(layer):
    prompts, tokens = rows(PROMPTS), torch.randn(4, 6, 64, dtype=torch.float64)  # steps x slots
    cache = PrefixCache(PROMPTS, 2, capacity=4, device="cpu")
    first = layer(torch.cat(prompts)[None], shared_prefix=cache)
    torch.testing.assert_close(first[0], alone(layer, prompts, [])[: sum(PROMPTS)], rtol=1e-9, atol=1e-9)
    slots = torch.tensor([[0, 1], [2, 3], [4, 5]])
    for step in range(4):
        if step == 2:  # the second prompt's completions have ended, and one of the third's
            cache.select(torch.tensor([[1], [4]]))
            slots = torch.tensor([[1], [4]])
        cache.advance()
        out = layer(tokens[step, slots.flatten()][:, None], shared_prefix=cache)
        for i, slot in enumerate(slots.flatten().tolist()):
            past = torch.cat([prompts[slot // 2], tokens[: step + 1, slot]])
            torch.testing.assert_close(out[i, 0], layer(past[None])[0, -1], rtol=1e-9, atol=1e-9)


def test_spans_are_padded_left_or_right_into_a_batch():
    spans = Spans.of([2, 0, 3])
    left, right = Padding.of(spans, left=True), Padding.of(spans)
    assert (left.rows, left.length, left.places.tolist()) == (3, 3, [1, 2, 6, 7, 8])
    assert (right.rows, right.length, right.places.tolist()) == (3, 3, [0, 1, 6, 7, 8])
    assert Padding.of(Spans.of([1, 1]), least=2).length == 2  # never the kernel that has no gradient


def test_a_library_that_keeps_the_state_otherwise_is_the_reason(tiny_pair, monkeypatch):
    model, _ = tiny_pair("qwen3_5")
    assert shared_prefix.supports_shared_prefix(model) is None
    monkeypatch.delattr(Cache, "update_conv_state")
    assert "keeps its state another way" in shared_prefix.supports_shared_prefix(model)


def test_states_are_counted_as_the_tokens_that_take_their_memory(tiny_pair):
    model, _ = tiny_pair("qwen3_5")
    # A layer of each kind. Four value heads of 16 x 16 and four inputs of 128 channels, against a head of 2 x 64.
    assert state_tokens(model) == (4 * 16 * 16 + 4 * 128) / (2 * 64) == 12
    # Inputs, keys and values have half the bytes then, and matrices as many as before: 11,776 / 256 is more than 19.
    assert state_tokens(model.to(torch.bfloat16)) == -(-(4 * 16 * 16 * 4 + 4 * 128 * 2) // (2 * 64 * 2)) == 20
    assert state_tokens(tiny_pair("qwen3_vl")[0]) == 0
