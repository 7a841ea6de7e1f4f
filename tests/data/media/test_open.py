"""Every frame carries its number, and the bounds are real ones: children are killed, starved and crashed."""

import os
import re
import signal
import struct
import time
from collections import defaultdict

import numpy as np
import pytest
import torch
from PIL import Image

from qwenvl.child import ChildFailed
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media import open as media_open
from qwenvl.data.media import reader
from qwenvl.data.media.images import FrameFolder, load_image
from qwenvl.data.media.open import Decoder, GuardedClip, GuardedFile, open_clip, read_image, read_image_size
from tests.made_clips import slow_gif

QUIET_X265 = {"x265-params": "log-level=none"}


@pytest.mark.parametrize(
    "options",
    [{}, {"size": (65, 67), "pix_fmt": "yuv444p"}],
    ids=["64 x 64", "65 x 67 without subsampling"],
)
def test_frames_are_read_in_the_order_asked_with_repeats(make_clip, number_of, options):
    with open_clip(str(make_clip(**options))) as clip:
        frames = clip.read([3, 3, 20, 24])
        assert frames.shape == (4, 3, *reversed(options.get("size", (64, 64))))
        assert [number_of(frame) for frame in frames] == [3, 3, 20, 24]
        with pytest.raises(IndexError, match="expected frames from 0 to 24"):
            clip.read([25])


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_leaving_out_frames_that_none_needs_changes_no_other(make_clip, monkeypatch, codec):
    quiet = QUIET_X265 if codec == "libx265" else {}
    path = str(make_clip("a.mp4", 90, codec=codec, gop=30, size=(160, 96), codec_options={"bf": "3", **quiet}))
    wanted = [3, 4, 17, 44, 46, 71, 89]
    with open_clip(path) as clip:
        frames = clip.read(wanted)
        clip._container.seek(0)
        assert sum(1 for _ in clip._decode_for(set())) < 60, "of every four frames, two or three are never needed"
    monkeypatch.setattr(reader, "SKIPPING_CODECS", ())
    with open_clip(path) as clip:
        assert torch.equal(clip.read(wanted), frames)


def set_display_matrix(path, matrix):
    """Write a display matrix a, b, c, d, x', y' into an mp4: (x, y) is shown at (a x + c y + x', b x + d y + y')."""
    a, b, c, d, x, y = (round(value * 65536) for value in matrix)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # after version, times, id, duration, layer, volume
    assert struct.unpack(">9i", data[at : at + 36]) == (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, x, y, 1 << 30)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("matrix", "turned_back"),
    [
        ((0, 1, -1, 0, 64, 0), lambda shown: np.rot90(shown, 1)),  # clockwise: the top left corner is shown top right
        ((-1, 0, 0, -1, 96, 64), lambda shown: np.rot90(shown, 2)),
        ((0, -1, 1, 0, 0, 96), lambda shown: np.rot90(shown, 3)),
        ((-1, 0, 0, 1, 96, 0), np.fliplr),
        ((1, 0, 0, -1, 0, 64), np.flipud),
        ((0, 1, 1, 0, 0, 0), lambda shown: shown.swapaxes(0, 1)),
        ((0, -1, -1, 0, 64, 96), lambda shown: np.rot90(shown, 2).swapaxes(0, 1)),
    ],
    ids=["90", "180", "270", "hflip", "vflip", "transpose", "antitranspose"],
)
def test_a_turned_or_mirrored_clip_comes_as_it_is_shown(make_clip, number_of, matrix, turned_back):
    path = set_display_matrix(make_clip(size=(96, 64)), matrix)
    with open_clip(path) as clip:
        (frame,) = clip.read([5])
    assert frame.shape == ((3, 96, 64) if matrix[0] == 0 else (3, 64, 96))
    assert number_of(turned_back(frame.permute(1, 2, 0).numpy())) == 5


def test_decord_reads_an_ordinary_clip_in_a_child_and_refuses_a_mirrored_one(make_clip, number_of):
    pytest.importorskip("decord")
    path = str(make_clip())
    with open_clip(path, "decord", timeout=60) as clip:
        assert [number_of(frame) for frame in clip.read([3, 17])] == [3, 17]
    with pytest.raises(ValueError, match="needs --decode_timeout above 0"):
        open_clip(path, "decord")
    path = set_display_matrix(make_clip(size=(96, 64)), (-1, 0, 0, 1, 96, 0))
    with open_clip(path, "decord", timeout=60) as clip, pytest.raises(BadMediaError, match="use --video_backend pyav"):
        clip.read([5])


def test_a_clip_that_is_shown_slanted_is_refused(make_clip):
    path = set_display_matrix(make_clip(), (0.7071, 0.7071, -0.7071, 0.7071, 32, 0))
    with open_clip(path) as clip, pytest.raises(BadMediaError, match="45 degrees"):
        clip.read([5])


class TestDamage:
    @pytest.mark.parametrize(
        ("name", "share", "options"),
        [
            ("a.mp4", 0.6, {"container_options": {"movflags": "faststart"}}),
            ("b.mp4", 0.6, {}),  # without its index
            ("a.mkv", 0.6, {}),
            ("a.webm", 0.6, {"codec": "libvpx-vp9", "codec_options": {"deadline": "realtime", "cpu-used": "8"}}),
            ("a.avi", 0.6, {"codec": "mpeg4"}),
            ("a.gif", 0.3, {"codec": "gif", "pix_fmt": "rgb8"}),
            ("b.gif", 0.999, {"codec": "gif", "pix_fmt": "rgb8"}),
        ],
    )
    def test_a_file_that_is_cut_is_not_taken_for_a_shorter_clip(self, make_clip, name, share, options):
        path = make_clip(name, 60, size=(128, 128), **options)
        with open_clip(str(path)) as clip:
            assert clip.frame_count == 60
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        held = r"is cut short: (its header promises (60 frames|6.00 s), the file holds|the block that ends a GIF)"
        with pytest.raises(BadMediaError, match=f"{held}|cut short and lost its index|can't be opened as mov"):
            open_clip(str(path))


def test_frames_outlive_their_clip_and_the_next_reading(make_clip, number_of):
    with open_clip(str(make_clip()), timeout=60) as clip:
        first = clip.read([3, 7])
        second = clip.read([9])
        child = clip._child
    with open_clip(str(make_clip()), timeout=60) as clip:
        clip.read([20])
    child.kill()
    assert [number_of(frame) for frame in (*first, *second)] == [3, 7, 9]


def test_two_open_clips_have_children_of_their_own_which_are_used_again(make_clip, number_of):
    paths = [str(make_clip(name)) for name in ("a.mp4", "b.mp4")]
    with open_clip(paths[0], timeout=60) as first, open_clip(paths[1], timeout=60) as second:
        assert [number_of(clip.read([5])[0]) for clip in (first, second, first)] == [5, 5, 5]
        assert first._child is not second._child
        children = {first._child, second._child}
    with open_clip(paths[0], timeout=60) as third:
        assert third._child in children, "children are used again"


def test_a_clip_that_takes_too_long_is_killed_and_the_next_one_is_read(make_clip, number_of):
    with open_clip(str(make_clip("slow.mp4")), timeout=60) as clip:
        child = clip._child
        hang(clip)
        with pytest.raises(BadMediaError, match=r"slow.mp4: not decoded within 60 s \(--decode_timeout\)"):
            clip.read([1])
    assert not child.alive
    with open_clip(str(make_clip()), timeout=60) as clip:
        assert number_of(clip.read([7])[0]) == 7


def hang(clip):
    """Let a clip's child do nothing more, and the clip's time be over."""
    os.kill(clip._child.pid, signal.SIGSTOP)
    clip._deadline = time.monotonic()


def test_a_clip_that_there_is_no_memory_for_is_not_called_damaged(make_clip):
    """FFmpeg itself says that a packet is damaged, or gives no frame, where it has no memory for that."""
    path = str(make_clip("large.mp4", 2, size=(3840, 2160), codec_options={"preset": "ultrafast"}))
    told = r"takes more than 0.02 GB to decode \(--decode_memory_gb\)"
    with pytest.raises(BadMediaError, match=told), open_clip(path, timeout=60, memory_gb=0.02) as clip:
        clip.read([0])


def test_a_decoder_that_crashes_is_named(make_clip):
    with open_clip(str(make_clip()), timeout=60) as clip:
        os.kill(clip._child.pid, signal.SIGSEGV)
        with pytest.raises(BadMediaError, match=r"its decoder crashed \(exit code -11\)"):
            clip.read([1])


def test_a_child_that_the_system_kills_is_replaced(make_clip, number_of):
    path, indices = str(make_clip(size=(160, 96))), range(0, 25, 3)
    with open_clip(path, timeout=60) as clip:
        numbers = []
        for part in clip.parts(indices, most_bytes=5 * 160 * 96 * 3):  # killed before the second part, it decodes on
            numbers += [number_of(torch.from_numpy(frame).permute(2, 0, 1)) for frame in part]
            os.kill(clip._child.pid, signal.SIGKILL)
        assert numbers == [*indices]
        assert number_of(clip.read([4])[0]) == 4


@pytest.mark.parametrize("when", ["while it starts", "while it decodes"])
def test_a_child_that_is_killed_twice_is_a_lack_of_memory_and_no_fault_of_the_clip(
    make_clip, write_rows, make_row, monkeypatch, tmp_path, when
):
    class KilledDecoder(Decoder):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            os.kill(self.pid, signal.SIGKILL)

    if when == "while it starts":
        (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(media_open, "_idle", defaultdict(list))
    monkeypatch.setattr(media_open, "Decoder", KilledDecoder)
    make_clip()
    path = str(write_rows([make_row(prompt="<video>", video="clip.mp4")]))
    dataset = load_dataset(path, on_bad_sample="skip", decode_timeout=60, decode_memory_gb=3)
    with pytest.raises(MemoryError, match=r"json\[0\] \(id data-0\): \S*clip\.mp4: .*--decode_memory_gb, now 3"):
        dataset[0]


class HangsOnSlow(GuardedClip):
    def read(self, indices):
        if self.path.endswith("slow.mp4"):
            hang(self)
        return super().read(indices)


def test_a_data_set_goes_on_after_a_clip_that_was_killed(make_clip, write_rows, make_row, monkeypatch):
    monkeypatch.setattr("qwenvl.data.media.open.GuardedClip", HangsOnSlow)
    make_clip("slow.mp4"), make_clip("good.mp4")
    path = str(write_rows([make_row(prompt="<video>", video=name) for name in ("slow.mp4", "good.mp4")]))
    dataset = load_dataset(path, decode_timeout=60, on_bad_sample="skip")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=1, num_workers=1, collate_fn=list, multiprocessing_context="fork"
    )
    (bad,), (good,) = list(loader)
    assert "not decoded within 60 s" in bad.error
    assert good.videos[0].info.indices == (0, 8, 16, 24)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("ValueError: not enough values", BadMediaError, "clip.mp4: its decoder failed: ValueError: not enough values"),
        ("TypeError: '<' not supported", BadMediaError, "clip.mp4: its decoder failed: TypeError: '<' not supported"),
        ("NameError: name 'av'", RuntimeError, "clip.mp4: the decoding process failed:\n  File"),
    ],
)
def test_a_failure_while_decoding_is_the_clips_unless_no_clip_brings_it_about(
    make_clip, monkeypatch, error, kind, message
):
    def fails(*request, **how):
        raise ChildFailed(error, "  File")

    with open_clip(str(make_clip()), timeout=60) as clip:
        monkeypatch.setattr(clip._child, "ask", fails)
        with pytest.raises(kind) as raised:
            clip.read([3])
    assert str(raised.value).endswith(message)


def test_a_clip_is_read_on_after_a_failure(make_clip, number_of):
    with open_clip(str(make_clip()), timeout=60) as clip:
        with pytest.raises(BadMediaError, match=r"clip.mp4: its decoder failed: TypeError"):
            clip.read(["third"])
        assert number_of(clip.read([3])[0]) == 3


def test_an_image_in_a_child_is_the_same(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    for name, size in {"small.png": (1, 1), "photo.png": (30, 40), "large.png": (2400, 1800)}.items():
        path = str(tmp_path / name)
        Image.fromarray(noise).resize(size).save(path)
        plain, guarded = load_image(path), read_image(path, timeout=60)
        assert torch.equal(plain, guarded) and guarded.is_contiguous() and guarded.dtype == torch.uint8
        assert read_image_size(path, timeout=60) == size[::-1]
    first = read_image(str(tmp_path / "small.png"), timeout=60)
    kept = first.clone()
    read_image(str(tmp_path / "photo.png"), timeout=60)
    assert torch.equal(first, kept), "it shares no memory with the next one"


def test_an_image_that_takes_too_long_costs_a_record_and_no_run(tmp_path, write_rows, make_row):
    slow_gif(tmp_path / "slow.gif")
    Image.new("RGB", (64, 64)).save(tmp_path / "good.png")
    path = str(write_rows([make_row(prompt="<image>Which?", image=name) for name in ("slow.gif", "good.png")]))
    told = r"slow.gif: not decoded within 0.3 s \(--decode_timeout\)"
    assert re.search(told, load_dataset(path, decode_timeout=0.3, on_bad_sample="skip")[0].error)
    with pytest.raises(BadMediaError, match=told):
        read_image_size(str(tmp_path / "slow.gif"), timeout=0.3)
    assert load_dataset(path, decode_timeout=60)[1].images[0].shape == (3, 64, 64)


def test_an_image_that_takes_too_much_memory_or_crashes_its_decoder_is_named(tmp_path):
    path = str(tmp_path / "large.png")
    Image.new("1", (7000, 7000)).save(path)
    with pytest.raises(BadMediaError, match=r"takes more than 0.05 GB to decode \(--decode_memory_gb\)"):
        read_image(path, timeout=60, memory_gb=0.05)
    with GuardedFile(path, timeout=60, memory_gb=8.0) as file:
        file.picture_size()
        os.kill(file._child.pid, signal.SIGSEGV)
        with pytest.raises(BadMediaError, match=r"its decoder crashed \(exit code -11\)"):
            file.picture()


def test_a_folder_of_frames_in_a_child_is_the_same(tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (64, 48), (number, 0, 0)).save(folder / f"{number}.png")
    plain = FrameFolder(str(folder), fps=4.0)
    with open_clip(str(folder), timeout=60, frames_fps=4.0) as clip:
        assert (clip.frame_times, clip.duration, clip.size) == (plain.frame_times, plain.duration, plain.size)
        assert torch.equal(clip.read([0, 2, 2, 3]), plain.read([0, 2, 2, 3]))
    with open_clip(str(folder), timeout=60, frame_times=(0, 1, 2, 5)) as clip:
        assert clip.frame_times == (0, 1, 2, 5)
    Image.new("RGB", (32, 48)).save(folder / "3.png")
    for timeout in (0, 60):
        with open_clip(str(folder), timeout=timeout) as clip, pytest.raises(BadMediaError, match=r"3\.png: 32 x 48"):
            clip.read([0, 3])


def damaged(picture):
    picture.write_bytes(b"\xff\xd8\xffxx")


def gone(picture):
    picture.unlink()


def a_pipe(picture):
    picture.unlink()
    os.mkfifo(picture)


@pytest.mark.parametrize("change", [damaged, gone, a_pipe])
@pytest.mark.parametrize("decode_timeout", [0, 60])
def test_a_folder_whose_first_picture_is_bad_costs_a_record_and_no_run(
    change, decode_timeout, tmp_path, write_rows, make_row
):
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (64, 48), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    change(tmp_path / "bad" / "0.png")
    # A folder shows the pictures that it has; a list names them.
    listed = [f"bad/{number}.png" for number in range(4)]
    path = str(write_rows([make_row(prompt="<video>Which?", video=video) for video in (listed, "bad", "good")]))
    samples = load_dataset(path, decode_timeout=decode_timeout, on_bad_sample="skip")
    assert re.search(r"bad/0\.png: ", samples[0].error)
    if change is not gone:
        assert re.search(r"bad/0\.png: ", samples[1].error)
    assert samples[2].videos[0].frames.shape[1] == 3, "the next clip is read"


def test_a_folder_that_goes_away_is_a_bad_clip(tmp_path):
    with pytest.raises(BadMediaError, match="a folder that can't be read: No such file or directory"):
        FrameFolder(str(tmp_path / "none"))


def test_a_relative_path_is_that_of_the_working_folder(make_clip, tmp_path, monkeypatch):
    """A child lives longer than the folder that it was started in is the working one."""
    make_clip("clip.mp4", 5)
    make_clip("other/clip.mp4", 9)
    for name, size in (("photo.png", (30, 20)), ("other/photo.png", (60, 40))):
        Image.new("RGB", size).save(tmp_path / name)
    (tmp_path / "other/bad.mp4").write_bytes(b"no clip at all")
    for folder, frames, size in ((tmp_path, 5, (20, 30)), (tmp_path / "other", 9, (40, 60))):
        monkeypatch.chdir(folder)
        with open_clip("clip.mp4", timeout=60) as clip:
            assert clip.frame_count == frames and clip.path == "clip.mp4"
        assert read_image("photo.png", timeout=60).shape == (3, *size)
    with pytest.raises(BadMediaError, match=r"^bad\.mp4: not a video") as told:
        open_clip("bad.mp4", timeout=60)
    assert told.value.path == "bad.mp4"
