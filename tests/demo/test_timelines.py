"""The data of the demo's timelines: clips that show what their answers say, and warm-up targets that are half right."""

from __future__ import annotations

import json

import av
import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.demo.scene import STEPS
from qwenvl.demo.timelines import (
    EDGES,
    ORDERS,
    RATE,
    SECONDS,
    TimedClip,
    TimelineSettings,
    best_fixed_timeline,
    make_timeline_clips,
    spans_of,
    written_answer,
)
from qwenvl.rewards.functions.timelines import best_iou
from qwenvl.timeline import timeline_in

SETTINGS = TimelineSettings(seed=3, train=12, heldout=4, warmup=300)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data sets of the demo of timelines, at a small size."""
    folder = tmp_path_factory.mktemp("demo") / "data"
    make_timeline_clips(folder, SETTINGS, processes=1)
    return folder


def answers(file):
    text = file.read_text()
    records = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
    targets = [record["conversations"][1]["value"] for record in records]
    return [timeline_in(target.split("<answer>")[1].removesuffix("</answer>")) for target in targets]


def test_no_step_is_shown_under_the_cover():
    assert len(ORDERS) == 90 and all(len(set(steps)) == 3 for steps in ORDERS)
    assert (5, 1, 6) in ORDERS and (2, 5, 6) in ORDERS
    assert not any(steps in ORDERS for steps in [(5, 2, 1), (1, 5, 3), (5, 6, 4)])


def test_every_step_takes_at_least_two_seconds():
    assert len(EDGES) == 28
    assert min(span.seconds for edges in EDGES for span in spans_of((1, 2, 3), edges)) == 2


def test_answers_of_clips_reach_from_their_beginning_to_their_end(data):
    for spans in [*answers(data / "train.json"), *answers(data / "heldout.json")]:
        assert (spans[0].start, spans[2].end) == (0, SECONDS)
        assert (spans[1].start, spans[2].start) == (spans[0].end, spans[1].end)
        assert all(span.name == STEPS[span.number - 1] for span in spans)


def test_a_clip_has_the_frames_of_its_seconds(data):
    with av.open(str(data / "clips" / "train-0000.mp4")) as container:
        frames = sum(1 for _ in container.decode(video=0))
        assert (frames, container.streams.video[0].average_rate) == (SECONDS * RATE, RATE)


def test_records_show_frames_of_every_second(data):
    dataset = load_dataset("demo_train", catalog_path=data / "datasets.yaml", training=True)
    times = dataset[0].videos[0].info.times
    assert {int(time) for time in times} == set(range(SECONDS))


def test_targets_of_the_warm_up_lack_spans_and_have_edges_a_second_off(data):
    targets = answers(data / "warmup.jsonl")
    assert len(targets) == SETTINGS.warmup
    short = sum(len(spans) == 2 for spans in targets) / len(targets)
    # 300 draws: the standard deviation of the share is 0.029.
    assert abs(short - SETTINGS.dropped) < 4 * 0.029
    assert all(span.seconds >= 1 for spans in targets for span in spans)


def test_the_value_of_the_best_fixed_answer_is_its_mean_over_all_clips():
    value, spans = best_fixed_timeline()
    true = [spans_of(steps, edges) for steps in ORDERS for edges in EDGES]
    mean = sum(best_iou(spans, each, extra=1.0) for each in true) / len(true)
    assert mean == pytest.approx(value, abs=1e-9)
    thirds = spans_of((1, 6, 2), (4, 8))
    assert value > sum(best_iou(thirds, each, extra=1.0) for each in true) / len(true)


def test_the_same_seed_gives_the_same_data(tmp_path, data):
    make_timeline_clips(tmp_path / "again", SETTINGS, processes=1)
    for file in ("train.json", "warmup.jsonl", "clips/heldout-0003.mp4"):
        assert (tmp_path / "again" / file).read_bytes() == (data / file).read_bytes()


def test_the_work_of_a_step_stays_visible_until_the_end():
    clip = TimedClip("one", (2, 1, 6), (4, 8), (0, 1, 2))
    other = TimedClip("two", (1, 2, 6), (4, 8), (0, 1, 2))
    last, others_last = list(clip.draw())[-1], list(other.draw())[-1]
    assert (last == others_last).all()
    assert written_answer(clip.spans).startswith("<answer>0.0-4.0 (2) insert the fan\n4.0-8.0 (1) pick the screw\n")
