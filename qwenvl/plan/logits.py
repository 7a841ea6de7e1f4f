"""What logits take where log-probs are computed, and where tokens are drawn."""

from __future__ import annotations

from qwenvl.plan.job import Job

TRAINED_BYTES = 16
"""For a logit at the peak of its backward pass (``qwenvl.model.logprobs.BYTES_PER_LOGIT``)."""
DRAWN_BYTES = 16
"""For a logit of sampling: as the head gave it, in float32, divided by the temperature, and its log-softmax."""
SORTED_BYTES = 20
"""More with top-p: the sorted logit, its place as an int64, its softmax and the sum up to it."""


def trained_logits_bytes(vocabulary: int, job: Job) -> int:
    """Of one chunk of completion tokens: ``logit_memory_gb``, or less where there are fewer tokens."""
    chunk = max(1, job.logit_bytes // (TRAINED_BYTES * vocabulary))
    return min(chunk, job.completions * job.length) * vocabulary * TRAINED_BYTES


def drawn_logits_bytes(vocabulary: int, job: Job) -> int:
    """Of the tokens that are drawn at a time, one for each completion."""
    each = DRAWN_BYTES + (SORTED_BYTES if job.narrows else 0)
    return job.drawn_together * job.group * vocabulary * each
