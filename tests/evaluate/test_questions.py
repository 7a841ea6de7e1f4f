"""Each control takes away what it names, and leaves the rest."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.evaluate.options import EvaluateOptions
from qwenvl.evaluate.questions import (
    Question,
    Questions,
    QuestionSamples,
    blank,
    clusters_of,
    partners,
    shuffled,
    single_frame,
)
from qwenvl.own_code import OwnCodeError
from qwenvl.step.contrast import shuffled_prompts
from qwenvl.types import Message, Record

TEXT_TENSORS = ("input_ids", "attention_mask", "video_grid_thw", "image_grid_thw", "seconds_per_grid")


def record(name: str, solution: str = "(1)", videos=(), images=()) -> Record:
    asked = (Message("user", "<video>\n" * len(videos) + "<image>" * len(images) + "Which?"),)
    return Record(
        name, asked, solution, tuple(videos), tuple(images), (None,) * len(videos), {"id": name}, f"d[{name}]"
    )


def test_images_of_another_record_come_with_their_sizes(make_row, tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (112, 112)).save(tmp_path / name)
    solutions = ("<answer>(1)</answer>", "<answer>(2)</answer>")
    images = ({"image": str(tmp_path / "a.png"), "max_pixels": 3136}, str(tmp_path / "b.png"))
    rows = [
        make_row(prompt="<image>?", solution=solution, image=image)
        for solution, image in zip(solutions, images, strict=True)
    ]
    dataset = load_dataset(rows, allow_outside_media=True, training=False)
    questions = Questions.of(dataset, EvaluateOptions(controls="other_clip,text_only"), seed=0)
    own, other = (questions.record("none", number) for number in (0, 1))
    assert own.image_sizes and not other.image_sizes
    assert questions.record("other_clip", 0).image_sizes == other.image_sizes
    assert questions.record("other_clip", 1).image_sizes == own.image_sizes
    assert questions.record("text_only", 0).image_sizes == ()


@pytest.fixture(scope="module")
def dataset():
    """The example data set without chance in its frames."""
    return load_dataset("example", base_interval=0.5, training=False)


@pytest.fixture
def collator(tiny_pair):
    """The collator of the tiny model."""
    return GRPOCollator(tiny_pair()[1])


def test_three_controls_keep_all_but_the_pixels(dataset, collator):
    sample = next(dataset[n] for n in range(len(dataset)) if dataset[n].videos)
    before = collator([sample])["prompts"]
    frames = len(sample.videos[0].frames)
    assert frames > 2
    for control in (blank, shuffled, single_frame):
        changed = control(sample, 5)
        after = collator([changed])["prompts"]
        for name in TEXT_TENSORS:
            ours, theirs = getattr(before, name), getattr(after, name)
            assert (ours is None and theirs is None) or torch.equal(ours, theirs), name
        assert after.frames == before.frames
        assert not torch.equal(after.pixel_values_videos, before.pixel_values_videos)
    assert set(blank(sample, 5).videos[0].frames.unique().tolist()) == {128}
    alone = single_frame(sample, 5).videos[0].frames
    assert len(alone) == frames
    assert all(torch.equal(frame, sample.videos[0].frames[frames // 2]) for frame in alone)


def test_the_shuffled_control_permutes_frames_as_temporal_contrast_does(dataset, collator):
    sample = next(dataset[n] for n in range(len(dataset)) if dataset[n].videos)
    theirs = shuffled_prompts(collator([sample])["prompts"], seed=5, temporal_patch_size=2)
    ours = collator([shuffled(sample, 5)])["prompts"]
    assert torch.equal(ours.pixel_values_videos, theirs.pixel_values_videos)


def test_a_partner_has_as_many_media_none_in_common_and_another_solution():
    records = {
        0: record("a", "<answer>(1) lid</answer>", ["a.mp4"]),
        1: record("b", "(1) Lid.", ["b.mp4"]),  # reads the same as a
        2: record("c", "(2) fan", ["c.mp4"]),
        3: record("again", "(2) fan", ["a.mp4"]),
        4: record("picture", "x", images=["p.png"]),
        5: record("text"),
        6: record("two", "y", ["a.mp4", "b.mp4"]),
    }
    for seed in range(5):
        found = partners(records, seed)
        assert set(found) == {0, 1, 2, 3}  # the others have nobody alike
        assert found[0] == 2 and found[1] in (2, 3) and found[2] in (0, 1) and found[3] == 1
    assert partners({n: records[n] for n in (0, 1)}, 0) == {0: 1, 1: 0}  # better one with the same solution than none
    questions = Questions(records, {}, ("other_clip",), {0: 2})
    shown = questions.record("other_clip", 0)
    assert (shown.videos, shown.solution, shown.id) == (("c.mp4",), records[0].solution, "a")


def test_without_media_the_prompt_is_text(dataset, collator):
    questions = Questions.of(dataset, EvaluateOptions(controls="text_only,other_clip"), seed=0)
    samples = QuestionSamples(dataset, questions, seed=0)
    number = next(n for n in range(len(dataset)) if dataset.record(n).videos)
    sample = samples[Question("text_only", number)]
    batch = collator([sample])["prompts"]
    assert batch.pixel_values_videos is None and batch.frames == [[]]
    text = collator.processor.tokenizer.decode(batch.input_ids[0])
    asked = dataset.record(number).messages[-1].text
    assert asked.startswith("<video>\n") and asked.removeprefix("<video>\n") in text and "<video>" not in text
    other = samples[Question("other_clip", number)]
    partner = dataset.record(questions.partners[number])
    assert [clip.info.path for clip in other.videos] == list(partner.videos) != list(sample.record.videos)
    assert other.record.solution == dataset.record(number).solution and other.record.index == number


def test_records_that_share_a_clip_belong_together():
    records = {
        0: record("a", videos=["1.mp4"]),
        1: record("b", videos=["1.mp4", "2.mp4"]),
        2: record("c", videos=["2.mp4"]),
        3: record("d", videos=["3.mp4"]),
        4: record("e"),
        5: record("f", images=["3.png"]),
    }
    clusters = clusters_of(records)
    assert clusters[0] == clusters[1] == clusters[2]
    assert len(set(clusters.values())) == 4 and clusters[4] == "d[e]"
    assert clusters_of(records, "id") == dict(enumerate("abcdef"))
    unknown = {0: replace(records[0], fields={"station": None})}
    with pytest.raises(RecordError, match="no field 'station', or null in it, which --cluster_by names"):
        clusters_of(unknown, "station")


def test_the_view_of_a_teacher_is_a_control(dataset):
    """It applies where it changes the record."""
    questions = Questions.of(dataset, EvaluateOptions(controls="frames(12),solution"), seed=0)
    assert questions.controls == ("none", "frames(12)", "solution")
    samples = QuestionSamples(dataset, questions, seed=0)
    for number, own in questions.records.items():
        assert questions.applies("frames(12)", number) == bool(own.videos) and questions.applies("solution", number)
        if own.videos:
            frames = [samples[Question(control, number)].videos[0].info.indices for control in ("none", "frames(12)")]
            assert len(frames[1]) == 12 > len(frames[0])
        assert "The right answer is" in samples[Question("solution", number)].chat[-1]["content"][-1]["text"]
    for wrong in ("frames(1)", "frame(12)", "feedback"):
        with pytest.raises(ValueError, match=r"--controls.*count must be at least 2|no such control"):
            Questions.of(dataset, EvaluateOptions(controls=wrong), seed=0)


OWN_VIEWS = """
from dataclasses import replace

from qwenvl.types import Message


def asked_otherwise(record):
    record.fields.clear()  # of a copy
    return replace(record, messages=(*record.messages[:-1], Message("user", record.messages[-1].text + " Quickly.")))


def raises(record):
    return record.fields["nosuch"]


def gives_none(record):
    return None


def says(record, completion, rewards):
    return "No."


def adds_a_clip(record):
    return replace(record, messages=(Message("user", "<video>" + record.messages[-1].text),))
"""


def test_a_view_of_ones_own_is_a_control_and_its_faults_are_named(dataset, tmp_path):
    path = tmp_path / "views.py"
    path.write_text(OWN_VIEWS)
    questions = Questions.of(dataset, EvaluateOptions(controls=f"{path}:asked_otherwise"), seed=0)
    shown = questions.record(f"{path}:asked_otherwise", 0)
    assert shown.messages[-1].text.endswith(" Quickly.") and questions.records[0].fields
    for name, message in {
        "raises": "KeyError: 'nosuch'",
        "gives_none": "it returned NoneType; expected a record",
        "adds_a_clip": "do not fit its media",
    }.items():
        with pytest.raises(OwnCodeError, match=f"--controls {name}, called for .*{message}"):
            Questions.of(dataset, EvaluateOptions(controls=f"{path}:{name}"), seed=0)
    for name, message in {"says": "it needs more than a record", "other": "has no function other"}.items():
        with pytest.raises(ValueError, match=f"--controls .*{name}: .*{message}"):
            Questions.of(dataset, EvaluateOptions(controls=f"{path}:{name}"), seed=0)


def test_controls_all_leaves_out_controls_that_change_no_record(capsys):
    rows = [{"prompt": "<video>?", "video": "clips/lid.mp4", "solution": "1"}]
    one = load_dataset(rows, base_interval=0.5, training=False, on_bad_sample="skip")
    questions = Questions.of(one, EvaluateOptions(controls="all"), seed=0)
    assert questions.controls == ("none", "blank", "shuffled", "single_frame", "text_only")
    assert "--controls all: without other_clip" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--controls other_clip has no effect"):
        Questions.of(one, EvaluateOptions(controls="blank,other_clip"), seed=0)
