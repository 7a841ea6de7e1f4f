"""Finds the clips of a folder, and the clip that a file of labels names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import VIDEO_SUFFIXES
from qwenvl.inspection.label_columns import as_cell, of_cell
from qwenvl.inspection.playable import is_copy
from qwenvl.option import did_you_mean

# "/v/a.mp4;/v/b.mp4" and "/v/a.mp4|/v/b.mp4", as BORIS writes the media of an observation that has several, and
# "/v/a.mp4 /v/b.mp4", as ``qwenvl label`` does those of a record.
_SEVERAL_CLIPS = re.compile(
    rf"(?:{'|'.join(map(re.escape, VIDEO_SUFFIXES))})(?:\s*[;|,]\s*\S|\s+\S*/)", re.IGNORECASE
)


def find_clips(root: Path) -> list[str]:
    """The clips in ``root`` and the folders below: paths from ``root`` with "/", sorted, numbers by their value.

    Hidden files are left out, and the copies for players that `qwenvl label` writes.
    """
    if not root.is_dir():
        raise (NotADirectoryError if root.exists() else FileNotFoundError)(f"{root}: expected a folder of clips")
    files = [path for path in root.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    clips = [path.relative_to(root).as_posix() for path in files if not is_copy(path)]
    clips = [clip for clip in clips if not is_hidden(clip)]
    if not clips:
        raise RecordError(f"{root}: no clips; expected files that end in {', '.join(VIDEO_SUFFIXES)}")
    return sorted(clips, key=_natural_order)


def is_hidden(path: str) -> bool:
    """Whether a path from a folder is that of a hidden file, or of one in a hidden folder.

    A Mac writes such a file beside each one on a disk of another system: ``._clip.mp4``.
    """
    return "/." in f"/{path}"


def _natural_order(path: str) -> list[list[tuple[int, int, str]]]:
    """A key that puts ``clip2`` before ``clip10``, and the files of a folder together."""
    key = []
    for part in path.split("/"):
        pieces = []
        for text in re.split(r"([0-9]+)", part.casefold()):
            if text.isdecimal():
                pieces.append((0, int(text), ""))
            elif text:
                pieces.append((1, 0, text))
        key.append(pieces)
    return key


def clips_by_name(clips: Sequence[str]) -> dict[str, list[str]]:
    """The clips by their path from the folder, with and without its ending, by file name and by stem.

    Names are those of ``composed``. Cells lose blanks at their ends, and their backslashes are slashes: such a name is
    found in that form too.
    """
    named: dict[str, list[str]] = {}
    for clip in clips:
        path = Path(clip)
        as_read = clip.strip().replace("\\", "/")
        for name in {clip, as_read, str(path.with_suffix("")), path.name, path.stem}:
            named.setdefault(composed(name), []).append(clip)
    return named


def is_absolute(path: str) -> bool:
    """Whether a path begins at the root of a machine, here or elsewhere: ``/v/a.mp4``, ``C:/v/a.mp4``."""
    return re.match(r"/|[A-Za-z]:/", path) is not None


def composed(name: str) -> str:
    """A name with each letter and its accents as one character, if there is one. A Mac writes two in names of files."""
    return unicodedata.normalize("NFC", name)


def clip_of_cell(cell: str, named: dict[str, list[str]]) -> str:
    """The clip that a cell names by its path from the folder, or by its file name or stem if no other clip has it.

    Args:
        named: see ``clips_by_name``.

    Raises:
        ValueError: there is none, or there are several.
    """
    name = cell.replace("\\", "/").removeprefix("./")
    if composed(name) not in named:
        name = of_cell(name)
    found = named.get(composed(name), [])
    if name in found:
        return name
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} may be {' or '.join(found[:3])}; write the path from the folder")
    raise ValueError(f"there is no clip {name!r}{did_you_mean(name, named)}")


def clip_at_path(path: str, named: dict[str, list[str]]) -> str:
    """The clip that the path in a file of labels names, which may be a path of the machine where they were made.

    Args:
        named: see ``clips_by_name``.

    Raises:
        ValueError: there is none, or there are several, or the clip of this name is in another folder.
    """
    if _SEVERAL_CLIPS.search(path):
        raise ValueError(f"{path!r} names several clips; expected one in each row")
    name = composed(path.rpartition("/")[2])
    same_name = [clip for clip in named.get(name, []) if name in map(composed, (Path(clip).name, Path(clip).stem))]
    below = [clip for clip in same_name if _folder_in_front(path, clip) is not None]
    above = [clip for clip in same_name if _folder_in_front(clip, path)]
    if below:
        depth = max(clip.count("/") for clip in below)
        deepest = [clip for clip in below if clip.count("/") == depth]
        if len(deepest) > 1:
            raise ValueError(f"{path!r} may be {' or '.join(deepest[:3])}; write its ending")
        is_whole_path = folder_of_export(path, deepest[0]) == ""
        if above and not is_whole_path:
            raise ValueError(f"{path!r} may be {' or '.join([*deepest, *above][:3])}; take the folder of one of them")
        return deepest[0]
    if len(above) == 1:
        return above[0]
    if same_name and not above:
        raise ValueError(f"there is no clip {path!r}, only {' and '.join(same_name[:3])} in another folder")
    return clip_of_cell(name, named)


def folder_of_export(path: str, clip: str) -> str:
    """The folder in which the machine that labels come from had a clip of ours. Empty where it is not said.

    Example:
        >>> folder_of_export("d/station-1/cam/a.mp4", "cam/a.mp4"), folder_of_export("a.mp4", "a.mp4")
        ('d/station-1', '')
    """
    return _folder_in_front(path, clip) or ""


def _folder_in_front(path: str, clip: str) -> str | None:
    """The part before a clip of a path that ends with it, with its ending or without. None: the path does not."""
    path = composed(path)
    for name in (composed(clip), composed(str(Path(clip).with_suffix("")))):
        if path == name:
            return ""
        if path.endswith(f"/{name}"):
            return path.removesuffix(f"/{name}")
    return None


def may_be_one_file(one: str, other: str) -> bool:
    """Whether two names of a clip may be those of one file: the same path, or the end of it, with its ending or not."""
    short, long = sorted((composed(one), composed(other)), key=len)
    return any(f"/{path}".endswith(f"/{short}") for path in (long, str(Path(long).with_suffix(""))))


def is_read_again(clip: str, named: dict[str, list[str]]) -> bool:
    """Whether a cell with the name of a clip is read as this clip."""
    try:
        return clip_of_cell(as_cell(clip).strip(), named) == clip
    except ValueError:
        return False
