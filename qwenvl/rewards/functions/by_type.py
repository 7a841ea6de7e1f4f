"""The reward for records of several kinds: each is scored by the function that fits its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from qwenvl.rewards.functions.actions import accuracy, check_actions
from qwenvl.rewards.functions.grounding import Boundary, check_spans, temporal_iou
from qwenvl.rewards.functions.matching import (
    check_letters,
    check_text,
    check_yes_no,
    multiple_choice,
    ocr,
    rouge,
    yes_no,
)
from qwenvl.rewards.functions.numbers import Tolerance, check_number, numeric, regression

_FIELD = "problem_type"
KINDS: dict[str, tuple[Callable[..., list[float]], Callable[..., str | None]]] = {
    "multiple choice": (multiple_choice, check_letters),
    "numerical": (numeric, check_number),
    "regression": (regression, check_number),
    "ocr": (ocr, check_text),
    "free form": (rouge, check_text),
    "open ended": (rouge, check_text),
    "yes or no": (yes_no, check_yes_no),
    "temporal grounding": (temporal_iou, check_spans),
    "labels": (accuracy, check_actions),
    "actions": (accuracy, check_actions),
}


def by_problem_type(
    completions: list[str],
    solution: list[str],
    problem_type: list[str | None] | None = None,
    prompts: list[Any] | None = None,
    duration: list[float | None] | None = None,
    *,
    numeric_tolerance: Tolerance = 1e-6,
    temporal_iou_boundary: Boundary = False,
    **columns: Any,
) -> list[float]:
    """The value of the function that fits the record's field ``problem_type``.

    ``multiple choice``: ``multiple_choice``. ``numerical``: ``numeric``. ``regression``: ``regression``. ``OCR``:
    ``ocr``. ``free-form`` and ``open-ended``: ``rouge``. ``yes or no``: ``yes_no``. ``temporal grounding``:
    ``temporal_iou``. ``labels`` and ``actions``: ``accuracy``. Case, hyphens and underscores do not matter.
    """
    kinds = [_plain(kind) for kind in problem_type or [None] * len(completions)]
    parts = {"completions": completions, "solution": solution, "prompts": prompts, "duration": duration}
    scores = [0.0] * len(completions)
    for kind in dict.fromkeys(kinds):
        if kind not in KINDS:
            raise ValueError(_unknown(kind))
        function = KINDS[kind][0]
        if function is numeric:
            function = partial(numeric, tolerance=numeric_tolerance)
        elif function is temporal_iou:
            function = partial(temporal_iou, boundary=temporal_iou_boundary)
        rows = [row for row, its in enumerate(kinds) if its == kind]
        own = {name: [part[row] for row in rows] for name, part in parts.items() if part is not None}
        for row, score in zip(rows, function(**own), strict=True):
            scores[row] = score
    return scores


def check_problem_type(solution: str, fields: Mapping[str, Any], temporal_iou_boundary: bool = False) -> str | None:
    """Why a record cannot be scored: its type is not known, or the function of its type cannot score it."""
    kind = _plain(fields.get(_FIELD))
    if kind not in KINDS:
        return _unknown(kind)
    check = KINDS[kind][1]
    own = {"boundary": temporal_iou_boundary} if check is check_spans else {}
    problem = check(solution, fields, **own)
    return problem and f"{_FIELD} {kind!r}: {problem}"


def _unknown(kind: str) -> str:
    return f"by_problem_type needs the field {_FIELD!r}, one of {', '.join(KINDS)}, got {kind or 'none'!r}"


def _plain(kind: Any) -> str:
    return " ".join(str(kind or "").casefold().replace("-", " ").replace("_", " ").split())
