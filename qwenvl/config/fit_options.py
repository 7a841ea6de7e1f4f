"""The options of a run that is made to fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qwenvl.option import Options, option


@dataclass
class FitOptions(Options):
    """What a run may change of itself to fit into memory."""

    auto_fit: bool = option(
        False,
        "Before the run, compute what a step with the longest prompts takes, and where that is too much take the "
        "remedies that change nothing of what is learned: smaller micro-batches with more accumulation, a lower "
        "--logit_memory_gb or --rollout_token_budget, --gradient_checkpointing. It says what it took, run.json has it, "
        "and a run that would not fit even so is refused.",
    )
    fit_memory_gb: float | None = option(
        None,
        "Memory in GB that --auto_fit fits the run into, above 0. On a CPU it counts tensors alone, not the program.",
        unset="nine tenths of the device's memory, on a CPU of what is free",
        above=0,
    )

    def problems(self) -> Iterator[str]:
        config: Any = self
        if self.fit_memory_gb is not None and not self.auto_fit:
            yield "--fit_memory_gb has no effect without --auto_fit"
        fsdp = str(getattr(config, "fsdp", None)).lower() not in ("none", "false", "[]", "")
        if self.auto_fit and (getattr(config, "deepspeed", None) or fsdp):
            yield (
                "--auto_fit has no effect with --deepspeed and --fsdp, which read their batch sizes before it: take "
                "the flags that qwenvl plan names"
            )
