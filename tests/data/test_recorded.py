"""The clips of the example give the frames that they gave when this was written: numbers, times, and what is on them.

Write the record anew, after a change that is meant, with ``python -m tests.data.test_recorded``.
"""

import json
from pathlib import Path

import pytest
from torch import Tensor

from qwenvl.data.dataset import load_dataset

RECORD = Path(__file__).with_suffix(".json")
GRID = 4  # means of so many fields across and down stand for a picture


def seen() -> dict[str, dict]:
    """What evaluation sees of each clip with the default settings."""
    clips = {}
    for sample in (dataset[i] for dataset in [load_dataset("example", training=False)] for i in range(len(dataset))):
        for clip in sample.videos:
            shown = {"indices": list(clip.info.indices), "times": [round(time, 6) for time in clip.info.times]}
            clips[f"{sample.record.id}/{Path(clip.info.path).name}"] = shown | {"fields": fields(clip.frames)}
    return clips


def fields(frames: Tensor) -> list[list[int]]:
    """The mean of each field of each frame."""
    height, width = (side // GRID for side in frames.shape[-2:])
    cut = frames[..., : GRID * height, : GRID * width].float()
    means = cut.unflatten(3, (GRID, width)).unflatten(2, (GRID, height)).mean((1, 3, 5))
    return means.flatten(1).round().int().tolist()


def test_the_example_gives_the_frames_that_were_recorded():
    recorded, now = json.loads(RECORD.read_text()), seen()
    assert list(now) == list(recorded)
    for name, clip in recorded.items():
        assert now[name]["indices"] == clip["indices"]
        assert now[name]["times"] == pytest.approx(clip["times"], abs=1e-6)
        for frame, expected in zip(now[name]["fields"], clip["fields"], strict=True):
            assert frame == pytest.approx(expected, abs=2)  # colours are converted a little differently by machine


if __name__ == "__main__":
    clips = seen().items()
    RECORD.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(clip)}" for name, clip in clips) + "\n}\n")
