"""The reward for records of several kinds: each is scored by the function that fits its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qwenvl.rewards.functions.actions import accuracy, check_actions
from qwenvl.rewards.functions.matching import (
    check_letters,
    check_text,
    check_yes_no,
    multiple_choice,
    ocr,
    rouge,
    yes_no,
)
from qwenvl.rewards.functions.numbers import NumericReward, check_number, regression
from qwenvl.rewards.functions.temporal import TemporalIoUReward
from qwenvl.rewards.options import FunctionSettings

_FIELD = "problem_type"


class ProblemTypeReward:
    """What the function that fits the record's field ``problem_type`` gives.

    ``multiple choice``: ``multiple_choice``. ``numerical``: ``numeric``. ``regression``: ``regression``. ``OCR``:
    ``ocr``. ``free-form`` and ``open-ended``: ``rouge``. ``yes or no``: ``yes_no``. ``temporal grounding``:
    ``temporal_iou``. ``labels`` and ``actions``: ``accuracy``. Case, hyphens and underscores do not matter.
    """

    def __init__(
        self,
        numeric_tolerance: float = FunctionSettings.numeric_tolerance,
        temporal_iou_boundary: bool = FunctionSettings.temporal_iou_boundary,
    ) -> None:
        spans = TemporalIoUReward(temporal_iou_boundary)
        words = (rouge, check_text)
        self._functions: dict[str, tuple[Callable[..., list[float]], Callable[..., str | None]]] = {
            "multiple choice": (multiple_choice, check_letters),
            "numerical": (NumericReward(numeric_tolerance), check_number),
            "regression": (regression, check_number),
            "ocr": (ocr, check_text),
            "free form": words,
            "open ended": words,
            "yes or no": (yes_no, check_yes_no),
            "temporal grounding": (spans, spans.check),
            "labels": (accuracy, check_actions),
            "actions": (accuracy, check_actions),
        }

    def __call__(
        self, completions: list[str], solution: list[str], problem_type: list[str | None] | None = None, **columns: Any
    ) -> list[float]:
        kinds = [_plain(kind) for kind in problem_type or [None] * len(completions)]
        scores = [0.0] * len(completions)
        for kind in dict.fromkeys(kinds):
            if kind not in self._functions:
                raise ValueError(self._unknown(kind))
            rows = [row for row, its in enumerate(kinds) if its == kind]
            parts = {"completions": completions, "solution": solution, **columns}
            own = {name: [part[row] for row in rows] for name, part in parts.items() if isinstance(part, list)}
            for row, score in zip(rows, self._functions[kind][0](**own), strict=True):
                scores[row] = score
        return scores

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """Why a record cannot be scored: its type is not known, or the function of its type can't score it."""
        kind = _plain(fields.get(_FIELD))
        if kind not in self._functions:
            return self._unknown(kind)
        problem = self._functions[kind][1](solution, fields)
        return problem and f"{_FIELD} {kind!r}: {problem}"

    def _unknown(self, kind: str) -> str:
        known = ", ".join(self._functions)
        return f"by_problem_type needs the field {_FIELD!r}, one of {known}, got {kind or 'none'!r}"


def _plain(kind: Any) -> str:
    return " ".join(str(kind or "").casefold().replace("-", " ").replace("_", " ").split())
