"""The data of the demo that looks: what overview and look can see, and what the warm-up is taught."""

import json

import av
import numpy as np
import pytest

from qwenvl.demo.long_clips import OVERVIEW, RATE, SECONDS, LongClipSettings, Minute, make_long_clips

SETTINGS = LongClipSettings(train=2, heldout=1, sight=7)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "data"
    make_long_clips(folder, SETTINGS, processes=1)
    return folder


def records(data, name):
    return json.loads((data / f"{name}.json").read_text())


def test_no_frame_of_the_overview_shows_a_step(data):
    overview = {round(t) // RATE for t in np.linspace(0, SECONDS * RATE - 1, OVERVIEW)}
    for record in records(data, "train") + records(data, "heldout"):
        ((start, end),) = record["evidence"]
        assert end == start + 1 and start not in overview and f"from {start} to {end}?" in str(record)


def test_a_second_shows_its_step_and_those_around_it_nothing():
    minute = Minute("m", (7,), (3,), (0,))
    frames = np.stack(list(minute.draw())).astype(int)
    assert len(frames) == SECONDS * RATE
    moved = np.abs(frames - frames[0]).max((1, 2, 3)) > 0
    assert moved.nonzero()[0].tolist() == [28, 29, 30, 31]


def test_a_look_decodes_its_own_second_alone(data):
    with av.open(str(data / "clips" / "train-0000.mp4")) as container:
        keys = [float(packet.pts * packet.time_base) for packet in container.demux(video=0) if packet.is_keyframe]
    assert keys == list(range(SECONDS))


def test_the_warm_up_looks_in_three_of_eight_targets_and_always_answers_right(data):
    right = {each["id"]: each for each in records(data, "train")}
    calls = records(data, "calls")
    assert len(right) == 12 and len(calls) == 96
    assert sum("evidence" in each for each in calls) == 36
    for each in calls:
        record = right[each["id"].rpartition("-")[0]]
        assert each["conversations"] == record["conversations"]
        assert each.get("evidence", record["evidence"]) == record["evidence"]
    assert len(records(data, "sight")) == 7 and len(records(data, "heldout")) == 3
