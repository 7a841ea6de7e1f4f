"""Whole checkpoints are found, unfinished ones are not, and weights load without a key left over."""

import pytest
import torch

from qwenvl.train.checkpoints import find_checkpoint, load_weights, require_no_checkpoints


def checkpoint(folder, step, whole=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    if whole:
        (path / "trainer_state.json").write_text("{}")
    return path


def test_the_newest_whole_checkpoint(tmp_path):
    for step, whole in ((5, True), (20, True), (100, False)):
        checkpoint(tmp_path, step, whole)
    (tmp_path / "checkpoint-best").mkdir()
    assert find_checkpoint("true", tmp_path) == str(tmp_path / "checkpoint-20")
    assert find_checkpoint(str(tmp_path / "checkpoint-5"), tmp_path) == str(tmp_path / "checkpoint-5")
    assert find_checkpoint(None, tmp_path) is None and find_checkpoint("False", tmp_path) is None


def test_what_is_not_there_is_an_error(tmp_path):
    checkpoint(tmp_path, 3, whole=False)
    with pytest.raises(FileNotFoundError, match=r"no whole checkpoint .*1 unfinished"):
        find_checkpoint("true", tmp_path)
    with pytest.raises(FileNotFoundError, match="not a checkpoint"):
        find_checkpoint(str(tmp_path / "checkpoint-3"), tmp_path)


def test_a_new_run_does_not_mix_with_an_earlier_one(tmp_path):
    require_no_checkpoints(tmp_path / "none")
    checkpoint(tmp_path, 3, whole=False)
    require_no_checkpoints(tmp_path)
    checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 5)
    with pytest.raises(FileExistsError, match=r"checkpoint-20: a checkpoint of an earlier run, "):
        require_no_checkpoints(tmp_path)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_comes_back(tiny_pair, tmp_path, family, tied):
    model, _ = tiny_pair(family, tie_word_embeddings=tied)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    fresh, _ = tiny_pair(family, tie_word_embeddings=tied)
    load_weights(fresh, tmp_path)
    for (name, ours), saved in zip(fresh.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, saved), name
