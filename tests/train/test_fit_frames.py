"""Prompts that are too long, shown with less: what the run says of it."""

import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.run_log.log import read_metrics, read_rollouts

SIX_OF_EIGHT = {"frames": [[8, 6]]}


def test_lowered_numbers_of_frames_are_in_rollouts_and_metrics(make_trainer, sop_data, tmp_path):
    settings = {"video_max_frames": 8, "base_interval": 0.25, "max_steps": 8, "video_min_frames": 2}
    free = make_trainer(**settings)
    lengths = {
        record.id: free.data_collator([free.train_dataset[n]])["prompts"].input_ids.shape[1]
        for n, record in enumerate(free.train_dataset.records)
    }
    limit = lengths["clip-0"] - 4  # 8 frames of 56 x 56: 4 pairs of 4 tokens, one of which has to go
    trainer = make_trainer(**settings, max_prompt_length=limit, fit_frames=True)
    trainer.train()
    rollouts = {row.record_id: row for row in read_rollouts(trainer.args.output_dir)}
    assert rollouts["clip-0"].fitted == SIX_OF_EIGHT
    assert len(rollouts["clip-0"].clips[0].indices) == 6
    lowered = {name for name, row in rollouts.items() if row.fitted is not None}
    assert lowered == {name for name, length in lengths.items() if length > limit} >= {"clip-0", "clip-2", "clip-4"}
    logged = [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]
    assert sum(row["data/fitted_prompts"] for row in logged) == len(lowered)
    assert all(row["prompt/tokens"] <= limit for row in logged)


def test_evaluation_fits_frames_too(make_trainer, sop_data):
    settings = {"video_max_frames": 8, "base_interval": 0.25, "eval_dataset_use": str(sop_data)}
    free = make_trainer(**settings)
    longest = max(free.data_collator([sample])["prompts"].input_ids.shape[1] for sample in free.eval_dataset)
    trainer = make_trainer(**settings, max_prompt_length=longest - 1, fit_frames=True)
    trainer.evaluate()
    rollouts = read_rollouts(trainer.args.output_dir, split="eval")
    assert [len(row.clips[0].indices) for row in rollouts if row.fitted == SIX_OF_EIGHT] == [6] * 3


def test_a_data_set_made_by_a_script_must_have_a_limit_to_fit(make_trainer, sop_data):
    from qwenvl.step.assemble import build_dataset

    trainer = make_trainer(max_prompt_length=64, fit_frames=True)
    rubric, collator = trainer.rewards, trainer.data_collator
    bare = load_dataset(str(sop_data))
    with pytest.raises(ValueError, match="--fit_frames has no effect on a data set made without"):
        build_dataset(bare, trainer.args, rubric, collator, training=True)
    fitting = load_dataset(str(sop_data), ruler=collator.ruler, fit_to=64)
    assert build_dataset(fitting, trainer.args, rubric, collator, training=True) is fitting
