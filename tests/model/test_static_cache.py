"""The cache of fixed sizes attends as the growing one does."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.prefix_cache import PrefixCache
from qwenvl.model.static_cache import StaticCache

HEADS, KV_HEADS, WIDTH, SCALE = 4, 2, 8, 0.4
LENGTHS, GROUP, TOKENS = (5, 1, 3), 3, 6


@pytest.fixture
def caches():
    """Both after the prompts, two layers."""
    growing = PrefixCache(LENGTHS, GROUP, TOKENS, "cpu")
    for layer in (0, 1):
        growing.attend(layer, *qkv(sum(LENGTHS), seed=layer), SCALE)
    return growing, StaticCache(growing)


def qkv(rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, heads, WIDTH, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def both(caches, rows: int, places: torch.Tensor, seed: int) -> list[list[torch.Tensor]]:
    """One token of each of ``rows`` completions through the two layers; they lie at ``places`` of the static cache."""
    growing, static = caches
    growing.advance()
    static.advance()
    results = []
    for layer in (0, 1):
        parts = qkv(rows, seed + layer)
        slots = [part.new_zeros(static.slots[0] * static.slots[1], *part.shape[1:]) for part in parts]
        for slot, part in zip(slots, parts, strict=True):
            slot[places] = part
        results.append([growing.attend(layer, *parts, SCALE), static.attend(layer, *slots, SCALE)[places]])
    return results


def test_every_token_of_every_completion(caches):
    everyone = torch.arange(len(LENGTHS) * GROUP)
    for t in range(TOKENS):
        for growing, static in both(caches, len(everyone), everyone, seed=10 * t):
            torch.testing.assert_close(static, growing, rtol=1e-12, atol=1e-12)


def test_the_completions_that_are_selected_go_on(caches):
    everyone = torch.arange(len(LENGTHS) * GROUP)
    both(caches, len(everyone), everyone, seed=7)
    # Of the first prompt its third completion; of the last prompt the first two. The second prompt is done.
    caches[0].keep(torch.isin(everyone, torch.tensor([2, 6, 7])))
    caches[1].select(torch.tensor([[2, 2], [6, 7]]))
    assert caches[1].slots == (2, 2)
    for growing, static in both(caches, 3, torch.tensor([0, 2, 3]), seed=8):
        torch.testing.assert_close(static, growing, rtol=1e-12, atol=1e-12)
