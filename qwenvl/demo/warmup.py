"""The demo's warm-up: a short supervised pass, after which the model keeps the form and half guesses the content.

A real checkpoint can talk and see before GRPO begins. Random weights cannot, and a policy that never scores has nothing
to learn from. Most targets name one of the two steps only, and some pairs of steps never occur (see
`qwenvl.demo.clips`): to name both, whatever they are, is left to GRPO to find out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, ProcessorMixin

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.positions import position_rule

RECENT = 10  # steps


@dataclass(frozen=True)
class WarmupSettings:
    """How the warm-up learns.

    Attributes:
        batch_size: prompts per step.
        learning_rate: of AdamW. It rises over the first ten steps.
        stop_below: the warm-up ends when the mean loss of ten steps is below this, in nats per token. Random weights
            begin to look at the pictures sooner or later, by chance. This lets GRPO begin from about the same place.
        frame_pixels: that each frame is resized to.
        workers: processes that decode.
    """

    batch_size: int = 32
    learning_rate: float = 2e-3
    stop_below: float = 0.13
    frame_pixels: int = 56 * 56
    workers: int = 1


def warm_up(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: GRPODataset,
    settings: WarmupSettings = WarmupSettings(),
    progress: Callable[[int, int, float], None] | None = None,
) -> None:
    """Train every weight of ``model`` on at most one pass over ``dataset``, whose solutions are the targets.

    Records are taken in their order. A last batch that is not full is left out.

    Args:
        progress: called after each step with (steps done, steps at most, loss in nats per token).

    Raises:
        ValueError: ``dataset`` has fewer records than a batch.
    """
    steps = len(dataset) // settings.batch_size
    if steps == 0:
        raise ValueError(f"the warm-up needs {settings.batch_size} records, got {len(dataset)}")
    loader = DataLoader(
        dataset,
        batch_size=settings.batch_size,
        collate_fn=GRPOCollator(
            processor, video_min_frame_pixels=settings.frame_pixels, video_max_frame_pixels=settings.frame_pixels
        ),
        num_workers=settings.workers,
        drop_last=True,
    )
    builder = InputBuilder.of(position_rule(model.config), processor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / RECENT))
    recent: deque[float] = deque(maxlen=RECENT)
    model.train()
    for step, inputs in enumerate(loader, 1):
        batch = inputs["prompts"]
        ids, mask = _targets([record.solution for record in batch.records], processor.tokenizer)
        logprobs = completion_logprobs(model, builder(batch), ids, mask, temperature=1.0, logit_chunk_tokens=4096)
        loss = -logprobs.sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if progress:
            progress(step, steps, loss.item())
        recent.append(loss.item())
        if len(recent) == RECENT and sum(recent) / RECENT < settings.stop_below:
            break
    model.eval()


def _targets(texts: list[str], tokenizer) -> tuple[Tensor, Tensor]:
    """Ids and mask, rows x T, right-padded, each text with the end token."""
    rows = [torch.tensor([*tokenizer(text)["input_ids"], tokenizer.eos_token_id]) for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
    return ids, mask
