"""Damage is brought about, and named."""

import json

import pytest

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.open import open_clip
from qwenvl.data.options import SampleOptions
from qwenvl.doctor.commands import main
from scripts.clips.copies import Copy
from scripts.clips.sources import Source, encode_numbered


@pytest.fixture
def source(tmp_path):
    return Source(encode_numbered(tmp_path / "source.mov", "h264"))


def with_noise(path, piece):
    """The file with all but the first bytes of a packet inverted."""
    data = path.read_bytes()
    at = data.index(piece.data)
    spoilt = bytes(255 - byte for byte in piece.data[24:])
    path.write_bytes(data[: at + 24] + spoilt + data[at + len(piece.data) :])
    return str(path)


def test_a_frame_is_bad_where_one_is_damaged_that_it_is_predicted_from(source, tmp_path):
    """Frame 30 is the first P-frame after the key frame 24, and frame 35 the last of that group."""
    assert [piece.number for piece in source.pieces[24:36]] == [24, 27, 25, 26, 30, 28, 29, 33, 31, 32, 35, 34]
    path = with_noise(Copy().write(source, source.pieces, tmp_path / "a.mp4"), source.pieces[28])
    for strict in (False, True):
        with open_clip(path, strict=strict) as clip:
            clip.read([23, 24, 36])
            with pytest.raises(BadMediaError, match=r"(the frame at 1.200 s is damaged|can't be decoded)"):
                clip.read([35])


def test_a_lost_packet_of_a_broadcast(tmp_path):
    path = encode_numbered(tmp_path / "a.ts", "h264")
    packets = [path.read_bytes()[at : at + 188] for at in range(0, path.stat().st_size, 188)]
    identity = lambda packet: (packet[1] & 0x1F, packet[2])
    video = next(identity(packet) for packet in packets if b"\0\0\1\xe0" in packet)
    lost = [i for i, packet in enumerate(packets) if identity(packet) == video][20]
    path.write_bytes(b"".join(packets[:lost] + packets[lost + 1 :]))
    with pytest.raises(BadMediaError, match=r"its container's time is damaged, or the next one is lost") as caught:
        open_clip(str(path), strict=True)
    assert caught.value.kind == "damaged media"


def test_a_hole_in_a_clip_of_constant_rate(source, tmp_path):
    pieces = [piece for piece in source.pieces if not 24 <= piece.number < 36]  # a whole group of pictures
    path = str(Copy().write(source, pieces, tmp_path / "a.mkv"))
    with open_clip(path) as clip:
        assert clip.frame_count == 48
    with pytest.raises(BadMediaError, match=r"it has no frames from 0.92 s to 1.44 s, at an otherwise constant rate"):
        open_clip(path, strict=True)


def test_the_command_looks_strictly(source, tmp_path, capsys):
    row = {"conversations": [{"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "(1) a"}]}
    shown = ["check", str(tmp_path / "rows.json"), "--video_min_frames", "2", "--video_max_frames", "2"]
    rest = [piece for piece in source.pieces if not 24 <= piece.number < 36]
    hole = Copy().write(source, rest, tmp_path / "hole.mkv")
    (tmp_path / "rows.json").write_text(json.dumps([row | {"video": str(hole)}]))
    assert main(shown) == 1
    assert "bad: damaged media (1)" in capsys.readouterr().out
    assert main([*shown, "--decode_check", "fast"]) == 0
    with pytest.raises(ValueError, match="decode_check has no effect without --video_backend auto or pyav"):
        SampleOptions(decode_check="strict", video_backend="decord")
