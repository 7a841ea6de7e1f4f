"""One step on the files of all other formats at once: each of their records is asked about, answered and scored."""

import pytest

from qwenvl.run_log.log import read_rollouts
from tests.foreign_files import FILES, write_all


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file in the format of each preset, with its clips."""
    return write_all(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def rollouts(files, tmp_path_factory, tiny_checkpoint):
    """The rollouts of a step on all records."""
    from qwenvl import GRPOConfig, GRPOTrainer

    folder = tmp_path_factory.mktemp("run")
    config = GRPOConfig(
        str(folder),
        dataset_use=",".join(map(str, files.values())),
        per_device_train_batch_size=sum(each.count for each in FILES.values()),
        grpo_sample_size=2,
        generation_max_length=4,
        max_steps=1,
        video_max_frames=4,
        learning_rate=1e-3,
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = GRPOTrainer(str(tiny_checkpoint(initializer_range=0.1)), config, reward_funcs=["format", len_of])
    before = {name: value.clone() for name, value in trainer.model.named_parameters() if value.requires_grad}
    trainer.train()
    assert any(not value.equal(before[name]) for name, value in trainer.model.named_parameters() if name in before)
    return list(read_rollouts(folder, split="train"))


def len_of(completions, **columns):
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("name", FILES)
def test_a_step_is_trained_on_each_format(name, files, rollouts):
    rows = [row for row in rollouts if row.where.startswith(str(files[name]))]
    assert len(rows) == 2 * FILES[name].count, "two completions of each record"
    assert all(row.rewards["len_of"] == len(row.completion) for row in rows)
    assert all(len(row.clips) + len(row.images) == 1 for row in rows)
    assert all(clip.indices for row in rows for clip in row.clips)
