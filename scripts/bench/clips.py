"""Which kinds of clips the reader reads rightly, and which damage it names: two tables, two minutes.

    python scripts/bench/clips.py

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.open import open_clip
from scripts.clips.copies import damaged
from scripts.clips.kinds import Kind, Workshop, kinds
from scripts.clips.sources import SIZE, encode_numbered, number_in

DAMAGED = (("h264", "mp4"), ("h264", "mkv"), ("h264", "ts"), ("hevcopen", "mp4"), ("mpeg2", "ts"), ("mpeg4", "avi"))
DAMAGED += (("vp9", "webm"), ("av1", "mp4"))
BYTES, SEEDS = (1, 5, 50, 500), 12


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


def undetected(copy: Path, whole: np.ndarray, strict: bool) -> bool:
    """Whether a damaged copy gives other frames than the whole clip and is not named as bad."""
    frames = all_frames(copy, strict)
    return frames is not None and not (frames.shape == whole.shape and np.array_equal(frames, whole))


def all_frames(path: Path, strict: bool) -> np.ndarray | None:
    """All frames of a clip, or None if it is named as bad."""
    try:
        with open_clip(str(path), timeout=60, strict=strict) as clip:
            frames = clip.read(range(clip.frame_count)).numpy()
            if strict:
                clip.check_all()
    except BadMediaError:
        return None
    return frames


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workshop, right = Workshop(folder), defaultdict(list)
        for kind in kinds():
            right[kind.cut].append(is_right(kind, workshop, folder))
        print("| clip | right |\n|---|---|")
        for cut, found in [*right.items(), ("all", [each for some in right.values() for each in some])]:
            print(f"| {cut} | {sum(found)} of {len(found)} |")
        print("\n| damaged bytes | " + " | ".join(map(str, BYTES)) + " |\n|---|" + "---|" * len(BYTES))
        for codec, container in DAMAGED:
            path = encode_numbered(folder / f"whole_{codec}.{container}", codec, 200, size=(320, 192))
            whole, cells = all_frames(path, strict=False), []
            for count in BYTES:
                copies = [damaged(path, folder / f"{seed}.{container}", count, seed) for seed in range(SEEDS)]
                missed = [sum(undetected(each, whole, strict) for each in copies) for strict in (False, True)]
                cells.append(", ".join(str(SEEDS - each) for each in missed))
            print(f"| {codec.removesuffix('open')} in {container} | {' | '.join(cells)} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
