"""Views of records: versions for a teacher, or for a control of an evaluation, that may hold more than the policy's.

A view is a plain function ``f(record, **arguments) -> record``, or ``f(record, completion, rewards) -> str``, which
writes a sentence behind the question for each completion of the policy. A row of ``VIEWS`` gives it a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from qwenvl.data.chat import parted
from qwenvl.data.errors import RecordError, place_of
from qwenvl.data.records.forms import CONTROL_TOKENS, MEDIA_TAG, text_problem
from qwenvl.grpo.options import TeacherOptions
from qwenvl.option import row_of
from qwenvl.own_code import named_errors
from qwenvl.rewards.functions.looking import evidence_of
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.resolve import load_file
from qwenvl.rewards.rubric import private_copy
from qwenvl.types import ClipMeta, Record

View = Callable[..., Any]

LONGEST_SENTENCE = 50_000
"""Characters behind a question, beside those of a completion that is quoted twice at most. The forward of a much longer
prompt would take hours, or fill the memory."""

NOTHING_SAID = "An earlier answer was empty."
SAMPLE_COMPLETION = "<think>I look at it.</think> <answer>(1) this</answer>"


def unchanged(record: Record) -> Record:
    """The record as it is."""
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
    """The record with the span of its ``evidence`` in place of its clip.

    Segments and a fixed number of frames are those of the whole clip, and not of the span. A record without evidence,
    or without exactly one clip, stays as it is.
    """
    spans = evidence_of(record.fields)
    if spans is None or len(record.videos) != 1:
        return record
    start = min(start for start, _ in spans)
    end = max(end for _, end in spans)
    span = replace(record.clip_meta[0] or ClipMeta(), video_start=start, video_end=end, frame_counts=None)
    if span.count is not None and span.count.nframes is not None:
        span = replace(span, count=None)
    shown = replace(record, clip_meta=(span,))
    return shown if count is None else frames(shown, count)


def solution(record: Record) -> Record:
    """The record with its solution in a sentence behind the question (arXiv:2601.18734), if it has a solution."""
    right = solution_of(record.solution)
    if not right:
        return record
    *before, question = record.messages  # the prompt ends with a user turn
    answered = replace(question, text=f"{question.text}\nThe right answer is: {right}")
    return replace(record, messages=(*before, answered))


def feedback(record: Record, completion: str, rewards: Mapping[str, float | None]) -> str:
    """A sentence with the rewards of a completion (arXiv:2601.20802). A reward of None does not apply to it."""
    given = (f"{name} {value:g}" for name, value in rewards.items() if value is not None)
    return f"An earlier answer was scored: {', '.join(given)}. Do better."


VIEWS: Mapping[str, View] = {"frames": frames, "evidence": evidence, "solution": solution, "feedback": feedback}


SHOWN = {"frames": "a clip", "evidence": "a clip with `evidence`", "solution": "a solution"}
"""The part of a record that a view needs, for each view that reads no completion."""


def view_named(text: str | None) -> View:
    """The function that ``--teacher_sees`` names: a row of ``VIEWS`` or ``file.py:name``. None: ``unchanged``.

    Raises:
        ValueError: there is no such function, or it has no such argument.
    """
    row = row_of(TeacherOptions(teacher="reference", teacher_sees=text), "teacher_sees")
    if row is None:
        return unchanged
    if row.name in VIEWS:
        return partial(VIEWS[row.name], **vars(row.arguments))
    file, _, name = row.name.rpartition(":")
    function = getattr(load_file(file, named_by="--teacher_sees file.py:name"), name, None)
    if not callable(function):
        raise ValueError(f"--teacher_sees {row.name}: {file} has no function {name}; name one that the file defines")
    return function


def reads_completions(view: View) -> bool:
    """Whether a view makes a sentence for each completion: it has a second argument without a default."""
    needed = [each for each in signature(view).parameters.values() if each.default is Parameter.empty]
    return len(needed) > 1


def seen_by(view: View, record: Record, flag: str = "--teacher_sees") -> Record:
    """A record as a view shows it.

    Args:
        flag: that names the view, for messages.

    Raises:
        RecordError: the field of the record that the view reads is not of its form.
        OwnCodeError: the view is a function of the user, and fails or gives no record.
    """
    if _is_built_in(view):
        try:
            return view(record)
        except ValueError as error:
            raise RecordError(f"{record.where}: {error}") from None
    with named_errors(_place(view, record, flag)):
        seen = view(_copied(record))
        if not isinstance(seen, Record):
            raise TypeError(f"it returned {type(seen).__name__}; expected a record")
        for message in seen.messages:
            _check_text(message.text)
        tags = [tag for message in seen.messages for tag in MEDIA_TAG.findall(message.text)]
        found = (tags.count("video"), tags.count("image"), len(seen.clip_meta))
        if found != (len(seen.videos), len(seen.images), len(seen.videos)):
            raise ValueError("the tags <video> and <image> or the `clip_meta` of its record do not fit its media")
    return seen


def sentence_of(view: View, record: Record, completion: str, rewards: Mapping[str, float | None]) -> str:
    """The sentence that a view writes about a completion.

    Args:
        completion: its text. Control tokens that it spells get a space inside, as the view may quote the text.

    Raises:
        OwnCodeError: the view is a function of the user, and fails or gives no sentence.
    """
    with named_errors(_place(view, record)):
        sentence = view(_copied(record), parted(completion, CONTROL_TOKENS), rewards)
        if isinstance(sentence, str) and not sentence.strip() and _says_something(view, record, rewards):
            sentence = NOTHING_SAID  # it quotes the completion, which has nothing to quote
        if not isinstance(sentence, str) or not sentence.strip():
            got = "an empty text" if isinstance(sentence, str) else type(sentence).__name__
            raise TypeError(f"it returned {got}; expected a sentence")
        # What was sampled has few tokens, though 500 of them may have 65,000 characters.
        most = LONGEST_SENTENCE + 2 * len(completion)
        if len(sentence) > most:
            raise ValueError(f"it returned {len(sentence):,} characters; expected at most {most:,}")
        if text_problem(sentence) and not _says_it_always(view, record, rewards):
            # The completion has spelled the token in parts, or in other signs that the view makes these.
            sentence = parted(sentence, CONTROL_TOKENS)
        _check_text(sentence)
    return sentence


def _says_something(view: View, record: Record, rewards: Mapping[str, float | None]) -> bool:
    """Whether a view says something of a completion that has a thought and an answer."""
    return bool(_tried_on(view, record, SAMPLE_COMPLETION, rewards).strip())


def _says_it_always(view: View, record: Record, rewards: Mapping[str, float | None]) -> bool:
    """Whether the sentence of a view has control tokens whatever the completion is."""
    return text_problem(_tried_on(view, record, "", rewards)) is not None


def _tried_on(view: View, record: Record, completion: str, rewards: Mapping[str, float | None]) -> str:
    """What a view says of another completion than the sampled one. Nothing where it fails or gives no text.

    So it shows whether the view or the completion is to blame for a sentence.
    """
    try:
        sentence = view(_copied(record), completion, rewards)
    except Exception:  # it needs a completion of some form
        return ""
    return sentence if isinstance(sentence, str) else ""


def changed_by(view: View, records: Iterable[Record]) -> tuple[int, int]:
    """The number of records that a view changes, and the number of records that were tried.

    A function of the user may be slow: trying ends at the first record that it changes.
    """
    changed = 0
    looked = 0
    for record in records:
        looked += 1
        changed += seen_by(view, record) != record
        if changed and not _is_built_in(view):
            break
    return changed, looked


def _copied(record: Record) -> Record:
    """The record for a function of the user, which may change the lists in it that rewards read."""
    return replace(record, fields=private_copy(record.fields))


def _is_built_in(view: View) -> bool:
    """Whether a view is a row of ``VIEWS``, perhaps with arguments, and not a function of the user."""
    return view is unchanged or getattr(view, "func", view) in VIEWS.values()


def _place(view: View, record: Record, flag: str = "--teacher_sees") -> str:
    name = getattr(getattr(view, "func", view), "__name__", type(view).__name__)
    return f"{flag} {name}, called for {place_of(record)}"


def _check_text(text: str) -> None:
    problem = text_problem(text)
    if problem:
        raise ValueError(f"it returned a text that is no part of a prompt: {problem}")
