"""Rows that a script hands to the trainer, in each of the kinds that scripts have them in."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.records.record_file import RecordFile
from qwenvl.run_log.log import read_rollouts


class Mapped(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def as_table(rows):
    """A table, whose rows all have the same columns."""
    columns = dict.fromkeys(key for row in rows for key in row)
    return datasets.Dataset.from_list([{key: row.get(key) for key in columns} for row in rows])


KINDS = {
    "list": list,
    "tuple": tuple,
    "Dataset": as_table,
    "Dataset in torch's format": lambda rows: as_table(rows).with_format("torch"),
    "Dataset with a transform": lambda rows: as_table(rows).with_transform(lambda batch: batch),
    "torch Dataset": Mapped,
}
IN_ORDER = {
    "train_sampling_strategy": "sequential",
    "per_device_train_batch_size": 4,
    "max_steps": 1,
    "grpo_sample_size": 2,
}


@pytest.fixture
def rows(sop_data, monkeypatch):
    """The rows of the mixed data set, read in its folder."""
    monkeypatch.chdir(sop_data.parent)
    return json.loads(sop_data.read_text())


def trained(make_trainer, tmp_path, *given, **settings):
    trainer = make_trainer(datasets=given, **IN_ORDER | settings)
    trainer.train()
    rollouts = list(read_rollouts(tmp_path / "run", split="train"))
    return trainer, [(row.record_id, row.completion, row.clips) for row in rollouts]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_give_the_records_of_their_file(kind, rows, sop_data):
    dataset = load_dataset(KINDS[kind](rows), name="mine")
    expected = load_dataset(str(sop_data)).records
    assert [record.where for record in dataset.records] == [f"mine[{i}]" for i in range(8)]
    for record, other in zip(dataset.records, expected, strict=True):
        names = ("id", "messages", "solution", "videos", "images", "clip_meta")
        assert [getattr(record, name) for name in names] == [getattr(other, name) for name in names]


def test_rows_train_as_their_file_does(rows, make_trainer, tmp_path, monkeypatch):
    """A large table stays on the disk."""
    _, expected = trained(make_trainer, tmp_path)
    monkeypatch.setattr("qwenvl.data.records.record_file.LOADED_BYTES", 0)
    again = {"dataloader_num_workers": 1, "overwrite_output_dir": True}
    trainer, found = trained(make_trainer, tmp_path, as_table(rows), **again)
    assert found == expected and len(found) == len(trainer.train_dataset) == 8
    assert isinstance(trainer.train_dataset.records, RecordFile)


def test_given_rows_are_evaluated(rows, make_trainer, tmp_path):
    trainer = make_trainer(datasets=[None, {"held_out": rows[:2]}])
    assert trainer.eval_dataset["held_out"].records[0].where == "eval_dataset.held_out[0]"
    own = Mapped(rows[2:5])
    assert trainer.evaluate(own)["eval_total_reward_n"] == 3
    wheres = [row.where for row in read_rollouts(tmp_path / "run", split="eval")]
    assert wheres == ["eval_dataset[0]", "eval_dataset[1]", "eval_dataset[2]"]
    assert trainer.evaluate({"mine": own}, metric_key_prefix="test")["test_mine_total_reward_n"] == 3
    assert trainer.evaluate("held_out")["eval_total_reward_n"] == 2, "a name among the trainer's own"


def test_a_script_may_evaluate_on_a_file(sop_data, make_trainer):
    trainer = make_trainer(datasets=[None])
    assert trainer.evaluate(str(sop_data))["eval_total_reward_n"] == 8
    assert trainer.evaluate(load_dataset(str(sop_data), training=False))["eval_total_reward_n"] == 8
    with pytest.raises(RecordError, match=r"eval_dataset\[0\]: expected an object with"):
        trainer.evaluate([1])


def test_rows_with_decoded_pictures_train(make_trainer, tmp_path):
    """As TRL's data sets come: plain messages, and pictures that are decoded when a row is read."""
    picture = Image.effect_mandelbrot((64, 48), (-2, -1, 1, 1), 20).convert("RGB")
    made = [{"prompt": [{"role": "user", "content": f"Which part? {n}"}], "solution": "lid"} for n in range(4)]
    plain = [row | {"image": picture} for row in made]
    table = datasets.Dataset.from_list(plain).cast_column("image", datasets.Image())
    assert isinstance(table[0]["image"], Image.Image)
    trainer, _ = trained(make_trainer, tmp_path, table)
    expected = trainer.data_collator([trainer.train_dataset[0]])["prompts"].pixel_values
    for given in (plain, Mapped(table)):
        dataset = load_dataset(given)
        assert dataset.records[0].messages[0].text == "<image>Which part? 0"
        assert torch.equal(trainer.data_collator([dataset[0]])["prompts"].pixel_values, expected)


def test_rows_that_are_left_out_are_no_obstacle_to_the_others(make_trainer):
    rows = [{"prompt": "Which?", "solution": np.int64(3), "nums": np.array([1, 2])}, {"id": "bad"}]
    rows[0]["boxes"] = np.array([[1.5, 2], [3, 4]])
    samples = load_dataset(rows, on_bad_sample="skip")
    assert (samples.records[0].solution, samples.records[0].fields["nums"]) == ("3", [1, 2])
    assert samples.records[0].fields["boxes"] == [[1.5, 2.0], [3.0, 4.0]]
    once = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_steps": 1}
    trainer = make_trainer(datasets=(samples,), dataset_use=None, functions=["accuracy"], **once)
    trainer.train()
    assert {row.record_id for row in read_rollouts(trainer.args.output_dir)} == {samples.records[0].id}


def test_prompts_without_solutions_train_where_no_reward_reads_one(make_trainer):
    rows = [{"prompt": [{"role": "user", "content": f"Count to {n}."}]} for n in range(4)]
    brevity = lambda completions, **columns: [1.0 / (1 + len(text)) for text in completions]
    trainer = make_trainer(datasets=[rows], dataset_use=None, functions=[brevity], **IN_ORDER)
    trainer.train()
    assert {rollout.solution for rollout in read_rollouts(trainer.args.output_dir)} == {""}
    with pytest.raises(RecordError, match=r"\[0\]: expected a `solution`.*\(reward \"accuracy\"\)"):
        make_trainer(datasets=[rows], dataset_use=None, functions=["accuracy"], **IN_ORDER)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (Stream([{}]), RecordError, "train_dataset: an IterableDataset has no length"),
        (as_table([{"a": 1}]).to_iterable_dataset(), RecordError, "train_dataset: an IterableDataset has no length"),
        ([], RecordError, "train_dataset: no records in the file"),
        (["a.json"], RecordError, r"train_dataset\[0\]: expected an object with .*, got string"),
        ([{"a": 1}], RecordError, r"train_dataset\[0\]: expected an object with `conversations`"),
        ({"train": [{}]}, TypeError, "train_dataset: .*--dataset_use .*, got dict"),
        (3, TypeError, "train_dataset: .*--dataset_use .*, got int"),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_list([{"a": 1}])),
            RecordError,
            "train_dataset: holds the splits train",
        ),
    ],
)
def test_values_that_are_no_data_set_are_refused(given, error, message, make_trainer):
    with pytest.raises(error, match=message):
        make_trainer(datasets=[given], **IN_ORDER)


def test_absolute_paths_of_a_script_are_read_from_any_folder(rows, make_trainer, monkeypatch):
    outside = [row | {"video": str(Path(row["video"]).absolute())} for row in rows if "video" in row]
    monkeypatch.chdir(Path.home())
    assert len(make_trainer(datasets=[outside]).train_dataset) == 6
