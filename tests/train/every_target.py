"""A warm-up that keeps the gradient of each step and learns nothing: runs divide the same prompts differently."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from qwenvl.config.command_line import read_command
from qwenvl.config.grpo_config import WarmupConfig
from qwenvl.train.warmup.trainer import WarmupTrainer

GRADIENTS = "gradients.pt"
OF_SAMPLING = ("--grpo_sample_size", "--generation_max_length")


class Keeps(torch.optim.SGD):
    """Keeps the gradient of each step."""

    def __init__(self, model: torch.nn.Module):
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        super().__init__(self.named.values(), lr=0.0)
        self.kept: list[dict[str, Tensor]] = []

    def step(self, closure=None):
        # Without a picture in a step, one process has no gradient in the merger, and several have one of 0.
        gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.named.items()}
        self.kept.append(gradients)


def warmup_args(flags: list[str]) -> WarmupConfig:
    """The settings of a warm-up by the flags of a training. Those of sampling, which it refuses, are left out."""
    return read_command("qwenvl warmup", [flag for flag in flags if not flag.startswith(OF_SAMPLING)])


def run_every_target(flags: list[str]) -> None:
    """Warms up in float64, and leaves the gradients of its steps in the run folder.

    Args:
        flags: of the command line, see ``warmup_args``.
    """
    args = warmup_args(flags)
    model = AutoModelForImageTextToText.from_pretrained(args.model_name_or_path, dtype=torch.float64)
    trainer = WarmupTrainer(model, args)
    trainer.optimizer = Keeps(trainer.model)
    trainer.train()
    if args.process_index == 0:
        torch.save(trainer.optimizer.optimizer.kept, Path(args.output_dir) / GRADIENTS)
