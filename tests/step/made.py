"""Small inputs of stages, made by hand."""

from __future__ import annotations

import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.step.meter import Meter
from qwenvl.step.types import Scored, StepContext
from qwenvl.types import BadSample, PromptBatch, Record, RewardBatch, RolloutBatch

RECORD = Record("r", (), "", (), (), (), {}, "data.json[0]")


def context(process: int = 0) -> StepContext:
    """The context that stages read, without a model."""
    return StepContext(
        policy=torch.nn.Module(), wrapped=None, version=None, seed=0, process=process, meter=Meter(), trainer_state=None
    )


def batch(prompts: int, bad: int = 0) -> PromptBatch:
    """Prompts of three tokens."""
    ids = torch.ones(prompts, 3, dtype=torch.long)
    failed = [BadSample(RECORD, "broken")] * bad
    return PromptBatch([RECORD] * prompts, [0] * prompts, [[]] * prompts, ids, ids, bad=failed)


def scored(
    lengths: list[int], totals: list[float] | None = None, *, cut: tuple[int, ...] = (), prompts: int = 1
) -> Scored:
    """Completions of these lengths, with these rewards of one function. Those of the rows ``cut`` end at the limit."""
    rows, width = len(lengths), max(lengths, default=1)
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.arange(width) < torch.tensor(lengths).view(rows, 1)
    reasons = ["length" if row in cut else "stop" for row in range(rows)]
    values = [0.0] * rows if totals is None else totals
    return Scored(
        batch=batch(prompts),
        prompts=PromptInputs.of_text(torch.ones(prompts, 3, dtype=torch.long)),
        rollout=RolloutBatch(ids, mask, texts=[""] * rows, finish_reasons=reasons),
        rewards=RewardBatch(("r",), (1.0,), [list(values)], torch.tensor(values)),
    )


def nothing() -> Scored:
    """A micro-batch without prompts."""
    return scored([], prompts=0)
