"""Evaluation: which prompts count, and what it leaves alone."""

import pytest

from qwenvl.runlog import read_rollouts


def test_a_prompt_whose_rewards_were_skipped_does_not_count(make_trainer, sop_data):
    def judge(completions, id, **columns):
        if "clip-2" in id:
            raise ConnectionError("the server is away")
        return [float(len(text)) for text in completions]

    common = {"functions": [judge], "eval_dataset_use": str(sop_data), "on_reward_error": "skip"}
    trainer = make_trainer(**common, eval_strategy="steps", eval_steps=1, max_steps=1)
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir, split="eval"))
    assert len(rows) == 8 and [row.record_id for row in rows if row.rewards["judge"] is None] == ["clip-2"]
    (metrics,) = (row for row in trainer.state.log_history if "eval_total_reward" in row)
    lengths = [len(row.completion) for row in rows if row.record_id != "clip-2"]
    for name in ("total", "judge"):
        assert metrics[f"eval_{name}_reward_n"] == 7
        assert metrics[f"eval_{name}_reward"] == pytest.approx(sum(lengths) / 7)


def test_its_time_is_not_that_of_a_training_step(make_trainer, sop_data):
    trainer = make_trainer(eval_dataset_use=str(sop_data))
    trainer.evaluate()
    assert not [name for name in trainer.meter.flush() if name.startswith("time/")]
    trainer.train()
    assert all("time/vision_s" in row for row in trainer.state.log_history if "loss" in row)
