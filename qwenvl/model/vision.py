"""The vision tower, run once per prompt: its output before the merger takes the place of the pixels.

While the tower is frozen its output is the same in sampling, in the reference and in the policy, for all completions of
a prompt and every update. ``encode_vision`` computes it once, without gradient. The mergers, which project it into the
language model and may learn, still run in every forward: a wrapper around ``model.visual.forward`` tells features from
pixels by their width. All else, ``generate`` included, stays stock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.vision_utils import get_vision_window_index

from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.vision_attention import batched_attention
from qwenvl.model.vision_cache import VisionCache


@dataclass
class _VisionOutput(BaseModelOutputWithPooling):
    """What the vision models of all families return, as one class."""

    deepstack_features: list[Tensor] | None = None


def supports_encode_once(model: nn.Module) -> str | None:
    """None where ``encode_vision`` works for ``model``, else the reason why not, for a log line."""
    bare = unwrap(model)
    try:
        family_of(bare.config)
    except ValueError as error:
        return str(error)
    trained = [name for name, p in bare.named_parameters() if p.requires_grad and part_of(name) == "vision"]
    if trained:
        return f"the vision tower learns ({trained[0]}, ...), so its output changes and needs gradients"
    visual = bare.model.visual
    if _feature_width(visual) == _patch_width(visual):
        return f"features and pixel patches have the same width, {_patch_width(visual)}, and cannot be told apart"
    return None


@torch.no_grad()
def encode_vision(model: nn.Module, prompts: PromptInputs, cache: VisionCache | None = None) -> PromptInputs:
    """The prompts with the tower's features in the place of their pixels, in the same rows. Features stay.

    Where the pixels are normalised patches (patches x patch values), the features are patches x width: what enters the
    merger and, for Qwen3-VL, beside it what enters each deepstack merger. Run it under the autocast of the training
    forward, if there is one. Every model that is given the result needs ``accept_features`` (this one has it then).
    With a ``cache`` the tower runs only on images and videos that are not in it.

    Raises:
        ValueError: if the model cannot do it, see ``supports_encode_once``.
    """
    reason = supports_encode_once(model)
    if reason is not None:
        raise ValueError(f"the vision tower must run in every forward: {reason}")
    accept_features(model)
    visual = unwrap(model).model.visual

    def features(patches: Tensor | None, grids: Tensor | None) -> Tensor | None:
        if patches is None or patches.shape[-1] == _feature_width(visual):
            return patches
        compute = partial(_features, visual)
        return compute(patches, grids) if cache is None else cache.features(compute, patches, grids)

    return replace(
        prompts,
        pixel_values=features(prompts.pixel_values, prompts.image_grid_thw),
        pixel_values_videos=features(prompts.pixel_values_videos, prompts.video_grid_thw),
    )


def accept_features(model: nn.Module) -> None:
    """Lets every forward of ``model``, and ``generate``, take features in the place of pixels. It may be repeated."""
    visual = unwrap(model).model.visual
    if not hasattr(visual, "forward_pixels"):
        # Bound methods, not closures: a deep copy of the model then calls its own mergers.
        visual.forward_pixels = visual.forward
        visual.forward = MethodType(_forward, visual)


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
    for values, grids in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
        if getattr(prompts, values) is None:
            prompts = replace(prompts, **{values: blank, grids: grid})
    return prompts


def _forward(self: nn.Module, hidden_states: Tensor, grid_thw: Tensor, **kwargs):
    if not len(hidden_states):
        return _nothing(self, hidden_states, **kwargs)
    if hidden_states.shape[-1] != _feature_width(self):
        return self.forward_pixels(hidden_states, grid_thw, **kwargs)
    pieces = hidden_states.chunk(len(_mergers(self)), dim=-1)
    merged, *deepstack = [merger(piece.contiguous()) for merger, piece in zip(_mergers(self), pieces, strict=True)]
    return _VisionOutput(last_hidden_state=pieces[0], pooler_output=merged, deepstack_features=deepstack)


def _nothing(self: nn.Module, hidden_states: Tensor, **kwargs) -> _VisionOutput:
    """No features, by way of a run on one blank unit."""
    size = self.spatial_merge_size
    unit = hidden_states.new_zeros(size * size, hidden_states.shape[1])
    output = _forward(self, unit, torch.tensor([[1, size, size]], device=unit.device), **kwargs)
    deepstack = [features[:0] for features in getattr(output, "deepstack_features", None) or ()]
    return _VisionOutput(output.last_hidden_state[:0], output.pooler_output[:0], deepstack_features=deepstack)


def _features(visual: nn.Module, patches: Tensor, grids: Tensor) -> Tensor:
    """Runs the tower and keeps what enters its mergers."""
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
            visual(patches.to(visual.dtype), grid_thw=grids)
    finally:
        del convolution.forward
        visual.train(was_training)
        for hook in hooks:
            hook.remove()
    return _undo_windows(visual, torch.cat([entered[merger] for merger in _mergers(visual)], dim=-1), grids)


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
