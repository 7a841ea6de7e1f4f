"""A checkpoint is whole, or it is none: its manifest, the space it needs, and what is deleted when."""

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from transformers import TrainerCallback

from qwenvl.train.run import checkpoints
from qwenvl.train.run.checkpoints import find_checkpoint, newest_or_none, newest_whole

SAVING = {"save_strategy": "steps", "save_steps": 1, "generation_max_length": 2}


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


def test_checksums_are_those_of_the_zip_format(tmp_path):
    (tmp_path / "a").write_bytes(b"123456789")
    checkpoints.seal(tmp_path)
    # the check value that the catalogues of CRC-32 give for these nine digits
    assert json.loads((tmp_path / "manifest.json").read_text())["files"]["a"] == {"bytes": 9, "crc32": 0xCBF43926}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "model.safetensors: no such file"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes, and had"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "model.safetensors: damaged: its checksum"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_or_refused(damage, said, saved, caplog):
    damage(saved / "checkpoint-2" / "model.safetensors")
    with pytest.raises(ValueError, match=said) as error:
        find_checkpoint("True", saved)
    assert str(error.value).endswith(f"go on with --resume_from_checkpoint {saved}/checkpoint-1")
    assert newest_or_none(saved) == str(saved / "checkpoint-1")
    assert "passed over" in caplog.text and said in caplog.text


def test_a_checkpoint_without_its_manifest_was_not_finished(saved, caplog):
    (saved / "checkpoint-2" / "manifest.json").unlink()
    assert newest_or_none(saved) == str(saved / "checkpoint-1")
    passed_over = f"{saved}/checkpoint-2 is passed over, and the run goes on from {saved}/checkpoint-1: "
    assert f"{passed_over}{saved}/checkpoint-2/manifest.json: no such file, so that saving was cut short" in caplog.text
    assert newest_whole(saved) == saved / "checkpoint-1" and find_checkpoint("True", saved).endswith("checkpoint-1")
    with pytest.raises(ValueError, match=r"manifest.json: no such file, so that saving was cut short"):
        find_checkpoint(str(saved / "checkpoint-2"), saved)


def test_older_checkpoints_are_deleted_when_the_new_one_is_whole(make_trainer, tmp_path, monkeypatch):
    """Killed between the last file and the manifest, the older one is still there."""

    class Killed(Exception):
        pass

    def killed(folder):
        if folder.name == "checkpoint-2":
            raise Killed
        seal(folder)

    seal = checkpoints.seal
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
    """8 is of a run that went on from 3 again. 6 was not finished. Times, which are all alike here, say nothing."""
    runs = tmp_path / "run"
    for step in (2, 3, 5, 6, 8):
        (runs / f"checkpoint-{step}").mkdir(parents=True)
        if step != 6:
            checkpoints.seal(runs / f"checkpoint-{step}")
        os.utime(runs / f"checkpoint-{step}", (1e9, 1e9))
    best_folder = None if best is None else str(runs / f"checkpoint-{best}")
    checkpoints.delete_others(runs / "checkpoint-5", limit, best_folder)
    assert sorted(int(each.name.removeprefix("checkpoint-")) for each in runs.glob("checkpoint-*")) == left


def test_a_checkpoint_that_would_fill_the_disk_is_not_begun(make_trainer, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")

    class FillsTheDisk(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            free = 10**12 if state.global_step == 1 else needed(tmp_path / "run" / "checkpoint-1") - 1
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**12, 0, free))

    def needed(folder: Path) -> int:
        return sum(each.stat().st_size for each in folder.iterdir())

    with pytest.raises(OSError, match=r"takes about [\d.]+ GB and [\d.]+ GB are free, so none was begun"):
        make_trainer(callbacks=[FillsTheDisk()], **SAVING).train()
    assert [each.name for each in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]


@pytest.mark.parametrize("lora", [False, True])
def test_the_size_of_the_first_checkpoint_is_known_before(lora, make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer(lora_enable=lora, **SAVING | {"max_steps": 1})
    told = []
    monkeypatch.setattr(checkpoints, "require_space", lambda *args: told.append(checkpoints.bytes_to_save(args[0])))
    trainer.train()
    files = [*(tmp_path / "run" / "checkpoint-1").glob("*.safetensors"), tmp_path / "run/checkpoint-1/optimizer.pt"]
    real = sum(each.stat().st_size for each in files)
    assert 0.6 * real < told[0] <= real  # the files have names and padding besides
