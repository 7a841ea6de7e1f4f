"""What comes out of the cache is bit by bit what is decoded and resized without it, or nothing."""

import os
import pickle

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media import frame_cache
from qwenvl.data.media.frame_cache import FrameCache
from qwenvl.demo.tiny import FAMILIES, make_processor

BOUNDS = {"video_min_frame_pixels": 4 * 28 * 28, "video_max_frame_pixels": 12 * 28 * 28}
DYNAMIC = {"min_frames": 2, "max_frames": 4, "dynamic_sample": True}


@pytest.fixture(scope="module", params=FAMILIES)
def processor(request):
    return make_processor(request.param)


@pytest.fixture(scope="module")
def collator():
    return GRPOCollator(make_processor("qwen2_5_vl"), **BOUNDS)


@pytest.fixture
def rows(tmp_path, make_clip, make_row, write_rows):
    """Path of three records: two clips of odd sizes, a part of a clip with its own pixel bounds, a folder of images."""
    make_clip("a.mp4", 25, size=(200, 130))
    make_clip("b.mp4", 19, size=(90, 170))
    (tmp_path / "frames").mkdir()
    for number in range(6):
        Image.new("RGB", (150, 80), (40 * number, 90, 10)).save(tmp_path / "frames" / f"{number}.png")
    return str(
        write_rows(
            [
                make_row(id="ab", prompt="<video><video>", video=["a.mp4", "b.mp4"]),
                make_row(id="b", prompt="<video>", video="b.mp4", meta={"max_pixels": 6 * 28 * 28, "video_start": 0.5}),
                make_row(id="f", prompt="<video>", video="frames", meta={"frames_fps": 3.0}),
            ]
        )
    )


@pytest.fixture
def cached(tmp_path):
    """``cached(rows, collator)`` -> a data set that keeps its frames in ``tmp_path / "cache"``."""

    def load(rows, collator, max_bytes=10**9, **options):
        return load_dataset(rows, frame_cache=FrameCache(tmp_path / "cache", max_bytes, collator.ruler), **options)

    return load


def batch(collator, dataset, epoch=0):
    return collator([dataset[epoch, i] for i in range(len(dataset))])["prompts"]


def hits(prompts) -> list[bool]:
    return [info.cached for infos in prompts.frames for info in infos]


def hit(dataset) -> bool:
    return dataset[0].videos[0].info.cached


def assert_same(prompts, expected):
    for name in ("input_ids", "attention_mask", "pixel_values_videos", "video_grid_thw", "seconds_per_grid"):
        assert torch.equal(getattr(prompts, name), getattr(expected, name)), name
    for infos, others in zip(prompts.frames, expected.frames, strict=True):
        assert [(i.indices, i.times, i.segments, i.seconds_per_frame) for i in infos] == [
            (i.indices, i.times, i.segments, i.seconds_per_frame) for i in others
        ]


def test_batches_with_and_without_are_bit_identical(processor, rows, cached):
    collator = GRPOCollator(processor, **BOUNDS)
    plain = batch(collator, load_dataset(rows))
    dataset = cached(rows, collator)
    first, second = batch(collator, dataset), batch(collator, dataset, epoch=1)
    third = batch(collator, cached(rows, collator))
    assert [hits(plain), hits(first), hits(second), hits(third)] == [[False] * 4, [False] * 4, [True] * 4, [True] * 4]
    for prompts in (first, second, third):
        assert_same(prompts, plain)


def test_a_prompt_made_to_fit_is_resized_once_and_not_twice(processor, rows, cached):
    fewest = batch(GRPOCollator(processor, **BOUNDS), load_dataset(rows, video_min_frames=2, video_max_frames=2))
    longest = int(fewest.attention_mask.sum(1).max())
    collator = GRPOCollator(processor, **BOUNDS, max_prompt_length=longest - 1, fit_frames=True)
    options = {"limit": collator.limit, "video_min_frames": 2}
    plain = batch(collator, load_dataset(rows, **options))
    assert any(before != after for fitted in plain.fitted if fitted for before, after in fitted.sizes)
    for _ in range(2):
        prompts = batch(collator, cached(rows, collator, **options))
        assert_same(prompts, plain)
        assert prompts.fitted == plain.fitted
    assert all(hits(prompts))


def test_a_clip_that_is_found_is_not_opened(collator, rows, cached, monkeypatch):
    plain = batch(collator, cached(rows, collator))
    monkeypatch.setattr("qwenvl.data.dataset.open_clip", lambda *args, **options: pytest.fail("opened"))
    assert_same(batch(collator, cached(rows, collator)), plain)


class TestKeys:
    @pytest.fixture
    def one_clip(self, make_clip, make_row, write_rows, cached, collator):
        """Path of a record whose clip was kept."""
        make_clip("a.mp4", 25, size=(200, 130))
        path = str(write_rows([make_row(prompt="<video>", video="a.mp4")]))
        assert not hit(cached(path, collator))
        assert hit(cached(path, collator))
        return path

    def test_other_frames_sizes_and_decoders_do_not_meet(self, one_clip, cached, collator, monkeypatch):
        smaller = GRPOCollator(collator.processor, video_max_frame_pixels=6 * 28 * 28)
        assert not hit(cached(one_clip, collator, video_max_frames=6, base_interval=0.3))
        assert not hit(cached(one_clip, smaller))
        monkeypatch.setattr(frame_cache, "_software", lambda decoder: ("pyav", "another version"))
        assert not hit(cached(one_clip, collator))

    def test_bounds_that_give_the_same_size_meet(self, one_clip, cached, collator):
        larger = GRPOCollator(collator.processor, **BOUNDS | {"video_max_frame_pixels": 12 * 28 * 28 + 1})
        assert hit(cached(one_clip, larger))

    def test_a_copy_of_the_file_is_the_same_content(self, one_clip, cached, collator, tmp_path, make_row, write_rows):
        (tmp_path / "copy.mp4").write_bytes((tmp_path / "a.mp4").read_bytes())
        assert hit(cached(str(write_rows([make_row(prompt="<video>", video="copy.mp4")], "copy.json")), collator))

    def test_another_content_of_the_same_name_size_and_time_is_seen(self, one_clip, cached, collator, tmp_path):
        path = tmp_path / "a.mp4"
        before = os.stat(path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = os.stat(path)
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert not hit(cached(one_clip, collator))

    def test_a_changed_image_of_a_folder_is_seen(self, rows, cached, collator, tmp_path):
        dataset = cached(rows, collator)
        assert [dataset[2].videos[0].info.cached for _ in range(2)] == [False, True]
        Image.new("RGB", (150, 80), (1, 2, 3)).save(tmp_path / "frames" / "0.png")
        (clip,) = dataset[2].videos
        assert not clip.info.cached
        assert clip.frames[0, :, 0, 0].tolist() == [1, 2, 3]


def test_frames_drawn_anew_are_not_kept_but_times_are(collator, make_clip, make_row, write_rows, cached, tmp_path):
    make_clip("a.mp4", 25)
    path = str(write_rows([make_row(prompt="<video>", video="a.mp4", meta=DYNAMIC)]))
    plain, dataset = load_dataset(path, seed=3), cached(path, collator, seed=3)
    for epoch in (0, 1, 0):
        info = dataset[epoch, 0].videos[0].info
        assert not info.cached
        assert info == plain[epoch, 0].videos[0].info
    assert len(list((tmp_path / "cache").iterdir())) == 2, "the file's hash and its times"
    assert [hit(cached(path, collator, training=False)) for _ in range(2)] == [False, True], "the same each time"


def test_damaged_entries_are_made_anew(collator, rows, cached, tmp_path, caplog):
    plain = batch(collator, cached(rows, collator))
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    again = batch(collator, cached(rows, collator))
    assert_same(again, plain)
    assert not any(hits(again))
    assert "is damaged: what it held is made anew" in caplog.text
    assert all(hits(batch(collator, cached(rows, collator))))


def test_the_folder_stays_within_its_bound(collator, make_clip, make_row, write_rows, cached, tmp_path):
    names = [f"{number}.mp4" for number in range(6)]
    for number, name in enumerate(names):
        make_clip(name, 8 + number, size=(112, 84))
    path = str(write_rows([make_row(prompt="<video>", video=name) for name in names]))
    bound = 3 * 4 * 3 * 84 * 112  # three clips of four frames
    dataset = cached(path, collator, max_bytes=bound)
    for index in range(6):
        dataset[index]
        assert sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) <= bound
    assert [dataset[index].videos[0].info.cached for index in (5, 0)] == [True, False]


class TestBadClips:
    def test_errors_are_those_of_the_decoder(self, collator, make_clip, make_row, write_rows, cached, tmp_path):
        good = make_clip("a.mp4", 25).read_bytes()
        (tmp_path / "cut.mp4").write_bytes(good[: len(good) // 2])
        (tmp_path / "words.mp4").write_text("only words")
        os.mkfifo(tmp_path / "pipe.mp4")
        names = ["cut.mp4", "words.mp4", "pipe.mp4", "missing.mp4"]
        path = str(write_rows([make_row(prompt="<video>", video=name) for name in names]))
        plain, dataset = load_dataset(path, on_bad_sample="skip"), cached(path, collator, on_bad_sample="skip")
        for index in (0, 1, 2, 3, 0):
            assert dataset[index].error == plain[index].error

    def test_an_image_missing_from_a_list(self, rows, make_row, write_rows, collator, cached, tmp_path, monkeypatch):
        monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "media"))
        listed = [f"frames/{number}.png" for number in (0, 1, 9, 2, 3, 4)]  # of these six, 0, 9, 2 and 4 are shown
        row = make_row(prompt="<video>", video=[listed])
        dataset = cached(str(write_rows([row], "list.json")), collator, on_bad_sample="skip")
        assert "9.png: No such file" in dataset[0].error
        (tmp_path / "frames" / "9.png").write_bytes((tmp_path / "frames" / "5.png").read_bytes())
        assert [dataset[0].videos[0].info.cached for _ in range(2)] == [False, True]

    def test_a_strip_that_the_models_refuse(self, collator, make_row, write_rows, cached, tmp_path):
        (tmp_path / "strip").mkdir()
        Image.new("RGB", (402, 2)).save(tmp_path / "strip" / "0.png")
        dataset = cached(str(write_rows([make_row(prompt="<video>", video="strip")])), collator)
        for _ in range(2):
            with pytest.raises(BadMediaError, match="402 x 2 pixels; Qwen-VL takes sides of at most 200 : 1"):
                dataset[0]


def test_workers_share_it(collator, rows, cached):
    plain = [collator([sample])["prompts"] for sample in load_dataset(rows)]
    dataset = pickle.loads(pickle.dumps(cached(rows, collator)))  # as a spawned worker gets it
    for expected in (False, True):
        prompts = [each["prompts"] for each in DataLoader(dataset, batch_size=1, num_workers=2, collate_fn=collator)]
        for each, uncached in zip(prompts, plain, strict=True):
            assert_same(each, uncached)
            assert set(hits(each)) == {expected}
