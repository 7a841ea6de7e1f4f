"""What pixels, the vision tower, its features and the mergers take."""

from __future__ import annotations

from qwenvl.plan.job import Job
from qwenvl.plan.shapes import Vision

WIDE = 4
PIECE = 16_384
"""Patches that go through the tower together where it runs once (``qwenvl.model.vision.tower.PIECE``)."""


def features_bytes(vision: Vision, job: Job, prompts: int | None = None) -> int:
    """What stands in the place of pixels for all prompts of a step: what enters each merger, or float32 pixels where
    the tower runs in every forward. Of several micro-batches with large media all but ``prompts`` wait in files, and in
    a warm-up as pixels."""
    held = job.prompts * job.micro_batches
    if (job.in_files or job.taught) and prompts is not None:
        held = min(prompts, held)
    patches = job.patches * held
    if not job.encoded:
        return patches * vision.patch_values * WIDE
    return patches * vision.hidden * vision.mergers * job.precision.products


def host_bytes(vision: Vision, job: Job) -> int:
    """The drawn prompts of a step: pixels as bytes. They are in the memory of the host, large ones in files."""
    return 0 if job.in_files else job.patches * job.prompts * job.micro_batches * vision.patch_values


def waiting_bytes(vision: Vision, job: Job) -> int:
    """The pixels of a micro-batch as bytes, which the tower's device gets, or the memory of a CPU from their file."""
    return 0 if job.on_host and not job.in_files else job.patches * job.prompts * vision.patch_values


def tower_bytes(vision: Vision, job: Job, patches: int) -> int:
    """What a pass of the tower without gradient holds at a time. Where it runs once, that is a pass over ``PIECE``.

    Pixels as float32 and as products take them. Then, for a patch: the residual stream and its norm, queries, keys and
    values as they were made, rotated and put into batches, and the output, twelve widths. In half precision queries and
    keys are rotated in float32, which makes it twenty. Or the widths of the inner product.
    """
    b = job.precision.products
    pixels = vision.patch_values * (WIDE + (b if b < WIDE else 0))
    attention = (20 if b < WIDE else 12) * vision.hidden
    inside = max(attention, 3 * vision.intermediate + 3 * vision.hidden) * b
    return (min(patches, PIECE) if job.encoded else patches) * (pixels + inside)


def tower_saved_bytes(vision: Vision, job: Job) -> int:
    """What a tower that learns keeps of a forward: for a block two norms (input and output, of root-mean-square ones
    the normalised input too), queries, keys, both with the values as they were made, outputs twice, and the tensors of
    the inner product. With checkpointing what enters a block."""
    b = job.precision.products
    if job.checkpointing:
        return job.forward_patches * vision.blocks * vision.hidden * job.precision.stream
    norms = (6 if vision.root_mean_square else 4) * vision.hidden * job.precision.stream
    inside = (7 * vision.hidden + vision.saved_products * vision.intermediate) * b
    return job.forward_patches * vision.blocks * (norms + inside)


def merger_saved_bytes(vision: Vision, job: Job) -> int:
    """What mergers that learn keep of a forward. With checkpointing, those of features that are kept anyway run again
    in the backward pass and keep nothing."""
    learn = job.mergers_learn or job.tower_learns
    return 0 if not learn or _runs_again(job) else vision.mergers * _merger_bytes(vision, job)


def merger_again_bytes(vision: Vision, job: Job) -> int:
    """What the backward pass of one merger holds where it runs again: what it keeps, and the gradients of the inner
    product before and after its activation."""
    if not job.mergers_learn or not _runs_again(job):
        return 0
    return _merger_bytes(vision, job) + 2 * job.forward_patches * vision.hidden * job.precision.products


def _runs_again(job: Job) -> bool:
    return job.checkpointing and job.encoded


def _merger_bytes(vision: Vision, job: Job) -> int:
    """What one merger keeps, for a patch: the norm's input (a piece of the features is copied where there are several
    mergers), the normalised input or output, and the inner product before and after its activation."""
    tensors = 4 if vision.mergers > 1 or vision.root_mean_square else 3
    return job.forward_patches * tensors * vision.hidden * job.precision.products
