"""The seconds of a step: its operations and reads, at the rates of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.plan.memory import cache_bytes
from qwenvl.plan.sizes import Job, ModelWeights, Shapes, Text

DEVICES = {
    "l4": (24, 121, 300),
    "a10g": (24, 70, 600),
    "rtx4090": (24, 165.2, 1008),
    "rtx5090": (32, 209.5, 1792),
    "a100-40": (40, 312, 1555),
    "l40s": (48, 362, 864),
    "a100-80": (80, 312, 2039),
    "h100": (80, 989, 3350),
    "h200": (141, 989, 4800),
    "b200": (180, 2250, 8000),
}
"""For each GPU its memory in GB, its rate of dense bfloat16 products summed in float32 in 10^12 operations a second and
of its memory in 10^9 bytes a second, by NVIDIA's data sheets, which often print the rate with sparsity first: twice it.

Of the A100, the H100 and the H200 they are those of the SXM modules, of the B200 those of one GPU of eight in an HGX or
DGX system. PCIe cards of these names are slower: measure, and set ``--device_tflops`` and ``--device_gbs``.
"""
REACHED = 0.4
"""The assumed share of nominal products that a training step reaches. It is not measured."""
FRAME_PATCHES = 1024
"""The assumed patches of an image or a pair of frames, which attention of the tower has in reach."""
READ = 0.6
"""The assumed share of the memory's rate that decoding reaches."""


@dataclass(frozen=True)
class Rates:
    """The rates of a device."""

    flops: float  # operations a second
    bytes: float  # read a second
    source: str  # where the numbers come from, for people


def rates_of(name: str | None, memory: float, tflops: float | None, gbs: float | None) -> Rates:
    """The rates of a device of ``DEVICES``, the one of the nearest memory where ``name`` is None.

    Args:
        tflops, gbs: measured rates, in place of the nominal ones.
    """
    name = name or min(DEVICES, key=lambda each: abs(DEVICES[each][0] - memory))
    _, nominal, nominal_gbs = DEVICES[name]
    source = f"{name}, nominal: {nominal:g} TFLOP/s, of which {REACHED:.0%} are taken to be reached"
    if tflops is not None:
        source = f"{tflops:g} TFLOP/s as given"
    flops = REACHED * nominal if tflops is None else tflops
    read = READ * nominal_gbs if gbs is None else gbs
    return Rates(flops * 1e12, read * 1e9, f"{source}; {read:.0f} GB/s of memory")


def layer_products(text: Text, kind: str) -> int:
    """Entries of the matrices of a layer for one token: projections, and the gated product or its experts."""
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

    Two for each matrix entry and token (a product and a sum), four for each number of a query and key in one attention
    score, and six for each number of a state, which is read, updated and read again.

    Args:
        tokens: of the layers.
        pairs: of a query and a key, in attention.
        logits: tokens of the head.
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
    width = vision.hidden * vision.merged
    mergers = 2.0 * vision.mergers * width * (width + shapes.text.hidden) * job.forward_patches / vision.merged
    return text_flops(shapes.text, job.row_tokens, pairs, job.completions * job.length) + mergers


def tower_flops(shapes: Shapes, patches: int) -> float:
    """Operations of the vision tower on so many patches."""
    vision = shapes.vision
    block = 4 * vision.hidden**2 + vision.matrices * vision.hidden * vision.intermediate
    entries = vision.blocks * block + vision.hidden * vision.patch_values
    in_reach = vision.full_blocks * FRAME_PATCHES + (vision.blocks - vision.full_blocks) * vision.window
    return 2.0 * entries * patches + 4.0 * vision.hidden * patches * in_reach


def seconds_by_phase(shapes: Shapes, weights: ModelWeights, job: Job, rates: Rates) -> dict[str, float]:
    """Seconds of a whole step by phase. Decoding reads all weights and the cache for each token, so it goes by bytes.

    A backward pass has twice the operations of its forward, and with checkpointing the forward once more.
    """
    micro, text, prompts = job.micro_batches, shapes.text, job.prompts * job.micro_batches
    forward = forward_flops(shapes, job) * micro / rates.flops
    tower = tower_flops(shapes, job.patches * job.prompts) * micro / rates.flops
    passes = 1 if job.encoded else (4 if job.reference != "none" else 3) - job.warmup
    seconds = {"vision": tower * (1 if job.encoded or job.shared else job.group) * passes}
    if not job.warmup:
        prefill = text_flops(text, prompts * job.tokens, prompts * job.tokens**2 / 2, prompts) / rates.flops
        batches = -(-prompts // job.sampled_together)
        decoding = batches * job.length * (weights.held + cache_bytes(text, job)) / rates.bytes
        seconds |= {"sampling": prefill + decoding, "reference": forward if job.reference != "none" else 0.0}
    return seconds | {
        "policy": forward,
        "backward": forward * (3 if job.checkpointing else 2),
        "update": (2 * weights.trained_held + 8 * weights.trained) * 2 / rates.bytes,
    }
