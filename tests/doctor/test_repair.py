"""New files show what a player shows of the old ones, and the annotations point to them."""

import json

import pytest

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.open import open_clip
from qwenvl.doctor.commands import main
from qwenvl.doctor.repair import clip as repair
from qwenvl.doctor.repair.clip import repair_clip
from scripts.bench.decode_clips import number_in
from scripts.clips.copies import Copy
from scripts.clips.kinds import Workshop, kinds
from scripts.clips.sources import Source, encode_numbered

# Kinds of clips, and how they are mended.
MENDED = {
    "cut_at_a_key_frame-h264open.ts": "copied",
    "cut_at_a_key_frame-mpeg4.mp4": "copied",
    "joined_midway-mpeg2.mpg": "copied",
    "cut_at_a_key_frame-h264refresh.ts": "encoded again",
    "concatenated_with_repeating_times-h264.ts": "encoded again",
    "missing_times-h264.ts": "encoded again",
    "promises_more-h264.mkv": "copied",
    "whole-h264.mp4": "",
    "edit_list-h264.mp4": "",
}


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.name in MENDED], ids=lambda kind: kind.name)
def test_the_new_file_shows_what_the_old_one_shows(kind, tmp_path):
    path, shown = kind.write(Workshop(tmp_path), tmp_path)
    mended = repair_clip(str(path), tmp_path / "new")
    assert mended.how.split(" with ")[0] == MENDED[kind.name]
    assert (mended.path == str(path)) == (not MENDED[kind.name])
    with open_clip(mended.path, "pyav", strict=True) as clip:
        assert clip.notes == ()
        assert clip.frame_times == pytest.approx(shown.times, abs=3e-3)
        frames = clip.read(range(clip.frame_count))
        assert [number_in(frame.permute(1, 2, 0).numpy()) for frame in frames] == list(shown.numbers)


@pytest.mark.parametrize(("name", "options"), [("a.mkv", {}), ("a.mp4", {"movflags": "faststart"})])
def test_of_a_clip_cut_short_there_is_what_is_left(tmp_path, name, options):
    path = encode_numbered(tmp_path / name, "h264", options=options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    mended = repair_clip(str(path), tmp_path / "new")
    assert "is cut short" in mended.how
    with open_clip(mended.path, "pyav", strict=True) as clip:
        frames = clip.read(range(clip.frame_count))
        assert [number_in(frame.permute(1, 2, 0).numpy()) for frame in frames] == list(range(clip.frame_count))
        assert 20 < clip.frame_count < 50


def test_a_file_that_shows_something_else_is_not_kept(tmp_path, monkeypatch):
    (kind,) = [kind for kind in kinds() if kind.name == "cut_at_a_key_frame-h264open.ts"]
    path, _ = kind.write(Workshop(tmp_path), tmp_path)
    monkeypatch.setattr(repair, "_difference", lambda one, other: 255.0)
    with pytest.raises(BadMediaError, match="no file that shows the same could be made of it"):
        repair_clip(str(path), tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_the_command(tmp_path, capsys):
    source = Source(encode_numbered(tmp_path / "good.mov", "h264"))
    Copy(start=-0.4).write(
        workshop := Source(encode_numbered(tmp_path / "open.ts", "h264open")),
        workshop.pieces[workshop.keys[2].order :],
        tmp_path / "lies.ts",
    )
    data = bytearray(source.path.read_bytes())
    at = data.index(source.pieces[30].data)
    data[at + 24 : at + 200] = bytes(176)
    (tmp_path / "damaged.mov").write_bytes(data)
    turns = {"conversations": [{"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "(1) a"}]}
    names = ("good.mov", "lies.ts", "damaged.mov", "lies.ts", "missing.mp4")
    rows = [turns | {"id": f"row {n}", "video": name} for n, name in enumerate(names)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    command = ["repair", str(tmp_path / "rows.json"), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "1 clips are right as they are, 1 were repaired, 2 can't be" in said
    assert "left out: " in said and "(id row 2)" in said and "(id row 4)" in said
    written = {row["id"]: row["video"] for row in json.loads((tmp_path / "out" / "annotations.json").read_text())}
    assert written == {
        "row 0": str(tmp_path / "good.mov"),
        "row 1": "clips/000001_lies.mkv",
        "row 3": "clips/000001_lies.mkv",
    }
    assert main(["check", str(tmp_path / "out" / "annotations.json"), "--allow_outside_media"]) == 0
    assert "worth a look" not in capsys.readouterr().out.replace("worth a look: repeated", "")
    with pytest.raises(SystemExit):
        main(command)
    assert "it has annotations.json already" in capsys.readouterr().err
