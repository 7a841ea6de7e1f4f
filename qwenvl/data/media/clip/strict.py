"""Damage that decoders hide: they fill what they can't read with what lies around it, and go on without a word.

Nothing here sees damage that still decodes: of video without checksums a wrong bit may be another picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from statistics import median

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.clip.container import READING_ERRORS, open_video, reason_of
from qwenvl.data.media.clip.packets import Clock
from qwenvl.data.media.clip.playing import play

# A clip of constant rate, in which at least this share of the distances from frame to frame is the usual one ...
STEADY_SHARE = 0.95
# ... has no pause as long as this many of them. It is a hole.
HOLE_FRAMES = 5
HOLE_SECONDS = 0.5
MARKED_AT_A_JOINT = 2  # packets
# By FFmpeg's name of a codec the decoder of the format's authors, which notices that it has lost its place in the data.
WATCHFUL_DECODERS = {"vp9": "libvpx-vp9"}


def check_packets(path: str, times: Sequence[float]) -> None:
    """Read all packets of a clip and decode none of them.

    Args:
        times: of the clip's frames, in seconds.

    Raises:
        BadMediaError: the container is damaged, or frames are missing within the clip.
    """
    with _errors_told() as errors:
        container, stream = open_video(path, strict=True)
        with closing(container):
            try:
                damaged = _first_damaged(container, stream)
            except READING_ERRORS as error:
                raise damage(path, f"its container is damaged: {reason_of(error)}") from None
        own = [text for name, text in errors if name == container.format.name]
    if own:
        raise damage(path, f"its container is damaged: {own[0]}")
    if damaged is not None:
        raise damage(path, f"a packet at {damaged:.2f} s of its container's time is damaged, or the next one is lost")
    if hole := _hole(times):
        raise damage(path, f"it has no frames from {hole[0]:.2f} s to {hole[1]:.2f} s, at an otherwise constant rate")


def check_all_frames(path: str, times: Sequence[float], strict: bool) -> None:
    """Decode a clip from its beginning to its end.

    Args:
        times: of the clip's frames, in seconds.
        strict: by a decoder that stops at errors which it would else hide.

    Raises:
        BadMediaError: a frame is damaged, or can't be decoded, or there are more or fewer of them.
    """
    count = 0
    try:
        for frame, _, _ in play(path, strict=strict):
            if frame.is_corrupt:
                raise damage(path, f"the frame at {times[min(count, len(times) - 1)]:.3f} s is damaged")
            count += 1
    except READING_ERRORS as error:
        at = times[min(count, len(times) - 1)]
        raise damage(path, f"can't be decoded without errors from about {at:.2f} s on: {reason_of(error)}") from None
    if count != len(times):
        raise damage(path, f"{len(times)} frames were expected, {count} come out of the decoder")
    if strict:
        _check_by_watchful_decoder(path)


def _check_by_watchful_decoder(path: str) -> None:
    """Decode a clip once more where another decoder than FFmpeg's own sees what that one hides."""
    container, stream = open_video(path)
    with closing(container):
        own = stream.codec_context
        name = WATCHFUL_DECODERS.get(own.name)
        if name is None or name not in av.codecs_available or any(each.bits > 8 for each in own.format.components):
            return
        decoder, at = av.CodecContext.create(name, "r"), 0.0
        decoder.extradata, decoder.thread_count = own.extradata, 1
        try:
            for packet in container.demux(stream):
                at = float(packet.pts * stream.time_base) if packet.pts is not None and stream.time_base else at
                decoder.decode(packet)
        except READING_ERRORS as error:
            reason = f"can't be decoded without errors at {at:.2f} s of its container's time: {reason_of(error)}"
            raise damage(path, reason) from None


def damage(path: str, reason: str) -> BadMediaError:
    """The error of a clip that is damaged."""
    return BadMediaError(path, reason, "damaged media")


def _first_damaged(container: InputContainer, stream: VideoStream) -> float | None:
    """The second of the first packet that is marked as damaged, as is one before a lost one of a broadcast.

    One of the last packets of a part is marked too, where another file was joined to it.
    """
    clock = Clock(container, stream)
    marked: list[tuple[int, float]] = []
    for number, packet in enumerate(container.demux(stream)):
        if clock.begins_anew(packet):
            marked = [mark for mark in marked if number - mark[0] > MARKED_AT_A_JOINT]
        if marked and number - marked[0][0] > MARKED_AT_A_JOINT:
            break
        if packet.size and packet.is_corrupt:
            marked.append((number, float((packet.dts or 0) * (stream.time_base or 0))))
    return marked[0][1] if marked else None


def _hole(times: Sequence[float]) -> tuple[float, float] | None:
    """The first pause in a clip of constant rate."""
    gaps = [b - a for a, b in pairwise(times)]
    if len(gaps) < 2:
        return None
    usual = median(gaps)
    steady = sum(abs(gap - usual) <= 0.1 * usual for gap in gaps)
    if steady < STEADY_SHARE * len(gaps):
        return None
    most = max(HOLE_SECONDS, HOLE_FRAMES * usual)
    return next((pair for pair in pairwise(times) if pair[1] - pair[0] > most), None)


@contextmanager
def _errors_told() -> Iterator[list[tuple[str, str]]]:
    """What FFmpeg logs as errors: the name of the part that does, and the text."""
    told: list[tuple[str, str]] = []
    level, repeats = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as lines:
            try:
                yield told
            finally:
                told += [(name, text.strip()) for _, name, text in lines]
    finally:
        av.logging.set_level(level)
        av.logging.set_skip_repeated(repeats)
