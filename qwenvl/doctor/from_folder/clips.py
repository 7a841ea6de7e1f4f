"""The clips of a folder, in order, and which of them are held out."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qwenvl.data.errors import RecordError
from qwenvl.data.seeds import stable_random

# fmt: off
VIDEO_SUFFIXES = frozenset([
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".flv", ".wmv", ".asf",
    ".3gp", ".ogv", ".vob",
])
# fmt: on


@dataclass(frozen=True)
class ClipFolder:
    """The clips below a folder.

    Attributes:
        root: the folder.
        clips: paths from ``root`` with ``/``, sorted, numbers within names by their value.
        others: how many files with another ending there are, by ending.
        copies: groups of clips with the same content, bit for bit.
    """

    root: Path
    clips: tuple[str, ...]
    others: Counter[str]
    copies: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, root: Path) -> ClipFolder:
        """Look for clips in ``root`` and the folders below. Hidden files and folders are passed over.

        Raises:
            FileNotFoundError, NotADirectoryError: ``root`` is no folder.
            RecordError: it holds no clip, or the name of a clip is not UTF-8.
        """
        if not root.is_dir():
            raise (NotADirectoryError if root.exists() else FileNotFoundError)(f"{root}: expected a folder of clips")
        found: list[str] = []
        others: Counter[str] = Counter()
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if name.startswith("."):  # .DS_Store, ._clip.mp4
                    continue
                if (suffix := Path(name).suffix.lower()) in VIDEO_SUFFIXES:
                    found.append(Path(folder, name).relative_to(root).as_posix())
                else:
                    others[suffix or "no ending"] += 1
        if not found:
            raise RecordError(f"{root}: no clips; expected files that end in {', '.join(sorted(VIDEO_SUFFIXES))}")
        for clip in found:
            try:
                clip.encode()
            except UnicodeEncodeError:
                raise RecordError(f"{root}: the name of {clip!a} is not UTF-8; rename the file") from None
        clips = tuple(sorted(found, key=_in_order))
        return cls(root, clips, others, _copies(root, clips))

    def held_out(self, clips: list[str], share: float, seed: int) -> set[str]:
        """A share of ``clips``, chosen by ``seed``: at least one of them, and not all. Copies of a clip stay together.

        Args:
            share: above 0 and below 1.

        Raises:
            ValueError: there are not two different clips.
        """
        of = {clip: group[0] for group in self.copies for clip in group}
        groups: dict[str, list[str]] = {}
        for clip in clips:
            groups.setdefault(of.get(clip, clip), []).append(clip)
        if len(groups) < 2:
            raise ValueError("--split needs at least two different clips with an answer")
        # By a number that each clip has for itself: few clips change sides where others are added to the folder.
        order = sorted(groups, key=lambda clip: stable_random(seed, "held out", clip).getrandbits(64))
        chosen: list[str] = []
        for group in order[:-1]:
            if chosen and len(chosen) + len(groups[group]) > round(share * len(clips)):
                break
            chosen += groups[group]
        return set(chosen)


def _in_order(path: str) -> list[list[tuple[int, int, str]]]:
    """A key that puts ``clip2`` before ``clip10``, and the files of a folder together."""
    pieces = [re.split(r"([0-9]+)", part.casefold()) for part in path.split("/")]
    return [[(0, int(text), "") if text.isdecimal() else (1, 0, text) for text in part if text] for part in pieces]


def _copies(root: Path, clips: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    by_size: dict[int, list[str]] = {}
    for clip in clips:
        by_size.setdefault((root / clip).stat().st_size, []).append(clip)
    groups: dict[str, list[str]] = {}
    for same_size in by_size.values():
        for clip in same_size if len(same_size) > 1 else ():
            groups.setdefault(_digest(root / clip), []).append(clip)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
