"""Presets of sentences and when they happen: the records ask for start and end in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.presets.asking import SPAN
from qwenvl.data.records.presets.preset import Preset, Row, text_at
from qwenvl.data.records.presets.questions import question_row

_LINE = re.compile(r"(\S+) ([0-9.]+) ([0-9.]+)\s?##\s?(.+)")


def _span_row(row: Row, start: Any, end: Any) -> Row:
    """A record that asks when a sentence happens."""
    for key, value in (("start", start), ("end", end)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ValueError(f"{key}: expected seconds, got {kind_of(value)}")
    if start == end:
        raise ValueError(f"start and end: expected two times, got {start:g} twice")
    sentence = text_at(row, "sentence").strip()
    return question_row(
        row,
        question=f'When does the following happen in the video? "{sentence}"',
        answer=f"{min(start, end):g} to {max(start, end):g}",
        kind=SPAN,
        media={"videos": [text_at(row, "video_id")]},
        used=("start", "end", "timestamp"),
    )


def _activitynet(row: Row) -> Row:
    """One sentence of a clip with its ``timestamp``."""
    times = row.get("timestamp")
    if not isinstance(times, list) or len(times) != 2:
        raise ValueError(f"timestamps: expected start and end, got {kind_of(times)}")
    return _span_row(row, *times)


def _activitynet_entries(content: Any) -> Iterator[tuple[str, Row]]:
    for clip, entry in content.items():
        counts = len(entry["timestamps"]), len(entry["sentences"])
        if counts[0] != counts[1]:
            raise ValueError(f"{clip}: {counts[0]} timestamps and {counts[1]} sentences; expected one for each")
        for i, (times, sentence) in enumerate(zip(entry["timestamps"], entry["sentences"], strict=True)):
            yield (
                f"{clip}[{i}]",
                {"video_id": clip, "duration": entry.get("duration"), "timestamp": times, "sentence": sentence},
            )


def _charades_sta(row: Row) -> Row:
    return _span_row(row, row.get("start"), row.get("end"))


def _charades_line(line: str) -> Row | None:
    """``3MSZA 24.3 30.4##person turn a light on.``"""
    if not (found := _LINE.fullmatch(line.strip())):
        return None
    try:
        return {"video_id": found[1], "start": float(found[2]), "end": float(found[3]), "sentence": found[4]}
    except ValueError:
        return None


GROUNDING: dict[str, Preset] = {
    "activitynet": Preset(
        "ActivityNet Captions",
        fits=lambda row: {"video_id", "timestamp", "sentence"} <= set(row),
        row=_activitynet,
        entries=_activitynet_entries,
        rewards=("temporal_iou",),
        without_ending=True,
    ),
    "charades-sta": Preset(
        "Charades-STA",
        fits=lambda row: {"video_id", "start", "end", "sentence"} <= set(row),
        row=_charades_sta,
        line=_charades_line,
        rewards=("temporal_iou",),
        without_ending=True,
    ),
}
