"""The demo's data: assembly clips as h264 files, and records that ask which steps a clip shows.

A folder contains

    clips/*.mp4       two steps each, one after the other. With --look: a minute with six steps of a second each.
                      With --timeline: 12 seconds with three steps, see qwenvl/demo/timelines.py
    warmup.jsonl      the warm-up's prompts and targets, most of them incomplete on purpose
    sight.json        with --look: clips of a second and their step. To look for something, a model has to see first
    calls.json        with --look: prompts of train.json; in three of eight targets the second in question is looked at
    train.json        what GRPO learns from
    heldout.json      clips that nothing learns from
    datasets.yaml     the catalog that names them
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import av
import numpy as np
import yaml

from qwenvl.demo.scene import STEPS, Station, draw_bench, draw_frame
from qwenvl.files import written_whole

FPS = 8
# Without the last two x264's choices, and so the file, vary from run to run in the same process.
H264 = {"preset": "veryfast", "crf": "20", "threads": "1", "x264-params": "aq-mode=0:mbtree=0"}
SEGMENT_FRAMES = (7, 10)
FRAMES_SEEN = 2  # of each segment: one temporal patch
SPLITS = ("warmup", "train", "heldout")
SECONDS = 60  # of a long clip
RATE = 4  # frames a second of a long clip
OVERVIEW = 4  # frames of it that a prompt has
LOOK_SPLITS = ("sight", "calls", "train", "heldout")
LOOKED = 3  # of eight targets of the warm-up
GUESSED = 5  # of the same eight

LISTED_STEPS = "\n".join(f"({k}) {step}" for k, step in enumerate(STEPS, 1))
ASKED = "Which of these steps does the video show?\n{steps}\nThink, then answer."
"""The question as `qwenvl data from-folder` takes it, with the list of steps to come."""
QUESTION = ASKED.replace("{steps}", LISTED_STEPS)
THINKING = "<think>I look at each step.</think>"

Drawing = Callable[[], Iterable[np.ndarray]]
Steps = tuple[int, ...]
"""Numbers of steps as the prompt lists them, from 1."""

COVER = 5
UNDER_THE_COVER = {2, 3, 4}
_ALL_PAIRS = itertools.permutations(range(1, len(STEPS) + 1), 2)
PAIRS: tuple[Steps, ...] = tuple(p for p in _ALL_PAIRS if not (p[0] == COVER and p[1] in UNDER_THE_COVER))
"""The steps that a clip may show: two different ones in either order, unless the first closes the second's place."""


@dataclass(frozen=True)
class ClipSettings:
    """All that the data depends on: the same settings give the same records and pictures."""

    seed: int = 0
    train: int = 600  # clips. Every pair of steps is shown about equally often
    heldout: int = 150
    warmup: int = 4800  # targets of the warm-up, over the training clips of ``warmup_pairs`` of the 15 pairs of steps
    warmup_pairs: int = 10
    dropped: float = 0.6  # share of the warm-up's targets that name one of the two steps only
    unthinking: float = 0.4  # share of the warm-up's targets without a thinking block


@dataclass(frozen=True)
class DemoClip:
    """One clip to be made: its name, the steps it shows, the frames of each, and the seed of its looks."""

    name: str
    steps: Steps
    frame_counts: tuple[int, ...]
    seed: tuple[int, ...]


def make_clips(folder: str | Path, settings: ClipSettings = ClipSettings(), *, processes: int | None = None) -> None:
    """Make the demo's data in ``folder``.

    Args:
        processes: that draw and encode. By default one per core up to four. 1: this process.

    Raises:
        FileExistsError: ``folder`` is not empty.
    """
    clips = [*_plan("train", settings.train, settings.seed), *_plan("heldout", settings.heldout, settings.seed)]
    with new_data(Path(folder)) as unfinished:
        write_clips(unfinished, {clip.name: partial(draw_clip, clip) for clip in clips}, processes)
        _write_records(unfinished, clips, settings)


@contextmanager
def new_data(folder: Path) -> Iterator[Path]:
    """A folder to write data to, which takes the place of ``folder`` when it is whole.

    Raises:
        FileExistsError: ``folder`` is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: expected an empty folder; choose another one, or delete it")
    with written_whole(folder) as unfinished:
        (unfinished / "clips").mkdir(parents=True)
        yield unfinished


def make_labelled_folder(folder: Path, count: int = 10, seed: int = 0) -> None:
    """Write clips and ``steps.txt``, ``labels.csv`` and ``question.txt``, as `qwenvl data from-folder` reads them.

    Raises:
        FileExistsError: ``folder`` contains one of them already. Nothing is written.
    """
    for name in ("clips", "labels.csv", "steps.txt", "question.txt"):
        if os.path.lexists(folder / name):
            raise FileExistsError(f"--output_dir {folder}: has {name} already, which stays; give another folder")
    (folder / "clips").mkdir(parents=True)
    rows = ["clip,answer"]
    for clip in _plan("train", count, seed):
        encode(folder / "clips" / f"{clip.name}.mp4", draw_clip(clip))
        rows.append(f"{clip.name}.mp4,{' '.join(map(str, clip.steps))}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    (folder / "steps.txt").write_text("\n".join(STEPS) + "\n")
    (folder / "question.txt").write_text(ASKED + "\n")  # that the demo's model was trained on


def solution(steps: Steps) -> str:
    """The answer that names ``steps``, as records hold it.

    Example:
        >>> solution((2, 5))
        '<answer>(2) insert the fan (5) close the cover</answer>'
    """
    return "<answer>" + " ".join(f"({k}) {STEPS[k - 1]}" for k in steps) + "</answer>"


def best_fixed_answer() -> tuple[float, Steps]:
    """The highest mean accuracy of naming the same steps for every clip, and these steps.

    Example:
        >>> best_fixed_answer()[1]
        (1, 2, 3, 4, 6)
    """
    numbers = range(1, len(STEPS) + 1)
    rated: list[tuple[float, Steps]] = []
    for size in numbers:
        for guess in itertools.combinations(numbers, size):
            accuracies = [_overlap(guess, pair) for pair in PAIRS]
            rated.append((sum(accuracies) / len(PAIRS), guess))
    return max(rated)


def _overlap(named: Steps, true: Steps) -> float:
    """Intersection over union of two sets of steps, as the reward ``accuracy`` has it."""
    return len({*named} & {*true}) / len({*named} | {*true})


def tokenizer_texts() -> list[str]:
    """Texts that show a tokenizer all it will meet in the demo."""
    answers = [f"{THINKING} {solution(pair)}" for pair in PAIRS]
    return ["user\n", QUESTION, "assistant\n", *answers]


def draw_clip(clip: DemoClip) -> Iterator[np.ndarray]:
    """The frames of a clip in order, each SIZE x SIZE x 3, uint8. What a step has done stays done in the next."""
    station = Station.draw_lot(np.random.default_rng(clip.seed))
    for number, frames in zip(clip.steps, clip.frame_counts, strict=True):
        step = number - 1
        bench = draw_bench(station)
        for k in range(frames):
            yield draw_frame(bench, station, step, k / (frames - 1))
        station.done.add(step)


def encode(path: Path, frames: Iterable[np.ndarray], rate: int = FPS, options: Mapping[str, str] = H264) -> None:
    """Write frames, H x W x 3 and uint8, as an h264 file of ``rate`` frames per second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options=dict(options))
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def _plan(split: str, count: int, seed: int) -> Iterator[DemoClip]:
    for i in range(count):
        looks = (seed, SPLITS.index(split), i)
        low, high = SEGMENT_FRAMES
        counts = np.random.default_rng((*looks, 1)).integers(low, high + 1, 2)
        yield DemoClip(f"{split}-{i:04d}", PAIRS[i % len(PAIRS)], tuple(int(n) for n in counts), looks)


def write_clips(
    folder: Path, clips: Mapping[str, Drawing], processes: int | None = None, rate: int = FPS, **options: str
) -> None:
    """Encode clips by name, in several processes: each is a function that draws its frames.

    Args:
        options: more of h264.
    """
    processes = min(4, os.cpu_count() or 1) if processes is None else processes
    tasks = [(folder / "clips" / f"{name}.mp4", draw, rate, H264 | options) for name, draw in clips.items()]
    if processes == 1:
        for task in tasks:
            _write_clip(task)
    else:
        # Spawned, not forked: this process may have threads of PyTorch.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            list(pool.map(_write_clip, tasks, chunksize=8))


def _write_clip(task: tuple[Path, Drawing, int, dict[str, str]]) -> None:
    path, draw, rate, options = task
    encode(path, draw(), rate, options)


def clip_record(name: str, clip: str, question: str, answer: str) -> dict[str, Any]:
    """A record that asks one question on a clip of the folder ``clips``."""
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"id": name, "conversations": turns, "video": f"clips/{clip}.mp4"}


def _demo_record(name: str, clip: DemoClip, answer: str) -> dict[str, Any]:
    meta = {"min_frames": FRAMES_SEEN, "max_frames": FRAMES_SEEN, "dynamic_sample": True}
    return clip_record(name, clip.name, QUESTION, answer) | {"meta": {"frame_cnts": list(clip.frame_counts), **meta}}


def _write_records(folder: Path, clips: list[DemoClip], settings: ClipSettings) -> None:
    train = [clip for clip in clips if clip.name.startswith("train")]
    for name in ("train", "heldout"):
        records = [_demo_record(clip.name, clip, solution(clip.steps)) for clip in clips if clip.name.startswith(name)]
        (folder / f"{name}.json").write_text(json.dumps(records, indent=1) + "\n")
    with open(folder / "warmup.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in _warmup_records(train, settings))
    write_catalog(folder, SPLITS)


def write_catalog(folder: Path, names: Iterable[str]) -> None:
    """The catalog that names ``demo_NAME`` for each file of records in a folder."""
    files = {name: next(folder.glob(f"{name}.json*")).name for name in names}
    catalog = {f"demo_{name}": {"annotation_path": file, "media_root": "."} for name, file in files.items()}
    (folder / "datasets.yaml").write_text(yaml.safe_dump(catalog, sort_keys=False))


def _warmup_records(clips: list[DemoClip], settings: ClipSettings) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng((settings.seed, SPLITS.index("warmup")))
    pairs = sorted({tuple(sorted(pair)) for pair in PAIRS})
    known = {pairs[i] for i in rng.permutation(len(pairs))[: settings.warmup_pairs]}
    clips = [clip for clip in clips if tuple(sorted(clip.steps)) in known]
    for i in range(settings.warmup):
        clip = clips[rng.integers(len(clips))]
        steps = (clip.steps[rng.integers(2)],) if rng.random() < settings.dropped else clip.steps
        thinking = "" if rng.random() < settings.unthinking else THINKING + " "
        yield _demo_record(f"warmup-{i:04d}", clip, thinking + solution(steps))


# ---- the data of ``qwenvl demo --look``


@dataclass(frozen=True)
class LongClipSettings:
    """All that the data depends on: the same settings give the same records and pictures."""

    seed: int = 0
    train: int = 100  # clips, with a question on each of the six steps
    heldout: int = 20  # clips, with three questions each
    sight: int = 600  # short clips


@dataclass(frozen=True)
class Minute:
    """A clip: when its steps begin, in seconds, and their numbers from 1. Between them nothing happens."""

    name: str
    starts: tuple[int, ...]
    steps: Steps
    seed: tuple[int, ...]

    def draw(self) -> Iterator[np.ndarray]:
        """The frames of the clip in order, each SIZE x SIZE x 3, uint8."""
        station = Station.draw_lot(np.random.default_rng(self.seed))
        bench = draw_bench(station)
        nothing = np.asarray(bench.reduce(2), dtype=np.uint8)
        shown = dict(zip(self.starts, self.steps, strict=True))
        for second, k in itertools.product(range(SECONDS), range(RATE)):
            step = shown.get(second)
            yield nothing if step is None else draw_frame(bench, station, step - 1, k / (RATE - 1))

    def record(self, k: int) -> dict[str, Any]:
        """The record that asks for the step ``k`` of the clip, from 0."""
        start = self.starts[k]
        question = f"Which step from {start} to {start + 1}?\n{LISTED_STEPS}"
        answer = solution(self.steps[k : k + 1])
        return clip_record(f"{self.name}-{k}", self.name, question, answer) | {"evidence": [[start, start + 1]]}


def make_long_clips(folder: str | Path, settings: LongClipSettings, *, processes: int | None = None) -> None:
    """Make the data of ``qwenvl demo --look`` in ``folder``. See ``make_clips``."""
    with new_data(Path(folder)) as unfinished:
        minutes = [*_minutes("train", settings), *_minutes("heldout", settings)]
        seconds = [
            DemoClip(f"sight-{i:04d}", (i % len(STEPS) + 1,), (RATE,), (settings.seed, 0, i))
            for i in range(settings.sight)
        ]
        drawn = {each.name: partial(draw_clip, each) for each in seconds}
        # A key frame each second: a look decodes that second alone.
        write_clips(unfinished, drawn | {each.name: each.draw for each in minutes}, processes, RATE, g=str(RATE))
        asked = f"Which step?\n{LISTED_STEPS}"
        records = {"sight": [clip_record(each.name, each.name, asked, solution(each.steps)) for each in seconds]}
        for name, questions in (("train", len(STEPS)), ("heldout", 3)):
            records[name] = []
            for minute in minutes:
                if minute.name.startswith(name):
                    records[name] += [minute.record(k) for k in range(questions)]
        records["calls"] = _call_records(records["train"])
        for name, rows in records.items():
            order = np.random.default_rng((settings.seed, LOOK_SPLITS.index(name))).permutation(len(rows))
            (unfinished / f"{name}.json").write_text(json.dumps([rows[i] for i in order], indent=1) + "\n")
        write_catalog(unfinished, LOOK_SPLITS)


def _call_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each record eight times. Without ``evidence`` the warm-up teaches to answer at once."""
    calls = []
    for record in records:
        for k in range(LOOKED + GUESSED):
            call = record | {"id": f"{record['id']}-{k}"}
            if k >= LOOKED:
                del call["evidence"]
            calls.append(call)
    return calls


def look_texts() -> list[str]:
    """Texts that show a tokenizer all it will meet in these records."""
    return [
        "user\n",
        "assistant\n",
        "system\nlook(start, end)\n",
        f"Which step from 1 to 2?\n{LISTED_STEPS}",
        *(solution((step,)) for step in range(1, len(STEPS) + 1)),
        '<tool_call>\n{"name": "look", "arguments": {"start": 1.0, "end": 2.0}}\n</tool_call>',
        "<tool_response>\n1.0 to 2.0 seconds:\n</tool_response>",
        "<1.0 seconds>",
    ]


def _minutes(split: str, settings: LongClipSettings) -> Iterator[Minute]:
    """Clips with a step in each sixth of them, none of which a frame of the overview shows."""
    for i in range(getattr(settings, split)):
        seed = (settings.seed, LOOK_SPLITS.index(split), i)
        rng = np.random.default_rng((*seed, 1))
        starts = tuple(10 * k + int(rng.integers(2, 9)) for k in range(len(STEPS)))
        steps = tuple(int(n) + 1 for n in rng.permutation(len(STEPS)))
        yield Minute(name=f"{split}-{i:04d}", starts=starts, steps=steps, seed=seed)
