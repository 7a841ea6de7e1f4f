import json

import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.media import presence


def write(folder, count, missing):
    rows = [{"prompt": "<video>?", "video": f"clips/{i % 3}.mp4", "solution": "1"} for i in range(count)]
    for number in missing:
        rows[number]["video"] = f"clips/gone{number}.mp4"
    (folder / "clips").mkdir()
    for i in range(3):
        (folder / "clips" / f"{i}.mp4").write_bytes(b"-")
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "a.jsonl")


@pytest.mark.parametrize("paths_at_a_time", [200, 1])
def test_missing_files_are_named_at_the_start(tmp_path, monkeypatch, paths_at_a_time):
    monkeypatch.setattr(presence, "_PATHS", paths_at_a_time)
    path = write(tmp_path, 30, missing=range(4, 11))
    with pytest.raises(RecordError, match="7 media files are missing; put them under the media root") as error:
        load_dataset(path)
    lines = str(error.value).splitlines()[1:]
    assert lines[0] == f"  {path}:5: no such file: {tmp_path}/clips/gone4.mp4"
    assert len(lines) == 6
    assert lines[-1] == "  ..."
    assert len(load_dataset(path, on_bad_sample="skip")) == 30


def test_of_a_streamed_file_records_spread_over_it_are_looked_at(tmp_path):
    path = write(tmp_path, 30, missing=[29])
    with pytest.raises(RecordError, match=r"1 media files are missing; .*\n.*a.jsonl:30: no such file"):
        load_dataset(path, stream_above_records=5)
