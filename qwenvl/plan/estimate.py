"""The memory of a step, part by part, phase by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qwenvl.plan.activations import (
    after_bytes,
    backward_bytes,
    before_bytes,
    deepest_bytes,
    embedded_bytes,
    forward_bytes,
    layer_bytes,
    saved_bytes,
)
from qwenvl.plan.job import Job
from qwenvl.plan.logits import drawn_logits_bytes, trained_logits_bytes
from qwenvl.plan.optimizer import optimizer_bytes
from qwenvl.plan.sampling import cache_bytes, scores_bytes
from qwenvl.plan.shapes import Shapes
from qwenvl.plan.sharding import shares_of
from qwenvl.plan.vision import (
    features_bytes,
    host_bytes,
    merger_again_bytes,
    merger_saved_bytes,
    tower_bytes,
    tower_saved_bytes,
    waiting_bytes,
)
from qwenvl.plan.weights import (
    GRADIENT_BYTES,
    Weights,
    gradient_bytes,
    reference_bytes,
    rounded_bytes,
    sampled_bytes,
)

PARTS = (
    "weights", "gradients", "optimizer", "reference", "activations", "features", "cache", "logits", "one-time buffers",
)  # fmt: skip
"""What memory goes to, in the order of tables. The prompts that a CPU holds count as features."""

SAMPLING = ("vision", "prefill", "decoding")
"""The phases before the policy is trained: features are made, and completions sampled."""


@dataclass(frozen=True)
class Phase:
    """A moment of the step at which memory may be fullest.

    Attributes:
        name: what is done then.
        parts: bytes by the names of ``PARTS``.
    """

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Estimate:
    """The memory of a step.

    Attributes:
        phases: in the order of the step.
    """

    phases: tuple[Phase, ...]

    @property
    def fullest(self) -> Phase:
        """The phase that takes most."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def peak(self) -> int:
        """Bytes of the fullest phase."""
        return self.fullest.total

    def peak_of(self, phases: Collection[str] | None) -> int:
        """Bytes of the fullest of some phases, by name. None for all of them."""
        return max(phase.total for phase in self.phases if phases is None or phase.name in phases)


def estimate(shapes: Shapes, weights: Weights, job: Job) -> Estimate:
    """The memory of a step of ``job``, whose first step is behind it: the optimizer has its state.

    Example:
        >>> estimate(Shapes.of(config), weights, Job(tokens=4000, patches=14000)).fullest.name
        'backward'
    """
    step = _Step(shapes, weights, job)
    moments = {**step.collected(), **step.passes(), **step.descent(), **step.updated()}
    return Estimate(tuple(Phase(name, {part: parts.get(part, 0) for part in PARTS}) for name, parts in moments.items()))


class _Step:
    """The moments of a step at which memory may be fullest, each with its parts."""

    def __init__(self, shapes: Shapes, weights: Weights, job: Job):
        self.text, self.vision, self.weights, self.job = shapes.text, shapes.vision, weights, job
        self.shares = shares_of(job)
        self.reference = reference_bytes(weights, job)
        self.kept = {
            "weights": round(weights.held * self.shares.weights),
            "optimizer": round(optimizer_bytes(weights, job) * self.shares.optimizer),
            "reference": 0 if job.reference_offload else self.reference,
            "features": self._features(job.prompts),
        }
        self.gradients = round(gradient_bytes(weights, job) * (self.shares.gradients + self.shares.buckets))
        self.earlier = self.gradients if job.micro_batches > 1 else 0  # of the micro-batches before
        self.rounded = rounded_bytes(weights, job)
        self.head = weights.head * GRADIENT_BYTES
        self.after = after_bytes(self.text, job)
        self.activations = saved_bytes(self.text, job) + before_bytes(self.text, job) + self.after
        self.activations += merger_saved_bytes(self.vision, job)
        if job.tower_learns and not job.encoded:
            self.activations += tower_saved_bytes(self.vision, job)

    def _features(self, prompts: int) -> int:
        """Of the prompts that are at hand, with the pixels of those that a CPU holds."""
        return features_bytes(self.vision, self.job, prompts) + (
            host_bytes(self.vision, self.job) if self.job.on_host else 0
        )

    def _running(self, tokens: int, patches: int) -> int:
        """Of a pass without gradient over so many tokens and patches."""
        held = embedded_bytes(self.text, self.vision, tokens, patches, self.job)
        return forward_bytes(self.text, tokens, self.job) + held

    def collected(self) -> dict[str, dict[str, int]]:
        """Features, and completions sampled from them."""
        job, text = self.job, self.text
        rows = job.drawn_together * (1 if job.shared else job.group)
        prompts, patches = rows * job.tokens, rows * job.patches
        sampled = self.kept | {
            "features": self._features(job.drawn_together),
            "weights": sampled_bytes(self.weights, job),
            "cache": cache_bytes(text, job),
            "one-time buffers": self.rounded,
        }
        running = tower_bytes(self.vision, job, job.patches * job.prompts) + waiting_bytes(self.vision, job)
        earlier = self.earlier if job.taught else 0
        vision = {"vision": self.kept | {"activations": running, "gradients": earlier}}
        if not job.samples:
            return vision
        return vision | {
            "prefill": sampled | {"activations": self._running(prompts, patches)},
            "decoding": sampled
            | {"activations": scores_bytes(text, job), "logits": drawn_logits_bytes(text.vocabulary, job)},
        }

    def passes(self) -> dict[str, dict[str, int]]:
        """The pass of the reference while the activations of the policy are there, and the beginning of its backward
        pass. Without checkpointing the policy's rounded weights are among what is kept for it."""
        job, rounded = self.job, 0 if self.job.checkpointing else self.rounded
        logits = trained_logits_bytes(self.text.vocabulary, job)
        trained = self.kept | {"gradients": self.earlier, "activations": self.activations, "logits": logits}
        moments = {"backward": trained | {"one-time buffers": 2 * self.head + rounded}}
        if job.reference != "none":
            running = self._running(job.row_tokens, job.forward_patches)
            running += 0 if job.encoded else tower_bytes(self.vision, job, job.forward_patches)
            moments["log-probs of the reference"] = trained | {
                "reference": self.reference,
                "activations": self.activations + running,
                "one-time buffers": rounded,
            }
        return moments

    def descent(self) -> dict[str, dict[str, int]]:
        """The backward pass of the last and the first layer: what layers keep goes, and their gradients come. Then
        that of mergers that run again."""
        job, text, depth = self.job, self.text, len(self.text.layers)
        back = backward_bytes(text, job) - self.after  # the pass has been there already
        back += deepest_bytes(text, job) if job.checkpointing or job.activation_offload else 0
        moments = {}
        for done, name in ((0, "backward of the last layer"), (depth - 1, "backward of the first layer")):
            if job.activation_offload:
                gone = 0
            elif job.checkpointing:
                gone = done * job.row_tokens * text.hidden * job.precision.stream
            else:
                gone = sum(layer_bytes(text, kind, job) for kind in text.layers[depth - done :])
            numbers = (done + 1) * self.weights.layer + self.weights.head
            made = min(self.gradients, max(self.earlier, numbers * GRADIENT_BYTES))
            moments[name] = self.kept | {"gradients": made, "activations": self.activations - gone + back}
        if again := merger_again_bytes(self.vision, job):
            # Their outputs have gradients, the embeddings with them, and those of the embeddings' own where they learn.
            streams = (self.vision.mergers + (1 if job.rank else 2)) * job.row_tokens * text.hidden
            again += before_bytes(text, job) + streams * job.precision.stream
            moments["backward of the mergers"] = self.kept | {"gradients": self.gradients, "activations": again}
        return moments

    def updated(self) -> dict[str, dict[str, int]]:
        """All gradients, with that of the embeddings before it is added to them, and without."""
        whole = self.kept | {"gradients": self.gradients}
        return {"end of the backward pass": whole | {"one-time buffers": self.head}, "update of the weights": whole}
