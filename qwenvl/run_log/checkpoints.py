"""The checkpoints in the folder of a run, by their steps."""

from __future__ import annotations

import re
from pathlib import Path


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run folder by their steps, unfinished ones included."""
    named = [each for each in Path(output_dir).glob("checkpoint-*") if each.is_dir()]
    return sorted((each for each in named if re.fullmatch(r".*-\d+", each.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in the name of a checkpoint. 0 in a folder that was renamed."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
