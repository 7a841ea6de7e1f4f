"""The data of ``qwenvl demo --look``: clips of a minute in which each step lasts a second.

A folder holds

    clips/*.mp4    a minute with six steps, and for the warm-up a second with one
    sight.json     short clips and the step that they show: before it can look for something, a model has to see
    calls.json     prompts of train.json; in three of eight targets the second in question is looked at first
    train.json     what GRPO learns from
    heldout.json   clips that nothing learns from
    datasets.yaml, settings.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qwenvl.demo.clips import new_data, write_catalog, write_clips
from qwenvl.demo.scene import STEPS, Station, draw_bench, draw_frame

SECONDS, RATE = 60, 4  # of a clip, and its frames a second
OVERVIEW = 4  # frames of it that a prompt has
SPLITS = ("sight", "calls", "train", "heldout")
LOOKED, GUESSED = 3, 5  # of eight targets of the warm-up
_LIST = "\n".join(f"({k}) {step}" for k, step in enumerate(STEPS, 1))


@dataclass(frozen=True)
class LongClipSettings:
    """What the data depends on. The same settings give the same records and pictures."""

    seed: int = 0
    train: int = 100  # clips, with a question on each of the six steps
    heldout: int = 20  # clips, with three questions each
    sight: int = 600  # short clips


@dataclass(frozen=True)
class Minute:
    """A clip: when its steps begin, in seconds, and their numbers from 0. Between them nothing happens."""

    name: str
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    seed: tuple[int, ...]

    def draw(self) -> Iterator[np.ndarray]:
        """Its frames in order, each SIZE x SIZE x 3, uint8."""
        station = Station.draw_lot(np.random.default_rng(self.seed))
        bench = draw_bench(station)
        nothing = np.asarray(bench.reduce(2), dtype=np.uint8)
        shown = dict(zip(self.starts, self.steps, strict=True))
        for second in range(SECONDS):
            for k in range(RATE):
                yield draw_frame(bench, station, shown[second], k / (RATE - 1)) if second in shown else nothing

    def record(self, k: int) -> dict[str, Any]:
        """The question on one of its steps."""
        start = self.starts[k]
        question = f"<video>\nWhich step from {start} to {start + 1}?\n{_LIST}"
        return _record(f"{self.name}-{k}", self.name, question, self.steps[k]) | {"evidence": [[start, start + 1]]}


def make_long_clips(folder: str | Path, settings: LongClipSettings, processes: int | None = None) -> None:
    """See ``make_clips``."""
    with new_data(Path(folder), asdict(settings)) as unfinished:
        if unfinished is None:
            return
        minutes = [minute for name in ("train", "heldout") for minute in _minutes(name, settings)]
        seconds = {f"sight-{i:04d}": i % len(STEPS) for i in range(settings.sight)}
        draw_second = lambda i, step: partial(_second, (settings.seed, SPLITS.index("sight"), i), step)
        drawn = {name: draw_second(i, step) for i, (name, step) in enumerate(seconds.items())}
        # A key frame each second: a look decodes that second alone.
        write_clips(unfinished, drawn | {each.name: each.draw for each in minutes}, processes, RATE, g=str(RATE))
        asked = f"<video>\nWhich step?\n{_LIST}"
        records = {"sight": [_record(name, name, asked, step) for name, step in seconds.items()]}
        records["train"], records["heldout"] = (
            [each.record(k) for each in minutes if each.name.startswith(name) for k in range(count)]
            for name, count in (("train", len(STEPS)), ("heldout", 3))
        )
        records["calls"] = list(_call_records(records["train"]))
        for name, rows in records.items():
            order = np.random.default_rng((settings.seed, SPLITS.index(name))).permutation(len(rows))
            (unfinished / f"{name}.json").write_text(json.dumps([rows[i] for i in order], indent=1) + "\n")
        write_catalog(unfinished, SPLITS)


def look_texts() -> list[str]:
    """Texts that show a tokenizer all it will meet in these records."""
    return [
        "user\n",
        "assistant\n",
        "system\nlook(start, end)\n",
        f"Which step from 1 to 2?\n{_LIST}",
        *map(_answer, range(len(STEPS))),
        '<tool_call>\n{"name": "look", "arguments": {"start": 1.0, "end": 2.0}}\n</tool_call>',
        "<tool_response>\n1.0 to 2.0 seconds:\n</tool_response>",
        "<1.0 seconds>",
    ]


def _minutes(split: str, settings: LongClipSettings) -> Iterator[Minute]:
    """Clips with a step in each sixth of them, none of which a frame of the overview shows."""
    for i in range(getattr(settings, split)):
        seed = (settings.seed, SPLITS.index(split), i)
        rng = np.random.default_rng((*seed, 1))
        starts = [10 * k + int(rng.integers(2, 9)) for k in range(len(STEPS))]
        yield Minute(f"{split}-{i:04d}", tuple(starts), tuple(int(n) for n in rng.permutation(len(STEPS))), seed)


def _second(seed: tuple[int, ...], step: int) -> Iterator[np.ndarray]:
    station = Station.draw_lot(np.random.default_rng(seed))
    bench = draw_bench(station)
    return (draw_frame(bench, station, step, k / (RATE - 1)) for k in range(RATE))


def _call_records(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each record eight times. Without ``evidence`` the warm-up teaches to answer at once."""
    for record in records:
        without = {name: value for name, value in record.items() if name != "evidence"}
        for k in range(LOOKED + GUESSED):
            yield (record if k < LOOKED else without) | {"id": f"{record['id']}-{k}"}


def _record(name: str, clip: str, question: str, step: int) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": _answer(step)}]
    return {"id": name, "video": f"clips/{clip}.mp4", "conversations": turns}


def _answer(step: int) -> str:
    return f"<answer>({step + 1}) {STEPS[step]}</answer>"
