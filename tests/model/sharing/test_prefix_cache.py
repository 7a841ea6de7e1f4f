"""The cache's attention, token by token, against that over repeated prompts written out."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.sharing.prefix_cache import PrefixCache

GROUP, HEADS, KEY_HEADS, WIDTH, SCALE = 3, 4, 2, 8, 0.3


def random_row(tokens: int) -> list[torch.Tensor]:
    return [torch.randn(tokens, heads, WIDTH, dtype=torch.float64) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


def softmax_attention(q, keys, values):
    """One query, heads x D, over S x key heads x D."""
    keys, values = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (keys, values))
    weights = (torch.einsum("hd,shd->hs", q, keys) * SCALE).softmax(-1)
    return torch.einsum("hs,shd->hd", weights, values)


@pytest.mark.parametrize("fixed_sizes", [False, True])
@pytest.mark.parametrize("lengths", [(5, 9), (7, 7)], ids=str)
def test_every_token_attends_to_its_prompt_and_its_own_past(lengths, fixed_sizes):
    first, both = lengths[0], sum(lengths)
    cache = PrefixCache(lengths, GROUP, capacity=4, device="cpu", fixed_sizes=fixed_sizes)
    q, prompt_keys, prompt_values = random_row(both)
    out = cache.attend(0, q, prompt_keys, prompt_values, SCALE)
    # The last token of the first prompt, and the first of the second.
    torch.testing.assert_close(
        out[first - 1], softmax_attention(q[first - 1], prompt_keys[:first], prompt_values[:first])
    )
    torch.testing.assert_close(
        out[first], softmax_attention(q[first], *(x[first, None] for x in (prompt_keys, prompt_values)))
    )

    prompt_of = [slice(0, first)] * GROUP + [slice(first, both)] * GROUP
    slots, past = list(range(2 * GROUP)), {row: [] for row in range(2 * GROUP)}
    for step in range(4):
        if step == 2:  # of each prompt a completion ends
            cache.select(torch.tensor([[0, 2], [3, 4]]))
            slots = [0, 2, 3, 4]
        if step == 3:  # and all of the first prompt's
            cache.select(torch.tensor([[2, 3]]))
            slots = [3, 4]
        assert cache.slots == (1 if step == 3 else 2, len(slots) if step == 3 else len(slots) // 2)
        q, keys, values = random_row(len(slots))
        cache.advance()
        out = cache.attend(0, q, keys, values, SCALE)
        for i, row in enumerate(slots):
            past[row].append((keys[i], values[i]))
            own_keys, own_values = (torch.stack(x) for x in zip(*past[row], strict=True))
            seen = prompt_of[row]
            expected = softmax_attention(
                q[i], torch.cat([prompt_keys[seen], own_keys]), torch.cat([prompt_values[seen], own_values])
            )
            torch.testing.assert_close(out[i], expected, rtol=0, atol=1e-12)


def test_sizes_are_fixed_where_that_is_asked_for():
    cache = PrefixCache((5, 9), GROUP, capacity=4, device="cpu", fixed_sizes=True)
    cache.attend(0, *random_row(14), SCALE)
    sizes = []
    for _ in range(2):
        cache.advance()
        cache.attend(0, *random_row(2 * GROUP), SCALE)
        sizes.append([cache.of(0).own_keys.shape, cache.of(0).bias.shape])
    assert sizes[0] == sizes[1] == [(2, KEY_HEADS, GROUP, 4, WIDTH), (2, 1, 1, 1, 9 + 4)]


def test_scores_are_not_rounded_to_half_precision():
    # Scores of about 50, whose neighbours in bfloat16 are 0.25 apart: a quarter more or less of a probability.
    row, token = ([x.bfloat16() for x in random_row(tokens)] for tokens in (40, GROUP))
    for q, keys, _ in (row, token):
        q[..., 0], keys[..., 0] = 5.0, 10.0
    outs = {}
    for dtype in (torch.bfloat16, torch.float64):
        cache = PrefixCache((40,), GROUP, capacity=1, device="cpu")
        cache.attend(0, *(x.to(dtype) for x in row), 1.0)
        cache.advance()
        outs[dtype] = cache.attend(0, *(x.to(dtype) for x in token), 1.0)
    torch.testing.assert_close(outs[torch.bfloat16].double(), outs[torch.float64], rtol=0, atol=0.02)
