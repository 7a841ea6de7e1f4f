from pathlib import Path

import pytest

from qwenvl.data.records.catalog import resolve_datasets


@pytest.fixture
def catalog(tmp_path):
    """A catalog of the data sets steps_train and steps_test."""
    for name in ("train", "test"):
        (tmp_path / "steps").mkdir(exist_ok=True)
        (tmp_path / "steps" / f"{name}.jsonl").write_text("{}\n")
    path = tmp_path / "datasets.yaml"
    path.write_text(
        "steps_train: {annotation_path: steps/train.jsonl, media_root: videos}\n"
        "steps_test: {annotation_path: steps/test.jsonl}\n"
    )
    return path


def test_names_and_paths_take_a_percentage(catalog):
    (catalog.parent / "own.json").write_text("[]")
    first, second, third = resolve_datasets(f"steps_train%12.5, steps_test,{catalog.parent}/own.json%3", catalog)
    assert (first.name, first.percent) == ("steps_train", 12.5)
    assert first.annotation_path == catalog.parent / "steps" / "train.jsonl"
    assert first.media_root == catalog.parent / "videos"
    assert second.media_root == catalog.parent / "steps", "the annotation's folder where the catalog names none"
    assert (third.media_root, third.percent) == (catalog.parent, 3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1]", r"a: expected annotation_path: PATH, .* got \[1\]"),
        ("a: {annotation_path: x.json, root: x}", "got {'annotation_path': 'x.json', 'root': 'x'}"),
        ("a: {media_root: x}", "a: expected annotation_path: PATH, .* got {'media_root': 'x'}"),
        ("a: {annotation_path: 3}", "a: expected annotation_path: PATH, .* got {'annotation_path': 3}"),
        ("- a", "expected a mapping of data set names, got list"),
        ("a: {", "datasets.yaml: not valid YAML: .*line 1, column 5"),
        ("a: {annotation_path: x.json}\na: {annotation_path: y.json}", "datasets.yaml: a is given twice"),
    ],
)
def test_a_malformed_catalog_is_refused_with_its_entry(tmp_path, text, message):
    path = tmp_path / "datasets.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        resolve_datasets("a", path)


def test_missing_files_empty_lists_and_repeated_names_are_refused(catalog):
    nowhere = catalog.parent / "nowhere.json"
    with pytest.raises(FileNotFoundError, match=rf"^--eval_dataset_use: {nowhere}: no such file$"):
        resolve_datasets(f"{nowhere}%20", catalog, "--eval_dataset_use")
    (catalog.parent / "now_here.json").touch()
    with pytest.raises(
        FileNotFoundError, match=rf"^dataset_use: {nowhere}: no such file; did you mean .*now_here.json"
    ):
        resolve_datasets(str(nowhere), catalog)
    with pytest.raises(FileNotFoundError, match=r"no such catalog.*--dataset_catalog"):
        resolve_datasets("a", catalog.parent / "no.yaml")
    with pytest.raises(ValueError, match="expected names or paths separated by commas"):
        resolve_datasets(" , ")
    with pytest.raises(ValueError, match="'steps_test' is named twice"):
        resolve_datasets("steps_test%5,steps_test", catalog)


@pytest.mark.parametrize("name", ["s3://bucket/steps.jsonl", "file:///data/steps.jsonl"])
def test_an_address_is_no_path(name):
    scheme = name.split("/")[0]
    with pytest.raises(ValueError, match=rf"dataset_use: '{name}': records can't be read from {scheme}//; "):
        resolve_datasets(name)


def test_folders_and_names_of_the_hub_are_data_sets(tmp_path, monkeypatch):
    (tmp_path / "saved").mkdir()
    folder, hub = resolve_datasets(f"{tmp_path}/saved,hf:org/name:train%10")
    assert (folder.annotation_path, folder.media_root) == (tmp_path / "saved", tmp_path / "saved")
    assert (str(hub.annotation_path), hub.percent) == ("hf:org/name:train", 10.0)
    monkeypatch.chdir(tmp_path)
    assert resolve_datasets("saved")[0].media_root == Path("saved")


class TestWeights:
    def test_a_weight_stands_behind_names_paths_percentages_and_splits(self, catalog):
        own = catalog.parent / "own:2.json"
        own.write_text("[]")
        sources = resolve_datasets(f"steps_train:0.3,steps_test%20:2,{own}:1e-1,hf:org/name:train:.6", catalog)
        assert [(source.weight, source.percent) for source in sources] == [(0.3, 100), (2, 20), (0.1, 100), (0.6, 100)]
        assert [source.name for source in sources] == ["steps_train", "steps_test", str(own), "hf:org/name:train"]

    def test_names_that_end_in_a_number_take_a_weight(self, tmp_path):
        (tmp_path / "run:2").mkdir()
        folder, hub = resolve_datasets(f"{tmp_path}/run:2:1,hf:org/name:2024:1")
        assert (folder.annotation_path, str(hub.annotation_path)) == (tmp_path / "run:2", "hf:org/name:2024")
        (alone,) = resolve_datasets("hf:org/name:2024:1")
        assert alone.name == "hf:org/name:2024"

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("step_train", r"no data set 'step_train' in .*: did you mean steps_train or steps_test"),
            *((f"steps_test%{n}", "a percentage above 0 and at most 100") for n in ("0", "101", "ten", "")),
            ("steps_train:0,steps_test:1", "'steps_train:0': expected a weight above 0"),
            ("steps_train:-1,steps_test:1", "expected a weight above 0"),
            ("steps_train:nan,steps_test:1", "expected a weight above 0"),
            ("steps_train:inf,steps_test:1", "expected a weight above 0"),
            ("steps_train:2,steps_test", "'steps_train' has a weight and 'steps_test' has none"),
            ("steps_train:0.5", "'steps_train' has no effect.*steps_train%NN"),
            ("steps_train:2%50,steps_test:1", "no data set 'steps_train:2' in .*: did you mean steps_train"),
            ("steps_train:half,steps_test:1", "no data set 'steps_train:half' in .*: did you mean steps_train"),
        ],
    )
    def test_bad_names_percentages_and_weights_are_refused(self, catalog, entry, message):
        with pytest.raises(ValueError, match=message):
            resolve_datasets(entry, catalog)
