"""The end of a warm-up whose loss is low enough."""

from __future__ import annotations

from transformers import TrainerCallback, TrainerState

from qwenvl.train.display.console import say
from qwenvl.train.warmup.options import RECENT


class StopBelow(TrainerCallback):
    """Ends training when the mean loss of the last ten steps is below ``loss``, and has a checkpoint of it saved.

    It reads the losses from the log that checkpoints hold: a resumed run ends where the uninterrupted one would have.
    """

    def __init__(self, loss: float):
        self._loss = loss

    def on_train_begin(self, args, state, control, **kwargs):
        """A resumed run that has reached the loss already ends at once."""
        if self._reached(state):
            control.should_training_stop = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Looks at the last steps."""
        if "loss" in logs and self._reached(state):
            say(f"step {state.global_step}: the mean loss of {RECENT} steps is below {self._loss:g}: the warm-up ends")
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"

    def _reached(self, state: TrainerState) -> bool:
        losses = [row["loss"] for row in state.log_history if "loss" in row][-RECENT:]
        return len(losses) == RECENT and sum(losses) / RECENT < self._loss
