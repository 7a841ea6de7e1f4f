"""Seek and sample: the decoders side by side on clips whose frames bear their number, so that every frame is checked.

    python scripts/bench/decode.py
    python scripts/bench/decode.py --clips 720p webm --turns 3      # clips whose name contains one of these

The task is that of a training sample: N frames, evenly spaced, at the size that the model sees. Each reader has a
process of its own, which is killed when it hangs. In every turn all of them read the clip one after the other, so that
a busy machine slows them alike. CPU times are those of the reader's process and of what it started, in medians (Linux).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qwenvl.child import Child, ChildError, ChildFailed
from scripts.clips.copies import copy_from, rotated
from scripts.clips.sources import encode_numbered, number_in

MAX_PIXELS = 128 * 28 * 28  # of a frame as the model sees it
Read = Callable[[str, list[int]], np.ndarray]
"""A path and rising frame numbers to F x H x W x 3 pictures."""


BenchClip = tuple[str, int, int]
"""The path of a clip, its number of frames, and the number that the first of them bears."""


def make_clips(folder: Path) -> dict[str, BenchClip]:
    """The clips by name. Those that are in ``folder`` already are reused."""
    gaps = list(accumulate(Random(0).randrange(5, 120) / 1000 for _ in range(250)))
    large = {"size": (640, 360), "gop": 50}
    makers: dict[str, tuple[str, int, int, str, dict]] = {
        "h264 640x360, 5 s": ("short.mp4", 125, 0, "h264", large),
        "h264 640x360, 2 min": ("long.mp4", 3000, 0, "h264", large),
        "720p, 30 s, key frame every 250": ("gop250.mp4", 750, 0, "h264", {"size": (1280, 720), "gop": 250}),
        "variable frame rate": ("variable.mp4", 250, 0, "h264", large | {"times": gaps}),
        "rotated by 90 degrees": ("rotated.mp4", 125, 0, "h264", large | {"turns": 1}),
        "webm, vp9": ("vp9.webm", 250, 0, "vp9", large),
        "cut without re-encoding": ("cut.mp4", 250 - 67, 67, "h264", large),
        "1 h at 160x120": ("hour.mp4", 90_000, 0, "h264", {"size": (160, 120), "gop": 250}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    clips = {}
    for name, (file, count, first, codec, options) in makers.items():
        path = folder / file
        if not path.exists():
            whole = encode_numbered(path.with_stem(path.stem + ".part"), codec, first + count, **options)
            if "turns" in options:
                rotated(whole, options["size"][0])
            if first:
                copy_from(whole, path.with_stem("cut.done"), first / 25)
                whole = path.with_stem("cut.done")
            whole.replace(path)
        clips[name] = str(path), count, first
    return clips


def ours(timeout: float) -> Read:
    """This library, in its guarded child (``timeout`` above 0, as in training) or in the reader's own process."""
    from qwenvl.data.media.open import open_clip

    def read(path: str, wanted: list[int]) -> np.ndarray:
        with open_clip(path, timeout=timeout) as clip:
            return resized(clip.read(wanted))

    return read


def torchcodec(seek_mode: str) -> Read:
    from torchcodec.decoders import VideoDecoder

    def read(path: str, wanted: list[int]) -> np.ndarray:
        return resized(VideoDecoder(path, seek_mode=seek_mode, num_ffmpeg_threads=1).get_frames_at(wanted).data)

    return read


def decord() -> Read:
    import decord
    import torch

    def read(path: str, wanted: list[int]) -> np.ndarray:
        frames = decord.VideoReader(path, num_threads=1).get_batch(wanted).asnumpy()
        return resized(torch.from_numpy(frames).permute(0, 3, 1, 2))

    return read


READERS: dict[str, Callable[[], Read]] = {
    "ours": lambda: ours(60.0),
    "ours, unguarded": lambda: ours(0.0),
    "torchcodec exact": lambda: torchcodec("exact"),
    "torchcodec approximate": lambda: torchcodec("approximate"),
    "decord": decord,
}


def resized(frames) -> np.ndarray:
    """F x 3 x H x W to the size that Qwen2.5-VL sees, by the authors' rule, as the collator does it."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    size = smart_resize(*frames.shape[-2:], 28, min_pixels=4 * 28 * 28, max_pixels=MAX_PIXELS)
    return resize(frames, list(size), InterpolationMode.BICUBIC, antialias=True).permute(0, 2, 3, 1).numpy()


def load(name: str) -> Callable[[tuple[str, int, int, int]], tuple[float, float, int]]:
    """The reader, for a process of its own.

    It answers path, frames and first number of a clip, and how many frames to read, with CPU seconds, seconds and the
    number of right frames.
    """
    import torch

    torch.set_num_threads(1)
    read = READERS[name]()
    resized(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))

    def answer(message: tuple[str, int, int, int]) -> tuple[float, float, int]:
        path, frame_count, first, n = message
        wanted = [round(i * (frame_count - 1) / (n - 1)) for i in range(n)]
        cpu, wall = cpu_seconds(), time.perf_counter()
        pictures = read(path, wanted)
        spent = cpu_seconds() - cpu, time.perf_counter() - wall
        numbers = [number_in(picture) for picture in pictures]
        return *spent, sum(a == first + b for a, b in zip(numbers, wanted, strict=False))

    return answer


def cpu_seconds() -> float:
    """Of this process and the children it has now, all threads together."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    clocks = [time.CLOCK_PROCESS_CPUTIME_ID] + [~int(child) << 3 | 2 for child in children]  # the kernel's numbering
    return sum(time.clock_gettime(clock) for clock in clocks)


@dataclass
class Reading:
    """The outcome of reading a clip with one reader."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    right: int = 0
    failed: str | None = None

    def cell(self, kind: str, wanted: int) -> str:
        """Milliseconds, with the number of right frames if not all are, or why it failed."""
        if self.failed is not None:
            return self.failed
        note = "" if wanted == self.right else f" ({self.right} of {wanted} right)"
        return f"{1e3 * statistics.median(getattr(self, kind)):.1f}{note}"


def read_in_turn(clip: BenchClip, children: dict[str, Child | None], options: argparse.Namespace) -> dict[str, Reading]:
    """The first turn, in which libraries load and files are cached, does not count."""
    readings = {name: Reading() for name in children}
    for turn in range(options.turns + 1):
        for name, reading in readings.items():
            if reading.failed is not None:
                continue
            try:
                child = children[name] = children[name] or Child("scripts.bench.decode:load", name)
                cpu, wall, reading.right = child.ask((*clip, options.frames), options.timeout)
            except ChildError as error:
                reading.failed = str(error).splitlines()[0].removeprefix("scripts.bench.decode:load: ")[:80]
                children[name] = children[name] if isinstance(error, ChildFailed) else None
            else:
                reading.cpu += [cpu] * bool(turn)
                reading.wall += [wall] * bool(turn)
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "qwenvl_bench_clips")
    parser.add_argument("--clips", nargs="+", help="parts of the names of the clips to read")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a reader is killed")
    options = parser.parse_args()
    clips = make_clips(options.folder)
    children: dict[str, Child | None] = dict.fromkeys(options.readers)
    readings = {}
    for name, clip in clips.items():
        if options.clips is None or any(part in name for part in options.clips):
            print(name, file=sys.stderr)
            readings[name] = read_in_turn(clip, children, options)
    for kind in ("cpu", "wall"):
        print(f"\n{kind} milliseconds\n\n| clip | {' | '.join(options.readers)} |")
        print("|---" * (len(options.readers) + 1) + "|")
        for name, of_clip in readings.items():
            print(f"| {name} | {' | '.join(each.cell(kind, options.frames) for each in of_clip.values())} |")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
