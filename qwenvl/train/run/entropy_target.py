"""The weight of the entropy bonus that follows a target entropy, and its place in checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, ExportableState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.loss import Objective, StepCounts

STEP = 0.005
"""The change of the weight each time completions are sampled."""


class EntropyTarget(TrainerCallback, ExportableState):
    """Moves the weight of the entropy bonus towards a target entropy (Skywork-OR1, arXiv:2505.22312, section 4.1).

    Each time completions are sampled it compares their mean entropy e with the target. The bonus has its weight c where
    e <= target, and none where e is above. Then c grows by a step, or shrinks by one and never below 0.

    The mean is that of all processes, so that c is the same on each of them.

    Example:
        >>> control = EntropyTarget(target=0.5, step=0.25, first=1.0)
        >>> [control.weight_for(entropy) for entropy in (0.4, 0.6, 0.5)], control.coefficient
        ([1.0, 0.0, 1.0], 1.25)
    """

    def __init__(self, target: float, step: float, first: float):
        self._target, self._step, self._first = target, step, first
        self.coefficient = first

    @classmethod
    def of(cls, args: GRPOConfig) -> EntropyTarget | None:
        """By the flags. None without ``--entropy_target``."""
        if args.entropy_target is None:
            return None
        return cls(args.entropy_target, STEP, args.entropy_coef)

    def weight_for(self, entropy: float | None) -> float:
        """The weight of the bonus for a step whose completions have this entropy. The next step's moves.

        Without any token, an entropy of None, the bonus is nothing and the weight stays.
        """
        if entropy is None:
            return 0.0
        low, now = entropy <= self._target, self.coefficient
        self.coefficient = now + self._step if low else max(0.0, now - self._step)
        return now if low else 0.0

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint."""
        made = {"target": self._target, "step": self._step, "first": self._first}
        return {"args": made, "attributes": {"coefficient": self.coefficient}}

    def on_train_begin(self, args, state, control, **kwargs):
        """A resumed run continues with the weight of its checkpoint."""
        kept = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        if kept is not None:
            self.coefficient = kept["attributes"]["coefficient"]
        state.stateful_callbacks[type(self).__name__] = self.state()


def with_entropy_coef(objective: Objective, callbacks: CallbackHandler, counts: StepCounts) -> Objective:
    """The objective with the entropy bonus of a new step, if one of the callbacks is an ``EntropyTarget``.

    The callback is looked up at each step: a resumed run may have replaced it.
    """
    for callback in callbacks.callbacks:
        if isinstance(callback, EntropyTarget):
            objective = replace(objective, entropy_coef=callback.weight_for(counts.entropy))
    return objective
