"""What a step is at: the phase whose clock runs, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.rollout.drawing import Drawing
from qwenvl.train.log.meter import Meter

PHASES = {
    **{"sample": "sampling", "logp": "log-probs", "reward": "rewards", "data_wait": "waiting for data"},
    **{"refill": "other prompts", "contrast": "other orders"},
}
"""Phases of a step by the names of their clocks, for people. The others are called as their clocks are."""
BY_MICRO_BATCH = ("time/logp_s", "time/backward_s")


def phase_name(clock: str) -> str:
    """The phase that a clock measures.

    Example:
        >>> phase_name("time/logp_s"), phase_name("time/vision_s")
        ('log-probs', 'vision')
    """
    short = clock.removeprefix("time/").removesuffix("_s")
    return PHASES.get(short, short.replace("_", " "))


@dataclass(frozen=True)
class Doing:
    """What this process does now. Other threads may ask.

    Attributes:
        meter: whose clocks run.
        drawing: of the engine. None where other processes sample.
    """

    meter: Meter
    drawing: Drawing | None = None

    def words(self) -> str:
        """The phase, with how far it is where that is known.

        Example:
            >>> meter = Meter()
            >>> meter.step(micro_batches=4)
            >>> with meter.time("time/logp_s"):
            ...     Doing(meter).words()
            'log-probs, micro-batch 1 of 4'
        """
        clock, of = self.meter.running, self.meter.micro_batches
        done = self.meter.starts["time/backward_s"]
        if clock is None:
            return "update of the weights" if of and done >= of else "between phases"
        far = ""
        if clock in BY_MICRO_BATCH and of:
            number = done if clock == "time/backward_s" else done + 1
            far = f"micro-batch {min(number, of)} of {of}" if of > 1 else ""
        elif self.drawing is not None:
            far = self.drawing.words()
        return ", ".join(part for part in (phase_name(clock), far) if part)

    def beat(self) -> tuple[int, int]:
        """Another value whenever something went on: a phase began, or tokens were drawn."""
        return self.meter.started, 0 if self.drawing is None else self.drawing.drawn
