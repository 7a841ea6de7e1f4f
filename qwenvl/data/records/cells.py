"""The values of the cells of a table without types, as CSV is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qwenvl.data.records.choices import LETTERS, OPTION_KEYS
from qwenvl.data.records.frame_settings import ROW_KEYS
from qwenvl.data.records.option_columns import is_option_column

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
    typed = {name: _cell(name, text) for name, text in row.items()}
    # Without options a list is the text of an answer, such as a box, which its reward reads.
    if "answer" in row and _has_options(row):
        typed["answer"] = _letters(row["answer"])
    return typed


def _has_options(row: Mapping[str, str]) -> bool:
    """Whether a row has options, in a column or in several."""
    return any(key in OPTION_KEYS or is_option_column(key) or key in LETTERS for key in row)


def _letters(text: str) -> Any:
    """The texts of a list that is written as JSON, which are several options. Else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else text


def _cell(name: str, text: str) -> Any:
    """The value of a cell: decoded where its column may hold numbers, lists or objects, else the text."""
    kinds: tuple[type, ...]
    if name in _NUMBER_COLUMNS:
        kinds = (int, float, list)
    elif name in ROW_KEYS:
        kinds = (list,)
    elif name in _NESTED_COLUMNS:
        kinds = (list, dict)
    else:
        return text
    try:
        value = json.loads(text)
    except ValueError:  # a path, most often
        return text
    return value if isinstance(value, kinds) else text
