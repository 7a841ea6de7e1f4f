"""What the language model keeps of a forward for its backward pass, and what a layer needs while it runs.

Counted operation by operation in the model classes of transformers: autograd keeps the inputs of a product whose
weights or other factor learn, and both factors of a product of activations. Widths are those of ``Text``.
"""

from __future__ import annotations

from qwenvl.plan.job import Job
from qwenvl.plan.shapes import Experts, Linear, Text, Vision

CHUNK = 64
"""Tokens that Gated DeltaNet computes together (arXiv:2412.06464). Each makes matrices of CHUNK x CHUNK per head."""
WIDE = 4
"""Bytes of float32, which norms, states and the log-sum-exp of attention are kept in."""


def layer_bytes(text: Text, kind: str, job: Job) -> int:
    """What one layer keeps of a training forward, without checkpointing."""
    tokens, b = job.row_tokens, job.precision.products
    mixer = _linear(text, job) if kind == "linear_attention" else tokens * _attention(text, job)
    feed = _mixture(text.experts, text.hidden, b) if text.experts else 4 * text.intermediate * b
    return mixer + tokens * round(_norm(text.hidden, job, 3) + _norm(text.hidden, job, 2) + feed + _adapters(text, job))


def saved_bytes(text: Text, job: Job) -> int:
    """What all layers keep of a training forward. It grows with P L + N T, for a prompt is computed once.

    With checkpointing a layer keeps what enters it alone. ``activation_offload`` moves it to the host.
    """
    if job.activation_offload:
        return 0
    if job.checkpointing:
        return len(text.layers) * job.row_tokens * text.hidden * job.precision.stream
    return sum(layer_bytes(text, kind, job) for kind in text.layers)


def before_bytes(text: Text, job: Job) -> int:
    """What is kept before the layers: angles. The embeddings are what enters the first layer, which keeps them."""
    return job.row_tokens * 2 * text.head * job.precision.stream


def after_bytes(text: Text, job: Job) -> int:
    """What is kept after the layers: what the last norm needs, and the hidden states that meet the head."""
    hidden = 2 * job.completions * job.length * text.hidden * job.precision.stream
    return round(job.row_tokens * _norm(text.hidden, job, 0) + hidden)


def embedded_bytes(text: Text, vision: Vision, tokens: int, patches: int, job: Job) -> int:
    """What a forward holds besides, from its first layer to its last: embeddings with features in them, and angles.

    And the features themselves, as the merger made them and as they were put there. What deeper mergers add to deeper
    layers is there twice: transformers joins what it has of all media, which copies it.
    """
    p, seen = job.precision, patches // vision.merged
    twice = 2 * (vision.mergers - 1)
    of_features = seen * text.hidden * (p.products + p.stream + twice * p.products)
    return tokens * (text.hidden + 2 * text.head) * p.stream + of_features


def deepest_bytes(text: Text, job: Job) -> int:
    """The most that one layer keeps: what checkpointing computes again at a time."""
    return max(layer_bytes(text, kind, job) for kind in set(text.layers))


def backward_bytes(text: Text, job: Job) -> int:
    """What the backward pass of a layer holds beside what the forward kept: gradients of the widest tensors.

    Of a gated product three of its width at a time, of a mixture as many for each expert of a token, and the gradient
    of the residual stream.
    """
    width = text.experts.chosen * 3 * text.experts.width if text.experts else 3 * text.intermediate
    width = max(width, 3 * text.queries, _chunks(text.linear) if text.linear else 0)
    return job.row_tokens * (width * job.precision.products + text.hidden * job.precision.stream)


def forward_bytes(text: Text, tokens: int, job: Job) -> int:
    """What a layer holds at a time in a pass without gradient over so many tokens.

    The residual stream and its norm, and the gate, its activation and the other half of the gated product, or queries,
    keys and values before and after the rotation.
    """
    b = job.precision.products
    attention = 3 * text.queries + 4 * text.keys
    if text.experts:
        feed = text.experts.chosen * (text.hidden + 4 * text.experts.width) + 4 * text.experts.shared
    else:
        feed = 3 * text.intermediate
    widest = max(attention, feed, _chunks(text.linear) if text.linear else 0)
    return tokens * (2 * text.hidden * job.precision.stream + (widest + text.hidden) * b)


def _norm(width: int, job: Job, products: int) -> float:
    """Bytes of a root-mean-square norm for a token: its input in float32, and its output as products take it. Where its
    weight learns, the normalised input too.

    Args:
        products: that take the whole output. In half precision it is rounded anew for each.
    """
    p = job.precision
    copies = products if p.products < WIDE else min(products, 1)
    return width * (WIDE + copies * p.products + (0 if job.rank else p.stream)) + WIDE


def _attention(text: Text, job: Job) -> int:
    """Bytes of full attention for a token: rotated queries and keys, values, output, log-sum-exp.

    Where heads are normalised, these norms. Where the output is gated, the gate with the queries that it is made with,
    its sigmoid, and the product. On the plain path keys and values are repeated for the heads that share them.
    """
    q, k, p = text.queries, text.keys, job.precision
    b = p.products
    width = (2 * q + 2 * k) * b if job.shared else (2 * q + k + 2 * q) * b
    width += text.heads * WIDE
    if text.normed_heads:
        width += (q + k) * (WIDE + (0 if job.rank else b))
    if text.gated:
        width += 3 * q * b
    return width


def _linear(text: Text, job: Job) -> int:
    """Bytes of Gated DeltaNet as transformers computes it without kernels, in float32, for prompts and completions.

    For each token: keys, queries and values before and after the convolution and its activation; norms of keys and
    queries; the gated norm at the end. For each token of a chunk: six tensors of the keys' width, three of the values',
    and five matrices of CHUNK x CHUNK for CHUNK tokens of a head. For each chunk a state. Sequences are filled up to
    whole chunks.
    """
    at = text.linear
    assert at is not None
    rows = [(job.prompts, job.tokens), (job.completions, max(2, job.length - 1))]
    if not job.shared:
        rows = [(job.completions, job.tokens + job.length)]
    each = text.hidden + 2 * at.channels + 2 * at.keys + 6 * at.values + 9 * at.heads
    filled = 6 * at.keys + 3 * at.values + 5 * CHUNK * at.heads + 6 * at.heads + at.state / CHUNK
    return round(sum(n * (length * each + _whole_chunks(length) * filled) for n, length in rows) * WIDE)


def _chunks(at: Linear) -> int:
    """Numbers that the widest step of Gated DeltaNet holds for a token: matrices of CHUNK x CHUNK, and its inputs."""
    return 4 * CHUNK * at.heads + 4 * at.keys + 3 * at.values


def _mixture(experts: Experts, hidden: int, b: int) -> int:
    """Bytes of a mixture of experts for a token: for each expert that it is sent to, its input and output, gate with
    the other half, activation and product; the router's numbers; and the expert for all tokens with its output."""
    sent = experts.chosen * (2 * hidden + 4 * experts.width) * b
    shared = (4 * experts.shared + hidden) * b if experts.shared else 0
    return sent + shared + experts.number * WIDE + 8 * WIDE * experts.chosen


def _adapters(text: Text, job: Job) -> int:
    """Bytes of LoRA (arXiv:2106.09685) for a token: the inner numbers of seven adapters, and in half precision the
    output of attention, which is rounded anew for the adapter."""
    if not job.rank:
        return 0
    again = text.queries if job.precision.products < WIDE else 0
    return (7 * job.rank + again) * job.precision.products


def _whole_chunks(length: int) -> int:
    return -(-length // CHUNK) * CHUNK
