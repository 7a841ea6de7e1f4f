"""What a long prompt makes by the shared paths: nothing of L x L, and no tokens or positions of G x L."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import encode_vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import SharedPrefixEngine

PAIRS, GROUP, LENGTH = 300, 8, 3  # so that a prompt is longer than anything is wide


class Made(TorchDispatchMode):
    """The tensors that operations make, views among them: their shapes and types."""

    def __init__(self):
        super().__init__()
        self.tensors: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.tensors |= {(tuple(x.shape), x.dtype) for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        return out


def long_prompt(model) -> PromptInputs:
    """A video of many pairs of small frames, four tokens each, and some text."""
    config, grid = model.config, torch.tensor([[PAIRS, 4, 4]])
    ids = [config.vision_start_token_id, *[config.video_token_id] * (4 * PAIRS), config.vision_end_token_id, *range(9)]
    tokens = torch.tensor([ids])
    mask = torch.ones_like(tokens)
    positions = prompt_positions(position_rule(config), tokens, mask, None, grid, torch.tensor([0.5]))
    pixels = torch.randn(PAIRS * 16, 3 * 2 * 14 * 14)
    return PromptInputs(tokens, mask, positions, None, None, pixels, grid, [0], [1])


def test_nothing_grows_with_the_square_of_a_prompt_nor_with_group_times_prompt():
    processor = make_processor("qwen2_5_vl")
    model = make_model("qwen2_5_vl", processor)
    model.model.visual.requires_grad_(False)
    prompt = long_prompt(model)
    long = prompt.input_ids.shape[1]
    engine = SharedPrefixEngine(processor.tokenizer, model)
    with Made() as made:
        encoded = encode_vision(model, prompt)
        (rollout,) = engine.sample(model, [encoded], GROUP, SamplingParams(LENGTH), 0)
        model.train()
        shared_prefix.completion_logprobs(
            model, encoded, rollout.completion_ids, rollout.completion_mask, temperature=1.0, logit_chunk_tokens=64
        ).sum().backward()
    assert not [shape for shape, _ in made.tensors if sum(size >= long for size in shape) > 1]
    whole = [shape for shape, dtype in made.tensors if not dtype.is_floating_point and dtype != torch.bool]
    assert max(map(torch.Size.numel, map(torch.Size, whole))) < GROUP * long
