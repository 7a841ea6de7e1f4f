"""How much memory the optimizer keeps."""

from __future__ import annotations

from qwenvl.plan.job import Job
from qwenvl.plan.weights import Weights

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
}
"""Bytes of state for each trained float32 weight. AdamW keeps two float32 moments (arXiv:1711.05101), Lion one
(arXiv:2302.06675), Adafactor sums of rows and columns (arXiv:1804.04235), 8-bit ones a byte (arXiv:2110.02861)."""


def optimizer_bytes(weights: Weights, job: Job) -> int:
    """Of the states of all weights that learn, for an optimizer by the Trainer's name. An unknown one counts as AdamW.

    DeepSpeed keeps float32 copies of weights in half precision beside them (arXiv:1910.02054, section 3.1). The states
    of a paged optimizer are counted too: they leave the GPU only where it is full.
    """
    plain = job.optimizer.removeprefix("paged_").removesuffix("_32bit")
    known = plain if plain in STATE_BYTES else plain.split("_")[0]
    copies = 4 if job.engine in ("zero2", "zero3") and job.precision.products == 2 else 0
    return round((STATE_BYTES.get(known, STATE_BYTES["adamw"]) + copies) * weights.trained)
