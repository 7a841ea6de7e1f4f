"""Which share of weights, gradients and optimizer state is in each of several processes."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.plan.job import Job


@dataclass(frozen=True)
class Shares:
    """Of one process.

    Attributes:
        weights: while a forward or backward pass of training runs.
        gradients, optimizer: of those of the whole model.
        buckets: gradients that are held once more to be sent.
    """

    weights: float = 1.0
    gradients: float = 1.0
    optimizer: float = 1.0
    buckets: float = 0.0


def shares_of(job: Job) -> Shares:
    """ZeRO-2 splits gradients and optimizer state, ZeRO-3 and FSDP the weights too (arXiv:1910.02054, section 5).

    Data-parallel processes hold the gradients once more, in the buckets that they are sent in.
    """
    part = 1.0 / job.processes
    if job.engine == "zero2":
        return Shares(gradients=part, optimizer=part)
    if job.engine in ("zero3", "fsdp"):
        return Shares(weights=part, gradients=part, optimizer=part)
    if job.engine == "ddp" and job.processes > 1:
        return Shares(buckets=1.0)
    return Shares()
