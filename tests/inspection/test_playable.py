"""Copies of clips for browsers: whether one is needed, and that its frames and times are those of the clip."""

from pathlib import Path

import pytest

from qwenvl.data.media.reader import ClipReader
from qwenvl.inspection import playable
from qwenvl.inspection.playable import copy_name, copy_size, make_playable, plays
from tests.made_clips import painted_number, write_clip


def test_container_codec_and_pixel_format_decide_whether_browsers_play_a_clip(tmp_path):
    assert plays(str(write_clip(tmp_path / "a.mp4", 5)))
    assert plays(str(write_clip(tmp_path / "a.webm", 5, codec="libvpx")))
    assert not plays(str(write_clip(tmp_path / "b.mp4", 5, codec="mpeg4")))
    assert not plays(str(write_clip(tmp_path / "c.avi", 5)))
    assert not plays(str(write_clip(tmp_path / "d.mp4", 5, pix_fmt="yuv444p")))


def test_a_clip_whose_pictures_begin_later_than_its_file_is_copied(tmp_path):
    """A person marks spans on the player's clock, and records count from the first frame."""
    late = str(write_clip(tmp_path / "late.mp4", 5, times=[2.0, 2.1, 2.2, 2.3, 2.4]))
    assert not plays(late)
    [copy] = make_playable([late], tmp_path / "clips", most=1).values()
    assert plays(str(copy))
    with ClipReader(str(copy)) as made, ClipReader(late) as clip:
        assert made.frame_times == pytest.approx(clip.frame_times, abs=0.002) and made.frame_times[0] == 0.0


def test_a_copy_has_the_frames_of_the_clip_at_their_times(tmp_path):
    times = [0.0, 0.1, 0.4, 0.5, 2.0, 2.1]
    clip = write_clip(tmp_path / "old.mkv", 6, codec="mpeg4", size=(96, 64), times=times)
    good = write_clip(tmp_path / "good.mp4", 5)
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no clip")
    folder = tmp_path / "clips"
    found = make_playable([str(clip), str(bad), str(good)], folder, most=9)
    made = folder / f"{copy_name(str(clip))}.mp4"
    assert found == {str(clip): made, str(good): Path(good)}
    assert plays(str(made))
    with ClipReader(str(made)) as copy:
        assert copy.frame_times == pytest.approx(times, abs=0.002)
        numbers = [painted_number(picture.permute(1, 2, 0).numpy()) for picture in copy.read(range(6))]
    assert numbers == [*range(6)]


def test_a_clip_that_plays_by_itself_does_so_beside_clips_without_a_copy(tmp_path):
    clips = [str(write_clip(tmp_path / name, 3, codec="mpeg4")) for name in ("a.avi", "b.avi")]
    plain = str(write_clip(tmp_path / "c.mp4", 3))
    assert {*make_playable([*clips, plain], tmp_path / "clips", most=1)} == {clips[0], plain}
    assert make_playable([plain], tmp_path / "clips", most=0) == {plain: Path(plain)}


def test_copies_are_kept_until_their_clip_is_no_longer_shown(tmp_path, monkeypatch):
    clips = [str(write_clip(tmp_path / f"{n}.avi", 3, codec="mpeg4")) for n in range(3)]
    folder = tmp_path / "clips"
    assert len(make_playable(clips, folder, most=2)) == 2
    mine = write_clip(folder / "mine.mp4", 3)
    monkeypatch.setattr(playable, "Child", None)  # nothing is read again
    kept = folder / f"{copy_name(clips[0])}.mp4"
    assert make_playable(clips[:1], folder, most=0) == {clips[0]: kept}
    assert {*folder.iterdir()} == {kept, mine}, "files that are no copies stay"
    assert make_playable([], tmp_path / "none", most=5) == {} and not (tmp_path / "none").exists()


def test_a_clip_that_takes_too_long_has_no_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(playable, "SECONDS", 0.0)
    clip = str(write_clip(tmp_path / "a.avi", 3, codec="mpeg4"))
    assert make_playable([clip], tmp_path / "clips", most=5) == {}


def test_the_size_of_a_copy_is_even():
    assert copy_size(1280, 720) == (640, 360) and copy_size(65, 33) == (64, 32) and copy_size(2000, 3) == (640, 2)
