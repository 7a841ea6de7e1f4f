"""The bytes of a step, part by part and phase by phase, and the flags that lower them.

Activations are counted operation by operation in the model classes of transformers: autograd saves the inputs of a
product whose weights or other factor learn, and both factors of a product of activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

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
    "adamw": 8.0,
    "adamw_8bit": 2 * _QUANTIZED,
    "adamw_bnb_8bit": 2 * _QUANTIZED,
    "adamw_torch_8bit": 2 * _QUANTIZED,
    "adamw_torch_4bit": 1 + 2 * 4 / 128,
    "ademamix": 12.0,
    "ademamix_8bit": 2 * _QUANTIZED + 4,
    "lion": 4.0,
    "lion_8bit": _QUANTIZED,
    "adafactor": 0.01,
    "sgd": 0.0,
    "adagrad": 4.0,
    "rmsprop": 4.0,
    "rmsprop_bnb_8bit": _QUANTIZED,
}
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
    weight_share, _, state_share = shares_of(job)
    resident = {
        "weights": round(weights.held * weight_share),
        "optimizer": round(optimizer_bytes(weights, job) * state_share),
        "reference": reference_bytes(weights, job),
        "teacher": job.teacher[1] if job.teacher and not job.teacher_leaves else 0,
        "features": features_bytes(shapes.vision, job, job.prompts),
    }
    training = _Training(shapes, weights, job, resident)
    return [*_sampling_phases(shapes, weights, job, resident), *training.phases()]


def _phase(name: str, resident: dict[str, int], parts: dict[str, int]) -> Phase:
    """A phase with what is resident, and with ``parts`` beside it or in its place."""
    present = resident | parts
    return Phase(name, {part: present.get(part, 0) for part in PARTS})


def _sampling_phases(
    shapes: Shapes, weights: ModelWeights, job: Job, resident: dict[str, int]
) -> Iterator[Phase]:
    """The phases of ``SAMPLING``. Where servers sample, it is the vision tower alone."""
    text = shapes.text
    vision = shapes.vision
    pixels = job.patches * job.prompts * vision.patch_values  # bytes, of a micro-batch
    running = tower_bytes(vision, job, job.patches * job.prompts) + pixels
    yield _phase("vision", resident, {"activations": running})
    if not job.samples:
        return
    prompts = job.sampled_together
    completions = prompts * job.group
    sampled = resident | {
        "features": features_bytes(vision, job, prompts),
        "weights": weights.held,  # all of them, also where they are split: they are gathered whole
        "cache": cache_bytes(text, job),
        "one-time buffers": _cast_weights(weights, job),
    }
    rows = prompts if job.shared else completions
    prefill = forward_bytes(shapes, rows * job.tokens, rows * job.patches, job)
    yield _phase("prefill", sampled, {"activations": prefill})
    # One token of each completion: its logits, and in one layer its float32 scores, concatenated, and their softmax.
    bytes_per_logit = LOGIT_BYTES + (SORTED_BYTES if job.narrows else 0)
    logits = completions * text.vocabulary * bytes_per_logit
    scores = completions * text.heads * (job.tokens + job.length) * 3 * WIDE
    yield _phase("decoding", sampled, {"activations": scores, "logits": logits})


def _cast_weights(weights: ModelWeights, job: Job) -> int:
    """Bytes of the casts of trainable weights, which autocast caches within a pass."""
    return weights.rounded * job.products if job.products < job.stream else 0


@dataclass(frozen=True)
class _Saved:
    """Bytes that the policy's forward leaves for its backward pass.

    Attributes:
        layers: of the layers of the language model.
        after_layers: the input of the last norm, and the hidden states that enter the head.
        angles: cosines and sines of the positions.
        mergers: of the mergers of the vision tower.
        tower: of a tower that learns.
    """

    layers: int
    after_layers: int
    angles: int
    mergers: int
    tower: int

    @property
    def total(self) -> int:
        """The bytes of all of them."""
        return self.layers + self.after_layers + self.angles + self.mergers + self.tower


@dataclass(frozen=True)
class _Training:
    """The phases of a step in which the policy is trained, and what several of them have.

    Attributes:
        resident: what is in memory in each of them.
    """

    shapes: Shapes
    weights: ModelWeights
    job: Job
    resident: dict[str, int]

    @property
    def gradients(self) -> int:
        """Bytes of all gradients."""
        _, gradient_share, _ = shares_of(self.job)
        return round(self.weights.trained * WIDE * gradient_share)

    @property
    def earlier_gradients(self) -> int:
        """Bytes of the gradients of earlier micro-batches, which the present one adds to."""
        return self.gradients if self.job.micro_batches > 1 else 0

    @property
    def head_gradient(self) -> int:
        """Bytes of the gradient of the language-model head."""
        return self.weights.head * WIDE

    @property
    def cast(self) -> int:
        """Bytes of casts of weights. With checkpointing the policy's pass has none left."""
        return 0 if self.job.checkpointing else _cast_weights(self.weights, self.job)

    @property
    def logits(self) -> int:
        """Bytes of one chunk of the logits of completion tokens: ``logit_memory_gb``, or of all tokens if fewer."""
        per_token = LOGIT_BYTES * self.shapes.text.vocabulary
        chunk = min(max(1, self.job.logit_bytes // per_token), self.job.completions * self.job.length)
        return chunk * per_token

    @property
    def saved(self) -> _Saved:
        """The bytes that the policy's forward leaves for its backward pass, by what they belong to."""
        text = self.shapes.text
        job = self.job
        last_norm = job.row_tokens * _norm(text.hidden, job, 0)
        enter_head = 2 * job.completions * job.length * text.hidden * job.stream
        tower_saves = job.tower_learns and not job.encoded
        mergers, _ = merger_bytes(self.shapes.vision, job)
        return _Saved(
            layers=saved_bytes(text, text.layers, job),
            after_layers=last_norm + enter_head,
            angles=job.row_tokens * 2 * text.head * job.stream,
            mergers=mergers,
            tower=tower_saved_bytes(self.shapes.vision, job) if tower_saves else 0,
        )

    def phases(self) -> Iterator[Phase]:
        """The phases in their order."""
        if self.job.teacher is not None:
            yield self._teacher(*self.job.teacher)
        trained = self.resident | {
            "gradients": self.earlier_gradients,
            "activations": self.saved.total,
            "logits": self.logits,
        }
        yield _phase("backward", trained, {"one-time buffers": 2 * self.head_gradient + self.cast})
        if self.job.reference != "none":
            yield self._reference(trained)
        yield self._layer("last", released=())
        yield self._layer("first", released=self.shapes.text.layers[1:])
        _, merger_again = merger_bytes(self.shapes.vision, self.job)
        if merger_again:
            yield self._mergers(merger_again)
        updated = self.resident | {"gradients": self.gradients}
        # The gradient of the embeddings, which is still to be added.
        yield _phase("end of the backward pass", updated, {"one-time buffers": self.head_gradient})
        yield _phase("update of the weights", updated, {})

    def _teacher(self, shapes: Shapes, held: int) -> Phase:
        """The teacher's pass, before the policy's. The teacher encodes its media itself."""
        job = self.job
        running = forward_bytes(shapes, job.row_tokens, job.forward_patches, job)
        running += tower_bytes(shapes.vision, job, job.patches * job.prompts)
        parts = {
            "teacher": held,
            "gradients": self.earlier_gradients,
            "activations": running,
            "logits": self.logits,
        }
        return _phase("log-probs of the teacher", self.resident, parts)

    def _reference(self, trained: dict[str, int]) -> Phase:
        """The reference's pass, which runs while the policy's activations are in memory."""
        job = self.job
        running = forward_bytes(self.shapes, job.row_tokens, job.forward_patches, job)
        if not job.encoded:
            running += tower_bytes(self.shapes.vision, job, job.forward_patches)
        parts = {"activations": self.saved.total + running, "one-time buffers": self.cast}
        return _phase("log-probs of the reference", trained, parts)

    def _layer(self, name: str, released: Sequence[str]) -> Phase:
        """The backward pass of one layer.

        Args:
            released: the kinds of the layers whose backward pass is done: they have gradients and no activations.
        """
        text = self.shapes.text
        with_gradient = (len(released) + 1) * self.weights.layer + self.weights.head
        gradients = min(self.gradients, max(self.earlier_gradients, with_gradient * WIDE))
        still_saved = self.saved.total - self.saved.after_layers - saved_bytes(text, released, self.job)
        activations = still_saved + backward_bytes(text, self.job)
        parts = {"gradients": gradients, "activations": activations}
        return _phase(f"backward of the {name} layer", self.resident, parts)

    def _mergers(self, merger_again: int) -> Phase:
        """The backward pass of a merger that is computed again."""
        job = self.job
        # Gradients of the mergers' outputs, of the embeddings with them, and of the embeddings alone where they learn.
        streams = self.shapes.vision.mergers + (1 if job.rank else 2)
        of_streams = streams * job.row_tokens * self.shapes.text.hidden * job.stream
        parts = {"gradients": self.gradients, "activations": merger_again + self.saved.angles + of_streams}
        return _phase("backward of the mergers", self.resident, parts)


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
    if job.engine == "ddp" and job.processes > 1:
        return 1.0, 2.0, 1.0
    return 1.0, 1.0, 1.0


def reference_bytes(weights: ModelWeights, job: Job) -> int:
    """The reference beside the policy: a copy of the trainable weights, a whole model, or nothing.

    A copy shares the frozen tensors (``qwenvl.model.reference``), but not under ZeRO-3. Its own linear layers may be
    rounded to the type of the products. Under FSDP all of it is.
    """
    if job.reference in ("none", "adapter"):
        return 0
    if job.engine == "fsdp":
        return weights.held * job.products // job.stream
    shares_frozen = job.reference == "copy" and job.engine != "zero3"
    held = weights.trained_held if shares_frozen else weights.held
    if job.reference_rounded:
        narrower = job.stream - job.products  # bytes of a number
        held -= narrower * (weights.rounded - weights.head)  # the embedding keeps its type
    return held


def optimizer_bytes(weights: ModelWeights, job: Job) -> int:
    """The optimizer state of all trainable weights. An optimizer that is not in the table counts as AdamW.

    DeepSpeed has float32 copies of weights in half precision too (arXiv:1910.02054, section 3.1). The pages of a paged
    optimizer count: they leave the GPU only where it is full.
    """
    plain = job.optimizer.removeprefix("paged_").removesuffix("_32bit")
    known = plain if plain in STATE_BYTES else plain.split("_")[0]
    copies = 4 if job.engine in ("zero2", "zero3") and job.products == 2 else 0
    moments = STATE_BYTES.get(known, STATE_BYTES["adamw"]) + 4 * job.further_moments
    return round((moments + copies) * weights.trained)


def layer_bytes(text: Text, kind: str, job: Job) -> int:
    """The bytes that one layer saves in a training forward, without checkpointing."""
    b = job.products
    if kind == "linear_attention":
        mixer = _linear(text, job)
    else:
        mixer = job.row_tokens * _attention(text, job)
    if text.experts:
        # Input, output, gate, up product, activation and their product of each expert that a token takes.
        feed = text.chosen * (2 * text.hidden + 4 * text.expert) * b
        feed += (text.experts + 8 * text.chosen) * WIDE  # the router
        if text.shared_expert:
            feed += (4 * text.shared_expert + text.hidden) * b
    else:
        feed = 4 * text.intermediate * b  # gate, up product, activation and their product
    lora = 0
    if job.rank:  # arXiv:2106.09685
        lora = 7 * job.rank * b  # the inner numbers of seven adapters
        if b < WIDE:
            lora += text.queries * b  # attention's output is rounded once more
    norms = _norm(text.hidden, job, 3) + _norm(text.hidden, job, 2)
    return mixer + job.row_tokens * (norms + feed + lora)


def _norm(width: int, job: Job, products: int) -> int:
    """An RMS norm of one token: its float32 input, its output, and where its weight learns the normalised input.

    Args:
        products: how many take the whole output. In half precision it is rounded for each of them.
    """
    copies = products if job.products < WIDE else min(products, 1)
    normalised_input = 0 if job.rank else job.stream
    return width * (WIDE + copies * job.products + normalised_input) + WIDE


def _attention(text: Text, job: Job) -> int:
    """Full attention of one token: rotated queries and keys, values, output, log-sum-exp.

    And the norms of heads; and with a gate the gate, its queries, its sigmoid and the product. On the plain path keys
    and values are repeated for the heads that share them.
    """
    q = text.queries
    k = text.keys
    b = job.products
    total = (2 * q + 2 * k) * b if job.shared else (2 * q + k + 2 * q) * b
    total += text.heads * WIDE  # log-sum-exp
    if text.normed_heads:
        total += (q + k) * (WIDE + (0 if job.rank else b))
    if text.gated:
        total += 3 * q * b
    return total


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
    of_token = text.hidden + 2 * at.channels + 2 * at.keys + 6 * at.values + 9 * at.heads
    of_padded_token = 6 * at.keys + 3 * at.values + 5 * CHUNK * at.heads + 6 * at.heads + at.state / CHUNK
    numbers = 0.0
    for sequences, length in rows:
        padded_length = ceil(length / CHUNK) * CHUNK
        numbers += sequences * (length * of_token + padded_length * of_padded_token)
    return round(numbers * WIDE)


def saved_bytes(text: Text, layers: Sequence[str], job: Job) -> int:
    """The bytes that layers of these kinds save in a training forward. With checkpointing: the input of each layer."""
    if job.activation_offload:
        return 0
    if job.checkpointing:
        return len(layers) * job.row_tokens * text.hidden * job.stream
    return sum(layer_bytes(text, kind, job) for kind in layers)


def backward_bytes(text: Text, job: Job) -> int:
    """The bytes that the backward pass of a layer adds: gradients of its widest tensors and of the residual stream.

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
    """The bytes that a pass without gradient takes at a time: one layer, and ``embedded_bytes``.

    A layer has the residual stream and its norm, and the gate, its activation and the other half of the gated product,
    or queries, keys and values before and after the rotation.
    """
    text = shapes.text
    feed = 3 * text.intermediate
    if text.experts:
        feed = text.chosen * (text.hidden + 4 * text.expert) + 4 * text.shared_expert
    attention = 3 * text.queries + 4 * text.keys
    widest = max(attention, feed, _chunks(text.linear))
    layer = tokens * (2 * text.hidden * job.stream + (widest + text.hidden) * job.products)
    return layer + embedded_bytes(text, shapes.vision, tokens, patches, job)


def _chunks(at: LinearAttention | None) -> int:
    """Numbers of the widest operation of Gated DeltaNet for a token: matrices of CHUNK x CHUNK, and its inputs."""
    if at is None:
        return 0
    return 4 * CHUNK * at.heads + 4 * at.keys + 3 * at.values


def embedded_bytes(text: Text, vision: Vision, tokens: int, patches: int, job: Job) -> int:
    """The bytes that stay from the first layer of a forward without gradient to its last: embeddings, angles, features.

    The features are there as the merger made them and in the embeddings. Those of deeper mergers are there twice:
    transformers concatenates them over all media, which copies them.
    """
    deeper_twice = 2 * (vision.mergers - 1)
    media_tokens = patches // vision.merged
    features = media_tokens * text.hidden * (job.products + job.stream + deeper_twice * job.products)
    return tokens * (text.hidden + 2 * text.head) * job.stream + features


def cache_bytes(text: Text, job: Job) -> int:
    """Keys and values of the prompts once and of all tokens of the completions, and a state for each completion.

    A layer of linear attention has no keys: a completion has a matrix for each head and the last inputs of the
    convolution. On the plain path each completion has its prompt's keys and values too.
    """
    prompts = job.sampled_together
    completions = prompts * job.group
    tokens = (prompts if job.shared else completions) * job.tokens + completions * job.length
    keys_and_values = text.full_layers * 2 * text.keys * tokens * job.products
    if text.linear is None:
        return keys_and_values
    state = text.linear.channels * text.linear.kernel * job.products + text.linear.state * WIDE
    linear_layers = len(text.layers) - text.full_layers
    return keys_and_values + linear_layers * completions * state


def features_bytes(vision: Vision, job: Job, prompts: int) -> int:
    """The inputs of the mergers for all prompts of a step, or float32 pixels where the tower runs in every forward.

    Large media of all but ``prompts`` wait in files.
    """
    of_step = job.prompts * job.micro_batches
    on_device = min(prompts, of_step) if job.waits_on_host else of_step
    patches = job.patches * on_device
    if not job.encoded:
        return patches * vision.patch_values * WIDE
    return patches * vision.hidden * vision.mergers * job.products


def tower_bytes(vision: Vision, job: Job, patches: int) -> int:
    """The bytes that a pass of the tower without gradient takes at a time. One that runs once does ``PIECE`` patches.

    Pixels in float32 and in the type of products. Then, for a patch: the residual stream and its norm, queries, keys
    and values as they were made, rotated and in batches, and the output, twelve widths. In half precision queries and
    keys are rotated in float32, which makes it twenty. Or the widths of the inner product.
    """
    b = job.products
    pixels = vision.patch_values * (WIDE + (b if b < WIDE else 0))
    attention = (20 if b < WIDE else 12) * vision.hidden
    inside = max(attention, 3 * vision.intermediate + 3 * vision.hidden) * b
    together = min(patches, PIECE) if job.encoded else patches
    return together * (pixels + inside)


def tower_saved_bytes(vision: Vision, job: Job) -> int:
    """The bytes that a trainable tower saves in a forward. With checkpointing: the input of each block.

    For a block two norms (input and output, of RMS norms the normalised input too), queries, keys, both with the values
    as they were made, outputs twice, and the tensors of the inner product.
    """
    if job.checkpointing:
        return job.forward_patches * vision.blocks * vision.hidden * job.stream
    norms = (6 if vision.root_mean_square else 4) * vision.hidden * job.stream
    inside = (7 * vision.hidden + vision.saved_products * vision.intermediate) * job.products
    return job.forward_patches * vision.blocks * (norms + inside)


def merger_bytes(vision: Vision, job: Job) -> tuple[int, int]:
    """The bytes that mergers save in a forward, and those of the backward pass of one that is recomputed.

    They are recomputed where they learn, with checkpointing, from cached features. One merger saves, for a patch: the
    norm's input (a piece of the features is copied where there are several mergers), the normalised input or output,
    and the inner product before and after its activation, of which the backward pass has the gradients too.
    """
    tensors = 4 if vision.mergers > 1 or vision.root_mean_square else 3
    tensor = job.forward_patches * vision.hidden * job.products
    if job.checkpointing and job.encoded:
        return 0, (tensors + 2) * tensor if job.mergers_learn else 0
    if job.mergers_learn or job.tower_learns:
        return vision.mergers * tensors * tensor, 0
    return 0, 0


def remedies(shapes: Shapes, weights: ModelWeights, job: Job) -> Iterator[tuple[str, str, int]]:
    """Flags that lower the peak, their cost, and the peak in bytes with them and all earlier ones, the cheapest first.

    Each of them lowers the peak further.
    """
    peak = fullest(estimate(shapes, weights, job)).total
    prompts_per_step = job.micro_batches * job.prompts
    half_patches = job.patches // 2
    shorter = max(1, job.tokens - half_patches // shapes.vision.merged)  # tokens of a prompt with half of its frames
    candidates: tuple[tuple[str, str, dict[str, Any]], ...] = (
        (
            f"--per_device_train_batch_size 1 --gradient_accumulation_steps {prompts_per_step}",
            "nothing: the gradient is the same",
            {"prompts": 1, "micro_batches": prompts_per_step},
        ),
        ("--gradient_checkpointing True", "about a fifth more time", {"checkpointing": True}),
        (f"--rollout_token_budget {job.budgeted}", "time, in sampling alone", {"token_budget": job.budgeted}),
        (
            f"--max_prompt_length {shorter} --fit_frames True",
            "half of the frames of the longest prompts",
            {"patches": half_patches, "tokens": shorter},
        ),
    )
    for flags, costs, changes in candidates:
        changed = replace(job, **changes)
        peak_then = fullest(estimate(shapes, weights, changed)).total
        if peak_then < peak:
            job = changed
            peak = peak_then
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
