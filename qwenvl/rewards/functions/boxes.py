"""Rewards for boxes in an image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from qwenvl.files import require
from qwenvl.rewards.functions.text import answer_of, solution_of
from qwenvl.rewards.options import BoxUnits, FunctionSettings

_N = r"\s{0,4}(-?[0-9]{1,7}(?:\.[0-9]{1,9})?)\s{0,4}"
_BOX = re.compile(rf"\[{_N},{_N},{_N},{_N}\]|\({_N},{_N}\)\s{{0,4}},?\s{{0,4}}\({_N},{_N}\)")


class BoxReward:
    """What the two box rewards share: they read boxes, match them, and punish missed and extra ones."""

    worst: float

    def __init__(self, box_units: BoxUnits = FunctionSettings.box_units) -> None:
        self._thousandths = box_units == "thousandths"

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float]:
        none = [None] * len(completions)
        sizes = zip(columns.get("width") or none, columns.get("height") or none, strict=True)
        return [
            self._score(boxes_in(answer_of(text) or ""), boxes_in(solution_of(truth)), size)
            for text, truth, size in zip(completions, solution, sizes, strict=True)
        ]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """Why a record cannot be scored by its boxes, or None: it has none, or it lacks the size of its image."""
        boxes = boxes_in(solution_of(solution))
        if not len(boxes) or not (boxes[:, :2] < boxes[:, 2:]).all():
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
    each extra box counts as one of 0. Answer and solution use the same units. With ``box_units thousandths`` the
    answer's are 0..1000, and the solution's are pixels of an image with the record's ``width`` and ``height``.
    """

    worst = 0.0

    def _compare(self, named: np.ndarray, true: np.ndarray) -> np.ndarray:
        return geometry("box_iou", named, true)


class BoxGIoUReward(BoxReward):
    """Mean generalized intersection over union of the answer's boxes and the solution's, best matched, -1 to 1.

    As ``box_iou``, but boxes that do not touch score less than 0 the farther they are apart, and each missed and each
    extra box counts as one of -1. arXiv:1902.09630.
    """

    worst = -1.0

    def _compare(self, named: np.ndarray, true: np.ndarray) -> np.ndarray:
        return geometry("generalized_box_iou", named, true)


def boxes_in(text: str) -> np.ndarray:
    """The boxes of a text, n x 4. Their corners may stand in either order.

    Example:
        >>> boxes_in('[{"bbox_2d": [10, 20, 30, 40]}] (5,5),(1,2)').tolist()
        [[10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 5.0, 5.0]]
    """
    found = [[float(side) for side in sides if side] for sides in _BOX.findall(text)]
    boxes = np.array(found, dtype=float).reshape(-1, 2, 2)
    return np.concatenate([boxes.min(axis=1), boxes.max(axis=1)], axis=1)


def geometry(measure: str, named: np.ndarray, true: np.ndarray) -> np.ndarray:
    """A measure of ``torchvision.ops`` for each pair of boxes, n x 4 and m x 4: n x m.

    Equal boxes have 1, whatever their area. Other pairs of boxes without area, whose measure would be 0 / 0, have 0.
    """
    import torch
    from torchvision import ops

    left, right = (torch.from_numpy(boxes) for boxes in (named, true))
    values = getattr(ops, measure)(left, right).nan_to_num(0.0)
    equal = (left[:, None] == right[None]).all(dim=2)
    return values.masked_fill(equal, 1.0).numpy()
