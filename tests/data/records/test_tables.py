"""Tables of the `datasets` library and of pandas, as users have them."""

import io
import json
import os
import sys

import pytest
from PIL import Image

from qwenvl.commands.data import main
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.records.sources import open_rows

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Cache folders of the test, for qwenvl and for the library datasets."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")


def picture(colour: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (30, 20), colour).save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def repository(tmp_path):
    """A folder as data sets of the hub are: a parquet file for each split, pictures within."""
    features = {name: datasets.Value("string") for name in ("problem", "answer")}
    features = datasets.Features(features | {"images": datasets.List(datasets.Image())})
    for split, colours in (("train", ["red", "green", "blue"]), ("test", ["black"])):
        rows = [{"problem": "<image>Which?", "answer": c, "images": [{"bytes": picture(c)}]} for c in colours]
        path = tmp_path / "repository" / "data" / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    return tmp_path / "repository"


@pytest.fixture
def downloaded(repository, tmp_path):
    """The files that the library keeps of ``org/name`` after its download: then the name works without a network."""
    datasets.load_dataset(str(repository))
    (made,) = (tmp_path / "hub" / "repository").glob("default/0.0.0/*/")
    kept = tmp_path / "hub" / "org___name" / "default" / "0.0.0" / made.name
    kept.parent.mkdir(parents=True)
    made.rename(kept)
    for file in kept.glob("*.arrow"):
        file.rename(kept / file.name.replace("repository", "name"))


COLUMNS = {"problem": "prompt", "answer": "solution"}


def test_a_data_set_of_the_hub_is_loaded_with_or_without_a_split(downloaded):
    train = load_dataset("hf:org/name", columns=COLUMNS)
    assert [record.solution for record in train.records] == ["red", "green", "blue"]
    assert [tuple(train[i].images[0][:, 0, 0].tolist()) for i in range(3)] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    (record,) = load_dataset("hf:org/name:test", columns=COLUMNS).records
    assert (record.where, record.id, record.solution) == ("hf:org/name:test[0]", "name-0", "black")
    halves = load_dataset("hf:org/name%67,hf:org/name:test", columns=COLUMNS)
    assert len(halves) == 3


def test_data_check_takes_a_data_set_of_the_hub(downloaded, capsys):
    assert main(["check", "hf:org/name", "--columns", "problem=prompt,answer=solution", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["good"], report["images"]) == (3, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/name:tset", "hf:org/name:tset: can't be loaded: Unknown split"),
        ("hf:org/other", "Couldn't reach"),
        ("empty", "empty: .*`save_to_disk`; .*qwenvl data from-folder "),
        ("splits", "holds the splits train"),
        ("bad.parquet", "bad.parquet: can't be loaded: "),
    ],
)
def test_a_missing_split_an_empty_folder_and_a_damaged_file_are_refused(downloaded, tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and then nonsense")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"a": 1}])}).save_to_disk(tmp_path / "splits")
    with pytest.raises(RecordError, match=message):
        open_rows(name if name.startswith("hf:") else tmp_path / name)
    assert open_rows(tmp_path / "splits" / "train").row(0).content == {"a": 1}


def test_cells_of_parquet_and_saved_data_sets_are_not_changed(tmp_path):
    features = {"prompt": datasets.Value("string"), "image": datasets.Image()}
    features = datasets.Features(features | {"images": datasets.List(datasets.Image())})
    image = {"bytes": picture("red"), "path": None}
    rows = [{"prompt": "a", "image": image, "images": [image]}, {"prompt": "b", "image": None, "images": None}]
    table = datasets.Dataset.from_list(rows, features=features)
    table.to_parquet(tmp_path / "s.parquet")
    table.save_to_disk(tmp_path / "saved")
    for source in ("s.parquet", "saved"):
        first, second = map(open_rows(tmp_path / source).row, range(2))
        assert first.content == rows[0], "pictures stay bytes"
        assert second.content == {"prompt": "b"}, "a column without a value is one that the row does not have"
        assert (first.where, second.default_id) == (f"{tmp_path / source}[0]", f"{source.partition('.')[0]}-1")


def test_another_file_with_the_path_and_the_time_of_an_earlier_one_is_read(tmp_path):
    table = tmp_path / "s.parquet"
    datasets.Dataset.from_list([{"prompt": "old"}]).to_parquet(table)
    assert open_rows(table).row(0).content == {"prompt": "old"}
    earlier = table.stat()
    datasets.Dataset.from_list([{"prompt": "new"}]).to_parquet(tmp_path / "other.parquet")
    (tmp_path / "other.parquet").replace(table)
    os.utime(table, ns=(earlier.st_atime_ns, earlier.st_mtime_ns))
    assert open_rows(table).row(0).content == {"prompt": "new"}


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RecordError, match=r"a.parquet: the package datasets is not installed: pip install"):
        open_rows(tmp_path / "a.parquet")
