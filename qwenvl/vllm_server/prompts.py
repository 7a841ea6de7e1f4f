"""A prompt of ours as the input of vLLM's engine.

vLLM sees no pixels: it is given the rows that enter the language model, and the positions of all tokens. Its own
processor, vision tower and rule of positions have no part in it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange

from qwenvl.vllm_server.family import Shape
from qwenvl.vllm_server.wire.body import require
from qwenvl.vllm_server.wire.sampling import Medium, Prompt

POSITIONS = "positions_of_prompt"  # a field of each medium: the worker reads all positions of the prompt from it
CPU = {"keep_on_cpu": True}


def check_prompt(prompt: Prompt, shape: Shape, max_new_tokens: int, where: str) -> None:
    """Refuses what the model cannot take: vLLM would cut a prompt that is too long, and end on other things.

    Raises:
        Refusal: saying what is wrong.
    """
    length = len(prompt.ids)
    require(
        length + max_new_tokens <= shape.max_model_len,
        f"{where}: {length} tokens and {max_new_tokens} new ones exceed the server's --max_model_len "
        f"{shape.max_model_len}",
    )
    low, high = int(prompt.ids.min()), int(prompt.ids.max())
    require(low >= 0 and high < shape.vocab_size, f"{where}: token ids {low} to {high} of {shape.vocab_size}")
    for number, medium in enumerate(prompt.media):
        width, rows = medium.features.shape[1], len(medium.features)
        at = f"{where}.media[{number}]"
        require(width == shape.feature_width, f"{at}: features are {width} wide, expected {shape.feature_width}")
        t, h, w = medium.grid
        expected = t * h * w // shape.merge_size**2
        require(rows == expected, f"{at}: {rows} rows of features, the grid {medium.grid} has {expected}")
    if not prompt.media:
        plain = torch.arange(length).expand(3, -1)
        require(prompt.positions.equal(plain), f"{where}: positions of a prompt of text must count up from 0")


def engine_input(prompt: Prompt, salt: str) -> Any:
    """What ``LLMEngine.add_request`` takes.

    Args:
        salt: prompts of another salt share no cached keys and values with this one.
    """
    ids = prompt.ids.tolist()
    if not prompt.media:
        return tokens_input(ids, cache_salt=salt)
    items: dict[str, list[MultiModalKwargsItem]] = {}
    hashes: dict[str, list[str]] = {}
    ranges: dict[str, list[PlaceholderRange]] = {}
    for medium in prompt.media:
        items.setdefault(medium.kind, []).append(_item(medium, prompt.positions))
        hashes.setdefault(medium.kind, []).append(_hash(medium, prompt.positions))
        # A mask is given where there are other tokens between: one that is True throughout is the same as none.
        mask = None if bool(medium.embedded.all()) else medium.embedded
        ranges.setdefault(medium.kind, []).append(PlaceholderRange(medium.offset, len(medium.embedded), mask))
    return mm_input(ids, MultiModalKwargsItems(items), hashes, ranges, cache_salt=salt)


def _item(medium: Medium, positions: Tensor) -> MultiModalKwargsItem:
    kind = medium.kind
    grid = torch.tensor([medium.grid])
    fields = {
        f"{kind}_embeds": (medium.features, MultiModalFieldConfig.flat(kind, [slice(len(medium.features))])),
        f"{kind}_grid_thw": (grid, MultiModalFieldConfig.batched(kind, **CPU)),
        POSITIONS: (positions[None], MultiModalFieldConfig.batched(kind, **CPU)),
    }
    return MultiModalKwargsItem(
        {name: config.build_elems(name, values)[0] for name, (values, config) in fields.items()}
    )


def _hash(medium: Medium, positions: Tensor) -> str:
    """Names the keys and values of the range in vLLM's caches: what they depend on, positions included.

    The same frames at another rate have the same features and other positions. Named alike they would be taken from
    the cache. Tokens before and after the range are named by vLLM.
    """
    digest = hashlib.sha256(f"{medium.kind} {medium.grid} {medium.features.dtype}".encode())
    own = positions[:, medium.offset : medium.offset + len(medium.embedded)]
    for part in (medium.features, medium.embedded, own):
        digest.update(str(tuple(part.shape)).encode())
        digest.update(part.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
