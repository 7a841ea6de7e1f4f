"""Damage is brought about, and named."""

import json
import re

import av
import numpy as np
import pytest

from qwenvl.commands.data import main
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.matroska import CLUSTER, SIMPLE_BLOCK, element_at, segment_of
from qwenvl.data.media.open import open_clip
from qwenvl.data.options import SampleOptions
from scripts.clips.copies import Copy
from scripts.clips.sources import Source, encode_numbered


@pytest.fixture
def source(tmp_path):
    """An H.264 clip of numbered frames, whose packets can be copied, dropped or damaged."""
    return Source(encode_numbered(tmp_path / "source.mov", "h264"))


def with_noise(path, piece):
    """The file with all but the first bytes of a packet inverted."""
    data = path.read_bytes()
    at = data.index(piece.data)
    spoilt = bytes(255 - byte for byte in piece.data[24:])
    path.write_bytes(data[: at + 24] + spoilt + data[at + len(piece.data) :])
    return str(path)


def test_a_frame_is_damaged_if_a_frame_it_is_predicted_from_is(source, tmp_path):
    """Frame 30 is the first P-frame after the key frame 24, and frame 35 the last of that group."""
    assert [piece.number for piece in source.pieces[24:36]] == [24, 27, 25, 26, 30, 28, 29, 33, 31, 32, 35, 34]
    path = with_noise(Copy().write(source, source.pieces, tmp_path / "a.mp4"), source.pieces[28])
    for strict in (False, True):
        with open_clip(path, strict=strict) as clip:
            clip.read([23, 24, 36])
            with pytest.raises(BadMediaError, match=r"(the frame at 1.200 s is damaged|can't be decoded)"):
                clip.read([35])


def test_a_lost_packet_of_a_broadcast_is_damage(tmp_path):
    path = encode_numbered(tmp_path / "a.ts", "h264")
    packets = [path.read_bytes()[at : at + 188] for at in range(0, path.stat().st_size, 188)]
    identity = lambda packet: (packet[1] & 0x1F, packet[2])
    video = next(identity(packet) for packet in packets if b"\0\0\1\xe0" in packet)
    lost = [i for i, packet in enumerate(packets) if identity(packet) == video][20]
    path.write_bytes(b"".join(packets[:lost] + packets[lost + 1 :]))
    with pytest.raises(BadMediaError, match=r"its container's time is damaged") as caught:
        open_clip(str(path), strict=True)
    assert caught.value.kind == "damaged media"


def test_a_hole_in_a_clip_of_constant_rate_is_damage_to_the_strict_check(source, tmp_path):
    pieces = [piece for piece in source.pieces if not 24 <= piece.number < 36]  # a whole group of pictures
    path = str(Copy().write(source, pieces, tmp_path / "a.mkv"))
    with open_clip(path) as clip:
        assert clip.frame_count == 48
    with pytest.raises(BadMediaError, match=r"no frames from 0.92 s to 1.44 s"):
        open_clip(path, strict=True)


def test_data_check_decodes_strictly_unless_decode_check_is_fast(source, tmp_path, capsys):
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


def zeroed(data: bytes, at: int, count: int = 200) -> bytes:
    return data[:at] + bytes(count) + data[at + count :]


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.webm", "libvpx-vp9", {}),
        ("a.webm", "libvpx-vp9", {"live": "1"}),  # whose clusters do not say how long they are
        ("a.mkv", "mpeg4", {"cluster_size_limit": "20000"}),
    ],
)
def test_zeroed_bytes_of_a_matroska_file_never_make_a_shorter_clip(tmp_path, name, codec, options):
    path = tmp_path / name
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=10, width=64, height=64, pix_fmt="yuv420p", gop_size=8)
        noise = np.random.default_rng(0)
        for _ in range(60):
            picture = noise.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode(None))
    whole = path.read_bytes()
    with open_clip(str(path)) as clip:
        assert clip.frame_count == 60
    reasons = []
    for at in range(64, len(whole) - 200, len(whole) // 50):
        path.write_bytes(zeroed(whole, at))
        try:
            with open_clip(str(path)) as clip:
                assert clip.frame_count == 60, at  # the bytes of pictures, or of nothing
        except BadMediaError as error:
            reasons.append(error.kind)
    assert "damaged media" in reasons
    # One that ends early is cut short, and by a frame it is taken as it is.
    path.write_bytes(whole[: len(whole) // 2])
    if "live" not in options:
        with pytest.raises(BadMediaError) as caught:
            open_clip(str(path))
        assert caught.value.kind == "cut short"


@pytest.mark.parametrize("tag", [b"00:00:02,000000000", b"2.000             ", b"N/A               "])
def test_an_end_in_another_notation_promises_nothing(tmp_path, tag):
    encode_numbered(tmp_path / "a.webm", "vp9")
    data = (tmp_path / "a.webm").read_bytes()
    (written,) = set(re.findall(rb"\d\d:\d\d:\d\d\.\d{9}", data))
    (tmp_path / "b.webm").write_bytes(data.replace(written, tag))
    with open_clip(str(tmp_path / "a.webm")) as clip, open_clip(str(tmp_path / "b.webm")) as other:
        assert other.frame_times == clip.frame_times


def test_a_block_of_an_unknown_track_is_damage_at_its_byte(tmp_path):
    path = tmp_path / "a.webm"
    data = encode_numbered(tmp_path / "b.webm", "vp9").read_bytes()
    with open(tmp_path / "b.webm", "rb") as file:
        segment = segment_of(file)
        elements = [*children(file, segment)]
        cluster = next(each for each in elements if each.kind == CLUSTER)
        block = [each for each in children(file, cluster) if each.kind == SIMPLE_BLOCK][3]
    path.write_bytes(data[: block.inside] + b"\x85" + data[block.inside + 1 :])  # track 5, where there is one
    with pytest.raises(BadMediaError, match=f"at byte {block.start:,}"):
        open_clip(str(path))


def children(file, element):
    at = element.inside
    while at < element.end:
        child = element_at(file, at)
        yield child
        at = child.end
