"""What a teacher, or a control of an evaluation, sees of a record beyond the policy.

A row of ``VIEWS`` is a plain function ``f(record, **arguments) -> record``, or
``f(record, completion, rewards) -> str``, a sentence behind the question for each completion of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from qwenvl.grpo.options import TeacherOptions
from qwenvl.option import row_of
from qwenvl.rewards.functions.looking import evidence_of
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.resolve import load_file
from qwenvl.types import ClipMeta, Record

View = Callable[..., Any]


def unchanged(record: Record) -> Record:
    """The record."""
    return record


def frames(record: Record, count: int | None = None) -> Record:
    """The record with ``count`` frames of each clip, 32 by default, evenly spaced over its span."""
    most = count or 32
    evenly = tuple(
        replace(
            meta or ClipMeta(), min_frames=most, max_frames=most, dynamic_sample=False, video_fps=None, count=None
        )
        for meta in record.clip_meta
    )
    return replace(record, clip_meta=evenly)


def evidence(record: Record, count: int | None = None) -> Record:
    """The record with the span of its ``evidence`` in place of its clip. Without evidence or one clip: as it is."""
    spans = evidence_of(record.fields)
    if spans is None or len(record.videos) != 1:
        return record
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    shown = replace(record, clip_meta=(replace(record.clip_meta[0] or ClipMeta(), video_start=start, video_end=end),))
    return shown if count is None else frames(shown, count)


def solution(record: Record) -> Record:
    """The record with its solution in a sentence behind the question (arXiv:2601.18734)."""
    *before, question = record.messages  # the prompt ends with a user turn
    answered = replace(question, text=f"{question.text}\nThe right answer is: {solution_of(record.solution)}")
    return replace(record, messages=(*before, answered))


def feedback(record: Record, completion: str, rewards: Mapping[str, float | None]) -> str:
    """What the rewards gave a completion, in a sentence (arXiv:2601.20802). None: a reward does not apply to it."""
    given = (f"{name} {value:g}" for name, value in rewards.items() if value is not None)
    return f"An earlier answer was scored: {', '.join(given)}. Do better."


VIEWS: Mapping[str, View] = {"frames": frames, "evidence": evidence, "solution": solution, "feedback": feedback}


def view_named(text: str | None) -> View:
    """The function that ``--teacher_sees`` names: a row of ``VIEWS`` or ``file.py:name``. None: ``unchanged``.

    Raises:
        ValueError: there is no such function, or it has no such argument.
    """
    row = row_of(TeacherOptions(teacher="reference", teacher_sees=text), "teacher_sees")
    if row is None or row.name in VIEWS:
        return unchanged if row is None else partial(VIEWS[row.name], **vars(row.arguments))
    file, _, name = row.name.rpartition(":")
    if not callable(made := getattr(load_file(file), name, None)):
        raise ValueError(f"--teacher_sees {row.name}: {file} has no function {name}")
    return made


def reads_completions(view: View) -> bool:
    """Whether a view makes a sentence for each completion: it has a second argument without a default."""
    return sum(each.default is Parameter.empty for each in signature(view).parameters.values()) > 1
