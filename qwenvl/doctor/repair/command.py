"""``qwenvl data repair``: new files in place of clips that say something else than they show."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.media.source import frame_list
from qwenvl.doctor.convert import Written, write_records
from qwenvl.doctor.flags import add_dataset_flags, opened
from qwenvl.doctor.repair.clip import Repaired, repair_clip
from qwenvl.types import Record

ANNOTATIONS = "annotations.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    parser.add_argument(
        "--out", required=True, type=Path, help=f"folder for the new clips and for {ANNOTATIONS}, which names them"
    )


def run(args: argparse.Namespace) -> int:
    """Repair the clips of a data set and write its records. Return 1 if some could not be repaired."""
    if (args.out / ANNOTATIONS).exists():
        raise ValueError(f"--out {args.out}: it has {ANNOTATIONS} already; name another folder")
    clips = Clips(args.out / "clips")
    records: list[Record] = []
    left_out: list[str] = []
    for row in (row for file in opened(args) for row in file.iterate()):
        if isinstance(row, RecordError):
            left_out.append(str(row))
            continue
        try:
            records.append(replace(row, videos=tuple(clips.repaired(path).path for path in row.videos)))
        except BadMediaError as error:
            left_out.append(f"{row.where} (id {row.id}): {error}")
    args.out.mkdir(parents=True, exist_ok=True)
    written = write_records(records, args.out / ANNOTATIONS)
    print(render(clips, written, left_out, args.out))
    return 1 if left_out else 0


class Clips:
    """The clips of a data set, each repaired once.

    Args:
        folder: of the new files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[str, Repaired | BadMediaError] = {}

    def repaired(self, path: str) -> Repaired:
        """What became of a clip.

        Raises:
            BadMediaError: it can't be repaired.
        """
        if path not in self._done:
            if path.startswith(("http://", "https://")) or os.path.isdir(path) or frame_list(path) is not None:
                self._done[path] = Repaired(path)  # elsewhere, or made of images
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                target = self._folder / f"{len(self._done):06d}_{Path(path).stem.replace('.', '_')}"
                try:
                    self._done[path] = repair_clip(path, target)
                except BadMediaError as error:
                    self._done[path] = error
            print(f"{path}: {self._said(path)}", file=sys.stderr)
        outcome = self._done[path]
        if isinstance(outcome, BadMediaError):
            raise outcome
        return outcome

    def count(self) -> tuple[int, int, int]:
        """How many were right, were repaired, and can't be."""
        bad = sum(isinstance(outcome, BadMediaError) for outcome in self._done.values())
        new = sum(isinstance(outcome, Repaired) and bool(outcome.how) for outcome in self._done.values())
        return len(self._done) - bad - new, new, bad

    def _said(self, path: str) -> str:
        outcome = self._done[path]
        if isinstance(outcome, BadMediaError):
            return f"can't be repaired: {str(outcome).removeprefix(f'{path}: ')}"
        return outcome.how or "right as it is"


def render(clips: Clips, written: Written, left_out: list[str], out: Path) -> str:
    """Return what was done, as text to be read."""
    right, new, bad = clips.count()
    lines = [
        f"{right:,} clips are right as they are, {new:,} were repaired, {bad:,} can't be",
        f"wrote {written.records:,} records to {out / ANNOTATIONS}",
    ]
    if written.outside:
        lines.append(f"{written.outside:,} clips stayed where they are: read the file with --allow_outside_media")
    lines += [f"left out: {problem}" for problem in left_out]
    return "\n".join(lines)
