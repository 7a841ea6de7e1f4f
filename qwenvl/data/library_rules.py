"""Number and size of frames by the rules of the package ``qwen_vl_utils``, for settings that rows write in its words.

A setting that a row leaves out has the value of the flag, if that differs from its default, and else the default of the
package: flags that a run gives hold for all of its rows, and without any a row means what it means in the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from qwenvl.data.media.shape import Size
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.option import was_set
from qwenvl.types import LibraryCount, LibrarySize

CAMERA_RATE = 10.0
"""Frames per second from which a rate is that of a camera: models of this family are shown a few."""
NEARLY_ALL = 0.98
"""The share of a clip's rate, or of its frames, from which a setting is a note about the file."""
MANY_FRAMES = 64
"""A number above which all frames of a clip at a camera's rate are more than anybody asks for."""


class Wanted(NamedTuple):
    """The number of frames to take of a clip, and the number down to which ``--fit_frames`` may go."""

    frames: int
    least: int


def frames_by_library(count: LibraryCount, frame_count: int, rate: float, options: FrameOptions) -> Wanted:
    """The number of frames of a clip, or of its span.

    Args:
        frame_count: frames of the clip between ``video_start`` and ``video_end``, at least 1.
        rate: frames per second of the clip.

    Raises:
        ValueError: ``nframes`` is more than the clip has.

    Example:
        >>> frames_by_library(LibraryCount(fps=1.0), 100, 10.0, FrameOptions())
        Wanted(frames=10, least=4)
    """
    from qwen_vl_utils.vision_process import FPS, FPS_MIN_FRAMES, FRAME_FACTOR, ceil_by_factor, smart_nframes

    if count.nframes is not None:
        try:
            frames = smart_nframes({"nframes": count.nframes}, total_frames=frame_count, video_fps=rate)
        except ValueError:
            note = "; --columns nframes=NAME renames a note about the file" if count.beside_turns else ""
            raise ValueError(
                f"nframes {count.nframes}, but there are {frame_count} frames to choose from; expected at most that "
                "many: lower it, or set min_frames and max_frames of `meta` to it, which take all frames of a shorter "
                f"clip{note}"
            ) from None
        return Wanted(frames, least=frames)
    if frame_count < FRAME_FACTOR:  # the package refuses a single frame; it is shown twice here, as in any clip
        return Wanted(frame_count, least=frame_count)
    least, most = _frame_bounds(count, options)
    lower = ceil_by_factor(FPS_MIN_FRAMES if least is None else least, FRAME_FACTOR)  # whole pairs of frames
    fps = _flag_rate(options) if count.fps is None else count.fps
    if fps is None and count.listed:
        # The package takes every frame of a list, and repeats the last one of an odd number.
        frames = frame_count if most is None else min(frame_count, most)
        return Wanted(frames, least=lower)
    if fps is None:
        fps = FPS
    settings: dict[str, float] = {"min_frames": lower}
    if most is not None:
        settings["max_frames"] = max(most, FRAME_FACTOR)
    if fps >= rate:
        # All frames. At one frame per second the product in `smart_nframes` is exact, and it warns of nothing.
        fps = 1.0
        rate = 1.0
    frames = smart_nframes(settings | {"fps": fps}, total_frames=frame_count, video_fps=rate)
    return Wanted(frames, least=lower)


def rate_of(frame_count: int, duration: float) -> float:
    """Frames per second of a clip, to six digits.

    ``smart_nframes`` rounds down to pairs, so that a clip of 5.999999 s, as times in milliseconds give it, would show
    two frames fewer than one of 6 s. 1 for a still, which lasts no time.
    """
    return float(f"{frame_count / duration:.6g}") if duration > 0 else 1.0


def without_note(count: LibraryCount, frame_count: int, rate: float) -> LibraryCount | None:
    """The settings without those beside the turns that describe the file, or None if nothing else is left.

    Tables of many data sets have the frame rate and the number of frames of each file in columns of these names. As
    settings they would take every frame. Who wants them all sets ``max_frames``, or writes them into a typed part.

    Args:
        frame_count, rate: of the whole clip.
    """
    if not count.beside_turns or count.max_frames is not None or rate < CAMERA_RATE:
        return count
    is_rate = count.fps is not None and count.fps >= NEARLY_ALL * rate
    is_number = count.nframes is not None and count.nframes >= max(NEARLY_ALL * frame_count, MANY_FRAMES)
    if not (is_rate or is_number):
        return count
    others = replace(count, fps=None, nframes=None, beside_turns=False)
    return None if others == LibraryCount() else others


def frame_size_by_library(size: Size, wanted: LibrarySize, factor: int, flags: Size, frames: int) -> Size:
    """Height and width that the frames of a clip are resized to.

    Args:
        size: height and width in the file.
        factor: pixels of a side that a vision token covers.
        flags: the least and the most pixels of a frame by the flags.
        frames: frames of the clip that are shown, which share ``total_pixels``.
    """
    from qwen_vl_utils import vision_process as library

    if wanted.resized_height is not None and wanted.resized_width is not None:
        return _fixed_size(wanted.resized_height, wanted.resized_width, factor)
    token = factor * factor
    low = _given(wanted.min_pixels, flags[0], PromptOptions.video_min_frame_pixels)
    high = _given(wanted.max_pixels, flags[1], PromptOptions.video_max_frame_pixels)
    least = library.VIDEO_MIN_TOKEN_NUM * token if low is None else low
    limit = frame_limit(wanted, least, factor, frames)
    most = limit if high is None else min(high, limit)
    if most < least and wanted.min_pixels is None:
        # The package's lower bound of 128 tokens is above the row's upper one, at which it ends with an error.
        least = min(flags[0], int(most))
    return _resized(size, factor, least, max(most, least))


def frame_limit(wanted: LibrarySize, least: float, factor: int, frames: int) -> float:
    """The most pixels of a frame that ``qwen_vl_utils`` allows, whatever ``max_pixels`` says."""
    from qwen_vl_utils import vision_process as library

    token = factor * factor
    # The numbers of `fetch_video` in the package: a clip may fill 0.9 of the context, and a frame may always have 1.05
    # times its lower bound.
    total = library.MODEL_SEQ_LEN * token * 0.9 if wanted.total_pixels is None else wanted.total_pixels
    share = total / frames * library.FRAME_FACTOR
    return max(min(library.VIDEO_MAX_TOKEN_NUM * token, share), int(least * 1.05))


def image_size_by_library(size: Size, wanted: LibrarySize, factor: int, flags: Size) -> Size:
    """Height and width that an image is resized to. The arguments are those of ``frame_size_by_library``."""
    from qwen_vl_utils import vision_process as library

    if wanted.resized_height is not None and wanted.resized_width is not None:
        return _fixed_size(wanted.resized_height, wanted.resized_width, factor)
    token = factor * factor
    low = _given(wanted.min_pixels, flags[0], PromptOptions.min_pixels)
    high = _given(wanted.max_pixels, flags[1], PromptOptions.max_pixels)
    least = library.IMAGE_MIN_TOKEN_NUM * token if low is None else low
    most = library.IMAGE_MAX_TOKEN_NUM * token if high is None else high
    if most < least and wanted.min_pixels is None:
        least = most
    return _resized(size, factor, least, max(most, least))


def _fixed_size(height: int, width: int, factor: int) -> Size:
    """``resized_height`` and ``resized_width`` in whole vision tokens, within the package's bounds on any image."""
    from qwen_vl_utils.vision_process import smart_resize

    return smart_resize(height, width, factor)


def _resized(size: Size, factor: int, least: float, most: float) -> Size:
    """The size within the bounds, with the picture's shape, in whole vision tokens."""
    from qwen_vl_utils.vision_process import smart_resize

    height, width = smart_resize(*size, factor, min_pixels=least, max_pixels=most)
    # The package rounds the short side of a narrow picture down to nothing, which is an error there.
    return max(height, factor), max(width, factor)


def _given(of_row: int | None, flag: int, default: int) -> int | None:
    """The row's value, else that of a flag that differs from its default, else None."""
    if of_row is not None:
        return of_row
    return None if flag == default else flag


def _frame_bounds(count: LibraryCount, options: FrameOptions) -> tuple[int | None, int | None]:
    """The least and most frames: the row's, else those of flags that differ from their defaults."""
    least = count.min_frames
    most = count.max_frames
    if least is None and was_set(options, "video_min_frames"):
        least = options.video_min_frames
    if most is None and was_set(options, "video_max_frames"):
        most = options.video_max_frames
    if least is not None and most is not None and least > most:  # one of the row, and the other of the flags
        return (most, most) if count.min_frames is None else (least, least)
    return least, most


def _flag_rate(options: FrameOptions) -> float | None:
    """Frames per second by the flags, or None where they have their defaults."""
    if options.video_fps is not None:
        return options.video_fps
    return 1 / options.base_interval if was_set(options, "base_interval") else None
