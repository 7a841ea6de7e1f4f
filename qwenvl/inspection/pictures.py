"""Makes pictures for a report: the frames that completions were sampled for, decoded again, small, a file a clip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.open import open_clip, read_image
from qwenvl.data.media.resize import BICUBIC, read_resized, small
from qwenvl.data.media.source import version_of
from qwenvl.data.options import SampleOptions
from qwenvl.files import is_address, written_whole
from qwenvl.run_log.log import hash_of
from qwenvl.run_log.report.pages import Strip, is_key
from qwenvl.run_log.report.write import Picture

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 320  # of a frame, in pixels
STILL_WIDTH = 640  # of an image
COLUMNS = 8  # pictures side by side in a file


def make_pictures(strips: Sequence[Strip], folder: Path, most: int) -> dict[str, Picture]:
    """Make ``folder/<key>.jpg``, frames row by row, of strips that have no file yet, in their order.

    At most ``most`` clips and images are decoded, and strips beyond that left out. A file of a clip that was replaced
    since is made anew. Files of other strips are deleted, and no others: their names are keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {strip.key for strip in strips}
    for file in folder.glob("*.jpg"):
        if file.stem not in wanted and is_key(file.stem):
            file.unlink()
    made: dict[str, Picture] = {}
    versions: dict[str, bytes] = {}  # by path: a run shows a clip in many strips, and a folder has many files to read
    decoded = 0
    for strip in strips:
        path = folder / f"{strip.key}.jpg"
        if strip.path not in versions:
            versions[strip.path] = _version(strip.path)
        version = versions[strip.path]
        kept = _kept(path, strip, version)
        if kept is not None:
            made[strip.key] = kept
        elif decoded < most:
            decoded += 1
            made[strip.key] = _make(path, strip, version)
    return made


def _version(path: str) -> bytes:
    """What a file says of the clip or image that it was made of. Empty: that is gone."""
    version = version_of(path)
    return hash_of(version).encode() if version else b""


def _kept(path: Path, strip: Strip, version: bytes) -> Picture | None:
    """The file of a strip that shows the clip or image as it is now, or as it last was where it is gone."""
    if not path.exists():
        return None
    try:
        with Image.open(path, formats=["JPEG"]) as made:
            is_current = not version or made.info.get("comment") == version
            return _layout(made, strip) if is_current else None
    except OSError:  # a disk was full when it was written
        return None


def _make(path: Path, strip: Strip, version: bytes) -> Picture:
    """Write the file of one strip, or return the problem that keeps it from being made.

    Args:
        version: of the clip or image before it is read. One that is replaced meanwhile is made again by the next call.
    """
    if is_address(strip.path):
        return {"problem": "it lies on a network, from which a report fetches nothing"}
    if not Path(strip.path).exists():
        return {"problem": "the file is gone"}
    try:
        seconds = SampleOptions.decode_timeout or 60.0  # a file that never ends must not block the report
        if strip.indices:
            with open_clip(strip.path, timeout=seconds) as clip:
                frames, _ = read_resized(clip, strip.indices, small, BICUBIC)
        else:
            frames = read_image(strip.path, timeout=seconds)[None]
    except IndexError:
        return {"problem": "the clip has changed since the run: it has fewer frames"}
    except (BadMediaError, OSError) as error:
        return {"problem": str(error).removeprefix(f"{strip.path}: ")}
    with written_whole(path) as partial:
        picture = sheet(frames, WIDTH if strip.indices else STILL_WIDTH)
        picture.save(partial, "JPEG", quality=80, comment=version)
    return _layout(picture, strip)


def sheet(frames: Tensor, width: int) -> Image.Image:
    """The frames, F x 3 x H x W, row by row in one picture, each ``width`` pixels wide."""
    height = max(1, round(width * frames.shape[2] / frames.shape[3]))
    columns, rows = _grid(len(frames))
    made = Image.new("RGB", (columns * width, rows * height))
    for n, frame in enumerate(frames):
        picture = Image.fromarray(frame.permute(1, 2, 0).numpy())
        column = n % columns
        row = n // columns
        made.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (column * width, row * height))
    return made


def _grid(count: int) -> tuple[int, int]:
    """The columns and rows of a sheet of ``count`` frames."""
    return min(count, COLUMNS), math.ceil(count / COLUMNS)


def _layout(made: Image.Image, strip: Strip) -> Picture:
    """The layout of a sheet: columns, rows, and the width of a frame by its height."""
    columns, rows = _grid(max(1, len(strip.indices)))
    ratio = (made.width / columns) / (made.height / rows)
    return {"columns": columns, "rows": rows, "ratio": round(ratio, 4)}
