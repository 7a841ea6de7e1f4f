"""The options of a run's beginning and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qwenvl.option import Options, option


@dataclass
class RunOptions(Options):
    """What a run goes on from, and what ends it."""

    resume: str = option(
        "never",
        "What the run goes on from. never: it is a new one, and an --output_dir with checkpoints is refused. auto: the "
        "newest whole checkpoint of --output_dir, or the beginning where there is none, so that a queue system can "
        "start the same command again. Else the folder of a checkpoint.",
    )
    overwrite_output_dir: bool = option(
        False,
        "Let a new run replace the model and the rows of an earlier one in --output_dir. Checkpoints are never "
        "replaced: delete them, or give another folder.",
    )
    save_on_signal: float = option(
        600,
        "Seconds that the run has, after SIGTERM, SIGHUP or SIGUSR1, to finish its step and to save a checkpoint. It "
        "then ends with status 0. 0: a signal ends it at once, without a checkpoint.",
        least=0,
    )
    stall_timeout: float = option(
        60,
        "Minutes without progress after which the run ends, and says where each of its threads stands. Progress is a "
        "phase of a step that begins, a token that is drawn, a micro-batch, a batch of evaluation or a checkpoint. 0: "
        "it waits for ever.",
        least=0,
    )
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop",
        "What becomes of an optimizer step whose loss or gradients are NaN or infinite. stop: the run ends. skip: the "
        "step changes no weight and is counted, and after three in a row the run ends. Either way nonfinite/ in the "
        "run folder has its records, completions and seed.",
    )

    def problems(self) -> Iterator[str]:
        if self.resume == "never":
            return
        if getattr(self, "resume_from_checkpoint", None):
            yield "--resume and --resume_from_checkpoint name what the run goes on from twice: leave one of them out"
        if self.overwrite_output_dir:
            yield f"--overwrite_output_dir has no effect with --resume {self.resume}: leave one of the two out"
