"""Weight files that were cut short are named before they are loaded."""

import shutil

import pytest

from qwenvl.model.loading import load_model, load_processor
from qwenvl.model.weight_files import has_weights, weights_problem


def test_a_whole_checkpoint(tiny_checkpoint, tmp_path):
    assert has_weights(tiny_checkpoint()) and weights_problem(tiny_checkpoint()) is None
    assert not has_weights(tmp_path) and weights_problem(tmp_path) is None


@pytest.mark.parametrize("kept", [0, 100, 500_000])
def test_a_model_whose_weights_were_cut_short(kept, tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ValueError, match=rf"^{weights}: cut short or damaged: .*; copy the file again"):
        load_model(folder)


def test_a_checkpoint_without_its_tokenizer(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=rf"^{folder}: no tokenizer of Qwen-VL lies there .*copy tokenizer.json"):
        load_processor(folder)


@pytest.mark.parametrize("load", [load_model, load_processor])
def test_what_is_no_checkpoint_is_named(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for path in (str(tmp_path / "none"), "../none", "runs/sop/checkpoint-3"):
        with pytest.raises(FileNotFoundError, match=rf"^{path}: no such folder; expected one that holds a checkpoint"):
            load(path)
    with pytest.raises(FileNotFoundError, match="a file; expected the folder of a model"):
        load(__file__)
    with pytest.raises(OSError, match=r"^org/none: no such folder, (and no model of this name|not in the cache)"):
        load("org/none")


def test_a_folder_without_a_model_is_told_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path}: no config.json in it; expected a folder that holds"):
        load_model(tmp_path)
