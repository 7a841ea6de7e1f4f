"""A run that takes each loss in turn on the same completions, and keeps its gradient on a policy that has moved.

Completions are fixed for each record, and the policy moves by fixed noise in place of a learning step. So runs that
divide the same prompts differently among micro-batches and processes have the same numbers before each backward pass.
"""

from __future__ import annotations

import zlib
from copy import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, TrainerCallback

from qwenvl import GRPOTrainer
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.loss import LOSSES, objective_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.types import RolloutBatch

STEPS = ("whole", "ragged")
"""The steps of an epoch: eight prompts, and the three that are left of eleven."""
LONGEST = 9
GRADIENTS = "gradients.pt"


class EngineByRecord:
    """Random tokens and lengths, seeded by the prompt: 1 to 9 tokens, so that no two ways to average agree."""

    def sample(self, model, request):
        return [self._draw(each, request.group_size) for each in request.prompts]

    def _draw(self, prompts: PromptInputs, size: int) -> RolloutBatch:
        ids, lengths = [], []
        for row, own in zip(prompts.input_ids, prompts.attention_mask.bool(), strict=True):
            generator = torch.Generator().manual_seed(zlib.crc32(str(row[own].tolist()).encode()))
            ids.append(torch.randint(0, 250, (size, LONGEST), generator=generator))
            lengths += torch.randint(1, LONGEST + 1, (size,), generator=generator).tolist()
        width = max(lengths, default=1)
        mask = torch.arange(width) < torch.tensor(lengths, dtype=torch.long)[:, None]
        tokens = torch.cat(ids)[:, :width] if ids else torch.zeros(0, 1, dtype=torch.long)
        texts = [" ".join(map(str, row[own].tolist())) for row, own in zip(tokens, mask, strict=True)]
        reasons = ["length" if length == LONGEST else "stop" for length in lengths]
        return RolloutBatch(tokens, mask, texts, reasons)


class Moves(torch.optim.SGD):
    """Moves the policy by noise after the first step on some completions, then keeps the gradient of each further one.

    After the last of them the policy is as it was.
    """

    def __init__(self, trainer: GRPOTrainer, scale: float):
        self.named = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        super().__init__(self.named.values(), lr=0.0)
        self.kept: list[dict[str, Tensor]] = []
        self._before = {name: p.detach().clone() for name, p in self.named.items()}
        self._scale, self._steps, self._window = scale, 0, trainer.args.num_iterations

    @torch.no_grad()
    def step(self, closure=None):
        if self._steps % self._window:
            # Without a picture in a step, one process has no gradient in the merger, and several have one of 0.
            found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.named.items()}
            self.kept.append(found)
        self._steps += 1
        for name, p in self.named.items():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.copy_(self._before[name] + (self._scale * noise if self._steps % self._window else 0))


class NextLoss(TrainerCallback):
    """Gives the trainer the objective of each step, with bounds that the noise exceeds on both sides."""

    def __init__(self, trainer: GRPOTrainer):
        self._trainer = trainer
        self._objectives = [trainer.objective]  # of the step that moves the policy
        for name in LOSSES:
            args = copy(trainer.args)
            args.loss_type = "cispo(bound=1.02)" if name == "cispo" else name
            args.grpo_epsilon, args.grpo_epsilon_high = 0.02, 0.03
            self._objectives.append(objective_of(args, LONGEST))

    def on_step_begin(self, args, state, control, **kwargs):
        self._trainer.objective = self._objectives[state.global_step % args.num_iterations]


def with_engine(trainer, engine) -> None:
    """Have a trainer sample with another engine."""
    trainer.kernels = replace(trainer.kernels, engine=engine)
    trainer.build_stages()


def run_every_loss(args: GRPOConfig, reward) -> None:
    """Trains, and leaves the gradients by loss and step in the run folder.

    Args:
        reward: a reward function.
    """
    model = AutoModelForImageTextToText.from_pretrained(args.model_name_or_path, dtype=torch.float64)
    trainer = GRPOTrainer(model, args, reward_funcs=[reward])
    with_engine(trainer, EngineByRecord())
    trainer.optimizer = optimizer = Moves(trainer, scale=0.01)
    trainer.add_callback(NextLoss(trainer))
    trainer.train()
    steps = [(name, step) for step in STEPS for name in LOSSES]
    if args.process_index == 0:
        torch.save(dict(zip(steps, optimizer.kept, strict=True)), Path(args.output_dir) / GRADIENTS)
