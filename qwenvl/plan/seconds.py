"""The arithmetic of a step, and the seconds that it takes at a given rate."""

from __future__ import annotations

from qwenvl.plan.devices import Rates
from qwenvl.plan.job import Job
from qwenvl.plan.sampling import cache_bytes
from qwenvl.plan.shapes import Shapes, Text
from qwenvl.plan.weights import Weights


def layer_products(text: Text, kind: str) -> int:
    """Entries of the matrices that a token meets in a layer: projections, and the gated product or its experts."""
    hidden, at, mixed = text.hidden, text.linear, text.experts
    if kind == "linear_attention" and at is not None:
        mixer = hidden * (at.channels + at.values + 2 * at.heads) + at.values * hidden
    else:
        mixer = hidden * (text.queries * (2 if text.gated else 1) + 2 * text.keys) + text.queries * hidden
    if mixed is None:
        return mixer + 3 * hidden * text.intermediate
    return mixer + hidden * (mixed.number + 3 * mixed.chosen * mixed.width + 3 * mixed.shared)


def text_flops(text: Text, tokens: int, pairs: float, logits: int) -> float:
    """Operations of one forward of the language model.

    Two for each entry of a matrix and token (a product and a sum), four for each number of a query and key that meet,
    and six for each number of a state that is read, changed and read again.

    Args:
        tokens: that go through the layers.
        pairs: of a query and a key that attention looks at.
        logits: tokens that meet the head.
    """
    total = 2.0 * text.vocabulary * text.hidden * logits
    for kind in text.layers:
        total += 2.0 * layer_products(text, kind) * tokens
        if kind == "linear_attention" and text.linear is not None:
            total += 6.0 * text.linear.state * tokens
        else:
            total += 4.0 * text.queries * pairs
    return total


def forward_flops(shapes: Shapes, job: Job) -> float:
    """Operations of one training forward of a micro-batch, the mergers with it.

    Causal attention looks at half of all pairs: L^2 / 2 of a prompt, and G (T L + T^2 / 2) of its completions.
    """
    new, prompt, vision = job.group * job.length, job.tokens, shapes.vision
    once = prompt**2 / 2 if job.shared else job.group * prompt**2 / 2
    pairs = job.prompts * (once + new * prompt + new * job.length / 2)
    merged = (
        2.0 * vision.mergers * (vision.hidden * vision.merged) * (vision.hidden * vision.merged + shapes.text.hidden)
    )
    mergers = merged * job.forward_patches / vision.merged
    return text_flops(shapes.text, job.row_tokens, pairs, job.completions * job.length) + mergers


def tower_flops(shapes: Shapes, patches: int, frame_patches: int) -> float:
    """Operations of the vision tower on so many patches.

    Args:
        frame_patches: of one pair of frames or an image, which attention looks at.
    """
    vision = shapes.vision
    block = 4 * vision.hidden**2 + vision.matrices * vision.hidden * vision.intermediate
    entries = vision.blocks * block + vision.hidden * vision.patch_values
    windowed = vision.blocks - vision.full_blocks
    seen = vision.full_blocks * frame_patches + windowed * vision.window
    return 2.0 * entries * patches + 4.0 * vision.hidden * patches * seen


def seconds_by_phase(
    shapes: Shapes, weights: Weights, job: Job, rates: Rates, frame_patches: int = 1024
) -> dict[str, float]:
    """Seconds of a whole step by phase. Decoding reads all weights and the cache for each token, so it goes by bytes.

    A backward pass has twice the operations of its forward, and with checkpointing the forward once more.
    """
    micro, text = job.micro_batches, shapes.text
    forward = forward_flops(shapes, job) * micro / rates.flops
    tower = tower_flops(shapes, job.patches * job.prompts, frame_patches) * micro / rates.flops
    if not job.encoded:
        tower = tower * (1 if job.shared else job.group)
    prompts = job.prompts * micro
    prefill = text_flops(text, prompts * job.tokens, prompts * job.tokens**2 / 2, prompts) / rates.flops
    draws = -(-prompts // job.drawn_together)
    read = weights.held + cache_bytes(text, job)
    drawing = draws * job.length * read / rates.bytes
    passes = 1 if job.encoded else (4 if job.reference != "none" else 3) - job.taught
    updated = (2 * weights.trained_held + 8 * weights.trained) * 2 / rates.bytes
    made = {"sampling": prefill + drawing, "reference": forward if job.reference != "none" else 0.0}
    return {
        "vision": tower * passes,
        **({} if job.taught else made),
        "policy": forward,
        "backward": forward * (3 if job.checkpointing else 2),
        "update": updated,
    }
