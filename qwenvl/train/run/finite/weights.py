"""Weights that are not finite end a run at the step that made them, before they are saved or sampled with."""

from __future__ import annotations

from transformers import TrainerCallback

from qwenvl.train.log.journal import Journal
from qwenvl.train.run.finite.report import NonFiniteError, nonfinite, write_report


class FiniteWeights(TrainerCallback):
    """Looks at every trained weight after each step, and at all weights when training begins.

    It reads the weights once, which takes milliseconds beside a step of seconds.

    Raises:
        NonFiniteError: after it has written a report into the run folder, which ``write_report`` describes.
    """

    def __init__(self, journal: Journal):
        self._journal = journal

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """The weights that training begins with, frozen ones too."""
        if bad := nonfinite(model.named_parameters()):
            name, count, size = bad[0]
            raise NonFiniteError(
                f"step {state.global_step}: before any update {_counted(name, count, size)}{_others(bad)}: the weights "
                f"that training begins with are broken; load them from the source again"
            )

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """The weights that learn, after their update and before a checkpoint of them is saved."""
        learning = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
        if bad := nonfinite(learning):
            name, count, size = bad[0]
            what = f"after its update {_counted(name, count, size)}{_others(bad)}"
            report = write_report(args, state.global_step, [what], bad, self._journal.trained_on)
            raise NonFiniteError(
                f"step {state.global_step}: {what}. No "
                f"checkpoint of this step was saved; {report} says what the step was made of. Go on from the last "
                f"checkpoint with a lower --max_grad_norm (it is {args.max_grad_norm:g}), or begin anew with a lower "
                f"--learning_rate (it is {args.learning_rate:g})"
            )


def _counted(name: str, count: int, size: int) -> str:
    return f"parameter {name} has {count} of {size} values that are NaN or infinite"


def _others(bad: list[tuple[str, int, int]]) -> str:
    return f" (and so have {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
