"""What a teacher, or a control of an evaluation, sees of a record beyond the policy.

A row of ``VIEWS`` is a plain function ``f(record, **arguments) -> record``, or ``f(record, completion) -> str``, a
sentence behind the question for each completion of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, NamedTuple

from qwenvl.option import RowValue
from qwenvl.rewards.functions.looking import evidence_of
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.resolve import load_file
from qwenvl.types import ClipMeta, Record

View = Callable[..., Any]


class ScoredCompletion(NamedTuple):
    """A completion of the policy, and what the rewards gave it, None where a function does not apply."""

    text: str
    rewards: dict[str, float | None]


def frames(record: Record, count: int | None = None) -> Record:
    """The record with ``count`` frames of each clip, 32 by default, evenly spaced over its span."""
    own, most = (meta or ClipMeta() for meta in record.clip_meta), count or 32
    evenly = (replace(each, min_frames=most, max_frames=most, dynamic_sample=False, video_fps=None) for each in own)
    return replace(record, clip_meta=tuple(evenly))


def evidence(record: Record, count: int | None = None) -> Record:
    """The record with the span of its ``evidence`` in place of the whole clip. Without evidence or clip: as it is.

    Args:
        count: frames of the span. None: as many as the run takes of so many seconds.
    """
    spans = evidence_of(record.fields)
    if spans is None or len(record.videos) != 1:
        return record
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    shown = replace(record, clip_meta=(replace(record.clip_meta[0] or ClipMeta(), video_start=start, video_end=end),))
    return shown if count is None else frames(shown, count)


def solution(record: Record) -> Record:
    """The record with its solution in a sentence behind the question (arXiv:2601.18734)."""
    messages = list(record.messages)
    place = max(n for n, message in enumerate(messages) if message.role == "user")
    text = f"{messages[place].text}\nThe right answer is: {solution_of(record.solution)}"
    messages[place] = replace(messages[place], text=text)
    return replace(record, messages=tuple(messages))


def feedback(record: Record, completion: ScoredCompletion) -> str:
    """What the rewards gave a completion, in a sentence (arXiv:2601.20802)."""
    given = (f"{name} {value:g}" for name, value in completion.rewards.items() if value is not None)
    return f"An earlier answer was scored: {', '.join(given)}. Do better."


def unchanged(record: Record) -> Record:
    """The record: of a teacher that sees what the policy sees, with a vision tower of its own."""
    return record


VIEWS: Mapping[str, View] = {"frames": frames, "evidence": evidence, "solution": solution, "feedback": feedback}


def view_of(row: RowValue) -> View:
    """The function of a row of ``VIEWS``, or of a function ``file.py:name``, with its arguments.

    Raises:
        ValueError: there is no such function.
    """
    if row.name in VIEWS:
        return partial(VIEWS[row.name], **vars(row.arguments))
    file, _, name = row.name.rpartition(":")
    made = getattr(load_file(file), name, None)
    if not callable(made):
        raise ValueError(f"{row.name}: {file} has no function {name}; expected f(record) or f(record, completion)")
    return made


def reads_completions(view: View) -> bool:
    """Whether a view makes a sentence for each completion: it has a second argument without a default."""
    return sum(each.default is Parameter.empty for each in signature(view).parameters.values()) > 1
