"""Decoders other than PyAV: functions (path, index, rising frame numbers) -> F x H x W x 3 uint8.

They may count or order frames in another way than the index does. So each proves by times that it gave the right ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qwenvl.data.media.clip.index import ClipIndex


def decode_with_torchcodec(path: str, index: ClipIndex, wanted: list[int]) -> np.ndarray:
    """Decode with torchcodec in its exact mode, which scans the file instead of trusting the rate in its header."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, seek_mode="exact", num_ffmpeg_threads=1, dimension_order="NHWC")
    _check_count(decoder.metadata.num_frames, index)
    batch = decoder.get_frames_at(wanted)
    _check_times(batch.pts_seconds.tolist(), index, wanted)
    return batch.data.numpy()


def decode_with_decord(path: str, index: ClipIndex, wanted: list[int]) -> np.ndarray:
    """Decode with decord. It may never return, so only a process that can be killed may call this."""
    import decord

    reader = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)
    _check_count(len(reader), index)
    frames = reader.get_batch(wanted).asnumpy()
    _check_times(reader.get_frame_timestamp(wanted)[:, 0].tolist(), index, wanted)
    return frames


FOREIGN_DECODERS: dict[str, Callable[[str, ClipIndex, list[int]], np.ndarray]] = {
    "torchcodec": decode_with_torchcodec,
    "decord": decode_with_decord,
}


def _check_count(frame_count: int | None, index: ClipIndex) -> None:
    if frame_count != len(index.pts):
        raise ValueError(f"counts {frame_count} frames where the stream has {len(index.pts)}")


def _check_times(times: Sequence[float], index: ClipIndex, wanted: list[int]) -> None:
    true_times = [float(index.pts[i] * index.time_base) for i in wanted]
    if len(times) != len(wanted) or not np.allclose(times, true_times, rtol=0, atol=1e-3):
        raise ValueError("gave other frames than those asked for, judged by their times")
