"""Rewards for boxes in an image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from qwenvl.files import require
from qwenvl.rewards.functions.text import answer_of, solution_of

BoxUnits = Literal["same", "thousandths"]

_N = r"\s{0,4}(-?[0-9]{1,7}(?:\.[0-9]{1,9})?)\s{0,4}"
_BOX = re.compile(rf"\[{_N},{_N},{_N},{_N}\]|\({_N},{_N}\)\s{{0,4}},?\s{{0,4}}\({_N},{_N}\)")


class BoxReward:
    """What the two box rewards share: reading, matching, and the penalty for missed and extra boxes."""

    worst: float

    def __init__(self, box_units: BoxUnits = "same") -> None:
        self._thousandths = box_units == "thousandths"

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float]:
        none = [None] * len(completions)
        sizes = zip(columns.get("width") or none, columns.get("height") or none, strict=True)
        return [
            self._score(boxes_in(answer_of(text) or ""), boxes_in(solution_of(truth)), size)
            for text, truth, size in zip(completions, solution, sizes, strict=True)
        ]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """Why a record cannot be scored by its boxes: the solution has none, or the image's size is needed."""
        boxes = boxes_in(solution_of(solution))
        if not len(boxes) or not (_area(boxes) > 0).all():
            return f"the solution must hold boxes [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {solution[:80]!r}"
        size = [fields.get("width"), fields.get("height")]
        if self._thousandths and not all(type(side) in (int, float) and side > 0 for side in size):
            return f"box_units thousandths needs the fields 'width' and 'height' in pixels, got {size}"
        return None

    def _score(self, named: np.ndarray, true: np.ndarray, size: tuple[float | None, float | None]) -> float:
        if not len(named):
            return self.worst
        if self._thousandths:
            named = named * np.array([*size, *size], dtype=float) / 1000
        quality = self._compare(named, true)
        rows, columns = require("scipy.optimize", "rewards").linear_sum_assignment(-quality)
        most = max(len(named), len(true))
        return float((quality[rows, columns].sum() + self.worst * (most - len(rows))) / most)

    def _compare(self, named: np.ndarray, true: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class BoxIoUReward(BoxReward):
    """Mean intersection over union of the answer's boxes and the solution's, matched one to one for the best sum.

    Boxes are ``[x1, y1, x2, y2]`` or ``(x1,y1),(x2,y2)``, wherever they stand in the answer (JSON too). Each missed and
    each extra box counts as one of 0. Answer and solution use the same units, or with ``box_units thousandths`` the
    answer's are 0..1000 and the solution's pixels of an image of the record's ``width`` and ``height``.
    """

    worst = 0.0

    def _compare(self, named: np.ndarray, true: np.ndarray) -> np.ndarray:
        return _overlaps(named, true)[0]


class BoxGIoUReward(BoxReward):
    """Mean generalized intersection over union of the answer's boxes and the solution's, best matched; -1 to 1.

    As ``box_iou``, but boxes that do not touch score less than 0 the farther they are apart, and each missed and each
    extra box counts as one of -1. arXiv:1902.09630.
    """

    worst = -1.0

    def _compare(self, named: np.ndarray, true: np.ndarray) -> np.ndarray:
        iou, union = _overlaps(named, true)
        low = np.minimum(named[:, None, :2], true[None, :, :2])
        high = np.maximum(named[:, None, 2:], true[None, :, 2:])
        hull = (high - low).prod(axis=2)
        return iou - (hull - union) / hull


def boxes_in(text: str) -> np.ndarray:
    """The boxes of a text, n x 4; corners in either order.

    Example:
        >>> boxes_in('[{"bbox_2d": [10, 20, 30, 40]}] (5,5),(1,2)').tolist()
        [[10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 5.0, 5.0]]
    """
    found = [[float(side) for side in sides if side] for sides in _BOX.findall(text)]
    boxes = np.array(found, dtype=float).reshape(-1, 2, 2)
    return np.concatenate([boxes.min(axis=1), boxes.max(axis=1)], axis=1)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def _overlaps(named: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intersection over union and union of each pair, named x true."""
    low = np.maximum(named[:, None, :2], true[None, :, :2])
    high = np.minimum(named[:, None, 2:], true[None, :, 2:])
    common = (high - low).clip(min=0).prod(axis=2)
    union = _area(named)[:, None] + _area(true)[None, :] - common
    return common / union, union
