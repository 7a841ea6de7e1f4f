"""Memory and time of a step on one long video, by phase, against what they are computed to be: docs/scaling.md.

    python scripts/bench/long_video.py                                       # 4k and 16k tokens, some two minutes
    python scripts/bench/long_video.py --cases 4k 16k 64k --out results.jsonl
    python scripts/bench/long_video.py --cases 256k --family qwen3_vl --layers 2 --heads 2 --head_dim 32 --beta 0

Each case is a process of its own: it makes an mp4 of 640 x 360 pixels, a frame for each second, and a tiny checkpoint
with random weights, and has the trainer make one optimizer step on it, gradient checkpointing on. No completion ends
early. Peaks are those of the whole process, by the kernel (VmHWM, Linux). What a phase takes more from one case to the
next is compared with the arithmetic of ``qwenvl plan``: what Python takes anyhow is not computed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import FAMILIES, save_tiny
from qwenvl.plan.remedies import Case
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.train.planning.case import case_of

WIDTH, HEIGHT = 640, 360
PHASES = ("decode", "vision", "prefill", "decoding", "policy", "reference", "backward")
CLOCKS = {
    "time/data_wait_s": "decode",
    "time/vision_s": "vision",
    "time/sample_s": "decoding",
    "time/logp_s": "policy",
    "time/backward_s": "backward",
}
"""Phases by the clocks of the trainer. The prefill is part of ``time/sample_s`` and the reference part of
``time/logp_s``: they are told apart here."""

HANDS_BACK = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**18)}
"""Else glibc keeps freed tensors below 32 MB for the next ones: at 16k tokens a process then holds twice what is
alive."""


@dataclass(frozen=True)
class Sizes:
    """What is trained on what.

    Attributes:
        tokens: about how many the prompt has.
        pixels: most of a frame.
        group, length: completions, and tokens of each.
        heads, head_dim: of attention. None: as the family's tiny checkpoint has them.
        beta: 0 without a reference.
    """

    tokens: int
    family: str = "qwen2_5_vl"
    hidden: int = 256
    layers: int = 8
    vision_hidden: int = 128
    vision_layers: int = 4
    pixels: int = 113_000
    group: int = 8
    length: int = 64
    heads: int | None = None
    head_dim: int | None = None
    beta: float = 0.04


@dataclass(frozen=True)
class Measured:
    """A step as it was.

    Attributes:
        tokens, patches, frames: of the prompt.
        base: bytes of the process before its first step.
        peak: bytes of the process at its fullest moment.
        peaks: the same in each phase.
        computed: bytes by phase, as they are planned.
        seconds: by phase.
    """

    tokens: int
    patches: int
    frames: int
    base: int
    peak: int
    peaks: dict[str, int]
    computed: dict[str, int]
    seconds: dict[str, float]


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
        self.seconds[self.now] = self.seconds.get(self.now, 0.0) + time.perf_counter() - self._since
        self._begin()

    def _begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._since = time.perf_counter()


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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["4k", "16k"], help="prompt tokens [%(default)s]")
    parser.add_argument("--family", default="qwen2_5_vl", choices=FAMILIES)
    parser.add_argument("--layers", type=int, default=8, help="of the language model, 256 wide [%(default)s]")
    parser.add_argument("--heads", type=int, help="of its attention")
    parser.add_argument("--head_dim", type=int, help="width of a head, where the family's is free")
    parser.add_argument("--pixels", type=int, default=Sizes.pixels, help="most of a frame [%(default)s]")
    parser.add_argument("--beta", type=float, default=Sizes.beta, help="0: no reference [%(default)s]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file that gets a line of JSON for each case")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    names = ("family", "layers", "heads", "head_dim", "pixels", "beta")
    shared = {name: getattr(options, name) for name in names}
    if options.one:
        torch.set_num_threads(options.threads)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(measured(Sizes(tokens_of(options.one), **shared), Path(folder)))))
        return
    rows: list[Measured] = []
    for case in options.cases:
        flags = [f"--{name}={value}" for name, value in shared.items() if value is not None]
        command = [sys.executable, __file__, "--one", case, f"--threads={options.threads}", *flags]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=HANDS_BACK).stdout
        rows.append(Measured(**json.loads(printed.splitlines()[-1])))
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"case": case, **shared, **asdict(rows[-1])}) + "\n")
        print("\n".join(lines_of(rows[-1])), flush=True)
        if len(rows) > 1:
            print("\n".join(slope_lines(*rows[-2:])), flush=True)


def tokens_of(text: str) -> int:
    """Tokens as they are written on the command line.

    Example:
        >>> tokens_of("16k"), tokens_of("500")
        (16000, 500)
    """
    return int(float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1))


def measured(sizes: Sizes, folder: Path) -> Measured:
    """One step of the trainer on one long video.

    Args:
        folder: empty. It gets the clip, the checkpoint and the run.
    """
    trainer = make_trainer(sizes, folder)
    watch = trainer.watch
    trainer.train()
    watch.leave()
    drawn = trainer.draws.present[0]
    tokens, patches = drawn.input_ids.shape[1], int(drawn.video_grid_thw.prod(-1).sum())
    merged = trainer.processing_class.video_processor.merge_size**2
    case = case_of(trainer.args, trainer.model, PromptLength(tokens, patches // merged), on_host=True)
    return Measured(
        tokens,
        patches,
        len(drawn.frames[0][0].indices),
        watch.base,
        max(watch.peaks.values()),
        {name: watch.peaks[name] for name in PHASES if name in watch.peaks},
        computed(case),
        {name: round(watch.seconds[name], 2) for name in PHASES if name in watch.seconds},
    )


def computed(case: Case) -> dict[str, int]:
    """Bytes of each phase by the arithmetic of ``qwenvl plan``. Prompts are decoded before there is a plan: the frames
    as they were resized, put together, as patches, and these put together."""
    phases = {phase.name: phase.total for phase in case.estimate().phases}
    held = replace(case.job, reference="copy")  # the policy's pass takes what that of the reference takes beside it
    beside = {phase.name: phase for phase in replace(case, job=held).estimate().phases}["log-probs of the reference"]
    pixels = case.job.patches * case.shapes.vision.patch_values
    made = {
        "decode": 4 * pixels,
        "vision": phases["vision"],
        "prefill": phases["prefill"],
        "decoding": phases["decoding"],
        "policy": beside.total - beside.parts["reference"],
        "backward": max(total for name, total in phases.items() if name.startswith("backward")),
    }
    if case.job.reference != "none":
        made["reference"] = phases["log-probs of the reference"]
    return made


def lines_of(row: Measured) -> Iterator[str]:
    """A case as lines of text."""
    peak = f"{row.peak / 1e9:.2f} GB at most, {row.base / 1e9:.2f} before the step"
    yield f"\n{row.tokens:,} tokens, {row.frames:,} frames, {row.patches:,} patches: {peak}"
    yield f"{'':11}{'GB':>7}{'s':>9}"
    for name in PHASES:
        if name in row.peaks:
            yield f"{name:11}{row.peaks[name] / 1e9:7.2f}{row.seconds[name]:9.1f}"


def slope_lines(small: Measured, large: Measured) -> Iterator[str]:
    """What a phase takes more for 1,000 tokens, measured and computed, from one case to the next."""
    thousands = (large.tokens - small.tokens) / 1000
    yield f"MB for 1,000 tokens more, from {small.tokens:,} to {large.tokens:,}: measured, computed, ratio; ms each"

    def slope(of_small: Mapping[str, float], of_large: Mapping[str, float], name: str) -> float:
        return (of_large[name] - of_small[name]) / thousands

    for name in PHASES:
        if name in small.peaks and name in large.peaks:
            was, planned = (
                slope(small.peaks, large.peaks, name) / 1e6,
                slope(small.computed, large.computed, name) / 1e6,
            )
            ratio = was / planned if planned else float("nan")
            seconds = slope(small.seconds, large.seconds, name)
            yield f"{name:11}{was:8.1f}{planned:8.1f}{ratio:7.2f}{seconds * 1000:9.0f}"


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
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
