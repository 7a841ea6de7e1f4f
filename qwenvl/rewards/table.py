"""The explicit table of the reward functions that a run can name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qwenvl.rewards.functions.actions import AccuracyReward, action_order, check_action_numbers, check_actions
from qwenvl.rewards.functions.boxes import BoxGIoUReward, BoxIoUReward
from qwenvl.rewards.functions.by_type import ProblemTypeReward
from qwenvl.rewards.functions.contrast import temporal_contrast
from qwenvl.rewards.functions.countdown import check_countdown, countdown
from qwenvl.rewards.functions.format import FormatReward, StrictFormatReward
from qwenvl.rewards.functions.judge import JudgeReward
from qwenvl.rewards.functions.length import CosineReward, LengthWindowReward, RepetitionReward, SoftOverlongReward
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
from qwenvl.rewards.functions.numbers import NumericReward, check_number, count, regression
from qwenvl.rewards.functions.reward_model import RewardModel
from qwenvl.rewards.functions.temporal import TemporalIoUReward


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        made_of: the function, or a class whose instances are called and whose constructor names the settings it takes.
        low, high: range of the values at the default settings, None for "does not apply" aside.
        check: see ``RewardFunction``. A class may have it as a method.
        remote: it asks a server, a model of its own, or the policy.
    """

    made_of: Callable[..., Any]
    low: float
    high: float
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None
    remote: bool = False

    @property
    def rule(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.made_of) or ""

    @property
    def summary(self) -> str:
        """Its first paragraph, on one line."""
        return " ".join(self.rule.split("\n\n")[0].split())


TABLE: dict[str, Entry] = {
    "format": Entry(FormatReward, 0, 1),
    "strict_format": Entry(StrictFormatReward, 0, 1),
    "accuracy": Entry(AccuracyReward, 0, 1, check_actions),
    "action_order": Entry(action_order, 0, 1, check_action_numbers),
    "math_accuracy": Entry(MathReward, 0, 1),
    "count": Entry(count, 0, 1, check_number),
    "countdown": Entry(countdown, 0, 1, check_countdown),
    "cosine": Entry(CosineReward, -0.5, 1),
    "repetition": Entry(RepetitionReward, -1, 0),
    "soft_overlong": Entry(SoftOverlongReward, -1, 0),
    "length_window": Entry(LengthWindowReward, 0, 0.2),
    "multiple_choice": Entry(multiple_choice, 0, 1, check_letters),
    "yes_no": Entry(yes_no, 0, 1, check_yes_no),
    "exact_match": Entry(exact_match, 0, 1, check_text),
    "numeric": Entry(NumericReward, 0, 1, check_number),
    "regression": Entry(regression, 0, 1, check_number),
    "ocr": Entry(ocr, 0, 1, check_text),
    "rouge": Entry(rouge, 0, 1, check_text),
    "temporal_iou": Entry(TemporalIoUReward, 0, 1),
    "box_iou": Entry(BoxIoUReward, 0, 1),
    "box_giou": Entry(BoxGIoUReward, -1, 1),
    "by_problem_type": Entry(ProblemTypeReward, 0, 1),
    "judge": Entry(JudgeReward, 0, 1, remote=True),
}

# What a run adds to its rewards by a flag of its own, and not by a name among --reward_funcs.
BY_FLAG: dict[str, Entry] = {
    "reward_model": Entry(RewardModel, -math.inf, math.inf, remote=True),
    "temporal_contrast": Entry(temporal_contrast, 0, 0.3, remote=True),
}

SHAPING = ("format", "strict_format", "cosine", "repetition", "soft_overlong", "length_window")
"""Functions of the table that are about form and length: their value does not tell a right answer from a wrong one."""


def readers_of(setting: str) -> list[str]:
    """Names of the functions that read a setting, none where functions outside of the table may read it too."""
    if setting == "reward_workers":
        return []  # whatever is marked cpu_heavy runs in them: build_rubric knows whether anything does
    parameter = {"correctness_func": "correctness"}.get(setting, setting)
    classes = {name: entry.made_of for name, entry in TABLE.items() if inspect.isclass(entry.made_of)}
    return [name for name, made_of in classes.items() if parameter in inspect.signature(made_of).parameters]
