"""The header's tables give the times that the packets bear, or nothing."""

import av
import pytest

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media import container as media_container
from qwenvl.data.media.container import table_packets
from qwenvl.data.media.index import index_clip
from qwenvl.data.media.open import open_clip
from qwenvl.data.media.reader import ClipReader


@pytest.fixture(autouse=True)
def _short_clips_too(monkeypatch):
    """Reads the tables of short clips too, which are otherwise indexed by their packets."""
    monkeypatch.setattr(media_container, "MIN_TABLE_FRAMES", 1)


def tables_and_packets(path):
    with av.open(str(path)) as container:
        tables = table_packets(container, container.streams.video[0], str(path))
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
    kinds = ([p.pts for p in packets], [p.is_keyframe for p in packets], [p.is_discard for p in packets])
    return tables and (tables.pts, tables.keys, tables.hidden), kinds


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain.mp4", {"codec_options": {"bf": "0"}}),
        ("reordered.mp4", {"codec_options": {"bf": "3"}, "gop": 7}),
        ("negative.mp4", {"codec_options": {"bf": "2"}, "container_options": {"movflags": "negative_cts_offsets"}}),
        ("header_first.mp4", {"codec_options": {"bf": "2"}, "container_options": {"movflags": "faststart"}}),
        ("uneven.mp4", {"times": [0, 0.01, 0.5, 0.52, 0.9, 2.0, 2.1], "frame_count": 7}),
        ("late.mp4", {"times": [5 + i / 10 for i in range(25)]}),
        ("quick.mov", {"codec": "mpeg4"}),
        ("one.mp4", {"frame_count": 1}),
        ("fragmented.mp4", {"container_options": {"movflags": "frag_keyframe+empty_moov"}}),
        ("a.mkv", {}),
        ("a.avi", {"codec": "mpeg4"}),
    ],
)
def test_times_and_keyframes_in_the_tables_of_a_container_equal_those_of_its_packets(make_clip, name, options):
    tables, packets = tables_and_packets(make_clip(name, **options))
    assert tables == (None if name[:2] in ("fr", "a.") else packets), "the others are left to their packets"


def test_frames_before_the_cut_of_a_clip_are_marked_as_hidden(make_clip, cut_clip):
    """Frames 12 to 16 lead up to the first one shown."""
    tables, packets = tables_and_packets(cut_clip(make_clip("a.mp4", 60, gop=12, codec_options={"bf": "2"}), 17))
    assert tables == packets
    assert (tables[2].count(False), tables[1].count(True)) == (43, 4)


def test_a_file_cut_short_is_indexed_by_its_packets(make_clip):
    path = make_clip("a.mp4", 60, size=(128, 128), container_options={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-10])
    assert tables_and_packets(path)[0] is None


def test_packets_are_believed_where_they_contradict_the_tables(make_clip, number_of, monkeypatch):
    path = make_clip("a.mp4", 40, codec_options={"bf": "2"})
    with av.open(str(path)) as container:
        expected = index_clip(container, container.streams.video[0], str(path))
    real = media_container._composition_offsets
    monkeypatch.setattr(media_container, "_composition_offsets", lambda *args: real(*args)[::-1])
    with open_clip(str(path)) as clip:
        assert clip._index == expected
        assert [number_of(frame) for frame in clip.read([0, 21, 39])] == [0, 21, 39]


@pytest.mark.parametrize("name", ["header.mp4", "packets.mkv"])
def test_a_clip_of_too_many_frames_is_refused(make_clip, monkeypatch, name):
    """A file of some megabytes may list any number of frames, each of which takes memory."""
    path = make_clip(name, 12)
    assert ClipReader(str(path)).frame_count == 12
    monkeypatch.setattr(media_container, "MAX_FRAMES", 11)
    with pytest.raises(BadMediaError, match=f"{name}: has more than 11 frames; cut it into clips"):
        ClipReader(str(path))
