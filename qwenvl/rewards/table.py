"""The explicit table of the reward functions that a run can name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qwenvl.rewards.function import RewardFunction, arguments_of
from qwenvl.rewards.functions.actions import accuracy, action_order, check_action_numbers, check_actions
from qwenvl.rewards.functions.by_type import by_problem_type, check_problem_type
from qwenvl.rewards.functions.grounding import (
    box_giou,
    box_iou,
    check_boxes,
    check_spans,
    temporal_contrast,
    temporal_iou,
)
from qwenvl.rewards.functions.judge import JudgeReward
from qwenvl.rewards.functions.matching import (
    check_letters,
    check_text,
    check_yes_no,
    exact_match,
    multiple_choice,
    ocr,
    rouge,
    yes_no,
)
from qwenvl.rewards.functions.maths import MathReward
from qwenvl.rewards.functions.numbers import check_countdown, check_number, count, countdown, numeric, regression
from qwenvl.rewards.functions.reward_model import RewardModel
from qwenvl.rewards.functions.shaping import (
    cosine,
    empty_window,
    format_reward,
    length_window,
    repetition,
    soft_overlong,
    strict_format,
    too_long_a_fall,
)


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        made_of: the function, or a class whose instances are called. See ``arguments_of`` for its arguments.
        low, high: range of the values with the default arguments, None for "does not apply" aside.
        check: see ``RewardFunction``. It gets those arguments that it names. A class may have it as a method.
        refuses: says of the arguments why they do not fit together, or None.
        remote: it sends requests to a server, or runs a model.
    """

    made_of: Callable[..., Any]
    low: float
    high: float
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None
    remote: bool = False
    refuses: Callable[..., str | None] | None = None

    @property
    def rule(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.made_of) or ""

    @property
    def summary(self) -> str:
        """Its first paragraph, on one line."""
        return " ".join(self.rule.split("\n\n")[0].split())

    def arguments(self) -> list[tuple[str, str, str]]:
        """Name, default and meaning (with unit and bounds) of each argument that a user may give."""
        found = []
        for name, (parameter, _, declared) in arguments_of(self.made_of).items():
            if declared is not None:
                default = parameter.default
                own = default.name if isinstance(default, RewardFunction) else default
                shown = f"--{declared.default_of}" if declared.default_of else repr(own)
                found.append((name, shown, declared.text))
        return found


TABLE: dict[str, Entry] = {
    "format": Entry(format_reward, 0, 1),
    "strict_format": Entry(strict_format, 0, 1),
    "accuracy": Entry(accuracy, 0, 1, check_actions),
    "action_order": Entry(action_order, 0, 1, check_action_numbers),
    "math_accuracy": Entry(MathReward, 0, 1),
    "count": Entry(count, 0, 1, check_number),
    "countdown": Entry(countdown, 0, 1, check_countdown),
    "cosine": Entry(cosine, -0.5, 1),
    "repetition": Entry(repetition, -1, 0),
    "soft_overlong": Entry(soft_overlong, -1, 0, refuses=too_long_a_fall),
    "length_window": Entry(length_window, 0, 0.2, refuses=empty_window),
    "multiple_choice": Entry(multiple_choice, 0, 1, check_letters),
    "yes_no": Entry(yes_no, 0, 1, check_yes_no),
    "exact_match": Entry(exact_match, 0, 1, check_text),
    "numeric": Entry(numeric, 0, 1, check_number),
    "regression": Entry(regression, 0, 1, check_number),
    "ocr": Entry(ocr, 0, 1, check_text),
    "rouge": Entry(rouge, 0, 1, check_text),
    "temporal_iou": Entry(temporal_iou, 0, 1, check_spans),
    "box_iou": Entry(box_iou, 0, 1, check_boxes),
    "box_giou": Entry(box_giou, -1, 1, check_boxes),
    "by_problem_type": Entry(by_problem_type, 0, 1, check_problem_type),
    "judge": Entry(JudgeReward, 0, 1, remote=True),
}

# What a run adds to its rewards by a flag of its own, and not by a name among --reward_funcs.
BY_FLAG: dict[str, Entry] = {
    "reward_model": Entry(RewardModel, -math.inf, math.inf, remote=True),
    "temporal_contrast": Entry(temporal_contrast, 0, 0.3, remote=True),
}

SHAPING = ("format", "strict_format", "cosine", "repetition", "soft_overlong", "length_window")
"""Functions of the table that are about form and length: their value does not tell a right answer from a wrong one."""
