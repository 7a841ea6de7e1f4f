"""The values of the cells of a table without types, as CSV is one."""

from __future__ import annotations

import json
from typing import Any

from qwenvl.data.records.frame_settings import ROW_KEYS

# Columns that may hold lists or objects, written as JSON: of records, and of what rewards read.
_NESTED_COLUMNS = frozenset(
    (
        "candidates",
        "choices",
        "conversations",
        "evidence",
        "image",
        "images",
        "messages",
        "meta",
        "nums",
        "options",
        "reward",
        "reward_model",
        "timeline",
        "video",
        "videos",
    )
)
# Settings of frames that are a number, or a list with one for each clip. The three others stay texts where they are no
# lists: they have readings of their own, "True" among them. The last four are read by rewards.
_NUMBER_COLUMNS = ROW_KEYS - {"frame_cnts", "frame_times", "dynamic_sample"}
_NUMBER_COLUMNS |= {"width", "height", "duration", "target"}


def with_types(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose values are all text, with numbers, lists and objects decoded in the columns that may hold them.

    Example:
        >>> with_types({"video": '["a.mp4", "b.mp4"]', "video_start": "1.5", "solution": "2"})
        {'video': ['a.mp4', 'b.mp4'], 'video_start': 1.5, 'solution': '2'}
    """
    return {name: _cell(name, text) for name, text in row.items()}


def _cell(name: str, text: str) -> Any:
    """The value of a cell: decoded where its column may hold numbers, lists or objects, else the text."""
    kinds: tuple[type, ...]
    if name in _NUMBER_COLUMNS:
        kinds = (int, float, list)
    elif name in ROW_KEYS:
        kinds = (list,)
    elif name in _NESTED_COLUMNS:
        kinds = (list, dict)
    elif name == "answer":
        kinds = (list,)
    else:
        return text
    try:
        value = json.loads(text)
    except ValueError:  # a path, most often
        return text
    if name == "answer" and isinstance(value, list) and not all(isinstance(each, str) for each in value):
        return text  # a box, which its reward reads as text
    return value if isinstance(value, kinds) else text
