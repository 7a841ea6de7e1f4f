"""A whole optimizer step of this library and of TRL, in turn, on the same clips.

    pip install trl
    python scripts/bench/against_trl.py

Same checkpoint, group, completion length, temperature, beta and float32, one prompt per step, frozen vision tower, no
gradient checkpointing (faster for both). TRL drops video, so it is given as many images as the clip has temporal
patches, of the same size: the same number of vision tokens. A step is all that happens between the ends of two steps:
reading and decoding, sampling, rewards, reference, policy, backward, update, logging.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback

from qwenvl import GRPOConfig, GRPOTrainer
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import save_tiny
from qwenvl.model.loading import apply_tuning
from qwenvl.model.options import TuneOptions

HEIGHT, WIDTH, TOKENS_PER_PICTURE = 280, 560, 200
COMMON = {"learning_rate": 1e-6, "bf16": False, "use_cpu": True, "logging_steps": 1}
COMMON |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
QUESTION = "Which of these steps does the video show? (1) pick the screw (2) insert the fan (3) fasten the screw"


class StepClock(TrainerCallback):
    """CPU seconds and seconds on the clock of every step but the first, from the end of the one before."""

    def __init__(self):
        self.spent: list[tuple[float, float]] = []
        self.last: tuple[float, float] | None = None

    def on_step_end(self, args, state, control, **kwargs):
        now = time.process_time(), time.perf_counter()
        if self.last is not None:
            self.spent.append((now[0] - self.last[0], now[1] - self.last[1]))
        self.last = now

    def median(self) -> tuple[float, float]:
        """CPU seconds, and seconds."""
        return tuple(map(statistics.median, zip(*self.spent, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt_tokens", type=int, default=2000)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="completion tokens")
    parser.add_argument(
        "--vocabulary", type=int, default=151_936, help="rows of embedding and head, random ones [%(default)s]"
    )
    parser.add_argument("--steps", type=int, default=2, help="measured steps each time a trainer has its turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"hidden_size": 256, "num_layers": 8, "vision_hidden_size": 128, "vision_depth": 4}
        checkpoint = save_tiny(Path(folder) / "checkpoint", vocabulary=options.vocabulary, **sizes)
        clips = [make_pictures(options, seed) for seed in range(options.steps + 1)]
        runs = {"this library": ours(options, Path(folder), checkpoint, clips)}
        runs["TRL"] = theirs(options, Path(folder), checkpoint, clips)
        clocks: dict[str, StepClock] = {name: StepClock() for name in runs}
        for _ in range(options.turns):
            for name, run in runs.items():
                clocks[name].last = None
                run(clocks[name])
    sizes = f"G = {options.group}, C = {options.length}, vocabulary {options.vocabulary:,}"
    print(f"\n{options.prompt_tokens} prompt tokens, {sizes}")
    for name, clock in clocks.items():
        cpu, wall = clock.median()
        print(f"  {name:13} {cpu:7.2f} CPU s  {wall:7.2f} s a step")
    print(f"  TRL / this library: {clocks['TRL'].median()[0] / clocks['this library'].median()[0]:.1f} x CPU seconds")


def make_pictures(options: argparse.Namespace, seed: int) -> list[np.ndarray]:
    """One picture per temporal patch, each shown for two frames: a square that moves over noise."""
    draw = np.random.default_rng(seed)
    pictures = []
    for k in range(max(1, options.prompt_tokens // TOKENS_PER_PICTURE)):
        picture = draw.integers(0, 60, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        picture[100:140, 20 + 40 * k : 60 + 40 * k] = (200, 180, 40)
        pictures.append(picture)
    return pictures


def ours(options: argparse.Namespace, folder: Path, checkpoint: Path, clips: list) -> Callable[[StepClock], None]:
    """A run of this library, on clips as mp4."""
    records = []
    for n, pictures in enumerate(clips):
        encode(folder / f"{n}.mp4", (picture for picture in pictures for _ in range(2)), rate=2, options={})
        turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
        records.append({"id": str(n), "video": f"{n}.mp4", "conversations": turns})
    (folder / "clips.json").write_text(json.dumps(records))

    def run(clock: StepClock) -> None:
        frames = 2 * len(clips[0])
        sampling = {
            "max_steps": options.steps + 1,
            "grpo_sample_size": options.group,
            "generation_max_length": options.length,
        }
        sampling |= {"generation_temperature": 1.0, "generation_top_p": 1.0, "per_device_train_batch_size": 1}
        video = {"video_min_frames": frames, "video_max_frames": frames, "video_max_frame_pixels": HEIGHT * WIDTH}
        video["decode_timeout"] = 0  # decode in this process, whose CPU seconds are counted
        again = {"overwrite_output_dir": True}  # each round takes the place of the one before
        args = GRPOConfig(str(folder / "ours"), grpo_alpha=1.0, grpo_beta=0.1, **sampling, **video, **COMMON, **again)
        data = str(folder / "clips.json")
        GRPOTrainer(str(checkpoint), args, data, reward_funcs=[letters], callbacks=[clock]).train()

    return run


def theirs(options: argparse.Namespace, folder: Path, checkpoint: Path, clips: list) -> Callable[[StepClock], None]:
    """A run of TRL, on the pictures."""
    import trl
    from datasets import Dataset

    content = [{"type": "image"}] * len(clips[0]) + [{"type": "text", "text": QUESTION}]
    rows = {
        "prompt": [[{"role": "user", "content": content}] for _ in clips],
        "images": [[Image.fromarray(picture) for picture in pictures] for pictures in clips],
    }

    def run(clock: StepClock) -> None:
        model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
        apply_tuning(model, TuneOptions())
        sampling = {
            "max_steps": options.steps + 1,
            "num_generations": options.group,
            "max_completion_length": options.length,
            "temperature": 1.0,
        }
        sampling |= {"per_device_train_batch_size": options.group, "beta": 0.1, "gradient_checkpointing": False}
        args = trl.GRPOConfig(output_dir=str(folder / "theirs"), **sampling, **COMMON)
        processor = AutoProcessor.from_pretrained(checkpoint)
        trainer = trl.GRPOTrainer(
            model, letters, args, train_dataset=Dataset.from_dict(rows), processing_class=processor, callbacks=[clock]
        )
        trainer.train()

    return run


def letters(completions, **columns) -> list[float]:
    """The share of letters: differs within a group of random text."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [sum(letter.isalpha() for letter in text) / max(1, len(text)) for text in texts]


if __name__ == "__main__":
    main()
