"""How much memory the weights take, and what belongs to those that learn: gradients, copies, the reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qwenvl.plan.job import Job

GRADIENT_BYTES = 4
"""Trained weights are kept in float32 (a step of 1e-6 is below what bfloat16 resolves), and so are their gradients."""


@dataclass(frozen=True)
class Weights:
    """The parameters of a model.

    Attributes:
        held: bytes of all of them.
        trained: how many learn.
        trained_held: bytes of these.
        layer: how many of one layer of the language model learn.
        head: how many of the language-model head learn.
        tied: whether the head is the embedding.
        rounded: how many matrices' entries that learn are copied for products in half precision.
        layer_held: bytes of the largest layer, of the language model or the vision tower.
        outside: bytes of all that is in no layer.
        widest: bytes of the largest tensor of these.
    """

    held: int
    trained: int
    trained_held: int
    layer: int
    head: int
    tied: bool
    rounded: int
    layer_held: int = 0
    outside: int = 0
    widest: int = 0

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, tuple[int, ...], float, bool]], layers: int) -> Weights:
        """From name, shape, bytes of an element and whether it learns, of each parameter, a tied one once.

        Args:
            layers: of the language model.
        """
        rows = list(parameters)
        size = {name: _product(shape) for name, shape, _, _ in rows}
        learn = [(name, shape, width) for name, shape, width, learns in rows if learns]
        heads = [name for name, *_ in rows if name.endswith("lm_head.weight")]
        held = {name: round(size[name] * width) for name, _, width, _ in rows}
        layers_held: Counter[str] = Counter()
        for name in [*held]:
            if layer := re.match(r".*\.(layers|blocks)\.\d+\.", name):
                layers_held[layer[0]] += held.pop(name)
        embedded = [name for name, *_ in learn if "embed_tokens" in name or name in heads]
        return cls(
            held=round(sum(size[name] * width for name, _, width, _ in rows)),
            trained=sum(size[name] for name, *_ in learn),
            trained_held=round(sum(size[name] * width for name, _, width in learn)),
            layer=sum(size[name] for name, *_ in learn if "language_model.layers." in name) // max(1, layers),
            head=max((size[name] for name in embedded), default=0),
            tied=not heads,
            rounded=sum(size[name] for name, shape, width in learn if len(shape) > 1 and width == 4),
            layer_held=max(layers_held.values(), default=0),
            outside=sum(held.values()),
            widest=max(held.values(), default=0),
        )


def sampled_bytes(weights: Weights, job: Job) -> int:
    """Of the weights that a process has while it samples: all of them, where they are split and gathered whole too.

    Without ``gathers`` it has its part of them and one layer, under FSDP also what is in no layer.
    """
    part = 1.0 / job.processes
    if job.gathers or job.engine not in ("zero3", "fsdp"):
        return weights.held
    if job.engine == "zero3":
        return round(weights.held * part) + max(weights.layer_held, weights.widest)
    return round(weights.held * part + (weights.layer_held + weights.outside) * (1 - part))


def reference_bytes(weights: Weights, job: Job) -> int:
    """Of the reference beside the policy: what is trained once more, a whole model, or nothing.

    A copy shares every tensor that is frozen (``qwenvl.model.reference``). Under ZeRO-3 it shares none, and under FSDP
    it is in the type of products.
    """
    if job.reference in ("none", "adapter"):
        return 0
    if job.engine == "fsdp":
        return weights.held * job.precision.products // job.precision.stream
    return weights.trained_held if job.reference == "copy" and job.engine != "zero3" else weights.held


def gradient_bytes(weights: Weights, job: Job) -> int:
    """Of all gradients, one number for each weight that learns."""
    return weights.trained * GRADIENT_BYTES


def rounded_bytes(weights: Weights, job: Job) -> int:
    """Of the copies that autocast makes of trained float32 weights and keeps within a pass (``torch.autocast`` caches
    casts of leaves that need a gradient)."""
    return weights.rounded * job.precision.products if job.precision.rounds else 0


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
