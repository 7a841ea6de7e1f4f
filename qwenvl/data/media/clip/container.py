"""A video file opened by FFmpeg, and its video stream."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL.Image import Transpose

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.mediafile import video_format

MAX_FRAME_PIXELS = 50_000_000  # 8K video has 33 million; headers that claim more are bombs or noise
READING_ERRORS = (av.FFmpegError, IndexError)  # PyAV raises the second where streams turn up in a damaged file
CHECKSUMS = "crccheck+bitstream+buffer"
MAX_PIXEL_SHAPE = 4  # real pixels are at most twice as wide as high; what headers claim beyond this is noise

# By a, b, c, d of a display matrix, which shows the point (x, y) at (a x + c y, b x + d y).
TRANSPOSITIONS = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Transpose.ROTATE_270,
    (-1, 0, 0, -1): Transpose.ROTATE_180,
    (0, -1, 1, 0): Transpose.ROTATE_90,
    (-1, 0, 0, 1): Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Transpose.TRANSPOSE,
    (0, -1, -1, 0): Transpose.TRANSVERSE,
}
TURNS = (None, Transpose.ROTATE_90, Transpose.ROTATE_180, Transpose.ROTATE_270)
MAX_SLANT = 0.035  # the sine of 2 degrees, which players ignore too


def open_video(path: str, timeout: float | None = None, strict: bool = False) -> tuple[InputContainer, VideoStream]:
    """Open a file and find its video stream. The caller closes the container: PyAV leaks descriptors without it.

    Args:
        timeout: seconds that reading may block. None for no bound.
        strict: let the decoder stop at errors that it would else hide.

    Raises:
        BadMediaError: the file is not a video, or has no pictures.
    """
    container_format = video_format(path)
    try:
        # The format is forced: left to guess, FFmpeg would follow a playlist to other files.
        options = {"err_detect": CHECKSUMS} if strict else {}
        container = av.open(path, format=container_format, timeout=timeout, options=options)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise BadMediaError(path, f"can't be opened as {container_format}: {reason_of(error)}") from None
    try:
        stream = _video_stream(container, path)
    except BaseException:
        container.close()
        raise
    stream.codec_context.thread_count = 1  # workers are the parallelism
    if strict:
        stream.codec_context.options = {"err_detect": f"{CHECKSUMS}+explode"}
    return container, stream


def frame_size(stream: VideoStream) -> tuple[int, int]:
    """Height and width of a frame in square pixels, as the header says them."""
    return in_square_pixels(stream.height, stream.width, pixel_shape(stream))


def in_square_pixels(height: int, width: int, shape: Fraction) -> tuple[int, int]:
    """Height and width at which a picture is shown. One side is stretched and none is shrunk.

    Args:
        shape: of a stored pixel, its width by its height.

    Example:
        >>> in_square_pixels(576, 720, Fraction(16, 15))  # PAL in 4 : 3
        (576, 768)
    """
    return (height, round(width * shape)) if shape > 1 else (round(height / shape), width)


def pixel_shape(stream: VideoStream) -> Fraction:
    """How many times as wide as high a pixel is shown, 1 where the header does not say it or makes no sense."""
    shape = stream.sample_aspect_ratio
    return shape if shape and Fraction(1, MAX_PIXEL_SHAPE) <= shape <= MAX_PIXEL_SHAPE else Fraction(1)


def transposition(frame: VideoFrame, path: str) -> Transpose | None:
    """How a decoded frame is turned or mirrored to what is shown, by Pillow, which is faster than numpy.

    Raises:
        BadMediaError: it is shown slanted.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    axes = np.frombuffer(data, np.int32).reshape(3, 3)[:2, :2].astype(float)
    lengths = np.hypot(*axes.T)
    if not lengths.all():  # no matrix at all, to players as well
        return None
    axes /= lengths[:, None]
    nearest = tuple(axes.round().astype(int).ravel().tolist())
    if nearest not in TRANSPOSITIONS or np.abs(axes.ravel() - nearest).max() > MAX_SLANT:
        degrees = round(np.degrees(np.arctan2(axes[0, 1], axes[0, 0]))) % 360
        reason = f"its header turns it by {degrees} degrees or slants it; expected a multiple of 90 degrees"
        raise BadMediaError(path, f"{reason}: encode it anew as it is to be seen")
    return TRANSPOSITIONS[nearest]


def reason_of(error: BaseException) -> str:
    """The first line of a decoder's error, without the path that our message already begins with."""
    if isinstance(error, IndexError):
        return "streams turn up in it that it did not begin with"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0]


def _video_stream(container: InputContainer, path: str) -> VideoStream:
    """The first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if Disposition.attached_pic not in stream.disposition:
            if stream.codec_context is None:
                raise BadMediaError(path, "no decoder is known for its pictures: fetch it again, or encode it anew")
            width, height = stream.width, stream.height
            if not 0 < width * height <= MAX_FRAME_PIXELS:
                raise BadMediaError(
                    path, f"claims frames of {width} x {height} pixels; expected 1 to {MAX_FRAME_PIXELS:,} pixels"
                )
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    if not kinds:
        raise BadMediaError(path, "has no streams: it was probably cut short and lost its index", "cut short")
    raise BadMediaError(path, f"has no video stream, only {' and '.join(kinds)}")
