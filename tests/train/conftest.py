"""A small data set of real clips, and trainers over the tiny model that need nothing but a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from qwenvl.demo.clips import encode
from qwenvl.run_log.log import read_metrics

PROMPT = "<video>\nWhich steps? (1) pick (2) insert (3) fasten"


def write_clip(path: Path, seed: int, frames: int = 16, size: int = 56, rate: int = 8) -> None:
    """A coloured square that moves; h264."""
    draw = np.random.default_rng(seed)
    colour, direction = draw.integers(64, 255, 3), draw.integers(-2, 3, 2)
    pictures = np.zeros((frames, size, size, 3), np.uint8)
    for k, picture in enumerate(pictures):
        y, x = (size // 2 + k * direction) % (size - 12)
        picture[y : y + 12, x : x + 12] = colour
    encode(path, pictures, rate, options={})


@pytest.fixture(scope="session")
def sop_data(tmp_path_factory) -> Path:
    """An annotation file: eight records, video (with and without meta), image and text. Read it, never write to it."""
    folder = tmp_path_factory.mktemp("sop")
    rows = []
    for n in range(6):
        write_clip(folder / f"clip-{n}.mp4", seed=n)
        row = {"id": f"clip-{n}", "video": f"clip-{n}.mp4", "conversations": turns(PROMPT, f"({n % 3 + 1}) step")}
        if n % 2:
            row["meta"] = {"frame_cnts": [8, 8], "min_frames": 1, "max_frames": 3, "dynamic_sample": True}
        rows.append(row)
    rows.append({"id": "text", "conversations": turns("What comes after (1) pick?", "(2) insert")})
    from PIL import Image

    Image.new("RGB", (64, 48), (200, 30, 30)).save(folder / "part.png")
    rows.append({"id": "image", "image": "part.png", "conversations": turns("<image>\nWhich?", "(3) fasten")})
    path = folder / "sop.json"
    path.write_text(json.dumps(rows))
    return path


def turns(prompt: str, answer: str) -> list[dict[str, str]]:
    """A conversation of one question and its solution."""
    return [{"from": "human", "value": prompt}, {"from": "gpt", "value": f"<answer>{answer}</answer>"}]


def logged(trainer, times: bool = True) -> list[dict]:
    """The rows of training of a trainer's log, with what a clock says or without."""
    rows = [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]
    clocks = () if times else ("time/", "memory/", "async/wait_s", "look/seconds")
    return [{name: value for name, value in row.items() if not name.startswith(clocks)} for row in rows]


def caught_gradients(trainer, lr: float = 0.0) -> list[dict[str, torch.Tensor]]:
    """A list to which each optimizer step of the trainer, by plain SGD, adds its gradients by name."""
    steps = []

    class Catch(torch.optim.SGD):
        def step(self, closure=None):
            steps.append({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
            super().step(closure)

    trainer.optimizer = Catch([p for p in trainer.model.parameters() if p.requires_grad], lr=lr)
    return steps


def caught_draws(trainer) -> list[tuple]:
    """A list to which each call of the engine adds (prompts, group size, sampling parameters, completions)."""
    engine, calls = trainer.kernels.engine, []
    draw = engine.draw
    trainer.logprobs.parity.probe = lambda *_: None  # whose draws are not those of training

    def drawn(model, prompts, size, params, seed, conversations=None):
        calls.append((len(prompts), size, params, draw(model, prompts, size, params, seed, conversations)))
        return calls[-1][-1]

    engine.draw = drawn
    return calls


def with_kernels(trainer, **kernels):
    """Give a trainer another engine, or another kernel of log-probs, for all of its stages. Returns the trainer."""
    trainer.kernels = replace(trainer.kernels, **kernels)
    trainer.build_stages()
    return trainer


def letters(completions: list[str], **columns) -> list[float]:
    """A reward that differs within every group of random text: the share of letters."""
    return [sum(c.isalpha() for c in text) / max(1, len(text)) for text in completions]


@pytest.fixture
def make_trainer(tiny_checkpoint, sop_data, tmp_path) -> Callable:
    """``make_trainer(**settings)`` -> GRPOTrainer on the tiny model and ``sop_data``, with a reward that varies."""
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.train.grpo_trainer import GRPOTrainer

    def make(
        *, model=None, functions=(letters,), callbacks=None, peft_config=None, datasets=(), **settings
    ) -> GRPOTrainer:
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "dataset_use": str(sop_data),
            "generation_max_length": 6,
            "grpo_sample_size": 3,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "base_interval": 0.5,
            "disable_tqdm": True,
            "save_strategy": "no",
            "use_cpu": True,
            "seed": 3,
        }
        return GRPOTrainer(
            model or str(tiny_checkpoint(initializer_range=0.1)),
            GRPOConfig(**{**defaults, **settings}),
            *datasets,
            reward_funcs=None if functions is None else list(functions),
            callbacks=callbacks,
            peft_config=peft_config,
        )

    return make


@pytest.fixture
def whole_and_resumed(make_trainer, tmp_path) -> Callable:
    """``whole_and_resumed(killed, resumed_from, **settings)``: a trainer that ran through, and one that was killed.

    Their folders are ``tmp_path / "whole"`` and ``"cut"``; the second died after optimizer step ``killed`` and went on
    from the checkpoint of step ``resumed_from``. They end with the same weights.
    """

    class Killed(Exception):
        pass

    class Killer(TrainerCallback):
        def __init__(self, step: int):
            self.step = step

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == self.step:
                raise Killed

    def run(killed: int, resumed_from: int, **settings):
        whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
        whole.train()
        cut = tmp_path / "cut"
        with pytest.raises(Killed):
            make_trainer(output_dir=str(cut), callbacks=[Killer(killed)], **settings).train()
        resumed = make_trainer(output_dir=str(cut), **settings)
        resumed.train(resume_from_checkpoint=str(cut / f"checkpoint-{resumed_from}"))
        weights = dict(resumed.model.named_parameters())
        for name, parameter in whole.model.named_parameters():
            assert torch.equal(parameter, weights[name]), name
        return whole, resumed

    return run
