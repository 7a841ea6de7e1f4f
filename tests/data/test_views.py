"""The views of a teacher: each on a record made by hand, and views of a user's own file."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.views import (
    changed_by,
    evidence,
    feedback,
    frames,
    reads_completions,
    seen_by,
    sentence_of,
    solution,
    unchanged,
    view_named,
)
from qwenvl.own_code import OwnCodeError
from qwenvl.types import ClipMeta, LibraryCount, Message, Record

RECORD = Record(
    id="17",
    messages=(Message("user", "<video>\nWhich steps?"),),
    solution="<answer>(2) insert the fan</answer>",
    videos=("/clips/17.mp4",),
    images=(),
    clip_meta=(None,),
    fields={"id": "17", "evidence": [[2.0, 3.5], [5.0, 6.0]]},
    where="data.json[0]",
)
BARE = replace(RECORD, solution="", fields={"id": "17"})


@pytest.mark.parametrize(("count", "shown"), [(None, 32), (16, 16)])
def test_the_frames_view_spreads_its_number_of_frames_whatever_the_record_says(count, shown):
    own = replace(RECORD, clip_meta=(ClipMeta(min_frames=2, max_frames=4, dynamic_sample=True, video_start=1.0),))
    (meta,) = frames(own, count).clip_meta
    assert meta is not None
    assert (meta.min_frames, meta.max_frames, meta.dynamic_sample, meta.video_start) == (shown, shown, False, 1.0)


def test_the_evidence_view_shows_the_span_from_its_first_second_to_its_last():
    (meta,) = evidence(RECORD).clip_meta
    assert meta is not None and (meta.video_start, meta.video_end, meta.max_frames) == (2.0, 6.0, None)
    (meta,) = evidence(RECORD, 8).clip_meta
    assert meta is not None and (meta.video_start, meta.video_end, meta.max_frames) == (2.0, 6.0, 8)
    assert evidence(BARE) is BARE


def test_segments_of_the_whole_clip_are_none_of_its_evidence():
    segmented = replace(RECORD, clip_meta=(ClipMeta(frame_counts=(7.0, 7.0), dynamic_sample=True),))
    (meta,) = evidence(segmented).clip_meta
    assert meta == ClipMeta(video_start=2.0, video_end=6.0, dynamic_sample=True)
    counted = replace(RECORD, clip_meta=(ClipMeta(count=LibraryCount(nframes=64)),))
    assert evidence(counted).clip_meta == (ClipMeta(video_start=2.0, video_end=6.0),)
    by_rate = replace(RECORD, clip_meta=(ClipMeta(count=LibraryCount(fps=4)),))
    assert evidence(by_rate).clip_meta == (ClipMeta(video_start=2.0, video_end=6.0, count=LibraryCount(fps=4)),)


def test_the_solution_stands_behind_the_question():
    (message,) = solution(RECORD).messages
    assert message.text == "<video>\nWhich steps?\nThe right answer is: (2) insert the fan"
    assert solution(BARE) is BARE


def test_feedback_names_the_rewards_that_apply():
    text = feedback(RECORD, "anything", {"format": 1.0, "accuracy": 0.25, "length": None})
    assert text == "An earlier answer was scored: format 1, accuracy 0.25. Do better."


def test_a_view_is_chosen_by_its_name_with_arguments():
    assert view_named(None) is unchanged
    (meta,) = view_named("frames(12)")(RECORD).clip_meta
    assert meta is not None and meta.max_frames == 12
    assert reads_completions(view_named("feedback")) and not reads_completions(view_named("solution"))


def test_records_that_a_view_changes_are_counted():
    assert changed_by(solution, [RECORD, BARE, RECORD]) == (2, 3)
    assert changed_by(unchanged, [RECORD]) == (0, 1)


@pytest.mark.parametrize("wrong", ["somewhere", [[3, "so"]]], ids=str)
def test_a_field_that_a_view_cannot_read_is_named(wrong):
    with pytest.raises(RecordError, match=r"data\.json\[0\].*'evidence' must be a list"):
        seen_by(evidence, replace(RECORD, fields={"evidence": wrong}))


NO_SENTENCE = {
    "returns None": (lambda record, completion, rewards: None, "it returned NoneType; expected a sentence"),
    "returns blanks": (lambda record, completion, rewards: " \n", "it returned an empty text; expected a sentence"),
    "returns a list": (lambda record, completion, rewards: ["so"], "it returned list; expected a sentence"),
    "returns a book": (lambda record, completion, rewards: "so " * 20_000, "it returned 60,000 characters; "),
    "ends the turn": (lambda record, completion, rewards: "So.<|im_end|>", "it holds '<|im_end|>'"),
    "raises": (lambda record, completion, rewards: 1 / 0, "ZeroDivisionError: division by zero (test_views.py, line"),
}


@pytest.mark.parametrize("name", NO_SENTENCE)
def test_a_feedback_that_fails_is_named_with_the_record_in_one_line(name):
    view, problem = NO_SENTENCE[name]
    with pytest.raises(OwnCodeError) as failed:
        sentence_of(view, RECORD, "an answer", {})
    message = str(failed.value)
    assert message.startswith("--teacher_sees <lambda>, called for ") and RECORD.where in message
    assert problem in message and "\n" not in message


def test_feedback_quotes_special_tokens_of_a_completion_as_text():
    quote = lambda record, completion, rewards: f"You said {completion}"
    assert sentence_of(quote, RECORD, "<|im_end|><|video_pad|>", {}) == "You said < |im_end|>< |video_pad|>"
    plain = lambda record, completion, rewards: f"You said {unicodedata.normalize('NFKC', completion)}"
    assert sentence_of(plain, RECORD, "＜|im_end|＞", {}) == "You said < |im_end|>"
    closed = lambda record, completion, rewards: completion.split(":")[1].replace(" ", "")
    assert sentence_of(closed, RECORD, "See: < |im_end|>", {}) == "< |im_end|>"
    long = " " * 65_536  # 512 tokens of a real vocabulary
    assert sentence_of(quote, RECORD, f"{long}x", {}).endswith("x")
    alone = lambda record, completion, rewards: completion.partition("<answer>")[2]
    assert sentence_of(alone, RECORD, "<answer>b", {}) == "b"
    for empty in ("", "no block"):
        assert sentence_of(alone, RECORD, empty, {}) == "An earlier answer was empty."


NO_RECORD = {
    "returns None": (lambda record: None, "it returned NoneType; expected a record"),
    "leaves out a tag": (lambda record: with_text(record, "Which?"), "do not fit its media"),
    "adds a tag": (lambda record: with_text(record, "<video><video> Which?"), "do not fit its media"),
    "ends the turn": (lambda record: with_text(record, "<video> Which?<|im_end|>"), "it holds '<|im_end|>'"),
    "raises": (lambda record: {}[1], "KeyError: 1 (test_views.py, line"),
}


def with_text(record, text):
    return replace(record, messages=(replace(record.messages[-1], text=text),))


@pytest.mark.parametrize("name", NO_RECORD)
def test_a_view_that_fails_is_named_with_the_record_in_one_line(name):
    view, problem = NO_RECORD[name]
    with pytest.raises(OwnCodeError) as failed:
        seen_by(view, RECORD)
    assert RECORD.where in str(failed.value) and problem in str(failed.value) and "\n" not in str(failed.value)


OWN = '''
import unicodedata
from dataclasses import replace

def closer(record):
    record.fields["mark"] = 1
    (message,) = record.messages
    return replace(record, messages=(replace(message, text=message.text + " Look at the hands."),))

'''


@pytest.fixture
def own_view(tmp_path):
    """A function of a user's file, by its name."""
    (tmp_path / "views.py").write_text(OWN)
    return lambda name: view_named(f"{tmp_path / 'views.py'}:{name}")


def test_an_own_view_gets_a_copy_of_the_fields(own_view):
    assert seen_by(own_view("closer"), RECORD).messages[0].text.endswith("Look at the hands.")
    assert "mark" not in RECORD.fields


def test_a_missing_function_of_a_view_is_named(own_view):
    with pytest.raises(ValueError, match="no function missing"):
        own_view("missing")
