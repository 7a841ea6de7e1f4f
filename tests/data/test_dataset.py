import pickle
import random

import pytest
import torch
from torch.utils.data import DataLoader

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.order import EpochSampler
from qwenvl.data.views import evidence
from qwenvl.types import BadSample, Sample

META = {"frame_cnts": [10, 15], "min_frames": 2, "max_frames": 4, "dynamic_sample": True}


@pytest.fixture
def steps(make_clip, write_rows, make_row):
    """Path of three records: a segmented clip, plain text, a clip of 1.9 seconds without ``meta``."""
    make_clip("clips/a.mp4", 25)
    make_clip("clips/b.mp4", 19)
    return str(
        write_rows(
            [
                make_row(id="a", prompt="<video>\nWhich?", video="clips/a.mp4", meta=META),
                make_row(id="t", prompt="No media."),
                make_row(id="b", prompt="<video>\nWhich?", video="clips/b.mp4"),
            ]
        )
    )


def frames_of(sample: Sample) -> tuple[int, ...]:
    return sample.videos[0].info.indices


class TestSamples:
    def test_a_clip_has_the_frames_that_its_info_names(self, steps, number_of):
        for epoch in range(3):
            (clip,) = load_dataset(steps)[(epoch, 0)].videos
            assert clip.frames.dtype == torch.uint8
            assert [number_of(frame) for frame in clip.frames] == list(clip.info.indices)
            assert clip.info.times == pytest.approx([i / 10 for i in clip.info.indices])
            assert clip.info.segments == tuple(int(i >= 10) for i in clip.info.indices)

    def test_a_sample_has_frames_at_the_interval_and_the_chat_of_its_record(self, steps):
        # 1.9 s / 0.5 s = 3.8 -> 4 frames of 19: 0, 6, 12, 18; 1.8 s over three gaps
        sample = load_dataset(steps, base_interval=0.5, video_min_frames=2)[2]
        assert frames_of(sample) == (0, 6, 12, 18)
        assert sample.videos[0].info.seconds_per_frame == pytest.approx(0.6)
        assert sample.chat[0]["content"] == [{"type": "video"}, {"type": "text", "text": "\nWhich?"}]

    def test_several_media_keep_the_order_of_their_tags(self, make_clip, write_rows, make_row, tmp_path):
        from PIL import Image

        make_clip("a.mp4", 8)
        make_clip("b.mp4", 12)
        Image.new("RGB", (5, 4), (7, 8, 9)).save(tmp_path / "c.png")
        row = make_row(prompt="<video><image><video>", video=["b.mp4", "a.mp4"], image="c.png")
        sample = load_dataset(str(write_rows([row])))[0]
        assert [clip.info.indices[-1] for clip in sample.videos] == [11, 7]
        assert sample.images[0][:, 0, 0].tolist() == [7, 8, 9]


class TestChance:
    def test_seed_epoch_and_record_choose_the_frames(self, steps):
        dataset = load_dataset(steps, seed=5)
        assert frames_of(dataset[(1, 0)]) == frames_of(load_dataset(steps, seed=5)[(1, 0)])
        assert len({frames_of(dataset[(epoch, 0)]) for epoch in range(8)}) > 4
        assert len({frames_of(load_dataset(steps, seed=seed)[0]) for seed in range(8)}) > 4

    def test_two_clips_of_a_record_are_drawn_apart(self, make_clip, write_rows, make_row):
        make_clip("a.mp4", 25)
        row = make_row(prompt="<video><video>", video=["a.mp4", "a.mp4"], meta=[META, META])
        dataset = load_dataset(str(write_rows([row])))
        pairs = [[clip.info.indices for clip in dataset[(epoch, 0)].videos] for epoch in range(5)]
        assert any(first != second for first, second in pairs)

    def test_evaluation_draws_the_same_frames_in_every_epoch(self, steps):
        # 9 * i / 3 and 10 + 14 * i / 3 = 10, 14.67, 19.33, 24
        dataset = load_dataset(steps, training=False)
        for epoch in range(3):
            assert frames_of(dataset[(epoch, 0)]) == (0, 3, 6, 9, 10, 15, 19, 24)

    def test_workers_give_the_same_samples(self, steps):
        dataset = load_dataset(steps)
        sampler = EpochSampler(dataset.parts, seed=1)
        sampler.set_epoch(2)
        loader = DataLoader(dataset, sampler=sampler, batch_size=1, num_workers=1, collate_fn=list)
        from_workers = [batch[0] for batch in loader]
        here = [dataset[key] for key in sampler]
        assert [sample.record.id for sample in from_workers] == [sample.record.id for sample in here]
        for other, sample in zip(from_workers, here, strict=True):
            assert other.epoch == 2
            for other_clip, clip in zip(other.videos, sample.videos, strict=True):
                assert other_clip.info == clip.info
                assert torch.equal(other_clip.frames, clip.frames)


class TestBadSamples:
    @pytest.fixture
    def mixed(self, steps, tmp_path, write_rows, make_row):
        """Three records: a file that is no clip, a good clip, and segments that do not fit their clip."""
        (tmp_path / "clips" / "bad.mp4").write_text("not a video, only words")
        rows = [
            make_row(id="bad", prompt="<video>", video="clips/bad.mp4"),
            make_row(id="good", prompt="<video>", video="clips/a.mp4"),
            make_row(id="off", prompt="<video>", video="clips/a.mp4", meta={"frame_cnts": [10, 30]}),
        ]
        return str(write_rows(rows, "mixed.json"))

    def test_a_bad_sample_stops_the_run_by_default_and_is_named(self, mixed):
        dataset = load_dataset(mixed)
        with pytest.raises(
            BadMediaError, match=r"mixed.json\[0\] \(id bad\): .*clips/bad.mp4: not a video: it begins with"
        ):
            dataset[0]
        with pytest.raises(BadMediaError, match=r"mixed.json\[2\] \(id off\): .*a.mp4: meta.frame_cnts .* sum to 40"):
            dataset[2]

    def test_with_skip_a_bad_sample_comes_back_as_bad_and_never_as_another_clip(self, mixed):
        dataset = load_dataset(mixed, on_bad_sample="skip")
        bad, good, off = (dataset[i] for i in range(3))
        assert isinstance(bad, BadSample)
        assert isinstance(off, BadSample)
        assert bad.record.id == "bad"
        assert "not a video" in bad.error
        assert good.record.id == "good"

    def test_a_record_that_a_view_cannot_read_is_a_bad_sample_too(self, write_rows, make_row):
        path = str(write_rows([make_row(evidence=[0.2, 0.8])], "evident.json"))
        lenient, strict = (load_dataset(path, on_bad_sample=how) for how in ("skip", "error"))
        lenient.view = strict.view = evidence
        assert "'evidence' must be a list" in lenient[0].error and "evident.json[0]" in lenient[0].error
        with pytest.raises(RecordError, match=r"'evidence' must be a list.*pass --on_bad_sample skip"):
            strict[0]

    def test_the_error_comes_out_of_a_worker_with_its_words(self, mixed):
        loader = DataLoader(load_dataset(mixed), batch_size=1, num_workers=1, collate_fn=list)
        with pytest.raises(BadMediaError, match="not a video"):
            next(iter(loader))


@pytest.mark.parametrize("loaded", [0, 2**20])
def test_a_mix_knows_where_its_records_come_from(write_rows, make_row, loaded, monkeypatch):
    monkeypatch.setattr("qwenvl.data.records.record_file.LOADED_BYTES", loaded)
    names = [str(write_rows([make_row(id=f"{n}-{i}") for i in range(n)], f"{n}.jsonl")) for n in (3, 2)]
    dataset = load_dataset(f"{names[0]}:1,{names[1]}%50:3")
    assert [(part.name, part.size, part.weight) for part in dataset.parts] == [(names[0], 3, 1), (names[1], 1, 3)]
    keys = list(EpochSampler(dataset.parts))
    samples = [dataset[key] for key in keys]
    assert [sample.record.dataset for sample in samples].count(names[1]) == 3
    assert sorted(sample.epoch for sample in samples if sample.record.dataset == names[1]) == [0, 1, 2]


def test_a_data_set_ends_after_its_last_record(write_rows, make_row):
    dataset = load_dataset(str(write_rows([make_row(id="one"), make_row(id="two")], "two.json")))
    assert [sample.record.id for sample in dataset] == ["one", "two"]
    assert dataset[-1].record.id == "two"
    for beyond in (2, -3, (0, 2)):
        with pytest.raises(IndexError, match="of 2 records"):
            dataset[beyond]


def test_the_example_of_the_repository_can_be_used():
    dataset = load_dataset("example")
    assert [len(dataset[i].videos) + 10 * len(dataset[i].images) for i in range(len(dataset))] == [1, 1, 1, 10, 0]


def test_a_dataset_can_be_pickled_for_other_processes(steps):
    dataset = pickle.loads(pickle.dumps(load_dataset(steps)))
    assert isinstance(dataset, GRPODataset)
    random.seed(99)  # nobody's global state matters
    assert frames_of(dataset[0]) == frames_of(load_dataset(steps)[0])


def test_only_frames_between_start_and_end_are_taken(steps, write_rows, make_row):
    # frames at 0.5 ... 1.4 s are 5 to 14; four of those ten: 5 + 9 * i / 3
    row = make_row(prompt="<video>", video="clips/a.mp4", meta={"video_start": 0.45, "video_end": 1.4})
    (clip,) = load_dataset(str(write_rows([row], "part.json")))[0].videos
    assert clip.info.indices == (5, 8, 11, 14)
    assert clip.info.times == pytest.approx((0.5, 0.8, 1.1, 1.4))


def test_columns_template_and_system_turn_shape_the_messages(write_rows):
    path = str(write_rows([{"question": "Why?", "answer": "Because."}]))
    dataset = load_dataset(
        path,
        columns={"question": "prompt", "answer": "solution"},
        prompt_template="Q: {prompt}\nA:",
        system="Be brief.",
    )
    assert [(m.role, m.text) for m in dataset.records[0].messages] == [("system", "Be brief."), ("user", "Q: Why?\nA:")]
    assert dataset.records[0].solution == "Because."
    with pytest.raises(RecordError, match="--columns names 'asked'; the row has question, answer"):
        load_dataset(path, columns={"asked": "prompt"})
    with pytest.raises(ValueError, match=r"prompt_template: .*\{prompt\}"):
        load_dataset(path, prompt_template="no place")


def test_clips_resized_while_decoded_make_the_same_prompts(tiny_pair, make_clip, write_rows, make_row):
    make_clip("a.mp4", 25, size=(320, 240))
    rows = [make_row(prompt="<video>?", video="a.mp4", meta=meta) for meta in (None, {"max_pixels": 56 * 56})]
    path, (_, processor) = str(write_rows(rows)), tiny_pair()
    collator = GRPOCollator(processor)
    plain, resized = (load_dataset(path, ruler=ruler) for ruler in (None, collator.ruler))
    for i in range(2):
        before, after = (collator([dataset[i]])["prompts"] for dataset in (plain, resized))
        assert torch.equal(before.pixel_values_videos, after.pixel_values_videos)
        assert (before.frames, before.input_ids.tolist()) == (after.frames, after.input_ids.tolist())
        assert resized[i].videos[0].decoded_size == (240, 320)
        assert resized[i].videos[0].frames.shape[-2:] < plain[i].videos[0].frames.shape[-2:]
