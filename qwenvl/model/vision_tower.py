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

    for kind, scale in zip(KINDS_OF_MEDIA, scales or (None, None), strict=True):
        patches = getattr(prompts, kind.values)
        if patches is not None and patches.shape[-1] != _feature_width(visual):
            features = _features(visual, scale, patches, getattr(prompts, kind.grids))
            prompts = replace(prompts, **{kind.values: features})
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
    bare = unwrap(model)
    visual = bare.model.visual
    frozen = [each for each in visual.parameters() if not each.requires_grad]
    # A copy of split weights shares none: it runs outside of the engine.
    shared = [] if is_partitioned(visual) else frozen
    alone = nn.Module()
    alone.config = bare.config
    alone.model = nn.Module()
    alone.model.visual = deepcopy(visual, {id(each): each for each in shared}).requires_grad_(False)
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
    for kind in KINDS_OF_MEDIA:
        if getattr(prompts, kind.values) is None:
            prompts = replace(prompts, **{kind.values: blank, kind.grids: grid})
    return prompts


def grey_media(
    model: nn.Module, prompts: PromptInputs, scales: tuple[PixelScale, PixelScale], *, encoded: bool
) -> PromptInputs:
    """The prompts with grey images and videos of the same sizes, as pixels, or as features where ``encoded``."""
    width = _patch_width(unwrap(model).model.visual)
    device = prompts.input_ids.device
    grey = {}
    for kind, scale in zip(KINDS_OF_MEDIA, scales, strict=True):
        media = getattr(prompts, kind.values)
        if media is not None and len(media):
            patches = torch.full((len(media), width), GREY, dtype=torch.uint8, device=device)
            grey[kind.values] = patches if encoded else scale(patches)  # the tower scales bytes piece by piece
    in_grey = replace(prompts, **grey)
    return encode_vision(model, in_grey, scales) if encoded else in_grey


def _forward(self: nn.Module, hidden_states: Tensor, grid_thw: Tensor, **kwargs):
    """The forward of a vision tower that takes features too: for features the mergers run, and nothing else."""
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
    features: Tensor | None = None
    done = 0
    with _entering_mergers(visual) as entered:
        for piece in _pieces(grids, PIECE):
            rows = slice(done, done + int(piece.prod(-1).sum()))
            done = rows.stop
            pixels = patches[rows]
            if scale is not None and pixels.dtype == torch.uint8:
                pixels = scale(pixels)
            visual(pixels.to(visual.dtype), grid_thw=piece)  # its output, of the mergers, is not used
            of_piece = torch.cat([entered.pop(merger) for merger in _mergers(visual)], dim=-1)
            of_piece = _undo_windows(visual, of_piece, piece)
            if len(of_piece) == len(patches):  # the only piece: no copy of it
                return of_piece
            if features is None:
                features = of_piece.new_empty(len(patches), of_piece.shape[1])
            features[rows] = of_piece
    assert features is not None  # no prompt has pictures without patches
    return features


def _pieces(grids: Tensor, most: int) -> Iterator[Tensor]:
    """The grids of consecutive temporal patches, of one video or of several media, of at most so many patches.

    Example:
        >>> [piece.tolist() for piece in _pieces(torch.tensor([[3, 4, 4], [1, 2, 2]]), most=36)]
        [[[2, 4, 4]], [[1, 4, 4], [1, 2, 2]]]
    """
    piece: list[list[int]] = []
    room = most
    for frames, height, width in grids.tolist():
        patches_per_frame = height * width
        while frames:
            fits = min(frames, room // patches_per_frame)
            if fits < 1 and piece:
                yield grids.new_tensor(piece)
                piece = []
                room = most
                continue
            fits = max(1, fits)  # one that is too large by itself
            piece.append([fits, height, width])
            frames -= fits
            room -= fits * patches_per_frame
    if piece:
        yield grids.new_tensor(piece)


@contextmanager
def _entering_mergers(visual: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Context manager in which the tower records the input of each merger, and runs the fastest way."""
    entered: dict[nn.Module, Tensor] = {}

    def record(merger: nn.Module, args: tuple[Tensor, ...]) -> None:
        entered[merger] = args[0]

    hooks = [merger.register_forward_pre_hook(record) for merger in _mergers(visual)]
    convolution = visual.patch_embed.proj
    was_training = visual.training
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
    """The features in the order of their patches.

    Qwen2.5-VL sorts the units that are merged by attention window, and sorts them back only after its merger.
    """
    if not hasattr(visual, "window_size"):
        return features
    order, _ = get_vision_window_index(grids, visual.spatial_merge_size, visual.window_size, visual.patch_size)
    units = features.unflatten(0, (-1, visual.spatial_merge_unit))  # units x patches of a unit x width
    original_order = order.argsort().to(features.device)
    return units[original_order].flatten(0, 1)


def _mergers(visual: nn.Module) -> list[nn.Module]:
    """The projections into the language model: the one of its input, then those for deeper layers (Qwen3-VL)."""
    return [visual.merger, *getattr(visual, "deepstack_merger_list", ())]


def _feature_width(visual: nn.Module) -> int:
    """Width of the features of a patch: the inputs of all mergers side by side."""
    return visual.patch_embed.embed_dim * len(_mergers(visual))


def _patch_width(visual: nn.Module) -> int:
    """Numbers of a patch of pixels."""
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
    AttentionInterface.register(BATCHED, _BatchedAttention())
    config._attn_implementation = BATCHED
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


class _BatchedAttention:
    """An attention function of transformers that computes sequences of one length as a batch."""

    def __init__(self) -> None:
        # The places of tokens by the identity of the bounds, which all layers of a pass share. The bounds are kept
        # beside them, so that no other tensor gets the id of one.
        self._known: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def __call__(
        self,
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
        """1 x heads x S x D to 1 x S x heads x D, for the sequences that ``cu_seq_lens_q`` bounds."""
        queries = query[0].transpose(0, 1)  # S x heads x D
        keys = key[0].transpose(0, 1)
        values = value[0].transpose(0, 1)
        out = torch.empty_like(queries)
        for rows in self._places(cu_seq_lens_q):
            attended = nn.functional.scaled_dot_product_attention(
                queries[rows].transpose(1, 2),  # sequences x heads x length x D
                keys[rows].transpose(1, 2),
                values[rows].transpose(1, 2),
                scale=scaling,
            )
            out[rows] = attended.transpose(1, 2)
        return out[None], None

    def _places(self, bounds: Tensor) -> list[Tensor]:
        """The places of the tokens of each length of sequences. A GPU is waited for once in a pass."""
        if id(bounds) not in self._known:
            self._known[id(bounds)] = (bounds, _by_length(bounds))
        _, places = self._known[id(bounds)]
        return places


def _by_length(bounds: Tensor) -> list[Tensor]:
    """The places of the tokens of all sequences of a length, sequences x length, for each length. Waits for a GPU."""
    starts = bounds[:-1]
    lengths = bounds.diff()
    places = []
    for length in lengths.unique().tolist():
        of_this_length = starts[lengths == length]
        places.append(of_this_length[:, None] + torch.arange(length, device=bounds.device))
    return places
