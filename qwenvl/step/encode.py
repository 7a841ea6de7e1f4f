"""The stage *encode*: prompts become model inputs on the device, each frame through the vision tower once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qwenvl.model.inputs import InputBuilder, PromptInputs, is_large, media_bytes
from qwenvl.model.vision_tower import features_or_pixels
from qwenvl.step.types import EncodedPrompts, StepContext
from qwenvl.types import PromptBatch

LOOKS_BYTES = 2**30
"""Most bytes of cached features of looks, in CPU memory."""


@dataclass(frozen=True)
class Encode:
    """Makes batches the model's inputs.

    Attributes:
        device: where models run.
        build_inputs: from a batch to the model's inputs, with positions.
        encode_vision: runs the vision tower once per prompt. None: the tower runs in every forward.
        autocast: the precision of forwards.
    """

    device: torch.device
    build_inputs: InputBuilder
    encode_vision: Callable[..., PromptInputs] | None
    autocast: Callable[[], AbstractContextManager[Any]]

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[EncodedPrompts]:
        """The micro-batches of a step."""
        with step.meter.time("time/vision_s") if self.encode_vision is not None else nullcontext():
            return self.of_step(step.policy, batches)

    def of_step(self, model: nn.Module, batches: Sequence[PromptBatch]) -> list[EncodedPrompts]:
        """The same for any model, and without a clock. Where a micro-batch is large, all media wait on the CPU."""
        waits = len(batches) > 1 and any(map(is_large, batches))
        encoded = []
        for batch in batches:
            inputs = self.inputs(model, batch)
            encoded.append(EncodedPrompts(batch, inputs.media_to("cpu") if waits else inputs))
        return encoded

    def inputs(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """The model inputs of one batch, with its media on the device."""
        return features_or_pixels(
            model, batch, self.device, build=self.build_inputs, encode=self.encode_vision, autocast=self.autocast
        )


@dataclass(frozen=True)
class EncodeLooks:
    """Makes what tools have shown the model's inputs.

    A frozen tower runs once for equal looks of all steps, as long as there is room for their features.

    Attributes:
        known: encoded looks, by a digest of their tokens and pixels, the oldest first.
    """

    encode: Encode
    known: dict[bytes, PromptInputs] = field(default_factory=dict)

    def __call__(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """The model inputs of one look."""
        if self.encode.encode_vision is None or not media_bytes(batch):
            return self.encode.inputs(model, batch)
        key = _digest(batch)
        if key not in self.known:
            self.known[key] = self.encode.inputs(model, batch).media_to("cpu")
        found = self.known[key]
        while sum(map(media_bytes, self.known.values())) > LOOKS_BYTES:
            del self.known[next(iter(self.known))]
        return found.media_to(self.encode.device)

    def forget(self) -> None:
        """The tower may have changed."""
        self.known.clear()


def _digest(batch: PromptBatch) -> bytes:
    """The same for batches with the same tokens and pixels."""
    digest = hashlib.sha256()
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)}".encode())
            digest.update(value.numpy().tobytes())
    return digest.digest()
