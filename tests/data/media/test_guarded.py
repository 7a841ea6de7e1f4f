"""The bounds are real ones: real children are killed, starved and crashed."""

import os
import signal
import time
from collections import defaultdict

import pytest
import torch

from qwenvl.child import Child
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media import guarded
from qwenvl.data.media.guarded import GuardedClip
from qwenvl.data.media.open import open_clip, resolve_backend


@pytest.fixture
def heavy(make_clip):
    """A clip that takes a second to read: 100 frames of 1920 x 1080, one of them a key frame."""
    return str(make_clip("heavy.mp4", 100, size=(1920, 1080), gop=500, codec_options={"preset": "ultrafast"}))


@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
def test_frames_are_those_of_the_plain_reader(make_clip, backend):
    path = str(make_clip())
    try:
        resolve_backend(backend)
    except ImportError as error:
        pytest.skip(str(error))
    with open_clip(path, backend) as plain, open_clip(path, backend, timeout=60) as guarded:
        assert isinstance(guarded, GuardedClip)
        assert guarded.frame_times == plain.frame_times
        assert (guarded.frame_count, guarded.duration) == (plain.frame_count, plain.duration)
        assert torch.equal(guarded.read([20, 3, 3]), plain.read([20, 3, 3]))


def test_frames_outlive_their_clip_and_the_next_reading(make_clip, number_of):
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip:
        first = clip.read([3, 7])
        second = clip.read([9])
        child = clip._child
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip:
        clip.read([20])
    child.kill()
    assert [number_of(frame) for frame in (*first, *second)] == [3, 7, 9]


def test_many_frames_are_not_overwritten_either(heavy):
    """Thirty of them, 187 MB, stay where the child put them."""
    with open_clip(heavy, "pyav", timeout=60) as clip:
        first = clip.read(range(30))
        expected = first[29].clone()
        assert not torch.equal(clip.read(range(60, 90))[29], expected)
        assert torch.equal(first[29], expected)


def test_errors_are_those_of_the_plain_reader(make_clip, tmp_path):
    (tmp_path / "words.mp4").write_text("words, only words")
    with pytest.raises(BadMediaError, match=r"words.mp4: not a video: it is text"):
        open_clip(str(tmp_path / "words.mp4"), "pyav", timeout=60)
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip, pytest.raises(IndexError, match="from 0 to 24"):
        clip.read([25])


def test_two_clips_at_once_and_one_after_the_other(make_clip, number_of):
    paths = [str(make_clip(name)) for name in ("a.mp4", "b.mp4")]
    with open_clip(paths[0], "pyav", timeout=60) as first, open_clip(paths[1], "pyav", timeout=60) as second:
        assert [number_of(clip.read([5])[0]) for clip in (first, second, first)] == [5, 5, 5]
        assert first._child is not second._child
        children = {first._child, second._child}
    with open_clip(paths[0], "pyav", timeout=60) as third:
        assert third._child in children, "children are used again"


def test_a_clip_that_takes_too_long_is_killed_and_the_next_one_is_read(make_clip, number_of):
    with open_clip(str(make_clip("slow.mp4")), "pyav", timeout=60) as clip:
        child = clip._child
        hang(clip)
        with pytest.raises(BadMediaError, match=r"slow.mp4: not decoded within 60 s \(--decode_timeout\)"):
            clip.read([1])
    assert not child.alive
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip:
        assert number_of(clip.read([7])[0]) == 7


def hang(clip):
    """Let a clip's child do nothing more, and the clip's time be over."""
    os.kill(clip._child.pid, signal.SIGSTOP)
    clip._deadline = time.monotonic()


@pytest.mark.parametrize("gigabytes", [0.01, 0.02])
def test_a_clip_that_there_is_no_memory_for_is_not_called_damaged(make_clip, gigabytes):
    """FFmpeg itself says that a packet is damaged, or gives no frame, where it has no memory for that."""
    path = str(make_clip("large.mp4", 2, size=(3840, 2160), codec_options={"preset": "ultrafast"}))
    told = rf"takes more than {gigabytes} GB to decode \(--decode_memory_gb\)"
    with (
        pytest.raises(BadMediaError, match=told),
        open_clip(path, "pyav", timeout=60, memory_gb=gigabytes) as clip,
    ):
        clip.read([0])


def test_a_clip_that_takes_too_much_memory_is_bad(heavy):
    # 100 frames of 6.2 MB
    with (
        open_clip(heavy, "pyav", timeout=60, memory_gb=0.1) as clip,
        pytest.raises(BadMediaError, match=r"takes more than 0.1 GB to decode \(--decode_memory_gb\)"),
    ):
        clip.read(range(100))


def test_a_decoder_that_crashes_is_named(make_clip):
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip:
        os.kill(clip._child.pid, signal.SIGSEGV)
        with pytest.raises(BadMediaError, match=r"its decoder crashed \(exit code -11\)"):
            clip.read([1])


def test_a_child_that_the_system_kills_is_replaced(make_clip, number_of):
    path, indices = str(make_clip(size=(160, 96))), range(0, 25, 3)
    with open_clip(path, "pyav", timeout=60) as clip:
        os.kill(clip._child.pid, signal.SIGKILL)
        assert number_of(clip.read([4])[0]) == 4
        numbers = []
        for part in clip.parts(indices, most_bytes=2 * 160 * 96 * 3):  # killed before each part, it decodes on
            numbers += map(number_of, part)
            os.kill(clip._child.pid, signal.SIGKILL)
    assert numbers == [*indices]


@pytest.mark.parametrize("when", ["while it starts", "while it decodes"])
def test_a_child_that_is_killed_twice_is_a_lack_of_memory_and_no_fault_of_the_clip(
    make_clip, write_rows, make_row, monkeypatch, tmp_path, when
):
    class KilledChild(Child):
        def __init__(self, load, *arguments, **options):
            if when == "while it starts":
                load, arguments = "full:memory", ()
            super().__init__(load, *arguments, **options)
            os.kill(self.pid, signal.SIGKILL)

    (tmp_path / "full.py").write_text("import os\ndef memory():\n    os.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(guarded, "_idle", defaultdict(list))
    monkeypatch.setattr(guarded, "Child", KilledChild)
    make_clip()
    path = str(write_rows([make_row(prompt="<video>", video="clip.mp4")]))
    dataset = load_dataset(path, on_bad_sample="skip", decode_timeout=60, decode_memory_gb=3)
    with pytest.raises(MemoryError, match=r"json\[0\] \(id data-0\): \S*clip\.mp4: .*--decode_memory_gb, now 3"):
        dataset[0]


def test_an_idle_child_that_died_is_replaced(make_clip, number_of):
    path = str(make_clip())
    with open_clip(path, "pyav", timeout=60) as clip:
        child = clip._child
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    with open_clip(path, "pyav", timeout=60) as clip:
        assert number_of(clip.read([4])[0]) == 4


class HangsOnSlow(GuardedClip):
    def read(self, indices):
        if self.path.endswith("slow.mp4"):
            hang(self)
        return super().read(indices)


def test_a_data_set_goes_on_after_a_clip_that_was_killed(make_clip, write_rows, make_row, monkeypatch):
    monkeypatch.setattr("qwenvl.data.media.open.GuardedClip", HangsOnSlow)
    make_clip("slow.mp4"), make_clip("good.mp4")
    path = str(write_rows([make_row(prompt="<video>", video=name) for name in ("slow.mp4", "good.mp4")]))
    dataset = load_dataset(path, decode_timeout=60, on_bad_sample="skip", video_backend="pyav")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=1, num_workers=1, collate_fn=list, multiprocessing_context="fork"
    )
    (bad,), (good,) = list(loader)
    assert "not decoded within 60 s" in bad.error
    assert good.videos[0].info.indices == (0, 8, 16, 24)
    with pytest.raises(BadMediaError, match="not decoded within"):
        load_dataset(path, decode_timeout=60, video_backend="pyav")[0]


def test_a_failure_of_our_own_is_no_fault_of_the_clip(make_clip, number_of):
    with open_clip(str(make_clip()), "pyav", timeout=60) as clip:
        with pytest.raises(RuntimeError, match=r"(?s)clip.mp4: the decoding process failed:.*TypeError"):
            clip.read(["third"])
        assert number_of(clip.read([3])[0]) == 3


class TestDecord:
    decord = pytest.importorskip("decord")

    def test_it_reads_an_ordinary_clip(self, make_clip, number_of):
        with open_clip(str(make_clip()), "decord", timeout=60) as clip:
            assert [number_of(frame) for frame in clip.read([3, 17])] == [3, 17]

    def test_never_in_this_process(self, make_clip):
        with pytest.raises(ValueError, match="needs --decode_timeout above 0"):
            open_clip(str(make_clip()), "decord")
