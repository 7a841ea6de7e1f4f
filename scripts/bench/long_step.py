"""One optimizer step on one long video, watched: what ``long_video.py`` runs in a process of its own."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).resolve().parent))
from long_video import PHASES, Measured, Sizes

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import save_tiny
from qwenvl.plan.memory import after_bytes
from qwenvl.plan.remedies import Case
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.planning.case import case_of

WIDTH, HEIGHT = 640, 360
CLOCKS = {
    "time/data_wait_s": "decode",
    "time/vision_s": "vision",
    "time/sample_s": "decoding",
    "time/logp_s": "policy",
    "time/backward_s": "backward",
}
"""Phases by the clocks of the trainer. The prefill is part of ``time/sample_s`` and the reference part of
``time/logp_s``: they are told apart here."""


class Watch:
    """Peaks and seconds of phases, one of which may stand within another and is then not counted in it."""

    def __init__(self) -> None:
        self.base = memory_line("VmRSS")
        self.peaks: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._open = ["rest"]
        self._begin()

    @property
    def now(self) -> str:
        """The newest phase that has not ended."""
        return self._open[-1]

    def enter(self, name: str) -> None:
        """The phase begins."""
        self._end()
        self._open.append(name)

    def leave(self) -> None:
        """The newest phase ends, and the one around it goes on."""
        self._end()
        self._open.pop()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """The phase is what runs within."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def _end(self) -> None:
        self.peaks[self.now] = max(self.peaks.get(self.now, 0), memory_line("VmHWM"))
        self.seconds[self.now] = self.seconds.get(self.now, 0.0) + time.process_time() - self._since
        self._begin()

    def _begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._since = time.process_time()


class WatchedTrainer(GRPOTrainer):
    """Tells a watch which phase it is in."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.collector.engine.end_ids = []  # no completion ends early
        self.watch = watch = Watch()
        meter = self.meter
        start, stop, wait = meter.start, meter.stop, meter.wait

        def watched_start(name: str) -> None:
            start(name)
            if name in CLOCKS:
                watch.enter(CLOCKS[name])

        def watched_stop(name: str) -> None:
            stop(name)
            if name in CLOCKS and watch.now == CLOCKS[name]:
                watch.leave()

        @contextmanager
        def watched_wait(name: str) -> Iterator[None]:
            with wait(name), watch.within(CLOCKS.get(name, "rest")):
                yield

        meter.start, meter.stop, meter.wait = watched_start, watched_stop, watched_wait
        self.model.register_forward_pre_hook(self._begins)
        self.model.register_forward_hook(self._ends)

    def _begins(self, *unused: Any) -> None:
        if self.watch.now == "decoding" and "prefill" not in self.watch.peaks:  # the first forward of sampling
            self.watch.enter("prefill")

    def _ends(self, *unused: Any) -> None:
        if self.watch.now == "prefill":
            self.watch.leave()

    def _reference_logprobs(self, experience: Any) -> torch.Tensor | None:
        with self.watch.within("reference"):
            return super()._reference_logprobs(experience)


def measured(sizes: Sizes, folder: Path) -> Measured:
    """One step of the trainer on one long video.

    Args:
        folder: empty. It gets the clip, the checkpoint and the run.
    """
    trainer = make_trainer(sizes, folder)
    watch = trainer.watch
    trainer.train()
    watch.leave()
    drawn = trainer.queue.present[0]
    tokens, patches = drawn.input_ids.shape[1], int(drawn.video_grid_thw.prod(-1).sum())
    merged = trainer.processing_class.video_processor.merge_size**2
    case = case_of(trainer.args, trainer.model, PromptLength(tokens, patches // merged), on_host=True)
    planned = computed(case)
    phases = [name for name in PHASES if name in watch.peaks and name in planned]
    return Measured(
        tokens,
        patches,
        len(drawn.frames[0][0].indices),
        watch.base,
        max(watch.peaks.values()),
        {name: watch.peaks[name] for name in phases},
        planned,
        {name: round(watch.seconds[name], 2) for name in phases},
    )


def computed(case: Case) -> dict[str, int]:
    """Bytes of each phase by the arithmetic of ``qwenvl plan``.

    And what it leaves out: pixels three times while they are decoded (frames, patches, and the patches of all clips).
    """
    phases = {phase.name: phase.total for phase in case.estimate().phases}
    # The policy's pass takes what that of the reference takes beside it, but for what comes after its layers.
    held = replace(case.job, reference="copy")
    beside = {phase.name: phase for phase in replace(case, job=held).estimate().phases}["log-probs of the reference"]
    pixels = case.job.patches * case.shapes.vision.patch_values
    made = {
        "decode": 3 * pixels,
        "vision": phases["vision"],
        "prefill": phases["prefill"],
        "decoding": phases["decoding"],
        "policy": beside.total - beside.parts["reference"] - after_bytes(case.shapes.text, case.job),
        "backward": max(total for name, total in phases.items() if name.startswith("backward")),
    }
    if case.job.reference != "none":
        made["reference"] = phases["log-probs of the reference"]
    return made


def make_trainer(sizes: Sizes, folder: Path) -> WatchedTrainer:
    """A trainer on a tiny checkpoint, for one step on one record."""
    checkpoint = save_model(sizes, folder / "checkpoint")
    flags = {
        "output_dir": str(folder / "run"),
        "dataset_use": str(write_record(sizes, folder)),
        "generation_max_length": sizes.length,
        "grpo_sample_size": sizes.group,
        "grpo_beta": sizes.beta,
        "max_steps": 1,
        "base_interval": 1.0,
        "video_max_frames": 10**6,
        "video_max_frame_pixels": sizes.pixels,
        "decode_timeout": 3600,
        "gradient_checkpointing": True,
        "dataloader_num_workers": 0,
        "save_strategy": "no",
        "report_to": "none",
        "display": "none",
        "use_cpu": True,
    }
    return WatchedTrainer(str(checkpoint), GRPOConfig(**flags), reward_funcs=[letters])


def save_model(sizes: Sizes, folder: Path) -> Path:
    """The checkpoint, with heads of its own where they are asked for."""
    model = {"hidden_size": sizes.hidden, "num_layers": sizes.layers}
    model |= {"vision_hidden_size": sizes.vision_hidden, "vision_depth": sizes.vision_layers}
    save_tiny(folder, sizes.family, **model)
    if sizes.heads is None:
        return folder
    config = AutoConfig.from_pretrained(folder)
    text = config.text_config
    text.num_attention_heads, text.num_key_value_heads = sizes.heads, max(1, sizes.heads // 2)
    if sizes.head_dim is not None:
        third = sizes.head_dim // 2 * 5 // 16
        text.head_dim = sizes.head_dim
        text.rope_parameters = {
            **text.rope_parameters,
            "mrope_section": [sizes.head_dim // 2 - 2 * third, third, third],
        }
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def write_record(sizes: Sizes, folder: Path) -> Path:
    """A question about a clip with as many frames as the prompt needs for its tokens."""
    frames = 2 * max(1, round(sizes.tokens / tokens_of_pair(sizes)))
    fast = {"preset": "ultrafast", "crf": "30"}
    encode(folder / "clip.mp4", pictures(frames), 1, options=fast)
    turns = [
        {"from": "human", "value": "<video>\nWhich steps? (1) pick (2) insert"},
        {"from": "gpt", "value": "<answer>(1) pick</answer>"},
    ]
    path = folder / "records.json"
    path.write_text(json.dumps([{"id": "0", "video": "clip.mp4", "conversations": turns}]))
    return path


def tokens_of_pair(sizes: Sizes) -> int:
    """About how many tokens two frames have: merged patches, and from Qwen3 on a time and two marks."""
    framed = sizes.family.startswith("qwen3")
    shrunk, side = max(1.0, math.sqrt(WIDTH * HEIGHT / sizes.pixels)), 32 if framed else 28
    return max(1, int(WIDTH / shrunk / side) * int(HEIGHT / shrunk / side)) + (17 if framed else 0)


def pictures(count: int) -> Iterator[np.ndarray]:
    """A bright square that wanders over a slope of grey."""
    slope = np.linspace(0, 200, WIDTH, dtype=np.uint8)
    plain = np.broadcast_to(slope[None, :, None], (HEIGHT, WIDTH, 3))
    for number in range(count):
        picture = plain.copy()
        left, top = number * 7 % (WIDTH - 80), number * 3 % (HEIGHT - 80)
        picture[top : top + 80, left : left + 80] = (number % 256, 255 - number % 256, 90)
        yield picture


def letters(completions: list[str], **columns: Any) -> list[float]:
    """The share of letters: a reward that differs within a group of random text."""
    return [sum(each.isalpha() for each in text) / max(1, len(text)) for text in completions]


def memory_line(name: str) -> int:
    """Bytes of this process, from the kernel.

    Raises:
        OSError: the system is not Linux.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no line {name}: memory is measured on Linux only")


if __name__ == "__main__":
    asked = Sizes(**json.loads(sys.argv[1]))
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as own:
        print(json.dumps(asdict(measured(asked, Path(own)))))
