"""Frames that do not lie evenly, and models that can't be told when each is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import Qwen3VLVideoProcessor

from qwenvl.hint import Hint
from qwenvl.types import Record


def uneven_hints(record: Record, sampler: str, processor: Any) -> Iterator[Hint]:
    """Say it where the frames of a record's clips do not lie evenly and the model is told no times of their own.

    Args:
        sampler: ``frame_sampler`` of the data set.
        processor: of the model, or None where it is not known. That of Qwen3-VL and Qwen3.5 writes the time of each
            pair of frames into the prompt.
    """
    if processor is None or isinstance(processor.video_processor, Qwen3VLVideoProcessor):
        return
    several = any(meta is not None and len(meta.spans or ()) > 1 for meta in record.clip_meta)
    if several or (record.videos and sampler == "change"):
        why = "several spans of a clip" if several else "--frame_sampler change"
        yield Hint(
            "times not told",
            f"{why}: frames do not lie evenly, and this model is not told when each is shown (Qwen2.5-VL is told their "
            "mean distance, Qwen2-VL their order); for questions about seconds take Qwen3-VL or Qwen3.5",
        )
