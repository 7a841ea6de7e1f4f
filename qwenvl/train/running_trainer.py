"""The parts of a trainer that callbacks, the model card and interruptions use.

``PolicyTrainer`` imports them, so they name its parts here and not its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn
from transformers import ProcessorMixin, TrainerCallback, TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.model.reference import Reference
from qwenvl.step.meter import Meter
from qwenvl.step.types import Experience
from qwenvl.train.run.finite_steps import FiniteSteps


class RunningTrainer(Protocol):
    """A trainer as its helpers see it. ``PolicyTrainer`` and the Trainer of transformers have these attributes."""

    args: GRPOConfig
    finite_steps: FiniteSteps
    meter: Meter
    model: nn.Module
    processing_class: ProcessorMixin
    prompt_settings: PromptSettings
    reference: Reference | None
    rewards: Any  # a rubric, or the targets of a warm-up
    state: TrainerState
    train_dataset: Any  # a GRPODataset, or one of another library

    @property
    def trained_by(self) -> str:
        """The method, for the model card."""
        ...

    @property
    def experiences(self) -> Sequence[Experience]:
        """The experiences of the optimizer step in progress, or of the last one. Empty in a warm-up."""
        ...

    def add_callback(self, callback: TrainerCallback) -> None:
        """See the Trainer."""
        ...

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """See the Trainer."""
        ...

    def save_last_step(self) -> None:
        """Save a checkpoint of the last step, unless there is one."""
        ...
