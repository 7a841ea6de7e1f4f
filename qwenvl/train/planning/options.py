"""The options of ``qwenvl plan`` itself. All others are training's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option


@dataclass
class PlanOptions(Options):
    """On what the run would be, and how it is shown."""

    warmup: bool = option(False, "Plan a warm-up (qwenvl warmup) with its flags, in the place of training by rewards.")
    gpus: int = option(1, "GPUs that the run is split among, at least 1, one process for each.", least=1)
    gpu_memory: float = option(24.0, "Memory of one GPU in GB, above 0.", above=0)
    engine: Literal["none", "ddp", "zero2", "zero3", "fsdp"] | None = option(
        None,
        "What splits the model among several GPUs, in place of --deepspeed and --fsdp.",
        unset="ddp with several GPUs",
    )
    records: int = option(
        1000, "Most records whose prompts are measured, at least 1: a random sample, the same for a seed.", least=1
    )
    device: str | None = option(
        None,
        "GPU whose nominal rates seconds are computed from: l4, a10g, rtx4090, rtx5090, a100-40, l40s, a100-80, h100, "
        "h200, b200.",
        unset="the one whose memory is nearest to --gpu_memory",
    )
    device_tflops: float | None = option(
        None,
        "Rate that training reaches there in products, in 10^12 operations a second, above 0: as you measured it.",
        unset="0.4 of the nominal rate",
        above=0,
    )
    device_gbs: float | None = option(
        None,
        "Rate that its memory is read at, in 10^9 bytes a second, above 0: as you measured it.",
        unset="0.6 of the nominal rate",
        above=0,
    )
    json: bool = option(False, "Print the numbers as JSON in place of the tables.")

    def problems(self):
        """What contradicts."""
        from qwenvl.plan.devices import DEVICES

        if self.device is not None and self.device not in DEVICES:
            yield f"--device must be one of {', '.join(DEVICES)}, got {self.device!r}"
        if self.gpus == 1 and self.engine not in (None, "none", "zero2", "zero3"):
            yield f"--engine {self.engine} has no effect with --gpus 1"
        if self.gpus > 1 and self.engine == "none":
            yield "--engine none has no effect with several GPUs: each trains with the others, by ddp at least"

    @property
    def splits(self):
        """The engine."""
        return self.engine or ("ddp" if self.gpus > 1 else "none")
