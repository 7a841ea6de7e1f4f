"""Copies clips that browsers cannot play, or show at other times, so that the page beside the copies can play them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

from qwenvl.child import Child, ChildDied, ChildError, ChildTimeout
from qwenvl.data.media.source import version_of
from qwenvl.files import written_whole
from qwenvl.run_log.log import hash_of
from qwenvl.run_log.report.pages import KEY_LENGTH, is_key

# Chromium, Firefox and Safari play these in a <video> element.
PLAYED_CODECS = {"h264", "vp8", "vp9", "av1"}
PLAYED_PIXELS = {"yuv420p", "yuvj420p"}
PLAYED_SUFFIXES = {".mp4", ".m4v", ".mov", ".webm"}
FOLDER = "clips"  # of the copies, beside the page
WIDTH = 640  # of a copy at most, in pixels
SECONDS = 120.0  # for one clip: a longer one is not copied
MEMORY_BYTES = 4 * 10**9
MILLISECOND = Fraction(1, 1000)
# Seconds: a player that shows the first frame within this time shows it at 0 s. Half of a frame at 25 a second.
AT_ONCE = 0.02


def make_playable(clips: Iterable[str], folder: Path, most: int) -> dict[str, Path]:
    """For each clip the file that a browser can play: the clip itself, or a copy in the folder.

    Clips that cannot be read, or not within ``SECONDS``, have none. Copies of other clips are deleted, and no other
    files.

    Args:
        clips: their paths.
        most: the most clips to copy in this call.
    """
    copies = {path: copy_name(path) for path in clips}
    names = set(copies.values())
    for file in folder.glob("*.mp4"):
        if file.stem not in names and is_key(file.stem):
            file.unlink()
    found: dict[str, Path] = {}
    child: Child | None = None
    left = most
    try:
        for path, name in copies.items():
            target = folder / f"{name}.mp4"
            if target.exists():
                found[path] = target
                continue
            try:
                child = child or Child(f"{__name__}:copier", memory_bytes=MEMORY_BYTES)
                if child.ask((path, ""), SECONDS):
                    found[path] = Path(path)
                    continue
                if not left:
                    continue  # later clips may play by themselves
                left -= 1
                folder.mkdir(parents=True, exist_ok=True)
                with written_whole(target) as part:
                    child.ask((path, str(part)), SECONDS)
                found[path] = target
            except (ChildTimeout, ChildDied):
                child = None  # it is gone; the next clip gets another one
            except ChildError:
                continue  # a clip that cannot be read: its row says why
    finally:
        if child is not None:
            child.kill()
    return found


def is_copy(path: Path) -> bool:
    """Whether a file is a copy for a player, in the folder ``clips`` beside a page of labels.

    Clips of a data set may have such names, too: what `qwenvl label` writes beside the page tells them apart.
    """
    if path.parent.name != FOLDER or path.suffix != ".mp4" or not is_key(path.stem):
        return False
    return all((path.parent.parent / name).is_file() for name in ("index.html", "protocol.json", "rows-0.jsonl"))


def copy_name(path: str) -> str:
    """The name of the copy of a clip, without ending. A file that has changed has another one."""
    return hash_of([path, *version_of(path)])[:KEY_LENGTH]


def copier() -> Callable[[tuple[str, str]], bool]:
    """The child's side: a function from path and target to whether browsers play the clip.

    With a target, which is not empty, it writes the copy of the clip there.
    """

    def answer(request: tuple[str, str]) -> bool:
        path, target = request
        if not target:
            return plays(path)
        write_copy(path, target)
        return True

    return answer


def plays(path: str) -> bool:
    """Whether browsers have a decoder for a clip, and show its frames at their times after the first one."""
    import av

    with av.open(path) as container:
        video = container.streams.video[0].codec_context
        known = video.name in PLAYED_CODECS and video.pix_fmt in PLAYED_PIXELS
        if not known or Path(path).suffix.lower() not in PLAYED_SUFFIXES:
            return False
        # Where sound begins before the pictures, as in many clips cut without re-encoding, the player's clock does too.
        # Without sound a browser counts from the container's zero, as ``Clip.delay`` does for files that browsers play.
        player_start = min(0.0, (container.start_time or 0) / av.time_base)
        first = next(container.decode(video=0), None)
        return first is not None and first.time is not None and abs(first.time - player_start) <= AT_ONCE


def write_copy(path: str, target: str) -> None:
    """Write a clip as H.264, at most ``WIDTH`` pixels wide, its frames at their times after the first one."""
    import av

    from qwenvl.data.media.reader import ClipReader

    with ClipReader(path) as clip, av.open(target, "w", format="mp4") as made:
        # Without B-frames the first frame is at 0 s. Times are those of the frames and not of the rate.
        stream = made.add_stream("libx264", rate=25, options={"preset": "veryfast", "crf": "26", "bf": "0"})
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = MILLISECOND
        stream.time_base = MILLISECOND
        number = 0
        for part in clip.parts(range(clip.frame_count)):
            for picture in part:
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                if number == 0:
                    stream.width, stream.height = copy_size(frame.width, frame.height)
                frame = frame.reformat(stream.width, stream.height, "yuv420p")
                frame.pts = round(1000 * clip.frame_times[number])
                frame.time_base = MILLISECOND
                made.mux(stream.encode(frame))
                number += 1
        made.mux(stream.encode(None))  # the frames that the encoder still holds


def copy_size(width: int, height: int) -> tuple[int, int]:
    """The width and height of a copy: even numbers, as the encoder needs them."""
    scale = min(1.0, WIDTH / width)
    return max(2, 2 * round(width * scale / 2)), max(2, 2 * round(height * scale / 2))
