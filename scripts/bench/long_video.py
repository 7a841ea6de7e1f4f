"""Memory and CPU seconds of one optimizer step on one long video, by phase (Linux).

    python scripts/bench/long_video.py    # 4k and 16k tokens: three minutes of CPU
    python scripts/bench/long_video.py --cases 64k --family qwen3_vl --pixels 135000

Each case is a process of its own: it makes an mp4 of 640 x 360 pixels, a frame for each second, and a tiny checkpoint
with random weights, and the trainer makes one step on it, gradient checkpointing on. No completion ends early. Peaks
are those of the whole process, by the kernel (VmHWM). Between cases the growth for 1,000 tokens is printed.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

CLOCKS = {
    "time/data_wait_s": "decode",
    "time/vision_s": "vision",
    "time/sample_s": "sampling",
    "time/logp_s": "log-probs",
    "time/backward_s": "backward",
}
"""Phases by the clocks of the trainer. The log-probs of the reference are among those of the policy."""
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**18),  # else glibc keeps freed tensors: twice what is alive at 16k tokens
    "OMP_WAIT_POLICY": "passive",  # threads that wait take no CPU seconds
}
WIDTH, HEIGHT = 640, 360


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    before: dict[str, Any] = {}
    for case in options.cases:
        row = run(case, options)
        print(f"\n{row['tokens']:,} tokens, {row['frames']:,} frames: {row['peak'] / 1e9:.2f} GB at most, ", end="")
        print(f"{row['base'] / 1e9:.2f} before the step\n{'':11}{'GB':>7}{'CPU s':>9}{'MB for 1,000 tokens':>21}")
        for name, peak in row["peaks"].items():
            more = f"{growth(before, row, name):21.1f}" if before else ""
            print(f"{name:11}{peak / 1e9:7.2f}{row['seconds'][name]:9.1f}{more}", flush=True)
        before = row


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["4k", "16k"], help="prompt tokens, the fewest first [4k 16k]")
    parser.add_argument("--family", default="qwen2_5_vl", help="of the tiny checkpoint [%(default)s]")
    parser.add_argument("--hidden", type=int, default=256, help="width of the language model [%(default)s]")
    parser.add_argument("--layers", type=int, default=8, help="of the language model [%(default)s]")
    parser.add_argument(
        "--vocabulary", type=int, default=151_936, help="rows of embedding and head, random ones [%(default)s]"
    )
    parser.add_argument("--pixels", type=int, default=113_000, help="most of a frame [%(default)s]")
    parser.add_argument("--group", type=int, default=8, help="completions [%(default)s]")
    parser.add_argument("--length", type=int, default=64, help="tokens of each [%(default)s]")
    parser.add_argument("--beta", type=float, default=0.04, help="0: no reference [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.here:
        import torch

        torch.set_num_threads(options.threads)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(options.cases[0], options, Path(folder))))
        raise SystemExit
    return options


def run(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """The step in a process of its own."""
    given = {k: v for k, v in vars(options).items() if v is not None and k not in ("cases", "here")}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--here", "--cases", case, *words]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout
    return json.loads(printed.splitlines()[-1])


def growth(small: dict[str, Any], large: dict[str, Any], phase: str) -> float:
    """MB that a phase takes more for 1,000 tokens more."""
    return (large["peaks"][phase] - small["peaks"][phase]) / 1e6 / ((large["tokens"] - small["tokens"]) / 1000)


def tokens_of(text: str) -> int:
    """Tokens as they are written on the command line: 16k is 16000."""
    return int(float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1))


class Watch:
    """Peaks and CPU seconds of the phases of a trainer, which its clocks begin and end. A phase within another is not
    counted in it.

    Attributes:
        base: bytes of the process before the step.
        peaks, seconds: by phase.
    """

    def __init__(self, meter: Any) -> None:
        self.base = memory_line("VmRSS")
        self.peaks: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._open, self._since = ["rest"], time.process_time()
        start, stop, wait = meter.start, meter.stop, meter.wait

        def watched_start(name: str) -> None:
            start(name)
            self._switch(into=name)

        def watched_stop(name: str) -> None:
            stop(name)
            self._switch()

        @contextmanager
        def watched_wait(name: str) -> Iterator[None]:
            with wait(name):
                self._switch(into=name)
                yield
                self._switch()

        meter.start, meter.stop, meter.wait = watched_start, watched_stop, watched_wait

    def _switch(self, into: str = "") -> None:
        """Count for the current phase. Then the one of a clock begins, or the one before it continues."""
        phase, now = self._open[-1], time.process_time()
        self.peaks[phase] = max(self.peaks.get(phase, 0), memory_line("VmHWM"))
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._open = [*self._open, CLOCKS.get(into, "rest")] if into else self._open[:-1] or ["rest"]
        Path("/proc/self/clear_refs").write_text("5")  # the kernel's peak starts anew
        self._since = now


def measured(case: str, sizes: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One step of the trainer on one long video. The folder gets clip, checkpoint and run."""
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.train.grpo_trainer import GRPOTrainer

    flags = {
        **{"output_dir": str(folder / "run"), "dataset_use": str(write_record(tokens_of(case), sizes, folder))},
        **{"generation_max_length": sizes.length, "grpo_sample_size": sizes.group, "grpo_beta": sizes.beta},
        **{"base_interval": 1.0, "video_max_frames": 10**6, "video_max_frame_pixels": sizes.pixels},
        **{"max_steps": 1, "decode_timeout": 3600, "gradient_checkpointing": True, "dataloader_num_workers": 0},
        **{"save_strategy": "no", "report_to": "none", "display": "none", "use_cpu": True},
    }
    checkpoint = save_model(sizes, folder / "checkpoint")
    trainer = GRPOTrainer(str(checkpoint), GRPOConfig(**flags), reward_funcs=[letters])
    trainer.kernels.engine.end_ids = []  # no completion ends early
    watch = Watch(trainer.meter)
    trainer.train()
    drawn = trainer.in_progress.prompts[0]
    return {
        **{"tokens": drawn.input_ids.shape[1], "frames": len(drawn.frames[0][0].indices)},
        **{"base": watch.base, "peak": max(watch.peaks.values())},
        **{"peaks": {name: watch.peaks[name] for name in CLOCKS.values()}},
        **{"seconds": {name: round(watch.seconds[name], 2) for name in CLOCKS.values()}},
    }


def save_model(sizes: argparse.Namespace, folder: Path) -> Path:
    """The checkpoint."""
    from qwenvl.demo.tiny import save_tiny

    sized = {"hidden_size": sizes.hidden, "num_layers": sizes.layers, "vision_hidden_size": 128, "vision_depth": 4}
    return save_tiny(folder, sizes.family, vocabulary=sizes.vocabulary, **sized)


def write_record(tokens: int, sizes: argparse.Namespace, folder: Path) -> Path:
    """A question about a clip with as many frames as the prompt needs for its tokens."""
    from qwenvl.demo.clips import encode

    framed = sizes.family.startswith("qwen3")  # a time and two marks for each pair of frames
    shrunk, side = max(1.0, math.sqrt(WIDTH * HEIGHT / sizes.pixels)), 32 if framed else 28
    of_pair = max(1, int(WIDTH / shrunk / side) * int(HEIGHT / shrunk / side)) + (17 if framed else 0)
    frames = 2 * max(1, round(tokens / of_pair))
    encode(folder / "clip.mp4", pictures(frames), 1, options={"preset": "ultrafast", "crf": "30"})
    turns = [
        {"from": "human", "value": "<video>\nWhich steps? (1) pick (2) insert"},
        {"from": "gpt", "value": "<answer>(1) pick</answer>"},
    ]
    path = folder / "records.json"
    path.write_text(json.dumps([{"id": "0", "video": "clip.mp4", "conversations": turns}]))
    return path


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
    """Bytes of this process, from the kernel."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    main()
