"""What is kept of prompts and completions while completions are sampled."""

from __future__ import annotations

from qwenvl.plan.job import Job
from qwenvl.plan.shapes import Text

WIDE = 4


def cache_bytes(text: Text, job: Job) -> int:
    """Keys and values of the prompts once and of all tokens of the completions, and a state for each completion.

    Layers of linear attention keep no keys: a completion has a matrix for each head and the last inputs of the
    convolution, however long it is. On the plain path each completion has its prompt's keys and values too.
    """
    p, b = job.drawn_together, job.precision.products
    prompts = p * job.tokens * (1 if job.shared else job.group)
    keys = text.full_layers * 2 * text.keys * (prompts + p * job.group * job.length) * b
    if text.linear is None:
        return keys
    at = text.linear
    state = at.channels * at.kernel * b + at.state * WIDE
    return keys + (len(text.layers) - text.full_layers) * p * job.group * state


def scores_bytes(text: Text, job: Job) -> int:
    """What attention of one layer holds for one token of each completion: scores over its prompt and itself in float32,
    put together and their softmax."""
    rows = job.drawn_together * job.group * text.heads
    return rows * (job.tokens + job.length) * 3 * WIDE
