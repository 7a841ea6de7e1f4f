"""Clips of all kinds: each frame and each time is right, in order and not, whatever the file says of itself."""

from random import Random

import pytest
import torch

from qwenvl.data.media.open import open_clip
from scripts.bench.decode_clips import number_in
from scripts.clips.kinds import Workshop, kinds

KINDS = list(kinds())
_FIRST = {(kind.cut, kind.container): kind for kind in reversed(KINDS)}
# Rules of the reader that hang on the codec.
_OF_CODECS = ("h264refresh", "h264fields", "vp8", "hevc10")


def _quick(kind) -> bool:
    return _FIRST[kind.cut, kind.container] is kind or kind.codec in _OF_CODECS


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=[] if _quick(kind) else pytest.mark.slow) for kind in KINDS],
)
def test_a_clip_is_what_a_player_shows(kind, workshop, tmp_path):
    path, shown = kind.write(workshop, tmp_path)
    with open_clip(str(path), "pyav") as clip:
        assert clip.frame_times == pytest.approx(shown.times, abs=2.1e-3)  # some containers have milliseconds
        frames = clip.read(range(clip.frame_count))
        assert [number_in(frame.permute(1, 2, 0).numpy()) for frame in frames] == list(shown.numbers)
        draw = Random(0)
        for _ in range(4):
            some = sorted(draw.sample(range(clip.frame_count), min(4, clip.frame_count)))
            assert torch.equal(clip.read(some), frames[some])


def test_there_are_many_kinds_and_no_two_are_the_same():
    assert len({kind.name for kind in KINDS}) == len(KINDS) > 120


def test_what_a_file_says_wrongly_is_noted(workshop, tmp_path):
    notes = {
        "whole-h264.mp4": [],
        "cut_at_a_key_frame-h264open.ts": ["2 frames at its beginning need others that were cut off"],
        "joined_midway-h264.ts": ["8 frames at its beginning need others that were cut off"],
        "concatenated_with_repeating_times-mpeg2.ts": ["its times begin anew 1 times"],
        "missing_times-h264.ts": ["40 frames have no time, or a wrong one"],
        "promises_more-h264.mkv": ["its header says that it ends at 602.40 s, and it ends at 2.40 s"],
        "promises_less-h264.mkv": ["its header says that it ends at 0.40 s, and it ends at 2.40 s"],
        "late_start-h264.mkv": [],
        "variable_rate-h264.avi": [],
    }
    for kind in KINDS:
        if kind.name in notes:
            path, _ = kind.write(workshop, tmp_path)
            with open_clip(str(path), "pyav") as clip:
                assert [note[: len(start)] for note, start in zip(clip.notes, notes[kind.name], strict=True)] == notes[
                    kind.name
                ], kind.name
