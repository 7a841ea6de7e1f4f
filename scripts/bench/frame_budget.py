"""Are frames better spent where the picture changes? Measured on the demo's station, for the same number of frames.

    python scripts/bench/frame_budget.py                           # which steps have a frame, by encoding
    python scripts/bench/frame_budget.py --train runs/budget       # what a tiny model learns from either

A clip is a minute of the demo's station, in which four steps of about a second each are done at random times and
nothing happens in between. A step counts as seen if at least one frame is taken while it goes on. Beside the two values
of ``--frame_sampler`` stands what was tried in place of the second: the sizes of the encoded frames, which cost no
decoding. With ``--train`` a tiny model is trained to name the two steps of clips of 20 seconds, by a warm-up on full
targets, once with the frames of each sampler, and asked about clips that it has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import yaml

from qwenvl.data.frames.places import Looks, places
from qwenvl.data.frames.plan import FrameRule, Timeline
from qwenvl.data.media.clip.reader import ClipReader
from qwenvl.data.options import FrameOptions
from qwenvl.demo.clips import FPS, H264, PAIRS, QUESTION, SEGMENT_FRAMES, encode, solution, tokenizer_texts
from qwenvl.demo.scene import STEPS, Station, draw_bench, draw_frame
from qwenvl.demo.settings import MODEL, Demo
from qwenvl.types import ClipMeta, Record

BUDGETS = (8, 16, 32)
WAYS = ("uniform", "change", "sizes")
STEPS_OF_A_CLIP = 4
NOISE = 3.0  # levels of 255, of a camera indoors


class Encoding(NamedTuple):
    """How a clip is encoded."""

    codec: str
    ending: str
    options: dict[str, str]
    noise: float = 0.0


_QUICK = {"preset": "veryfast", "threads": "1"}
ENCODINGS = {
    "H.264": Encoding("libx264", ".mp4", _QUICK),
    "H.264, noise": Encoding("libx264", ".mp4", _QUICK, NOISE),
    "H.264, noise, a key frame each 4 s, none at cuts": Encoding(
        "libx264", ".mp4", _QUICK | {"x264-params": "scenecut=0:keyint=32:min-keyint=32"}, NOISE
    ),
    "H.264, noise, 300 kbit/s": Encoding("libx264", ".mp4", _QUICK | {"b": "300k"}, NOISE),
    "H.264, noise, no delay": Encoding("libx264", ".mp4", _QUICK | {"tune": "zerolatency"}, NOISE),
    "VP9, noise": Encoding("libvpx-vp9", ".webm", {"deadline": "realtime", "cpu-used": "8"}, NOISE),
    "MPEG-4, noise": Encoding("mpeg4", ".mp4", {}, NOISE),
    "MJPEG, noise": Encoding("mjpeg", ".mov", {}, NOISE),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clips", type=int, default=10, help="for each encoding [%(default)s]")
    parser.add_argument("--seconds", type=int, default=60, help="of each [%(default)s]")
    parser.add_argument("--train", type=Path, help="folder for clips and models: train one with each sampler")
    parser.add_argument("--train_clips", type=int, default=600, help="a quarter more are held out [%(default)s]")
    parser.add_argument("--epochs", type=int, default=20, help="[%(default)s]")
    args = parser.parse_args(argv)
    if args.train is not None:
        for line in trained(args.train.resolve(), args.train_clips, args.epochs):
            print(line, flush=True)
        return 0
    heads = ["encoding", *(f"{way}: {n}" for way in WAYS for n in BUDGETS), "looking, s"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, encoding in ENCODINGS.items():
        print(f"| {name} | {' | '.join(seen_steps(encoding, args.clips, args.seconds))} |", flush=True)
    return 0


def seen_steps(encoding: Encoding, clips: int, seconds: int) -> list[str]:
    """A row of the table: the shares of steps that are seen, and the seconds of CPU for a look at a clip."""
    shares: dict[tuple[str, int], list[float]] = {
        (way, n): [] for way in ("uniform", "change", "sizes") for n in BUDGETS
    }
    looking = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"clip{encoding.ending}"
        for seed in range(clips):
            frames, spans = drawn(seed, seconds, STEPS_OF_A_CLIP, encoding.noise)
            write(path, frames, encoding)
            looks, spent = looked_at(path)
            looking.append(spent)
            by_size = Looks(range(len(frames)), changes_by_size(packets_of(path)))
            for way, seen in (("uniform", None), ("change", looks), ("sizes", by_size)):
                for n in BUDGETS:
                    shares[way, n].append(covered(places(len(frames), n, None, seen), spans))
    return [*(f"{np.mean(each):.0%}" for each in shares.values()), f"{np.mean(looking):.2f}"]


def drawn(seed: int, seconds: int, steps: int | Sequence[int], noise: float) -> tuple[list[np.ndarray], list[range]]:
    """The frames of a clip, and those of each step.

    Args:
        steps: how many of them, or their numbers, from 0.
    """
    rng = np.random.default_rng(seed)
    station = Station.draw_lot(rng)
    numbers = rng.permutation(len(STEPS))[:steps].tolist() if isinstance(steps, int) else list(steps)
    counts = rng.integers(SEGMENT_FRAMES[0], SEGMENT_FRAMES[1] + 1, len(numbers))
    idle = seconds * FPS - int(counts.sum())
    waits = np.diff([0, *np.sort(rng.integers(0, idle + 1, len(numbers))), idle])
    frames: list[np.ndarray] = []
    spans = []
    for wait, step, count in zip(waits, [*numbers, None], [*counts, 0], strict=True):
        bench = draw_bench(station)
        still = np.asarray(bench.reduce(2), np.float32) * station.light
        frames += [still.clip(0, 255).astype(np.uint8)] * int(wait)
        spans.append(range(len(frames), len(frames) + int(count)))
        if step is not None:
            frames += [draw_frame(bench, station, step, k / (count - 1)) for k in range(count)]
            station.done.add(step)
    if noise:
        frames = [(frame + rng.normal(0, noise, frame.shape)).clip(0, 255).astype(np.uint8) for frame in frames]
    return frames, spans[:-1]


def write(path: Path, frames: Iterable[np.ndarray], encoding: Encoding) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoding.codec, rate=FPS, options=dict(encoding.options))
        stream.pix_fmt = "yuvj420p" if encoding.codec == "mjpeg" else "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def looked_at(path: Path) -> tuple[Looks, float]:
    """What training sees of a clip before it chooses frames, and the seconds of CPU that this takes."""
    record = Record("a", (), "", (str(path),), (), (ClipMeta(),), {}, "a")
    with ClipReader(str(path)) as clip:
        timeline = Timeline(clip.frame_times, clip.duration)
        frames = FrameRule(FrameOptions(frame_sampler="change")).frames_to_look_at(record, 0, timeline)
        started = time.process_time()
        return Looks(frames, clip.look(frames)), time.process_time() - started


def covered(chosen: Sequence[int], spans: Sequence[range]) -> float:
    """The share of the steps in which a frame is taken."""
    return sum(any(index in span for index in chosen) for span in spans) / len(spans)


class Packet(NamedTuple):
    pts: int
    size: int
    key: bool


def packets_of(path: Path) -> list[Packet]:
    with av.open(str(path)) as container:
        return [Packet(p.pts or 0, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]


def changes_by_size(packets: Sequence[Packet]) -> list[int]:
    """How much a clip changes up to each frame, judged by the sizes of its encoded frames.

    A predicted frame counts what it is larger than the median of these. A key frame counts whole where it comes before
    its time, as an encoder puts one at a cut. Else it counts by how much it differs in size from the one before.
    """
    keys = [number for number, packet in enumerate(packets) if packet.key]
    regular = max(np.diff(keys), default=0)
    usual = int(np.median([packet.size for packet in packets if not packet.key] or [0]))
    found, last = [], None
    for number, packet in enumerate(packets):
        change = max(0, packet.size - usual)
        if packet.key:
            early = last is not None and number - last < regular
            change = packet.size if early else abs(packet.size - packets[last].size) if last is not None else 0
            last = number
        found.append((packet.pts, change))
    return [change for _, change in sorted(found)]


def trained(folder: Path, clips: int, epochs: int) -> Iterable[str]:
    """Train a tiny model on the frames of each sampler, and say what it answers to clips that were held out."""
    from qwenvl.demo.tiny import make_model, make_processor
    from qwenvl.evaluate.held_out import command as evaluate
    from qwenvl.runlog.evaluation import read_evaluation
    from qwenvl.train.warmup import command as warmup

    demo = Demo(folder)
    if not (demo.data / "datasets.yaml").is_file():
        make_records(demo.data, clips)
    yield "| frames | accuracy | both steps right |\n|---|---|---|"
    for sampler in ("uniform", "change"):
        start, model, config = demo.start, folder / sampler, folder / f"{sampler}.yaml"
        processor = make_processor(demo.family, tokenizer_texts())
        make_model(demo.family, processor, demo.seed, **MODEL).save_pretrained(start)
        processor.save_pretrained(start)
        frames = {"frame_sampler": sampler, "video_min_frames": BUDGETS[0], "video_max_frames": BUDGETS[0]}
        own = {"output_dir": str(model), "num_train_epochs": epochs, "frame_cache": str(folder / "cache")}
        settings = demo.warmup_settings() | frames | own | {"train_sampling_strategy": "random"}
        del settings["stop_below_loss"]
        config.write_text(yaml.safe_dump(settings))
        warmup.main(["--config", str(config)])
        out = folder / f"evaluation-{sampler}"
        words = [str(model), "demo_heldout", "--dataset_catalog", str(demo.data / "datasets.yaml"), "--use_cpu"]
        evaluate.main([*words, "--output_dir", str(out), "--fresh"])
        scores = read_evaluation(out)["numbers"][0]["scores"]
        yield f"| {sampler} | {scores['accuracy']['mean']:.2f} | {scores['passes']['mean']:.0%} |"


def make_records(folder: Path, clips: int) -> None:
    """Clips of 20 seconds with two steps each, their records, and the catalog that names them as the demo does."""
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    catalog = {}
    for split, count, first in (("warmup", clips, 0), ("heldout", clips // 4, clips)):
        records = []
        for number in range(first, first + count):
            pair = PAIRS[number % len(PAIRS)]
            frames, _ = drawn(number, 20, [step - 1 for step in pair], 0.0)
            encode(folder / "clips" / f"{number}.mp4", frames, options=H264)
            turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": solution(pair)}]
            records.append({"id": str(number), "conversations": turns, "video": f"clips/{number}.mp4"})
        (folder / f"{split}.json").write_text(json.dumps(records))
        catalog[f"demo_{split}"] = {"annotation_path": f"{split}.json", "media_root": "."}
    (folder / "datasets.yaml").write_text(yaml.safe_dump(catalog))


if __name__ == "__main__":
    sys.exit(main())
