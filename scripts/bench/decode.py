"""Seek and sample: the decoders side by side on clips whose frames bear their number, so that every frame is checked.

    python scripts/bench/decode.py                                  # the table of docs/benchmarks.md
    python scripts/bench/decode.py --clips 720p webm --turns 3      # clips whose name contains one of these
    python scripts/bench/decode.py --files my/clips/*.mp4           # your own clips: times, no check of the frames

The task is that of a training sample: N frames, evenly spaced, at the size that the model sees. Each reader has a
process of its own, which is killed when it hangs. In every turn all of them read the clip one after the other, so that
a busy machine slows them alike. CPU times are those of the reader's process and of what it started, in medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from decode_clips import BenchClip, make_clips, right_frames, wanted_frames

MAX_PIXELS = 128 * 28 * 28  # of a frame as the model sees it
Read = Callable[[str, list[int]], np.ndarray]
"""A path and rising frame numbers to F x H x W x 3 pictures."""


def ours(backend: str, timeout: float) -> Read:
    """This library, in its guarded child (``timeout`` above 0, as in training) or in the reader's own process."""
    from qwenvl.data.media.open import open_clip

    def read(path: str, wanted: list[int]) -> np.ndarray:
        with open_clip(path, backend, timeout=timeout) as clip:
            return resized(clip.read(wanted))

    return read


def torchcodec(seek_mode: str) -> Read:
    from torchcodec.decoders import VideoDecoder

    def read(path: str, wanted: list[int]) -> np.ndarray:
        decoder = VideoDecoder(path, seek_mode=seek_mode, num_ffmpeg_threads=1)
        return resized(decoder.get_frames_at(wanted).data)

    return read


def decord() -> Read:
    import decord
    import torch

    def read(path: str, wanted: list[int]) -> np.ndarray:
        frames = decord.VideoReader(path, num_threads=1).get_batch(wanted).asnumpy()
        return resized(torch.from_numpy(frames).permute(0, 3, 1, 2))

    return read


def qwen_vl_utils(reader: str) -> Read:
    """``fetch_video`` chooses the same frames itself and resizes them."""
    os.environ |= {"FORCE_QWENVL_VIDEO_READER": reader, "TORCHCODEC_NUM_THREADS": "1"}
    from qwen_vl_utils import fetch_video

    def read(path: str, wanted: list[int]) -> np.ndarray:
        asked = {"video": path, "nframes": len(wanted), "min_pixels": 4 * 28 * 28, "max_pixels": MAX_PIXELS}
        return fetch_video(asked).permute(0, 2, 3, 1).numpy()

    return read


READERS: dict[str, Callable[[], Read]] = {
    "ours": lambda: ours("auto", 60.0),
    "ours, unguarded": lambda: ours("auto", 0.0),
    "torchcodec exact": lambda: torchcodec("exact"),
    "torchcodec approximate": lambda: torchcodec("approximate"),
    "decord": decord,
    "qwen-vl-utils, torchcodec": lambda: qwen_vl_utils("torchcodec"),
    "qwen-vl-utils, decord": lambda: qwen_vl_utils("decord"),
}


def resized(frames) -> np.ndarray:
    """F x 3 x H x W to the size that Qwen2.5-VL sees, by the authors' rule, as the collator does it."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    size = smart_resize(*frames.shape[-2:], 28, min_pixels=4 * 28 * 28, max_pixels=MAX_PIXELS)
    return resize(frames, list(size), InterpolationMode.BICUBIC, antialias=True).permute(0, 2, 3, 1).numpy()


@dataclass
class Reading:
    """What a reader did with a clip."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    right: int | None = None
    failed: str | None = None

    def is_right(self, wanted: int | None) -> bool:
        return self.failed is None and (wanted is None or self.right == wanted)

    def median(self, kind: str) -> float:
        """Milliseconds. Not a number where the clip was not read."""
        return 1e3 * statistics.median(getattr(self, kind)) if self.failed is None else float("nan")

    def cell(self, kind: str, wanted: int | None) -> str:
        if self.failed is not None:
            return self.failed
        return f"{self.median(kind):.1f}" + ("" if self.is_right(wanted) else f" ({self.right} of {wanted} right)")


class ReaderProcess:
    """A reader in a process that can be killed, started when it is first asked."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name, self._timeout, self._process = name, timeout, None

    def read(self, clip: BenchClip, n: int, reading: Reading) -> None:
        if self._process is None:
            context = get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=serve, args=(self._name, other))
            self._process.start()
            other.close()
        self._connection.send((clip, n))
        try:
            if not self._connection.poll(self._timeout):
                raise TimeoutError(f"hangs (killed after {self._timeout:g} s)")
            cpu, wall, reading.right = self._connection.recv()
        except (EOFError, TimeoutError) as error:
            self.close()
            reading.failed = str(error) or "crashes"
            return
        if isinstance(reading.right, str):
            reading.failed, reading.right = reading.right, None
            return
        reading.cpu.append(cpu)
        reading.wall.append(wall)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(name: str, connection) -> None:
    """The reader's process: reads what it is asked to until the other side goes."""
    import torch

    torch.set_num_threads(1)
    try:
        with open(os.devnull, "w") as quiet, redirect_stderr(quiet):
            read = READERS[name]()
            resized(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))
    except Exception as error:
        read = None
        broken = f"not usable here: {error}".splitlines()[0]
    while True:
        try:
            clip, n = connection.recv()
        except EOFError:
            return
        wanted = wanted_frames(clip, n)
        cpu, wall = cpu_seconds(), time.perf_counter()
        try:
            if read is None:
                raise RuntimeError(broken)
            with open(os.devnull, "w") as quiet, redirect_stderr(quiet):
                pictures = read(str(clip.path), wanted)
        except Exception as error:
            connection.send((0.0, 0.0, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"))
            continue
        spent = cpu_seconds() - cpu, time.perf_counter() - wall
        connection.send((*spent, right_frames(clip, wanted, pictures)))


def cpu_seconds() -> float:
    """Of this process and the children it has now, all threads together (Linux)."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    clocks = [time.CLOCK_PROCESS_CPUTIME_ID] + [~int(child) << 3 | 2 for child in children]  # the kernel's numbering
    return sum(time.clock_gettime(clock) for clock in clocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "qwenvl_bench_clips")
    parser.add_argument("--clips", nargs="+", help="parts of the names of the clips to read")
    parser.add_argument("--files", nargs="+", type=Path, help="clips of your own in place of the made ones")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a reader hangs")
    options = parser.parse_args()
    packages = ("torch", "av", "torchcodec", "decord", "qwen-vl-utils")
    print(", ".join(f"{package} {installed(package)}" for package in packages))
    if options.files:
        clips = {path.name: clip_of(path) for path in options.files}
    else:
        clips = make_clips(options.folder)
    readers = {name: ReaderProcess(name, options.timeout) for name in options.readers}
    readings = {}
    try:
        for name, clip in clips.items():
            if options.clips is None or any(part in name for part in options.clips):
                print(name, file=sys.stderr)
                readings[name] = read_in_turn(clip, readers, options)
    finally:
        for reader in readers.values():
            reader.close()
    wanted = None if options.files else options.frames
    for kind in ("cpu", "wall"):
        print(f"\n{kind} milliseconds\n\n{table(readings, kind, wanted)}")


def clip_of(path: Path) -> BenchClip:
    from qwenvl.data.media.open import open_clip

    with open_clip(str(path), "pyav") as clip:
        return BenchClip(path, clip.frame_count)


def read_in_turn(clip: BenchClip, readers: dict[str, ReaderProcess], options: argparse.Namespace) -> dict[str, Reading]:
    """The first turn, in which libraries load and files are cached, does not count."""
    readings = {name: Reading() for name in readers}
    for turn in range(options.turns + 1):
        for name, reader in readers.items():
            if readings[name].failed is None:
                reader.read(clip, options.frames, readings[name])
        if turn == 0:
            for reading in readings.values():
                reading.cpu.clear()
                reading.wall.clear()
    return readings


def table(readings: dict[str, dict[str, Reading]], kind: str, wanted: int | None) -> str:
    """Medians of each reader on each clip, in Markdown, with the number of right frames where not all are.

    The last column compares ours with the fastest of the other readers that gave every frame of every clip rightly.

    Args:
        kind: ``cpu`` or ``wall``.
        wanted: frames asked of each clip. None where they can't be checked.
    """
    names = list(next(iter(readings.values())))
    reliable = [
        name
        for name in names
        if not name.startswith("ours") and all(clip[name].is_right(wanted) for clip in readings.values())
    ]
    rows = [["clip", *names, "ours / fastest that is right"]]
    rows.append(["---"] * len(rows[0]))
    for clip, of_clip in readings.items():
        fastest = min((of_clip[name].median(kind) for name in reliable), default=float("nan"))
        ratio = f"{of_clip['ours'].median(kind) / fastest:.2f}" if "ours" in of_clip else ""
        rows.append([clip, *(of_clip[name].cell(kind, wanted) for name in names), ratio])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
