"""Whole checkpoints are found, torn ones are named with an older whole one, weights load without a key left over."""

import json

import pytest
import torch
from safetensors.torch import save_file

from qwenvl.demo.tiny import FAMILIES
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    newest_whole,
    require_fresh_folder,
)
from qwenvl.train.run.live_weights import load_weights, start_from_weights


def checkpoint(folder, step, whole=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(64)}, path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt"):
        torch.save({"state": torch.zeros(64)}, path / name)
    if whole:
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def test_the_newest_checkpoint_that_was_saved_to_its_end(tmp_path):
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
    with pytest.raises(FileNotFoundError, match=r"checkpoint-4: not a checkpoint \(no such folder\)"):
        find_checkpoint(str(tmp_path / "checkpoint-4"), tmp_path)
    whole = checkpoint(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match=rf"the folder of a run; its newest whole checkpoint is {whole}"):
        find_checkpoint(str(tmp_path), tmp_path)


@pytest.mark.parametrize("resume", ["true", "path"])
@pytest.mark.parametrize(
    ("name", "left", "said"),
    [
        ("model.safetensors", None, "no such file"),
        ("model.safetensors", 100, "cut short: it has 100 bytes, its header says "),
        ("model.safetensors", 20, "cut short: it has 20 bytes and its header alone needs "),
        ("model.safetensors", 0, "cut short: it has 0 bytes"),
        ("config.json", None, "no such file"),
        ("optimizer.pt", 500, "cut short"),
        ("scheduler.pt", 500, "cut short"),
        ("trainer_state.json", 5, "cut short"),
    ],
)
def test_a_torn_checkpoint_is_named_with_the_older_whole_one(resume, name, left, said, tmp_path):
    for step in (5, 10, 15, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-15" / "optimizer.pt").unlink()
    torn = tmp_path / "checkpoint-20" / name
    content = torn.read_bytes()
    torn.unlink()
    if left is not None:
        torn.write_bytes(content[:left])
    with pytest.raises(ValueError, match=rf"^{torn}: {said}") as error:
        find_checkpoint("true" if resume == "true" else str(tmp_path / "checkpoint-20"), tmp_path)
    assert str(error.value).endswith(f"go on with --resume_from_checkpoint {tmp_path}/checkpoint-10")
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-10"


def test_a_torn_checkpoint_without_an_older_one(tmp_path):
    (checkpoint(tmp_path, 5) / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config.json: no such file; no older checkpoint beside it is whole"):
        find_checkpoint("true", tmp_path)
    assert newest_whole(tmp_path) is None


def test_a_lost_part_of_weights_in_several_files(tmp_path):
    path = checkpoint(tmp_path, 5)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"model-00002-of-00002.safetensors: no such file, although the index"):
        find_checkpoint("true", tmp_path)
    (path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index.json: not an index"):
        find_checkpoint("true", tmp_path)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_without_optimizer_or_schedule_nothing_is_resumed(name, tmp_path):
    (checkpoint(tmp_path, 5) / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"checkpoint-5/{name}: no such file.* --start_from_weights "):
        find_checkpoint("true", tmp_path)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp", "fsdp in parts"])
def test_engines_name_the_state_of_the_optimizer_otherwise(engine, tmp_path):
    path = checkpoint(tmp_path, 5)
    (path / "optimizer.pt").unlink()
    if engine == "deepspeed":  # schedule and optimizer lie in the folder that the file names
        (path / "scheduler.pt").unlink()
        (path / "latest").write_text("global_step5")
        (path / "global_step5").mkdir()
    elif engine == "fsdp":
        (path / "optimizer.bin").write_bytes(b"")
    else:
        (path / "optimizer_0").mkdir()
    assert find_checkpoint("true", tmp_path) == str(path)


def test_a_new_run_does_not_mix_with_an_earlier_one(tmp_path):
    require_fresh_folder(tmp_path / "none")
    checkpoint(tmp_path, 3, whole=False)
    require_fresh_folder(tmp_path)
    checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 5)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"checkpoint-20: a checkpoint of an earlier run, "):
            require_fresh_folder(tmp_path, overwrite)


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors", "model.safetensors.index.json"])
def test_a_model_is_replaced_only_where_that_is_asked_for(name, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(FileExistsError, match=r"holds a model, .* --overwrite_output_dir"):
        require_fresh_folder(tmp_path)
    require_fresh_folder(tmp_path, overwrite=True)


def test_weights_of_another_model_are_not_started_from(tiny_pair, tmp_path):
    model, _ = tiny_pair("qwen2_5_vl")
    with pytest.raises(ValueError, match="no weights in it"):
        start_from_weights(model, tmp_path)
    other, _ = tiny_pair("qwen2_5_vl", tie_word_embeddings=False)
    other.model.language_model.norm = torch.nn.LayerNorm(7)
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"--start_from_weights {tmp_path}: .* do not fit .*norm.weight is \(7,\)"):
        start_from_weights(model, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
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
