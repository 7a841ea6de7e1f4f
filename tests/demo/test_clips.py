"""The demo's data is what its records say, the same for the same seed, and readable by the data path of a real run."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import av
import numpy as np
import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.demo.clips import (
    OVERVIEW,
    PAIRS,
    RATE,
    SECONDS,
    ClipSettings,
    LongClipSettings,
    Minute,
    make_clips,
    make_long_clips,
    solution,
)

SETTINGS = ClipSettings(seed=3, train=30, heldout=6, warmup=400)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data sets of the demo, at a small size."""
    folder = tmp_path_factory.mktemp("demo") / "data"
    make_clips(folder, SETTINGS, processes=1)
    return folder


def pictures(path):
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)


def numbers(text):
    return tuple(int(k) for k in re.findall(r"\((\d)\)", text))


def test_segments_of_meta_make_up_the_clip(data):
    records = json.loads((data / "train.json").read_text())
    assert {numbers(r["conversations"][1]["value"]) for r in records} == set(PAIRS), "30 clips show all 27"
    for record in records[:5]:
        assert len(pictures(data / record["video"])) == sum(record["meta"]["frame_cnts"])


@pytest.mark.parametrize("name", ["warmup", "train", "heldout"])
def test_every_data_set_is_read_with_two_frames_of_each_segment(data, name):
    dataset = load_dataset(f"demo_{name}", catalog_path=data / "datasets.yaml", training=name in ("warmup", "train"))
    sample = dataset[1]
    assert sample.videos[0].info.segments == (0, 0, 1, 1)
    first, second = json.loads(json.dumps(sample.record.fields["meta"]["frame_cnts"]))
    if name == "heldout":  # uniform: the first and the last frame of each segment
        assert sample.videos[0].info.indices == (0, first - 1, first, first + second - 1)


def test_the_data_of_the_demo_is_a_function_of_the_seed(tmp_path, data):
    few = replace(SETTINGS, train=2, heldout=1, warmup=5)
    for name, settings in {"a": few, "b": few, "c": replace(few, seed=4)}.items():
        make_clips(tmp_path / name, settings, processes=1)
    for file in ("train.json", "warmup.jsonl", "clips/train-0001.mp4", "clips/heldout-0000.mp4"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a/clips/train-0001.mp4").read_bytes() != (tmp_path / "c/clips/train-0001.mp4").read_bytes()
    assert (tmp_path / "a/clips/train-0001.mp4").read_bytes() == (data / "clips/train-0001.mp4").read_bytes()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="expected an empty folder; choose another one"):
        make_clips(tmp_path, SETTINGS, processes=1)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_warmup_targets_are_incomplete_as_often_as_the_settings_say(data):
    shown = {r["video"]: numbers(r["conversations"][1]["value"]) for r in json.loads((data / "train.json").read_text())}
    rows = [json.loads(line) for line in (data / "warmup.jsonl").read_text().splitlines()]
    targets = [row["conversations"][1]["value"] for row in rows]
    assert len(rows) == 400
    assert len({frozenset(shown[row["video"]]) for row in rows}) == SETTINGS.warmup_pairs
    # Three standard errors of a share of 400 are at most 0.075.
    assert np.mean([len(numbers(t)) == 1 for t in targets]) == pytest.approx(SETTINGS.dropped, abs=0.08)
    assert np.mean(["<think>" not in t for t in targets]) == pytest.approx(SETTINGS.unthinking, abs=0.08)
    for row, target in zip(rows, targets, strict=True):
        assert {*numbers(target)} <= {*shown[row["video"]]}
        assert target.endswith(solution(numbers(target))), "each number stands before the name of its step"


# ---- the demo that looks: what overview and look can see, and what the warm-up is taught


@pytest.fixture(scope="module")
def long_data(tmp_path_factory):
    """The data sets of the demo with looks, at a small size."""
    folder = tmp_path_factory.mktemp("long") / "data"
    make_long_clips(folder, LongClipSettings(train=2, heldout=1, sight=7), processes=1)
    return folder


def records(data, name):
    return json.loads((data / f"{name}.json").read_text())


def test_no_frame_of_the_overview_shows_a_step(long_data):
    overview = {round(t) // RATE for t in np.linspace(0, SECONDS * RATE - 1, OVERVIEW)}
    for record in records(long_data, "train") + records(long_data, "heldout"):
        ((start, end),) = record["evidence"]
        assert end == start + 1 and start not in overview and f"from {start} to {end}?" in str(record)


def test_frames_move_only_in_the_second_of_a_step():
    minute = Minute("m", (7,), (4,), (0,))
    frames = np.stack(list(minute.draw())).astype(int)
    assert len(frames) == SECONDS * RATE
    moved = np.abs(frames - frames[0]).max((1, 2, 3)) > 0
    assert moved.nonzero()[0].tolist() == [28, 29, 30, 31]


def test_a_look_decodes_its_own_second_alone(long_data):
    with av.open(str(long_data / "clips" / "train-0000.mp4")) as container:
        keys = [float(packet.pts * packet.time_base) for packet in container.demux(video=0) if packet.is_keyframe]
    assert keys == list(range(SECONDS))


def test_the_warm_up_looks_in_three_of_eight_targets_and_always_answers_right(long_data):
    right = {each["id"]: each for each in records(long_data, "train")}
    calls = records(long_data, "calls")
    assert len(right) == 12 and len(calls) == 96
    assert sum("evidence" in each for each in calls) == 36
    for each in calls:
        record = right[each["id"].rpartition("-")[0]]
        assert each["conversations"] == record["conversations"]
        assert each.get("evidence", record["evidence"]) == record["evidence"]
    assert len(records(long_data, "sight")) == 7 and len(records(long_data, "heldout")) == 3
