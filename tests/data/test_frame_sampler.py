"""``--frame_sampler change`` on real clips: what is shown of them, and that all else stays as it is."""

from itertools import pairwise

import numpy as np
import pytest

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.frames import FrameRule
from qwenvl.data.hints import uneven_hints
from qwenvl.data.media.frame_cache import FrameCache
from qwenvl.data.media.reader import ClipReader
from qwenvl.data.options import FrameOptions
from qwenvl.data.prompt_length import LengthEstimate, PromptLimit
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import make_processor

SCENES = (70, 6, 84, 5, 35)  # frames of each, ten a second: two of them fall between eight uniform frames
STARTS = (0, 70, 76, 160, 165, 200)
CHANGE = {"frame_sampler": "change"}


def scene_of(index: int) -> int:
    return sum(index >= start for start in STARTS[1:])


@pytest.fixture
def cuts(tmp_path, make_row, write_rows):
    """``cuts(meta)`` -> path of a record whose clip of 20 s has five scenes, each of another grey."""

    def write(meta=None, name="cuts.json"):
        levels = (20, 200, 90, 240, 140)
        pictures = [np.full((64, 64, 3), level, np.uint8) for level in levels]
        encode(tmp_path / "a.mp4", [pictures[n] for n, count in enumerate(SCENES) for _ in range(count)], rate=10)
        return str(write_rows([make_row(prompt="<video>\nWhich?", video="a.mp4", meta=meta)], name))

    return write


def seen(path, **options):
    return load_dataset(path, **options)[0].videos[0].info


def test_every_scene_is_seen(cuts):
    path = cuts()
    uniform, change = seen(path), seen(path, **CHANGE)
    assert len(uniform.indices) == len(change.indices) == 8
    assert {scene_of(index) for index in uniform.indices} == {0, 2, 4}
    assert {scene_of(index) for index in change.indices} == {0, 1, 2, 3, 4}
    assert (change.indices[0], change.indices[-1]) == (0, 199)
    assert change.times == pytest.approx([index / 10 for index in change.indices])
    assert change == seen(path, **CHANGE, decode_timeout=0) == seen(path, **CHANGE, seed=5)


def test_within_spans(cuts):
    info = seen(cuts({"spans": [[0, 7.9], [12, 17]], "max_frames": 8}), **CHANGE)
    assert {scene_of(index) for index in info.indices} == {0, 1, 2, 3, 4}
    assert all(index <= 79 or 120 <= index <= 170 for index in info.indices)
    assert info.segments == tuple(int(index >= 120) for index in info.indices)


def test_drawn_anew_in_training_from_stretches_of_equal_change(cuts):
    dataset = load_dataset(cuts({"min_frames": 8, "max_frames": 8, "dynamic_sample": True}), **CHANGE)
    drawn = [dataset[epoch, 0].videos[0].info.indices for epoch in range(12)]
    assert len(set(drawn)) == 12
    # a cut counts one of eight parts, so nearly every draw has the short scenes that uniform stretches of 25 rarely hit
    assert all({scene_of(index) for index in indices} >= {0, 2, 4} for indices in drawn)


def test_a_prompt_made_to_fit_keeps_what_changes(cuts, monkeypatch):
    path, processor = cuts(), make_processor("qwen2_5_vl")
    whole = GRPOCollator(processor)([load_dataset(path, **CHANGE)[0]])["prompts"]
    limit = PromptLimit(GRPOCollator(processor).ruler, whole.input_ids.shape[1] - 1, fit_frames=True)
    looks = []
    look = ClipReader.look
    monkeypatch.setattr(ClipReader, "look", lambda clip, indices: looks.append(len(indices)) or look(clip, indices))
    sample = load_dataset(path, limit=limit, decode_timeout=0, **CHANGE)[0]
    assert sample.fitted.frames == ((8, 6),)
    assert {scene_of(index) for index in sample.videos[0].info.indices} == {0, 1, 2, 3, 4}
    assert looks == [80]  # 4 a second of 20 s, and once


def test_the_cache_keeps_what_changes(cuts, tmp_path, monkeypatch):
    path, collator = cuts(), GRPOCollator(make_processor("qwen2_5_vl"))
    cached = lambda: load_dataset(path, frame_cache=FrameCache(tmp_path / "cache", 10**9, collator.ruler), **CHANGE)
    first = cached()[0].videos[0]
    monkeypatch.setattr("qwenvl.data.dataset.open_clip", lambda *args, **options: pytest.fail("opened"))
    again = cached()[0].videos[0]
    assert again.info.cached and again.info.indices == first.info.indices == seen_of(first)
    assert again.frames.equal(first.frames)


def seen_of(clip) -> tuple[int, ...]:
    assert {scene_of(index) for index in clip.info.indices} == {0, 1, 2, 3, 4}
    return clip.info.indices


def test_uniform_frames_do_not_look(cuts, monkeypatch):
    monkeypatch.setattr(ClipReader, "look", lambda *args: pytest.fail("looked"))
    assert seen(cuts(), decode_timeout=0).indices == (0, 28, 57, 85, 114, 142, 171, 199)


def test_the_length_of_a_prompt_is_estimated_without_looking(cuts):
    collator, dataset = GRPOCollator(make_processor("qwen2_5_vl")), load_dataset(cuts(), **CHANGE)
    rule = FrameRule(FrameOptions(**CHANGE))
    estimate = LengthEstimate(dataset.records, rule, collator.ruler)((0, 0))
    assert estimate == collator([dataset[0]])["prompts"].input_ids.shape[1]


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_families_that_write_times_are_told_the_true_ones(cuts, family):
    """Each pair of frames bears the mean of its two times, to a tenth of a second."""
    processor = make_processor(family)
    dataset = load_dataset(cuts(), **CHANGE)
    text = processor.tokenizer.decode(GRPOCollator(processor)([dataset[0]])["prompts"].input_ids[0])
    times = dataset[0].videos[0].info.times
    pairs = [(a + b) / 2 for a, b in zip(times[::2], times[1::2], strict=True)]
    assert len({round(b - a, 1) for a, b in pairwise(pairs)}) > 1  # they are not even
    for pair in pairs:
        assert f"<{pair:.1f} seconds>" in text
    assert not list(uneven_hints(dataset.records[0], "change", processor))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_for_others_it_is_worth_a_look(cuts, family):
    processor, plain = make_processor(family), load_dataset(cuts())
    (hint,) = uneven_hints(plain.records[0], "change", processor)
    assert "--frame_sampler change: frames do not lie evenly, and this model is not told when each is" in hint.message
    assert not list(uneven_hints(plain.records[0], "uniform", processor))
    spans = load_dataset(cuts({"spans": [[0, 1], [3, 4]]}, "spans.json"))
    (hint,) = uneven_hints(spans.records[0], "uniform", processor)
    assert hint.message.startswith("several spans of a clip: frames do not lie evenly")


def test_qwen2_5_vl_is_told_the_mean_distance(cuts):
    """Two of eight frames lie a temporal patch apart: 2 x 19.9 s / 7."""
    batch = GRPOCollator(make_processor("qwen2_5_vl"))([load_dataset(cuts(), **CHANGE)[0]])["prompts"]
    assert batch.seconds_per_grid.tolist() == pytest.approx([2 * 19.9 / 7])
