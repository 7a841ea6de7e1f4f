"""The stage *count*: how many completions and tokens a step has, which its loss divides by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate.utils import gather_object, reduce
from torch import Tensor

from qwenvl.grpo.loss import StepCounts
from qwenvl.grpo.surrogates import entropy_floor
from qwenvl.step.types import Experience, StepContext, TrainStep


@dataclass(frozen=True)
class Count:
    """Makes the experiences of a step the first step on them.

    Attributes:
        device: where processes exchange numbers.
        reads_entropies: a flag reads the entropies that tokens were sampled at.
        top_entropy: the share of tokens, those of the highest entropy, that the policy term takes. 1: all.

    Raises:
        ValueError: the flags need entropies that the engine did not give.
    """

    device: torch.device
    reads_entropies: bool
    top_entropy: float

    def __call__(self, experiences: Sequence[Experience], step: StepContext) -> TrainStep:
        """The step. All processes must call this together."""
        entropy = None
        floor = None
        if self.reads_entropies:
            entropies = entropies_of_step(experiences)
            if len(entropies):
                entropy = entropies.double().mean().item()
            if self.top_entropy < 1:
                floor = entropy_floor(entropies, self.top_entropy)
        own = torch.tensor(
            [
                sum(each.completions for each in experiences),
                sum(int(each.loss_mask.sum()) for each in experiences),
                sum(len(each.batch) > 0 for each in experiences),
                len(experiences),
            ],
            device=self.device,
        )
        with step.meter.wait("time/wait_s"):  # for processes that are still sampling
            # Every process divides by the same numbers: the loss is a mean over the whole optimizer step.
            completions, tokens, micro_batches, passes = reduce(own, "sum").tolist()
        counts = StepCounts(completions, tokens, micro_batches, passes, entropy)
        return TrainStep(tuple(experiences), counts, entropy_floor=floor)


def entropies_of_step(experiences: Sequence[Experience]) -> Tensor:
    """Entropies at sampling time of all tokens of ``loss_mask``, of all processes, in one row.

    Raises:
        ValueError: the engine gave none.
    """
    own = []
    for each in experiences:
        entropies = each.rollout.entropies
        if entropies is not None:
            own.append(entropies[each.loss_mask].cpu())
        elif each.loss_mask.any():
            raise ValueError(
                "--top_entropy_quantile and --entropy_target need the entropies of the distributions that tokens are "
                "sampled from, and this engine does not give them: take one that does, or leave the flags out"
            )
    by_process = gather_object([own])
    parts = [torch.zeros(0)]  # torch.cat takes no empty list
    for of_process in by_process:
        parts += of_process
    return torch.cat(parts)
