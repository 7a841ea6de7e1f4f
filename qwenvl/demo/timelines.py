"""The data of ``qwenvl demo --timeline``: clips of 12 seconds with three steps, and the question which step is when.

A step takes 2 to 8 whole seconds. The model sees two frames of each second, which Qwen3-VL merges to one patch behind a
text with their time, so every edge can be read off the clip.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwenvl.demo.clips import (
    COVER,
    LISTED_STEPS,
    SPLITS,
    THINKING,
    UNDER_THE_COVER,
    Steps,
    clip_record,
    new_data,
    write_catalog,
    write_clips,
)
from qwenvl.demo.scene import STEPS, Station, draw_bench, draw_frame
from qwenvl.rewards.functions.timelines import overlaps
from qwenvl.timeline import TimedStep, written_timeline

SECONDS = 12
RATE = 4  # frames of a second
FPS_SEEN = 2
SHORTEST = 2  # seconds of a step
QUESTION = f"Which of these steps does the video show, and from when to when?\n{LISTED_STEPS}\nThink, then answer."

_ORDERS = itertools.permutations(range(1, len(STEPS) + 1), 3)
ORDERS: tuple[Steps, ...] = tuple(
    steps for steps in _ORDERS if COVER not in steps or not UNDER_THE_COVER.intersection(steps[steps.index(COVER) :])
)
"""The steps that a clip may show: three different ones, none of which is done under a cover that is closed already."""

_WHOLE_SECONDS = range(1, SECONDS)
EDGES: tuple[tuple[int, int], ...] = tuple(
    (first, second)
    for first, second in itertools.combinations(_WHOLE_SECONDS, 2)
    if min(first, second - first, SECONDS - second) >= SHORTEST
)
"""The seconds at which the second and the third step of a clip may begin."""


@dataclass(frozen=True)
class TimelineSettings:
    """All that the data depends on: the same settings give the same records and pictures."""

    seed: int = 0
    train: int = 600  # clips
    heldout: int = 120
    warmup: int = 4800  # targets of the warm-up
    dropped: float = 0.5  # share of the warm-up's targets that leave out one of the three spans
    moved: float = 0.6  # share of the edges in the warm-up's targets that are a second too early or too late
    unthinking: float = 0.4  # share of the warm-up's targets without a thinking block


@dataclass(frozen=True)
class TimedClip:
    """A clip to be made: its steps, the two seconds at which a step follows another, and the seed of its looks."""

    name: str
    steps: Steps
    edges: tuple[int, int]
    seed: tuple[int, ...]

    @property
    def spans(self) -> list[TimedStep]:
        """The timeline of the clip."""
        return spans_of(self.steps, self.edges)

    def draw(self) -> Iterator[np.ndarray]:
        """The frames of the clip in order, each SIZE x SIZE x 3, uint8. What a step has done stays done in the next."""
        station = Station.draw_lot(np.random.default_rng(self.seed))
        for span in self.spans:
            assert span.number is not None
            bench = draw_bench(station)
            frames = round(span.seconds * RATE)
            for k in range(frames):
                yield draw_frame(bench, station, span.number - 1, k / (frames - 1))
            station.done.add(span.number - 1)

    def record(self, name: str, answer: str) -> dict[str, Any]:
        """The question on this clip."""
        frames = SECONDS * FPS_SEEN
        meta = {"min_frames": frames, "max_frames": frames}
        return clip_record(name, self.name, QUESTION, answer) | {"meta": meta}


def spans_of(steps: Steps, edges: tuple[int, int]) -> list[TimedStep]:
    """The timeline of three steps that follow each other.

    Example:
        >>> print(written_timeline(spans_of((2, 5, 6), (3, 8))))
        0.0-3.0 (2) insert the fan
        3.0-8.0 (5) close the cover
        8.0-12.0 (6) scan the label
    """
    times = (0, *edges, SECONDS)
    return [
        TimedStep(float(start), float(end), number, STEPS[number - 1])
        for number, start, end in zip(steps, times[:-1], times[1:], strict=True)
    ]


def written_answer(spans: list[TimedStep]) -> str:
    """The answer that has these spans, as records hold it."""
    return f"<answer>{written_timeline(spans)}</answer>"


def make_timeline_clips(
    folder: str | Path, settings: TimelineSettings = TimelineSettings(), *, processes: int | None = None
) -> None:
    """Make the data in ``folder``. See ``qwenvl.demo.clips.make_clips``."""
    train = list(_plan("train", settings.train, settings.seed))
    heldout = list(_plan("heldout", settings.heldout, settings.seed))
    with new_data(Path(folder)) as unfinished:
        # ``clip.draw`` itself: bound methods can be sent to the processes that encode.
        write_clips(unfinished, {clip.name: clip.draw for clip in [*train, *heldout]}, processes, RATE)
        for name, clips in (("train", train), ("heldout", heldout)):
            records = [clip.record(clip.name, written_answer(clip.spans)) for clip in clips]
            (unfinished / f"{name}.json").write_text(json.dumps(records, indent=1) + "\n")
        with open(unfinished / "warmup.jsonl", "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in _warmup_records(train, settings))
        write_catalog(unfinished, SPLITS)


def _plan(split: str, count: int, seed: int) -> Iterator[TimedClip]:
    """Clips with every order of steps about equally often, and edges at random."""
    rng = np.random.default_rng((seed, SPLITS.index(split), 2))
    orders = rng.permutation(len(ORDERS))
    for i in range(count):
        steps = ORDERS[orders[i % len(ORDERS)]]
        edges = EDGES[rng.integers(len(EDGES))]
        yield TimedClip(f"{split}-{i:04d}", steps, edges, (seed, SPLITS.index(split), i))


def _warmup_records(clips: list[TimedClip], settings: TimelineSettings) -> Iterator[dict[str, Any]]:
    """Targets in the form of an answer, most of which have a wrong edge or lack a span: the rest is left to GRPO."""
    rng = np.random.default_rng((settings.seed, SPLITS.index("warmup")))
    for i in range(settings.warmup):
        clip = clips[rng.integers(len(clips))]
        first, second = clip.edges
        moves = []
        for _ in clip.edges:
            moved = rng.random() < settings.moved
            moves.append(int(rng.choice((-1, 1))) if moved else 0)
        # A span of two seconds may vanish where both of its edges move.
        edges = (first + moves[0], max(second + moves[1], first + moves[0] + 1))
        spans = spans_of(clip.steps, edges)
        if rng.random() < settings.dropped:
            del spans[rng.integers(len(spans))]
        thinking = "" if rng.random() < settings.unthinking else THINKING + " "
        yield clip.record(f"warmup-{i:04d}", thinking + written_answer(spans))


def timeline_texts() -> list[str]:
    """Texts that show a tokenizer all it will meet in these records."""
    # The processor writes the time of each pair of frames, in tenths.
    times = [f"<{tenths / 10:.1f} seconds>" for tenths in range(10 * (SECONDS + 1))]
    answers = [f"{THINKING} {written_answer(spans_of(steps, EDGES[i % len(EDGES)]))}" for i, steps in enumerate(ORDERS)]
    return ["user\n", QUESTION, "assistant\n", *times, *answers]


def best_fixed_timeline() -> tuple[float, list[TimedStep]]:
    """The highest mean ``timeline_iou`` of one answer for every clip, and this answer.

    The measure is a mean over the clip's spans, so the best span of each step is found by itself. More than three spans
    cost what the measure takes off for extra ones.
    """
    shown = []
    for steps, edges in itertools.product(ORDERS, EDGES):
        shown += spans_of(steps, edges)
    best = []
    for number, name in enumerate(STEPS, 1):
        pairs = itertools.combinations(range(SECONDS + 1), 2)
        guesses = [TimedStep(float(start), float(end), number, name) for start, end in pairs]
        # What each guess adds to the mean over the spans of all clips, three in each.
        gains = overlaps(guesses, [span for span in shown if span.number == number]).sum(1) / len(shown)
        best.append((float(gains.max()), guesses[int(gains.argmax())]))
    best.sort(key=lambda found: -found[0])
    values = []  # of the answers with the best span, the best two, ...
    for count in range(1, len(best) + 1):
        share_of_extra = max(0, count - 3) / count
        values.append(sum(gain for gain, _ in best[:count]) - share_of_extra)
    count = values.index(max(values)) + 1
    return max(values), sorted((span for _, span in best[:count]), key=lambda span: span.start)
