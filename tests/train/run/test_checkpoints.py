"""A checkpoint is whole, or it is none: found, refused by name, deleted in order, its weights loaded strictly."""

import json
import os
from pathlib import Path

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.train.run import checkpoints
from qwenvl.train.run.checkpoints import (
    find_checkpoint,
    load_weights,
    newest_whole,
    require_fresh_folder,
    seal,
    start_from_weights,
)

SAVING = {"save_strategy": "steps", "save_steps": 1, "generation_max_length": 2}
FILES = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


def checkpoint(folder, step, whole=True, without=()):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in set(FILES) - set(without):
        (path / name).write_text("0" * 600)
    if whole:
        seal(path)
    return path


def test_resume_finds_the_newest_checkpoint_that_was_saved_to_its_end(tmp_path):
    for step, whole in ((5, True), (20, True), (100, False)):
        checkpoint(tmp_path, step, whole)
    (tmp_path / "checkpoint-best").mkdir()
    assert find_checkpoint("true", tmp_path) == str(tmp_path / "checkpoint-20")
    assert find_checkpoint(str(tmp_path / "checkpoint-5"), tmp_path) == str(tmp_path / "checkpoint-5")
    assert find_checkpoint(None, tmp_path) is None and find_checkpoint("False", tmp_path) is None


def test_a_folder_that_is_no_checkpoint_is_an_error(tmp_path):
    checkpoint(tmp_path, 3, whole=False, without=["trainer_state.json"])
    with pytest.raises(FileNotFoundError, match=r"no whole checkpoint .*1 unfinished"):
        find_checkpoint("true", tmp_path)
    with pytest.raises(FileNotFoundError, match="not a checkpoint"):
        find_checkpoint(str(tmp_path / "checkpoint-3"), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"checkpoint-4: not a checkpoint \(no trainer_state.json in it\)"):
        find_checkpoint(str(tmp_path / "checkpoint-4"), tmp_path)
    whole = checkpoint(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match=rf"the folder of a run; its newest whole checkpoint is {whole}"):
        find_checkpoint(str(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("name", "left", "message"),
    [
        ("model.safetensors", None, "no such file"),
        ("optimizer.pt", 500, "it has 500 bytes, and had 600 when it was saved"),
        ("scheduler.pt", "1" * 600, "damaged: its checksum is not the one"),
        ("manifest.json", 5, "cut short or unreadable"),
        ("manifest.json", None, "no such file, so that saving was cut short"),
    ],
)
def test_a_torn_checkpoint_is_named_with_the_older_whole_one(name, left, message, tmp_path, caplog):
    for step in (5, 10, 15, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-15" / "optimizer.pt").unlink()
    torn = tmp_path / "checkpoint-20" / name
    content = torn.read_text()
    torn.unlink()
    if left is not None:
        torn.write_text(left if isinstance(left, str) else content[:left])
    with pytest.raises(ValueError, match=rf"^{torn}: {message}") as error:
        find_checkpoint(str(tmp_path / "checkpoint-20"), tmp_path)
    assert str(error.value).endswith(f"resume with --resume_from_checkpoint {tmp_path}/checkpoint-10")
    assert find_checkpoint("auto", tmp_path) == str(tmp_path / "checkpoint-10")
    passed_over = f"{tmp_path}/checkpoint-20 is passed over, and the run resumes from {tmp_path}/checkpoint-10: {torn}"
    assert f"{passed_over}: {message}" in caplog.text and "checkpoint-15/optimizer.pt: no such file" in caplog.text


def test_a_torn_checkpoint_without_an_older_one_is_an_error(tmp_path):
    (checkpoint(tmp_path, 5) / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config.json: no such file; no older checkpoint"):
        find_checkpoint("true", tmp_path)
    assert newest_whole(tmp_path) is None


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_without_optimizer_or_schedule_nothing_is_resumed(name, tmp_path):
    checkpoint(tmp_path, 5, without=[name])
    with pytest.raises(ValueError, match=rf"checkpoint-5/{name}: no such file.* --start_from_weights "):
        find_checkpoint("true", tmp_path)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp", "fsdp in parts"])
def test_engines_have_other_names_for_the_state_of_the_optimizer(engine, tmp_path):
    if engine == "deepspeed":  # a file that names a folder with schedule and optimizer
        path = checkpoint(tmp_path, 5, without=["optimizer.pt", "scheduler.pt"])
        (path / "latest").write_text("global_step5")
    else:
        path = checkpoint(tmp_path, 5, without=["optimizer.pt"])
        (path / "optimizer.bin").write_text("") if engine == "fsdp" else (path / "optimizer_0").mkdir()
    seal(path)
    assert find_checkpoint("true", tmp_path) == str(path)


def test_a_new_run_does_not_mix_with_an_earlier_one(tmp_path):
    require_fresh_folder(tmp_path / "none")
    checkpoint(tmp_path, 3, whole=False)
    with pytest.raises(FileExistsError, match=r"checkpoint-3: a checkpoint of an earlier run, "):
        require_fresh_folder(tmp_path)  # of another program: there is no run.json
    (tmp_path / "run.json").write_text("{}")
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


@pytest.fixture
def saved(make_trainer, tmp_path) -> Path:
    """A run folder with the checkpoints of steps 1 and 2."""
    make_trainer(**SAVING).train()
    return tmp_path / "run"


def test_the_manifest_names_every_file(saved):
    for step in (1, 2):
        folder = saved / f"checkpoint-{step}"
        rows = json.loads((folder / "manifest.json").read_text())["files"]
        files = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
        assert (
            files == {*rows, "manifest.json", "README.md"}
            and {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= files
        )
        assert all((folder / name).stat().st_size == row["bytes"] for name, row in rows.items())
        assert checkpoints.problem_of(folder, read=True) is None
        (folder / "README.md").write_text("A card may be edited.")
        assert checkpoints.problem_of(folder, read=True) is None


def test_checksums_are_crc_32_as_in_zip_files(tmp_path):
    (tmp_path / "a").write_bytes(b"123456789")
    checkpoints.seal(tmp_path)
    # the check value that the catalogues of CRC-32 give for these nine digits
    assert json.loads((tmp_path / "manifest.json").read_text())["files"]["a"] == {"bytes": 9, "crc32": 0xCBF43926}


def test_older_checkpoints_are_deleted_when_the_new_one_is_whole(make_trainer, tmp_path, monkeypatch):
    """Killed between the last file and the manifest, the older one is still there."""

    class Killed(Exception):
        pass

    def killed(folder):
        if folder.name == "checkpoint-2":
            raise Killed
        seal(folder)

    monkeypatch.setattr(checkpoints, "seal", killed)
    trainer = make_trainer(save_total_limit=1, **SAVING)
    with pytest.raises(Killed):
        trainer.train()
    assert newest_whole(tmp_path / "run") == tmp_path / "run" / "checkpoint-1"
    assert trainer.args.save_total_limit == 1
    monkeypatch.undo()
    make_trainer(save_total_limit=1, resume="auto", **SAVING).train()
    assert [each.name for each in sorted((tmp_path / "run").glob("checkpoint-*"))] == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [(1, None, [5]), (2, None, [3, 5]), (3, None, [2, 3, 5]), (2, 2, [2, 5]), (1, 2, [2, 5]), (4, None, [2, 3, 5, 8])],
)
def test_whole_checkpoints_before_the_new_one_are_kept_longest(limit, best, left, tmp_path):
    """8 is of a run that resumed from 3 later. 6 was not finished. All times are equal."""
    runs = tmp_path / "run"
    for step in (2, 3, 5, 6, 8):
        (runs / f"checkpoint-{step}").mkdir(parents=True)
        if step != 6:
            checkpoints.seal(runs / f"checkpoint-{step}")
        os.utime(runs / f"checkpoint-{step}", (1e9, 1e9))
    best_folder = None if best is None else str(runs / f"checkpoint-{best}")
    checkpoints.delete_others(runs / "checkpoint-5", limit, best_folder)
    assert sorted(int(each.name.removeprefix("checkpoint-")) for each in runs.glob("checkpoint-*")) == left


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
def test_every_weight_of_a_checkpoint_is_loaded_again(tiny_pair, tmp_path, family, tied):
    model, _ = tiny_pair(family, tie_word_embeddings=tied)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    fresh, _ = tiny_pair(family, tie_word_embeddings=tied)
    load_weights(fresh, tmp_path)
    for (name, ours), saved in zip(fresh.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, saved), name
