"""Writes the tables of clips in docs/data.md: ``python scripts/make_clips_doc.py``. It takes two minutes.

The clips are made on the spot, with their number in each frame. Damaged are copies of some of them: random bytes in the
middle eight tenths of the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qwenvl.data.errors import BadMediaError  # noqa: E402 (works without an installed package)
from qwenvl.data.media.open import open_clip  # noqa: E402
from scripts.bench.decode_clips import number_in  # noqa: E402
from scripts.clips.copies import damaged  # noqa: E402
from scripts.clips.kinds import Kind, Workshop, kinds  # noqa: E402
from scripts.clips.sources import SIZE, encode_numbered  # noqa: E402

PAGE = ROOT / "docs" / "data.md"
START, END = "<!-- tables: made by scripts/make_clips_doc.py -->", "<!-- end of the tables -->"
DAMAGED = (("h264", "mp4"), ("h264", "mkv"), ("h264", "ts"), ("hevcopen", "mp4"), ("mpeg2", "ts"), ("mpeg4", "avi"))
DAMAGED += (("vp9", "webm"), ("av1", "mp4"))
BYTES = (1, 5, 50, 500)
SEEDS = 12
LARGE, LONG = (320, 192), 200  # pixels and frames of a clip to damage


def kinds_table(folder: Path) -> list[str]:
    """How each kind of clip was made, in which containers and codecs, and how many of them are read rightly."""
    workshop = Workshop(folder)
    codecs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    right: dict[str, list[bool]] = defaultdict(list)
    for kind in kinds():
        codecs[kind.cut][kind.container].append(kind.codec)
        right[kind.cut].append(is_right(kind, workshop, folder))
    rows = ["| clip | containers and codecs | right |", "|---|---|---|"]
    for cut, containers in codecs.items():
        made = ", ".join(f"{container} ({' '.join(names)})" for container, names in containers.items())
        rows.append(f"| {cut} | {made} | {sum(right[cut])} of {len(right[cut])} |")
    total = [each for of_cut in right.values() for each in of_cut]
    return [*rows, f"| all | | {sum(total)} of {len(total)} |"]


def is_right(kind: Kind, workshop: Workshop, folder: Path) -> bool:
    """Whether all frames of a clip and their times are right."""
    from torchvision.transforms.v2.functional import resize

    path, shown = kind.write(workshop, folder)
    try:
        with open_clip(str(path)) as clip:
            frames = resize(clip.read(range(clip.frame_count)), SIZE[::-1])
            times = clip.frame_times
    except BadMediaError as error:
        print(error, file=sys.stderr)
        return False
    numbers = [number_in(frame.permute(1, 2, 0).numpy()) for frame in frames]
    return numbers == list(shown.numbers) and np.allclose(times, shown.times, rtol=0, atol=2.1e-3)


def damage_table(folder: Path) -> list[str]:
    """Of damaged copies, how many are named and how many are wrong without a word."""
    rows = [
        "| damaged bytes | " + " | ".join(f"{count}" for count in BYTES) + " |",
        "|---|" + "---|" * len(BYTES),
    ]
    for codec, container in DAMAGED:
        path = encode_numbered(folder / f"whole_{codec}.{container}", codec, LONG, size=LARGE)
        whole, _ = all_frames(path, strict=False)
        cells = []
        for count in BYTES:
            missed = {strict: 0 for strict in (False, True)}
            for seed in range(SEEDS):
                copy = damaged(path, folder / f"damaged.{container}", count, seed)
                for strict in missed:
                    frames, named = all_frames(copy, strict)
                    same = frames is not None and frames.shape == whole.shape and np.array_equal(frames, whole)
                    missed[strict] += not named and not same
            cells.append(f"{SEEDS - missed[False]}, {SEEDS - missed[True]}")
        rows.append(f"| {codec.removesuffix('open')} in {container} | {' | '.join(cells)} |")
    return rows


def all_frames(path: Path, strict: bool) -> tuple[np.ndarray | None, bool]:
    """All frames of a clip, or None and True where it is named as bad."""
    try:
        with open_clip(str(path), timeout=60, strict=strict) as clip:
            frames = clip.read(range(clip.frame_count)).numpy()
            if strict:
                clip.check_all()
    except BadMediaError:
        return None, True
    return frames, False


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = kinds_table(Path(folder))
        harmed = damage_table(Path(folder))
    said = (
        f"Of {SEEDS} damaged copies of a clip of {LONG} frames, {LARGE[0]} x {LARGE[1]}, how many were named or right "
        "to the last pixel: by `fast`, and by `strict`, all frames decoded."
    )
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    table = "\n".join(["", *made, "", said, "", *harmed, ""])
    PAGE.write_text(f"{before}{START}{table}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
