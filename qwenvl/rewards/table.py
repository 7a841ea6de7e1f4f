"""The explicit table of the reward functions that a run can name, and the function that selects one by record."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from qwenvl.rewards.function import arguments_of
from qwenvl.rewards.functions import (
    actions,
    answers,
    choices,
    grounding,
    looking,
    maths,
    models,
    numeric,
    shaping,
    timelines,
)
from qwenvl.rewards.functions.text import normalized
from qwenvl.rewards.kinds import KINDS, kind_called
from qwenvl.timeline import TimedStep


def by_problem_type(
    completions: list[str],
    solution: list[str],
    problem_type: list[str | None] | None = None,
    prompts: list[Any] | None = None,
    duration: list[float | None] | None = None,
    *,
    numeric_tolerance: numeric.Tolerance = 1e-6,
    temporal_iou_boundary: grounding.Boundary = False,
    **columns: Any,
) -> list[float]:
    """The value of the function that fits the record's field ``problem_type``.

    ``multiple choice``: ``multiple_choice``. ``numerical``: ``numeric``. ``regression``: ``regression``. ``OCR``:
    ``ocr``. ``free-form`` and ``open-ended``: ``rouge``. ``yes or no``: ``yes_no``. ``temporal grounding``:
    ``temporal_iou``. ``labels`` and ``actions``: ``accuracy``. Case, hyphens and underscores do not matter, and names
    that files have for these kinds, such as ``mcq``, are known.
    """
    none = [None] * len(completions)
    arguments: dict[str, dict[str, Any]] = {
        "numeric": {"tolerance": numeric_tolerance},
        "temporal_iou": {"boundary": temporal_iou_boundary},
    }
    scores = []
    rows = zip(completions, solution, problem_type or none, prompts or none, duration or none, strict=True)
    for text, truth, kind, prompt, seconds in rows:
        name = _function_of(kind)
        own = {"prompts": [prompt], "duration": [seconds], **arguments.get(name, {})}
        scores += TABLE[name].made_of([text], [truth], **own)
    return scores


def check_problem_type(solution: str, fields: Mapping[str, Any], temporal_iou_boundary: bool = False) -> str | None:
    """The reason why a record cannot be scored: an unknown type, or that of its type's function. None: it can."""
    try:
        name = _function_of(fields.get("problem_type"))
    except ValueError as error:
        return str(error)
    check = TABLE[name].check
    own = {"boundary": temporal_iou_boundary} if name == "temporal_iou" else {}
    problem = check and check(solution, fields, **own)
    return problem and f"problem_type {fields['problem_type']!r}: {problem}"


def _function_of(kind: Any) -> str:
    """The name of the function that scores a kind of problem.

    Raises:
        ValueError: there is no such kind.
    """
    known = kind_called(str(kind or ""))
    if known is None:
        names = ", ".join(each.name for each in KINDS)
        raise ValueError(f"by_problem_type needs the field 'problem_type', one of {names}, got {kind or 'none'!r}")
    return known.reward


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        made_of: the function, or a class whose instances are called. See ``arguments_of`` for its arguments.
        low, high: range of the values with the default arguments, None for "does not apply" aside.
        check: see ``RewardFunction``. It gets those arguments that it names. A class may have it as a method.
        remote: it sends requests to a server, or runs a model.
        judges: what its value is about. ``timeline``: the answer as spans of steps. ``form``: form, length and looks,
            so that its value does not tell right answers from wrong ones.
        reads: from an answer and its prompt to the part that is compared, or None where there is none. Equal parts are
            the same to the function. None: it compares normalized texts.
        problem: from those arguments that it names to the reason why they do not go together, or None.
    """

    made_of: Callable[..., Any]
    low: float
    high: float
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None
    remote: bool = False
    judges: Literal["answer", "timeline", "form"] = "answer"
    reads: Callable[[str, Any], Any] | None = None
    problem: Callable[..., str | None] | None = None

    @property
    def rule(self) -> str:
        """The docstring of the function or class."""
        return inspect.getdoc(self.made_of) or ""

    @property
    def summary(self) -> str:
        """The first paragraph of ``rule``, on one line."""
        return " ".join(self.rule.split("\n\n")[0].split())

    def arguments(self) -> list[tuple[str, str, str]]:
        """Name, default and meaning (with unit and bounds) of each argument that a user may give."""
        found = []
        for name, argument in arguments_of(self.made_of).items():
            declared = argument.declared
            if declared is None:
                continue
            default = argument.parameter.default
            own = getattr(default, "name", default)  # of a reward function its name
            shown = f"--{declared.default_of}" if declared.default_of else repr(own)
            found.append((name, shown, declared.text))
        return found


def _letters(answer: str, prompt: Any) -> Any:
    return choices.letters(answer) or None


def _yes_or_no(answer: str, prompt: Any) -> bool | None:
    return answers.affirms(answer)


def _number(answer: str, prompt: Any) -> Any:
    return numeric.only_number(answer)


def _numbers_in_order(answer: str, prompt: Any) -> list[int] | None:
    return actions.action_numbers(answer) or None


def _actions(answer: str, prompt: Any) -> Any:
    listed = actions.list_of(prompt)
    numbers, unknown = actions.named_actions(answer, listed)
    is_by_number = numbers and (listed or not actions.has_number_behind(answer))
    return (numbers, unknown) if is_by_number else frozenset(actions.action_phrases(answer)) or None


def _spans(answer: str, prompt: Any) -> list[tuple[int | str, float, float]] | None:
    spans = timelines.merged(timelines.timeline_in(answer, actions.list_of(prompt)))
    return [(span.step, span.start, span.end) for span in spans] or None


def _seconds(answer: str, prompt: Any) -> list[grounding.Span] | None:
    return grounding.united(grounding.spans_in(answer)) or None


def _boxes(answer: str, prompt: Any) -> list[list[float]] | None:
    return sorted(grounding.boxes_in(answer).tolist()) or None


_form = partial(Entry, judges="form")
_timeline = partial(Entry, judges="timeline", reads=_spans)

TABLE: dict[str, Entry] = {
    "format": _form(shaping.format_reward, 0, 1),
    "strict_format": _form(shaping.strict_format, 0, 1),
    "accuracy": Entry(actions.accuracy, 0, 1, actions.check_actions, reads=_actions),
    "action_order": Entry(actions.action_order, 0, 1, actions.check_action_numbers, reads=_numbers_in_order),
    "math_accuracy": Entry(maths.MathReward, 0, 1),
    "count": Entry(numeric.count, 0, 1, numeric.check_number, reads=_number),
    "countdown": Entry(answers.countdown, 0, 1, answers.check_countdown),
    "cosine": _form(shaping.cosine, -0.5, 1),
    "repetition": _form(shaping.repetition, -1, 0),
    "soft_overlong": _form(shaping.soft_overlong, -1, 0, problem=shaping.overlong_problem),
    "length_window": _form(shaping.length_window, 0, 0.2, problem=shaping.window_problem),
    "multiple_choice": Entry(choices.multiple_choice, 0, 1, choices.check_letters, reads=_letters),
    "yes_no": Entry(answers.yes_no, 0, 1, answers.check_yes_no, reads=_yes_or_no),
    "exact_match": Entry(answers.exact_match, 0, 1, answers.check_text),
    "numeric": Entry(numeric.numeric, 0, 1, numeric.check_number, reads=_number),
    "regression": Entry(numeric.regression, 0, 1, numeric.check_number, reads=_number),
    "ocr": Entry(answers.ocr, 0, 1, answers.check_text),
    "rouge": Entry(answers.rouge, 0, 1, answers.check_text),
    "temporal_iou": Entry(grounding.temporal_iou, 0, 1, grounding.check_spans, reads=_seconds),
    "segment_f1": _timeline(
        timelines.segment_f1, 0, 1, timelines.check_timeline, problem=timelines.thresholds_problem
    ),
    "edit_score": _timeline(timelines.edit_score, 0, 1, timelines.check_timeline),
    "frame_accuracy": _timeline(timelines.frame_accuracy, 0, 1, timelines.check_frames),
    "step_order": _timeline(timelines.step_order, 0, 1, timelines.check_timeline),
    "timeline_iou": _timeline(timelines.timeline_iou, 0, 1, timelines.check_timeline),
    "evidence_iou": _form(looking.evidence_iou, 0, 1, looking.check_evidence),
    "looked_and_right": _form(looking.looked_and_right, 0, 0.1),
    "box_iou": Entry(grounding.box_iou, 0, 1, grounding.check_boxes, reads=_boxes),
    "box_giou": Entry(grounding.box_giou, -1, 1, grounding.check_boxes, reads=_boxes),
    "by_problem_type": Entry(by_problem_type, 0, 1, check_problem_type),
    "judge": Entry(models.JudgeReward, 0, 1, remote=True),
    "caption_answers": Entry(models.CaptionReward, 0, 1, remote=True),
}

TIMELINES = tuple(name for name, entry in TABLE.items() if entry.judges == "timeline")
"""Functions of the table that read answers as timelines."""

SHAPING = tuple(name for name, entry in TABLE.items() if entry.judges == "form")
"""Functions of the table that are about form, length and looks: their value does not tell right answers from wrong."""

# What a run adds to its rewards by a flag of its own, and not by a name among --reward_funcs.
BY_FLAG: dict[str, Entry] = {
    "reward_model": Entry(models.RewardModel, -math.inf, math.inf, remote=True),
    "temporal_contrast": Entry(grounding.temporal_contrast, 0, 0.3, remote=True),
}

FOR_TIMELINES = ("timeline_iou", "segment_f1")
"""The rewards that commands recommend where answers are timelines."""
FOR_KINDS = ("by_problem_type",)
"""Those that they recommend where records name the kinds of their answers: the default rewards know no letters."""


def may_read_times(name: str) -> bool:
    """Whether a reward reads the times of a timeline, or may: a model does, or a function that is not of the table."""
    entry = TABLE.get(name)
    return entry is None or entry.remote or entry.judges == "timeline" or name in ("temporal_iou", "by_problem_type")


def about_a_timeline(true: Sequence[TimedStep], rewards: Mapping[str, float | None]) -> bool:
    """Whether a record asks for a timeline: such a reward scored it, or all spans of its solution have numbers.

    Args:
        true: the spans that are read in its solution.
        rewards: of a completion, by name.
    """
    scored = any(rewards.get(name) is not None for name in TIMELINES)
    return bool(true) and (scored or all(span.number is not None for span in true))


def reading(name: str | None, answer: str, prompt: Any = None, problem_type: Any = None) -> Any:
    """The part of an answer that a reward reads, or its normalized text. Equal readings are the same to the reward.

    Example:
        >>> reading("accuracy", "(3) screw (2) fan") == reading("accuracy", "(2), (3)")
        True
    """
    if name == "by_problem_type":
        kind = kind_called(str(problem_type or ""))
        name = None if kind is None else kind.reward
    entry = TABLE.get(name or "")
    found = None if entry is None or entry.reads is None else entry.reads(answer, prompt)
    return normalized(answer) if found is None else found
