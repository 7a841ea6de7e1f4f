"""The bytes of a step, part by part and phase by phase, and the flags that lower them.

Activations are counted operation by operation in the model classes of transformers: autograd saves the inputs of a
product whose weights or other factor learn, and both factors of a product of activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qwenvl.plan.sizes import Job, LinearAttention, ModelWeights, Shapes, Text, Vision

PARTS = (
    "weights", "gradients", "optimizer", "reference", "teacher", "activations", "features", "cache", "logits",
    "one-time buffers",
)  # fmt: skip
"""The rows of the memory table."""
SAMPLING = ("vision", "prefill", "decoding")
"""The phases before the policy is trained."""

WIDE = 4
"""Bytes of float32: norms, states, the log-sum-exp of attention, and trainable weights with their gradients."""
CHUNK = 64
"""Tokens that Gated DeltaNet computes together (arXiv:2412.06464), by matrices of CHUNK x CHUNK for each head."""
PIECE = 16_384
"""Patches of one pass of a tower that runs once (``qwenvl.model.vision_tower.PIECE``)."""
LOGIT_BYTES = 16
"""For a logit at the peak of its backward pass (``qwenvl.model.logprobs.BYTES_PER_LOGIT``), and for one of sampling:
from the head, in float32, divided by the temperature, and its log-softmax."""
SORTED_BYTES = 20
"""More with top-p: the sorted logit, its index as an int64, its softmax and the cumulative sum."""
_QUANTIZED = 1 + 4 / 256  # bitsandbytes: a byte for each number, and a float32 for each block of 256
STATE_BYTES = {
    "adamw": 8.0, "adamw_8bit": 2 * _QUANTIZED, "adamw_bnb_8bit": 2 * _QUANTIZED, "adamw_torch_8bit": 2 * _QUANTIZED,
    "adamw_torch_4bit": 1 + 2 * 4 / 128, "ademamix": 12.0, "ademamix_8bit": 2 * _QUANTIZED + 4, "lion": 4.0,
    "lion_8bit": _QUANTIZED, "adafactor": 0.01, "sgd": 0.0, "adagrad": 4.0, "rmsprop": 4.0,
}  # fmt: skip
"""Optimizer state of each trainable weight. AdamW has two float32 moments (arXiv:1711.05101), Lion one
(arXiv:2302.06675), Adafactor sums of rows and columns (arXiv:1804.04235), 8-bit ones a byte (arXiv:2110.02861)."""


class Phase(NamedTuple):
    """A moment of the step at which memory may be fullest, with its bytes by the names of ``PARTS``."""

    name: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def fullest(phases: Iterable[Phase]) -> Phase:
    """The phase with the most bytes."""
    return max(phases, key=lambda phase: phase.total)


RESERVED = 1.16
"""Bytes that PyTorch's allocator reserves on a GPU for each byte that tensors take at the peak: blocks are rounded up,
and the pieces between them wait for tensors that fit. In the run that was compared it reserved 12.8 GB where the plan
counts 11.1 (docs/benchmarks.md, "Planned memory"), 15.3 % more."""


def reserved(peak: int) -> int:
    """The bytes that PyTorch reserves on a GPU where tensors take ``peak`` at most."""
    return round(RESERVED * peak)


def estimate(shapes: Shapes, weights: ModelWeights, job: Job) -> list[Phase]:
    """The memory of a step of ``job`` after the first step, which creates the state of the optimizer.

    Example:
        >>> fullest(estimate(Shapes.of(config), weights, Job(tokens=4000, patches=14000))).name
        'backward'
    """
    text, vision, stream = shapes.text, shapes.vision, job.stream
    share, gradient_share, state_share = shares_of(job)
    resident = {
        "weights": round(weights.held * share),
        "optimizer": round(optimizer_bytes(weights, job) * state_share),
        "reference": reference_bytes(weights, job),
        "teacher": job.teacher[1] if job.teacher and not job.teacher_leaves else 0,
        "features": features_bytes(vision, job, job.prompts),
    }
    gradients = round(weights.trained * WIDE * gradient_share)
    earlier = gradients if job.micro_batches > 1 else 0  # of the earlier micro-batches
    # Autocast caches casts of trainable leaves within a pass. With checkpointing the policy's pass has none left.
    rounded = weights.rounded * job.products if job.products < stream else 0
    cast = 0 if job.checkpointing else rounded
    head, angles = weights.head * WIDE, job.row_tokens * 2 * text.head * stream
    # Saved after the layers: the input of the last norm, and the hidden states that enter the head.
    after = job.row_tokens * _norm(text.hidden, job, 0) + 2 * job.completions * job.length * text.hidden * stream
    mergers, merger_again = merger_bytes(vision, job)
    activations = saved_bytes(text, text.layers, job) + angles + after + mergers
    if job.tower_learns and not job.encoded:
        activations += tower_saved_bytes(vision, job)

    phases = _sampling_phases(shapes, weights, job, resident, rounded)
    # One chunk of the logits of completion tokens: ``logit_memory_gb``, or less where there are fewer tokens.
    chunk = min(max(1, job.logit_bytes // (LOGIT_BYTES * text.vocabulary)), job.completions * job.length)
    logits = chunk * text.vocabulary * LOGIT_BYTES
    if job.teacher is not None:  # its pass is before the policy's. It encodes its media itself.
        theirs, held = job.teacher
        running = forward_bytes(theirs, job.row_tokens, job.forward_patches, job)
        running += tower_bytes(theirs.vision, job, job.patches * job.prompts)
        part = {"teacher": held, "gradients": earlier, "activations": running, "logits": logits}
        phases["log-probs of the teacher"] = resident | part
    trained = resident | {"gradients": earlier, "activations": activations, "logits": logits}
    phases["backward"] = trained | {"one-time buffers": 2 * head + cast}
    if job.reference != "none":  # its pass runs while the policy's activations are in memory
        running = forward_bytes(shapes, job.row_tokens, job.forward_patches, job)
        running += 0 if job.encoded else tower_bytes(vision, job, job.forward_patches)
        part = {"activations": activations + running, "one-time buffers": cast}
        phases["log-probs of the reference"] = trained | part
    for name, released in (("last", ()), ("first", text.layers[1:])):  # by the layers whose backward pass is done
        numbers = (len(released) + 1) * weights.layer + weights.head
        held = activations - after - saved_bytes(text, released, job) + backward_bytes(text, job)
        part = {"gradients": min(gradients, max(earlier, numbers * WIDE)), "activations": held}
        phases[f"backward of the {name} layer"] = resident | part
    if merger_again:  # gradients of the mergers' outputs, of the embeddings with them, of learning embeddings alone
        streams = (vision.mergers + (1 if job.rank else 2)) * job.row_tokens * text.hidden * stream
        part = {"gradients": gradients, "activations": merger_again + angles + streams}
        phases["backward of the mergers"] = resident | part
    updated = resident | {"gradients": gradients}
    phases["end of the backward pass"] = updated | {"one-time buffers": head}  # the embeddings' gradient, to be added
    phases["update of the weights"] = updated
    return [Phase(name, {part: of.get(part, 0) for part in PARTS}) for name, of in phases.items()]


def _sampling_phases(
    shapes: Shapes, weights: ModelWeights, job: Job, resident: dict[str, int], rounded: int
) -> dict[str, dict[str, int]]:
    text, vision, prompts = shapes.text, shapes.vision, job.sampled_together
    pixels = job.patches * job.prompts * vision.patch_values  # bytes, of a micro-batch
    running = tower_bytes(vision, job, job.patches * job.prompts) + pixels
    phases = {"vision": resident | {"activations": running}}
    if not job.samples:
        return phases
    sampled = resident | {
        "features": features_bytes(vision, job, prompts),
        "weights": weights.held,  # all of them, also where they are split: they are gathered whole
        "cache": cache_bytes(text, job),
        "one-time buffers": rounded,
    }
    rows = prompts * (1 if job.shared else job.group)
    # Of one token of each completion: its logits, and in one layer its float32 scores, concatenated, and their softmax.
    logits = prompts * job.group * text.vocabulary * (LOGIT_BYTES + (SORTED_BYTES if job.narrows else 0))
    scores = prompts * job.group * text.heads * (job.tokens + job.length) * 3 * WIDE
    phases["prefill"] = sampled | {"activations": forward_bytes(shapes, rows * job.tokens, rows * job.patches, job)}
    phases["decoding"] = sampled | {"activations": scores, "logits": logits}
    return phases


def shares_of(job: Job) -> tuple[float, float, float]:
    """The shares of weights, gradients and optimizer state in each process, while it trains.

    ZeRO-2 splits gradients and optimizer state, ZeRO-3 and FSDP the weights too (arXiv:1910.02054, section 5). DDP has
    the gradients once more, in the buckets of its all-reduce.
    """
    part = 1.0 / job.processes
    if job.engine in ("zero3", "fsdp"):
        return part, part, part
    if job.engine == "zero2":
        return 1.0, part, part
    return 1.0, 2.0 if job.engine == "ddp" and job.processes > 1 else 1.0, 1.0


def reference_bytes(weights: ModelWeights, job: Job) -> int:
    """The reference beside the policy: a copy of the trainable weights, a whole model, or nothing.

    A copy shares the frozen tensors (``qwenvl.model.reference``), but not under ZeRO-3. Its own linear layers may be
    rounded to the type of the products. Under FSDP all of it is.
    """
    if job.reference in ("none", "adapter"):
        return 0
    if job.engine == "fsdp":
        return weights.held * job.products // job.stream
    held = weights.trained_held if job.reference == "copy" and job.engine != "zero3" else weights.held
    narrower = (job.stream - job.products) * job.reference_rounded
    return held - narrower * (weights.rounded - weights.head)  # the embedding keeps its type


def optimizer_bytes(weights: ModelWeights, job: Job) -> int:
    """The optimizer state of all trainable weights. An optimizer that is not in the table counts as AdamW.

    DeepSpeed has float32 copies of weights in half precision too (arXiv:1910.02054, section 3.1). The pages of a paged
    optimizer count: they leave the GPU only where it is full.
    """
    plain = job.optimizer.removeprefix("paged_").removesuffix("_32bit")
    known = plain if plain in STATE_BYTES else plain.split("_")[0]
    copies = 4 if job.engine in ("zero2", "zero3") and job.products == 2 else 0
    return round((STATE_BYTES.get(known, STATE_BYTES["adamw"]) + copies) * weights.trained)


def layer_bytes(text: Text, kind: str, job: Job) -> int:
    """What one layer saves in a training forward, without checkpointing."""
    tokens, b = job.row_tokens, job.products
    mixer = _linear(text, job) if kind == "linear_attention" else tokens * _attention(text, job)
    if not text.experts:
        feed = 4 * text.intermediate * b
    else:  # each expert's input, output, gate, up product, activation and their product; the router; the shared expert
        feed = text.chosen * (2 * text.hidden + 4 * text.expert) * b + (text.experts + 8 * text.chosen) * WIDE
        feed += (4 * text.shared_expert + text.hidden) * b if text.shared_expert else 0
    # LoRA (arXiv:2106.09685): the inner numbers of seven adapters, and attention's output rounded once more.
    lora = (7 * job.rank + (text.queries if b < WIDE else 0)) * b if job.rank else 0
    return mixer + tokens * round(_norm(text.hidden, job, 3) + _norm(text.hidden, job, 2) + feed + lora)


def _norm(width: int, job: Job, products: int) -> int:
    """An RMS norm of one token: its float32 input, its output, and where its weight learns the normalised input.

    Args:
        products: how many take the whole output. In half precision it is rounded for each of them.
    """
    p = job
    copies = products if p.products < WIDE else min(products, 1)
    return width * (WIDE + copies * p.products + (0 if job.rank else p.stream)) + WIDE


def _attention(text: Text, job: Job) -> int:
    """Full attention of one token: rotated queries and keys, values, output, log-sum-exp.

    And the norms of heads; and with a gate the gate, its queries, its sigmoid and the product. On the plain path keys
    and values are repeated for the heads that share them.
    """
    q, k, b = text.queries, text.keys, job.products
    width = (2 * q + 2 * k) * b if job.shared else (2 * q + k + 2 * q) * b
    norms = (q + k) * (WIDE + (0 if job.rank else b)) if text.normed_heads else 0
    return width + text.heads * WIDE + norms + (3 * q * b if text.gated else 0)


def _linear(text: Text, job: Job) -> int:
    """Gated DeltaNet of all prompts and completions, as transformers computes it without kernels, in float32.

    For each token: keys, queries and values before and after the convolution and its activation; norms of keys and
    queries; the gated norm at the end. For each token of a chunk: six tensors of the keys' width, three of the values',
    and five matrices of CHUNK x CHUNK for CHUNK tokens of a head. For each chunk a state. Sequences are padded to
    whole chunks.
    """
    at = text.linear
    assert at is not None
    rows = [(job.prompts, job.tokens), (job.completions, max(2, job.length - 1))]
    if not job.shared:
        rows = [(job.completions, job.tokens + job.length)]
    each = text.hidden + 2 * at.channels + 2 * at.keys + 6 * at.values + 9 * at.heads
    padded = 6 * at.keys + 3 * at.values + 5 * CHUNK * at.heads + 6 * at.heads + at.state / CHUNK
    return round(sum(n * (length * each + -(-length // CHUNK) * CHUNK * padded) for n, length in rows) * WIDE)


def saved_bytes(text: Text, layers: Sequence[str], job: Job) -> int:
    """What layers of these kinds save in a training forward. With checkpointing it is the input of each layer."""
    if job.activation_offload:
        return 0
    if job.checkpointing:
        return len(layers) * job.row_tokens * text.hidden * job.stream
    return sum(layer_bytes(text, kind, job) for kind in layers)


def backward_bytes(text: Text, job: Job) -> int:
    """What the backward pass of a layer adds: gradients of the widest tensors and of the residual stream.

    Of a gated product three of its width at a time, of a mixture three for each expert of a token. With checkpointing
    also what the layer with the most activations saves, when it is recomputed.
    """
    width = text.chosen * 3 * text.expert if text.experts else 3 * text.intermediate
    width = max(width, 3 * text.queries, _chunks(text.linear))
    gradients = job.row_tokens * (width * job.products + text.hidden * job.stream)
    if not (job.checkpointing or job.activation_offload):
        return gradients
    return gradients + max(layer_bytes(text, kind, job) for kind in set(text.layers))


def forward_bytes(shapes: Shapes, tokens: int, patches: int, job: Job) -> int:
    """What a pass without gradient takes at a time: one layer, and ``embedded_bytes``.

    A layer has the residual stream and its norm, and the gate, its activation and the other half of the gated product,
    or queries, keys and values before and after the rotation.
    """
    text, p = shapes.text, job
    feed = 3 * text.intermediate
    if text.experts:
        feed = text.chosen * (text.hidden + 4 * text.expert) + 4 * text.shared_expert
    widest = max(3 * text.queries + 4 * text.keys, feed, _chunks(text.linear))
    layer = tokens * (2 * text.hidden * p.stream + (widest + text.hidden) * p.products)
    return layer + embedded_bytes(text, shapes.vision, tokens, patches, job)


def _chunks(at: LinearAttention | None) -> int:
    """Numbers of the widest operation of Gated DeltaNet for a token: matrices of CHUNK x CHUNK, and its inputs."""
    return 4 * CHUNK * at.heads + 4 * at.keys + 3 * at.values if at else 0


def embedded_bytes(text: Text, vision: Vision, tokens: int, patches: int, job: Job) -> int:
    """What a forward without gradient has from its first layer to its last: embeddings, angles, and vision features.

    The features are there as the merger made them and in the embeddings. Those of deeper mergers are there twice:
    transformers concatenates them over all media, which copies them.
    """
    p, twice = job, 2 * (vision.mergers - 1)
    features = patches // vision.merged * text.hidden * (p.products + p.stream + twice * p.products)
    return tokens * (text.hidden + 2 * text.head) * p.stream + features


def cache_bytes(text: Text, job: Job) -> int:
    """Keys and values of the prompts once and of all tokens of the completions, and a state for each completion.

    A layer of linear attention has no keys: a completion has a matrix for each head and the last inputs of the
    convolution. On the plain path each completion has its prompt's keys and values too.
    """
    p, b = job.sampled_together, job.products
    prompts = p * job.tokens * (1 if job.shared else job.group)
    keys = text.full_layers * 2 * text.keys * (prompts + p * job.group * job.length) * b
    if text.linear is None:
        return keys
    state = text.linear.channels * text.linear.kernel * b + text.linear.state * WIDE
    return keys + (len(text.layers) - text.full_layers) * p * job.group * state


def features_bytes(vision: Vision, job: Job, prompts: int) -> int:
    """The inputs of the mergers for all prompts of a step, or float32 pixels where the tower runs in every forward.

    Large media of all but ``prompts`` wait in files.
    """
    whole = job.prompts * job.micro_batches
    patches = job.patches * (min(prompts, whole) if job.waits_on_host else whole)
    if not job.encoded:
        return patches * vision.patch_values * WIDE
    return patches * vision.hidden * vision.mergers * job.products


def tower_bytes(vision: Vision, job: Job, patches: int) -> int:
    """What a pass of the tower without gradient takes at a time. A tower that runs once does ``PIECE`` patches.

    Pixels in float32 and in the type of products. Then, for a patch: the residual stream and its norm, queries, keys
    and values as they were made, rotated and in batches, and the output, twelve widths. In half precision queries and
    keys are rotated in float32, which makes it twenty. Or the widths of the inner product.
    """
    b = job.products
    pixels = vision.patch_values * (WIDE + (b if b < WIDE else 0))
    attention = (20 if b < WIDE else 12) * vision.hidden
    inside = max(attention, 3 * vision.intermediate + 3 * vision.hidden) * b
    return (min(patches, PIECE) if job.encoded else patches) * (pixels + inside)


def tower_saved_bytes(vision: Vision, job: Job) -> int:
    """What a trainable tower saves in a forward. With checkpointing it is the input of each block.

    For a block two norms (input and output, of RMS norms the normalised input too), queries, keys, both with the values
    as they were made, outputs twice, and the tensors of the inner product.
    """
    if job.checkpointing:
        return job.forward_patches * vision.blocks * vision.hidden * job.stream
    norms = (6 if vision.root_mean_square else 4) * vision.hidden * job.stream
    inside = (7 * vision.hidden + vision.saved_products * vision.intermediate) * job.products
    return job.forward_patches * vision.blocks * (norms + inside)


def merger_bytes(vision: Vision, job: Job) -> tuple[int, int]:
    """What mergers save in a forward, and what the backward pass of one merger takes where it is recomputed.

    They are recomputed where they learn, with checkpointing, from cached features. One merger saves, for a patch: the
    norm's input (a piece of the features is copied where there are several mergers), the normalised input or output,
    and the inner product before and after its activation, of which the backward pass has the gradients too.
    """
    tensors, each = 4 if vision.mergers > 1 or vision.root_mean_square else 3, vision.hidden * job.products
    if job.checkpointing and job.encoded:
        return 0, job.forward_patches * (tensors + 2) * each if job.mergers_learn else 0
    learn = job.mergers_learn or job.tower_learns
    return vision.mergers * job.forward_patches * tensors * each if learn else 0, 0


def remedies(shapes: Shapes, weights: ModelWeights, job: Job) -> Iterator[tuple[str, str, int]]:
    """Flags that lower the peak, their cost, and the peak in bytes with them and all earlier ones, the cheapest first.

    Each of them lowers the peak further.
    """
    peak, half = fullest(estimate(shapes, weights, job)).total, job.patches // 2
    micro, tokens = job.micro_batches * job.prompts, max(1, job.tokens - half // shapes.vision.merged)
    for flags, costs, changes in (
        (
            f"--per_device_train_batch_size 1 --gradient_accumulation_steps {micro}",
            "nothing: the gradient is the same",
            {"prompts": 1, "micro_batches": micro},
        ),
        ("--gradient_checkpointing True", "about a fifth more time", {"checkpointing": True}),
        (f"--rollout_token_budget {job.budgeted}", "time, in sampling alone", {"token_budget": job.budgeted}),
        (
            f"--max_prompt_length {tokens} --fit_frames True",
            "half of the frames of the longest prompts",
            {"patches": half, "tokens": tokens},
        ),
    ):
        changed = replace(job, **changes)  # type: ignore[arg-type]
        if (lower := fullest(estimate(shapes, weights, changed)).total) < peak:
            job, peak = changed, lower
            yield flags, costs, peak


def amount(size: float) -> str:
    """Bytes for people.

    Example:
        >>> amount(3.2e9), amount(4.5e6)
        ('3.20 GB', '4.5 MB')
    """
    return f"{size / 1e9:.2f} GB" if abs(size) >= 1e8 else f"{size / 1e6:.1f} MB"


def memory_lines(phases: Sequence[Phase]) -> Iterator[str]:
    """The memory table: the fullest phase before training (sampling, else the vision tower) and that of training."""
    before = "sampling" if any(phase.name == "prefill" for phase in phases) else "vision"
    sampled = fullest(phase for phase in phases if phase.name in SAMPLING)
    trained = fullest(phase for phase in phases if phase.name not in SAMPLING)
    yield f"{'':18}{before:>12}{'training':>12}"
    for part in PARTS:
        if sampled.parts[part] or trained.parts[part]:
            yield f"{part:18}{amount(sampled.parts[part]):>12}{amount(trained.parts[part]):>12}"
    yield f"{'in all':18}{amount(sampled.total):>12}{amount(trained.total):>12}   fullest: {fullest(phases).name}"
