"""What is worth a look in the data of a run, said once before it begins: unused keys, small pictures, unasked forms."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import BadMediaError
from qwenvl.data.frames.uneven import uneven_hints
from qwenvl.data.media.images import image_size
from qwenvl.data.prompt_length import MediaSizes, read_header
from qwenvl.data.records.hints import record_hints
from qwenvl.data.records.record_file import spot_checked
from qwenvl.data.seen_size import SeenSizes
from qwenvl.hint import Hint
from qwenvl.rewards import Rubric
from qwenvl.rewards.asked import form_hints
from qwenvl.train.display.console import say
from qwenvl.types import ClipMeta, Record

MEASURED = 8  # records whose media headers are read


def first_look(dataset: Any, collator: GRPOCollator, checker: Any, by_name: bool) -> None:
    """Say of a data set what ``qwenvl data check`` would, as far as a few records show it.

    Args:
        checker: of the run. A rubric says which form of answer is read.
        by_name: ``--accuracy_by_name``.
    """
    records: Sequence[Record] = getattr(dataset, "records", ())
    if not records or os.environ.get("RANK", "0") != "0":
        return
    names = checker.names if isinstance(checker, Rubric) else ()
    found: Counter[Hint] = Counter()
    first: dict[Hint, str] = {}
    sampler = getattr(getattr(dataset, "options", None), "frame_sampler", "uniform")
    seen, looked = SeenSizes.of(collator.options, collator.processor), 0
    for looked, record in enumerate(spot_checked(records), start=1):
        hints = [*record_hints(record), *form_hints(record, names, by_name)]
        hints += uneven_hints(record, sampler, collator.processor)
        if looked <= MEASURED:
            hints += seen.hints(_sizes(record))
        for hint in hints:
            found[hint] += 1
            first.setdefault(hint, record.where)
    for hint, count in found.items():
        of = min(MEASURED, looked) if hint.kind == "seen small" else looked
        say(f"worth a look: {hint.message} ({count} of {of} records looked at, the first is {first[hint]})")


def _sizes(record: Record) -> MediaSizes:
    """The sizes of a record's media by their headers, of those that can be read. The others are told when decoded."""
    clips, metas, images = [], [], []
    for path, meta in zip(record.videos, record.clip_meta, strict=True):
        try:
            clips.append(read_header(path, (meta or ClipMeta()).frames_fps).size)
            metas.append(meta)
        except (BadMediaError, OSError):
            continue
    for path in record.images:
        try:
            images.append(image_size(path))
        except (BadMediaError, OSError):
            continue
    return MediaSizes(tuple(clips), tuple(metas), tuple(images))
