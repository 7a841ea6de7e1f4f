"""The reward for records of several kinds: each is scored by the function that fits its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwenvl.rewards.functions import actions, grounding, matching, numbers

_FIELD = "problem_type"
KINDS: dict[str, tuple[Any, Any]] = {  # the function of each kind, and its check of records
    "multiple choice": (matching.multiple_choice, matching.check_letters),
    "numerical": (numbers.numeric, numbers.check_number),
    "regression": (numbers.regression, numbers.check_number),
    "ocr": (matching.ocr, matching.check_text),
    "free form": (matching.rouge, matching.check_text),
    "open ended": (matching.rouge, matching.check_text),
    "yes or no": (matching.yes_no, matching.check_yes_no),
    "temporal grounding": (grounding.temporal_iou, grounding.check_spans),
    "labels": (actions.accuracy, actions.check_actions),
    "actions": (actions.accuracy, actions.check_actions),
}


def by_problem_type(
    completions: list[str],
    solution: list[str],
    problem_type: list[str | None] | None = None,
    duration: list[float | None] | None = None,
    *,
    numeric_tolerance: numbers.Tolerance = 1e-6,
    temporal_iou_boundary: grounding.Boundary = False,
    **columns: Any,
) -> list[float]:
    """The value of the function that fits the record's field ``problem_type``.

    ``multiple choice``: ``multiple_choice``. ``numerical``: ``numeric``. ``regression``: ``regression``. ``OCR``:
    ``ocr``. ``free-form`` and ``open-ended``: ``rouge``. ``yes or no``: ``yes_no``. ``temporal grounding``:
    ``temporal_iou``. ``labels`` and ``actions``: ``accuracy``. Case, hyphens and underscores do not matter.
    """
    kinds = [_plain(kind) for kind in problem_type or [None] * len(completions)]
    parts = {"completions": completions, "solution": solution, "duration": duration}
    arguments: dict[str, dict[str, Any]] = {
        "numerical": {"tolerance": numeric_tolerance},
        "temporal grounding": {"boundary": temporal_iou_boundary},
    }
    scores = [0.0] * len(completions)
    for kind in dict.fromkeys(kinds):
        if kind not in KINDS:
            raise ValueError(_unknown(kind))
        rows = [row for row, its in enumerate(kinds) if its == kind]
        own: dict[str, Any] = {name: [part[row] for row in rows] for name, part in parts.items() if part is not None}
        own |= arguments.get(kind, {})
        for row, score in zip(rows, KINDS[kind][0](**own), strict=True):
            scores[row] = score
    return scores


def check_problem_type(solution: str, fields: Mapping[str, Any], temporal_iou_boundary: bool = False) -> str | None:
    """Why a record cannot be scored: its type is not known, or the function of its type cannot score it."""
    kind = _plain(fields.get(_FIELD))
    if kind not in KINDS:
        return _unknown(kind)
    own = {"boundary": temporal_iou_boundary} if kind == "temporal grounding" else {}
    problem = KINDS[kind][1](solution, fields, **own)
    return problem and f"{_FIELD} {kind!r}: {problem}"


def _unknown(kind: str) -> str:
    return f"by_problem_type needs the field {_FIELD!r}, one of {', '.join(KINDS)}, got {kind or 'none'!r}"


def _plain(kind: Any) -> str:
    return " ".join(str(kind or "").casefold().replace("-", " ").replace("_", " ").split())
