"""An evaluation that a run owes: what samples was lost in it, and the checkpoint that was saved then says so."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState

_CONTROL = "TrainerControl"  # what the Trainer calls its own part of a checkpoint's state


def is_owed(state: TrainerState) -> bool:
    """Whether the checkpoint that a run goes on from was saved in the midst of an evaluation."""
    return state.global_step > 0 and bool(_control(state).get("should_evaluate"))


def _control(state: TrainerState) -> dict[str, Any]:
    return state.stateful_callbacks.get(_CONTROL, {}).get("args", {})


class OwedEvaluation(TrainerCallback):
    """Makes an evaluation that is owed, before training goes on. Stands behind the callback that opens the run folder.

    Where the best checkpoint is looked for, the one of this step is saved again, as it is if nothing was lost.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """The evaluation of the last step."""
        if not is_owed(state):
            return
        control.should_evaluate, control.should_log = True, False
        control.should_save = bool(_control(state).get("should_save")) and args.metric_for_best_model is not None
        trainer = self._trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, None, trainer.model, None, state.epoch, ignore_keys_for_eval=None, start_time=0.0
        )
