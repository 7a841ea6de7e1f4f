"""The vision tower, run once per prompt: its output before the merger takes the place of the pixels.

While the tower is frozen its output is the same in sampling, in the reference and in the policy, for all completions of
a prompt and every update. ``encode_vision`` computes it once, without gradient. The mergers, which project it into the
language model and may learn, still run in every forward: a wrapper around ``model.visual.forward`` tells features from
pixels by their width. All else, ``generate`` included, stays stock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MethodType

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.vision_utils import get_vision_window_index

from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of, unwrap


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
def encode_vision(model: nn.Module, prompts: PromptInputs) -> PromptInputs:
    """The prompts with the tower's features in the place of their pixels, in the same rows; features stay.

    Where the pixels are normalised patches (patches x patch values), the features are patches x width: what enters the
    merger and, for Qwen3-VL, beside it what enters each deepstack merger. Run it under the autocast of the training
    forward, if there is one. Every model that is given the result needs ``accept_features`` (this one has it then).

    Raises:
        ValueError: if the model cannot do it; see ``supports_encode_once``.
    """
    reason = supports_encode_once(model)
    if reason is not None:
        raise ValueError(f"the vision tower must run in every forward: {reason}")
    accept_features(model)
    visual = unwrap(model).model.visual
    return replace(
        prompts,
        pixel_values=_features(visual, prompts.pixel_values, prompts.image_grid_thw),
        pixel_values_videos=_features(visual, prompts.pixel_values_videos, prompts.video_grid_thw),
    )


def accept_features(model: nn.Module) -> None:
    """Lets every forward of ``model``, and ``generate``, take features in the place of pixels; may be repeated."""
    visual = unwrap(model).model.visual
    if not hasattr(visual, "forward_pixels"):
        # Bound methods, not closures: a deep copy of the model then calls its own mergers.
        visual.forward_pixels = visual.forward
        visual.forward = MethodType(_forward, visual)


def _forward(self: nn.Module, hidden_states: Tensor, grid_thw: Tensor, **kwargs):
    if hidden_states.shape[-1] != _feature_width(self):
        return self.forward_pixels(hidden_states, grid_thw, **kwargs)
    pieces = hidden_states.chunk(len(_mergers(self)), dim=-1)
    merged, *deepstack = [merger(piece.contiguous()) for merger, piece in zip(_mergers(self), pieces, strict=True)]
    return _VisionOutput(last_hidden_state=pieces[0], pooler_output=merged, deepstack_features=deepstack)


def _features(visual: nn.Module, patches: Tensor | None, grids: Tensor | None) -> Tensor | None:
    """Runs the tower and keeps what enters its mergers."""
    if patches is None or patches.shape[-1] == _feature_width(visual):
        return patches
    entered: dict[nn.Module, Tensor] = {}
    hooks = [
        merger.register_forward_pre_hook(lambda module, args: entered.update({module: args[0]}))
        for merger in _mergers(visual)
    ]
    was_training = visual.training
    visual.eval()  # checkpointed blocks warn when there is nothing to differentiate
    try:
        visual(patches.to(visual.dtype), grid_thw=grids)
    finally:
        visual.train(was_training)
        for hook in hooks:
            hook.remove()
    return _undo_windows(visual, torch.cat([entered[merger] for merger in _mergers(visual)], dim=-1), grids)


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
