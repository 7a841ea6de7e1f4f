"""The cache's attention, token by token, against that over repeated prompts written out."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.prefix_cache import PrefixCache

LENGTHS, GROUP, HEADS, KEY_HEADS, WIDTH, SCALE = (5, 9), 3, 4, 2, 8, 0.3


def random_row(tokens: int) -> list[torch.Tensor]:
    return [torch.randn(tokens, heads, WIDTH, dtype=torch.float64) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


def softmax_attention(q, keys, values):
    """One query, heads x D, over S x key heads x D."""
    keys, values = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (keys, values))
    weights = (torch.einsum("hd,shd->hs", q, keys) * SCALE).softmax(-1)
    return torch.einsum("hs,shd->hd", weights, values)


@pytest.mark.parametrize("part_tokens", [None, 4])
def test_every_token_attends_to_its_prompt_and_its_own_past(part_tokens):
    cache = PrefixCache(LENGTHS, GROUP, capacity=4, device="cpu", part_tokens=part_tokens)
    q, prompt_keys, prompt_values = random_row(sum(LENGTHS))
    out = cache.attend(0, q, prompt_keys, prompt_values, SCALE)
    # The last token of the first prompt, and the first of the second.
    torch.testing.assert_close(out[4], softmax_attention(q[4], prompt_keys[:5], prompt_values[:5]))
    torch.testing.assert_close(out[5], softmax_attention(q[5], prompt_keys[5:6], prompt_values[5:6]))

    prompt_of = [slice(0, 5)] * GROUP + [slice(5, 14)] * GROUP
    going, past = list(range(2 * GROUP)), {row: [] for row in range(2 * GROUP)}
    for step in range(4):
        if step == 2:  # two completions end
            cache.keep(torch.tensor([True, False, True, True, True, False]))
            going = [0, 2, 3, 4]
        if step == 3:  # and all of the first prompt's
            cache.keep(torch.tensor([False, False, True, True]))
            going = [3, 4]
        q, keys, values = random_row(len(going))
        cache.advance()
        out = cache.attend(0, q, keys, values, SCALE)
        for i, row in enumerate(going):
            past[row].append((keys[i], values[i]))
            own_keys, own_values = (torch.stack(x) for x in zip(*past[row], strict=True))
            seen = prompt_of[row]
            expected = softmax_attention(
                q[i], torch.cat([prompt_keys[seen], own_keys]), torch.cat([prompt_values[seen], own_values])
            )
            torch.testing.assert_close(out[i], expected, rtol=0, atol=1e-12)
