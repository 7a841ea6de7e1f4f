"""The vision tower, run once per prompt: its output before the merger takes the place of the pixels.

While the tower is frozen its output is the same in sampling, in the reference and in the policy, for all completions of
a prompt and every update. ``encode_vision`` computes it once, without gradient. The mergers, which project it into the
language model and may learn, still run in every forward: a wrapper around ``model.visual.forward`` tells features from
pixels by their width. All else, ``generate`` included, stays stock.

In the tower of no family does a temporal patch see another one. So ``encode_vision`` runs it on some frames at a time:
a long video is there as bytes and as features, and never as pixels in floating point or inside the tower as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.vision_utils import get_vision_window_index

from qwenvl.model.inputs import KINDS_OF_MEDIA, InputBuilder, PixelScale, PromptInputs
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.sharding import is_partitioned
from qwenvl.types import PromptBatch

PIECE = 16_384
"""Patches that go through the tower together, 4,096 tokens. They fill a GPU, and the tower of a 7B takes some 0.6 GB
for them. An image or a pair of frames is never divided."""


GREY = 128
"""The pixels of a grey frame, as bytes."""


@dataclass
class _VisionOutput(BaseModelOutputWithPooling):
    """The output of the vision models of all families."""

    deepstack_features: list[Tensor] | None = None


def supports_encode_once(model: nn.Module) -> str | None:
    """None where ``encode_vision`` works for ``model``, else the reason why not, for a log line."""
    bare = unwrap(model)
    trained = [name for name, p in bare.named_parameters() if p.requires_grad and part_of(name) == "vision"]
    if trained:
        return f"the vision tower learns ({trained[0]}, ...), so its output changes and needs gradients"
    visual = bare.model.visual
    if _feature_width(visual) == _patch_width(visual):
        return f"features and pixel patches have the same width, {_patch_width(visual)}, and cannot be told apart"
    return None


@torch.no_grad()
def encode_vision(
    model: nn.Module,
    prompts: PromptInputs,
    scales: tuple[PixelScale, PixelScale] | None = None,
) -> PromptInputs:
    """The prompts with the tower's features in the place of their pixels, in the same rows. Features stay.

    Where the pixels are patches x patch values, the features are patches x width: what enters the merger and, for
    Qwen3-VL, beside it what enters each deepstack merger. Run it under the autocast of the training forward, if there
    is one. Every model that is given the result needs ``accept_features`` (this one has it then). The tower runs on
    ``PIECE`` patches at a time.

    Args:
        scales: of images and of videos whose pixels are bytes (``InputBuilder.as_bytes``). None: they are normalised.

    Raises:
        ValueError: if the model cannot do it, see ``supports_encode_once``.
    """
    reason = supports_encode_once(model)
    if reason is not None:
        raise ValueError(f"the vision tower must run in every forward: {reason}")
    accept_features(model)
    visual = unwrap(model).model.visual

    for (values, grids, _), scale in zip(KINDS_OF_MEDIA, scales or (None, None), strict=True):
        patches = getattr(prompts, values)
        if patches is not None and patches.shape[-1] != _feature_width(visual):
            prompts = replace(prompts, **{values: _features(visual, scale, patches, getattr(prompts, grids))})
    return prompts


def features_or_pixels(
    model: nn.Module,
    batch: PromptBatch,
    device: torch.device,
    build: InputBuilder,
    encode: Callable[..., PromptInputs] | None,
    autocast: Callable[[], AbstractContextManager],
) -> PromptInputs:
    """The model's inputs on a device: features in the place of pixels where the tower runs once per prompt.

    Args:
        encode: ``encode_vision``. None where the tower runs in every forward.
        autocast: of the training forward.
    """
    there = batch.on(device)
    if encode is None:
        return build(there)
    with autocast():
        return encode(model, build.as_bytes(there), scales=build.scales)


def accept_features(model: nn.Module) -> None:
    """Lets every forward of ``model``, and ``generate``, take features in the place of pixels. It may be repeated."""
    visual = unwrap(model).model.visual
    if not hasattr(visual, "forward_pixels"):
        # Bound methods, not closures: a deep copy of the model then calls its own mergers.
        visual.forward_pixels = visual.forward
        visual.forward = MethodType(_forward, visual)


def tower_alone(model: nn.Module) -> nn.Module:
    """The configuration and a copy of the vision tower, for a thread that runs it while the policy trains.

    Weights that learn are copied as they are now. Call it within ``whole_weights``.
    """
    bare, alone = unwrap(model), nn.Module()
    visual = bare.model.visual
    kept = [] if is_partitioned(visual) else [each for each in visual.parameters() if not each.requires_grad]
    alone.config, alone.model = bare.config, nn.Module()
    alone.model.visual = deepcopy(visual, {id(each): each for each in kept}).requires_grad_(False)
    return alone


def blank_vision(model: nn.Module, prompts: PromptInputs, *, encoded: bool) -> PromptInputs:
    """The prompts with images and videos of no patches where they have none. The model needs ``accept_features``.

    Processes that train together wait for each other's gradients, and ZeRO-3 for each other's forwards: every process
    has to run the same modules. Those of an image without patches run, change nothing, and have gradients of zero.

    Args:
        encoded: whether features stand in the place of pixels.
    """
    visual = unwrap(model).model.visual
    width = _feature_width(visual) if encoded else _patch_width(visual)
    blank = torch.zeros(0, width, dtype=visual.dtype, device=prompts.input_ids.device)
    grid = torch.tensor([[0, visual.spatial_merge_size, visual.spatial_merge_size]], device=blank.device)
    for values, grids, _ in KINDS_OF_MEDIA:
        if getattr(prompts, values) is None:
            prompts = replace(prompts, **{values: blank, grids: grid})
    return prompts


def grey_media(
    model: nn.Module, prompts: PromptInputs, scales: tuple[PixelScale, PixelScale], *, encoded: bool
) -> PromptInputs:
    """The prompts with grey images and videos of the same sizes, as pixels, or as features where ``encoded``."""
    width, grey = _patch_width(unwrap(model).model.visual), {}
    for (values, _, _), scale in zip(KINDS_OF_MEDIA, scales, strict=True):
        if (media := getattr(prompts, values)) is not None and len(media):
            patches = torch.full((len(media), width), GREY, dtype=torch.uint8, device=prompts.input_ids.device)
            grey[values] = patches if encoded else scale(patches)
    blank = replace(prompts, **grey)
    return encode_vision(model, blank, scales) if encoded else blank


def _forward(self: nn.Module, hidden_states: Tensor, grid_thw: Tensor, **kwargs):
    if not len(hidden_states):
        return _nothing(self, hidden_states, **kwargs)
    if hidden_states.shape[-1] != _feature_width(self):
        return self.forward_pixels(hidden_states, grid_thw, **kwargs)
    pieces = hidden_states.chunk(len(_mergers(self)), dim=-1)
    # What a merger keeps is several times its features. With gradient checkpointing it runs again, like the layers.
    again = self.training and getattr(self, "gradient_checkpointing", False) and torch.is_grad_enabled()
    run = partial(checkpoint, _merge, use_reentrant=False) if again else _merge
    merged, *deepstack = [run(merger, piece) for merger, piece in zip(_mergers(self), pieces, strict=True)]
    return _VisionOutput(last_hidden_state=pieces[0], pooler_output=merged, deepstack_features=deepstack)


def _merge(merger: nn.Module, features: Tensor) -> Tensor:
    return merger(features.contiguous())


def _nothing(self: nn.Module, hidden_states: Tensor, **kwargs) -> _VisionOutput:
    """No features, by way of a run on one blank unit."""
    size = self.spatial_merge_size
    unit = hidden_states.new_zeros(size * size, hidden_states.shape[1])
    output = _forward(self, unit, torch.tensor([[1, size, size]], device=unit.device), **kwargs)
    deepstack = [features[:0] for features in getattr(output, "deepstack_features", None) or ()]
    return _VisionOutput(output.last_hidden_state[:0], output.pooler_output[:0], deepstack_features=deepstack)


def _features(visual: nn.Module, scale: PixelScale | None, patches: Tensor, grids: Tensor) -> Tensor:
    """The inputs of the mergers, from the tower run on a piece at a time. Bytes are normalised by ``scale``."""
    made, done = None, 0
    with _entering_mergers(visual) as entered:
        for piece in _pieces(grids, PIECE):
            rows = slice(done, done + int(piece.prod(-1).sum()))
            pixels = patches[rows] if scale is None or patches.dtype != torch.uint8 else scale(patches[rows])
            visual(pixels.to(visual.dtype), grid_thw=piece)
            own = torch.cat([entered.pop(merger) for merger in _mergers(visual)], dim=-1)
            own = _undo_windows(visual, own, piece)
            if len(own) == len(patches):
                return own
            made = own.new_empty(len(patches), own.shape[1]) if made is None else made
            made[rows], done = own, rows.stop
    assert made is not None  # no prompt has pictures without patches
    return made


def _pieces(grids: Tensor, most: int) -> Iterator[Tensor]:
    """The grids of consecutive temporal patches, of one video or of several media, of at most so many patches.

    Example:
        >>> [piece.tolist() for piece in _pieces(torch.tensor([[3, 4, 4], [1, 2, 2]]), most=36)]
        [[[2, 4, 4]], [[1, 4, 4], [1, 2, 2]]]
    """
    piece: list[list[int]] = []
    room = most
    for frames, height, width in grids.tolist():
        while frames:
            fits = min(frames, room // (height * width))
            if fits < 1 and piece:
                yield grids.new_tensor(piece)
                piece, room = [], most
                continue
            fits = max(1, fits)  # one that is too large by itself
            piece.append([fits, height, width])
            frames, room = frames - fits, room - fits * height * width
    if piece:
        yield grids.new_tensor(piece)


@contextmanager
def _entering_mergers(visual: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Context manager in which the tower records the input of each merger, and runs the fastest way."""
    entered: dict[nn.Module, Tensor] = {}
    hooks = [
        merger.register_forward_pre_hook(lambda module, args: entered.update({module: args[0]}))
        for merger in _mergers(visual)
    ]
    was_training, convolution = visual.training, visual.patch_embed.proj
    visual.eval()  # checkpointed blocks warn when there is nothing to differentiate
    convolution.forward = MethodType(_as_product, convolution)
    try:
        with batched_attention(visual):
            yield entered
    finally:
        del convolution.forward
        visual.train(was_training)
        for hook in hooks:
            hook.remove()


def _as_product(self: nn.Conv3d, patches: Tensor) -> Tensor:
    """A convolution whose kernel covers each patch, as the matrix product that it is: several times faster."""
    return nn.functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)


def _undo_windows(visual: nn.Module, features: Tensor, grids: Tensor) -> Tensor:
    """Qwen2.5-VL sorts the units that are merged by attention window and sorts back after its merger."""
    if not hasattr(visual, "window_size"):
        return features
    order, _ = get_vision_window_index(grids, visual.spatial_merge_size, visual.window_size, visual.patch_size)
    units = features.unflatten(0, (-1, visual.spatial_merge_unit))
    return units[order.argsort().to(features.device)].flatten(0, 1)


def _mergers(visual: nn.Module) -> list[nn.Module]:
    return [visual.merger, *getattr(visual, "deepstack_merger_list", ())]


def _feature_width(visual: nn.Module) -> int:
    return visual.patch_embed.embed_dim * len(_mergers(visual))


def _patch_width(visual: nn.Module) -> int:
    embed = visual.patch_embed
    return embed.in_channels * embed.temporal_patch_size * embed.patch_size**2


BATCHED = "batched_flash"
"""Towers pass all sequences at once, with their bounds, to an implementation whose name has "flash" in it."""


@contextmanager
def batched_attention(visual: nn.Module) -> Iterator[None]:
    """Context manager in which a tower whose attention is ``sdpa`` computes it in batches of sequences of one length.

    A tower attends within frames or windows, hundreds of short sequences of few lengths for a clip. Stock classes call
    ``sdpa`` for each of them.
    """
    config = visual.config
    if config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(BATCHED, partial(_attention, {}))
    config._attn_implementation = BATCHED
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def _attention(
    batches: dict[int, tuple[Tensor, list[Tensor]]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **unused,
) -> tuple[Tensor, None]:
    """1 x heads x S x D to 1 x S x heads x D, for the sequences that ``cu_seq_lens_q`` bounds.

    Args:
        batches: those of earlier layers, by the identity of the bounds, which are beside them and stay alive so.
    """
    if id(cu_seq_lens_q) not in batches:
        batches[id(cu_seq_lens_q)] = cu_seq_lens_q, _by_length(cu_seq_lens_q)
    tokens = [x[0].transpose(0, 1) for x in (query, key, value)]  # S x heads x D
    out = torch.empty_like(tokens[0])
    for rows in batches[id(cu_seq_lens_q)][1]:
        q, k, v = (x[rows].transpose(1, 2) for x in tokens)
        out[rows] = nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2)
    return out[None], None


def _by_length(bounds: Tensor) -> list[Tensor]:
    """For each length, the places of its sequences' tokens: sequences x length. A GPU is waited for."""
    starts, lengths = bounds[:-1], bounds.diff()
    return [
        starts[lengths == length][:, None] + torch.arange(length, device=bounds.device)
        for length in lengths.unique().tolist()
    ]
