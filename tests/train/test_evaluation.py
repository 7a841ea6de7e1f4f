"""Evaluation: which prompts count, and what it leaves alone."""

import pytest
import torch

from qwenvl.data.errors import RecordError
from qwenvl.run_log.log import read_rollouts
from qwenvl.step.answer import in_budget
from qwenvl.train.evaluation import evaluation_metrics, require_metric
from qwenvl.types import PromptBatch
from tests.train.conftest import caught_draws


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


def test_an_evaluation_without_any_reward_is_reported(make_trainer, sop_data, caplog):
    """A run whose checkpoints go by the evaluation stops, and says why."""

    def never(completions, **columns):
        raise ConnectionError("the server is away")

    common = {"functions": [never], "eval_dataset_use": f"{sop_data}%25", "on_reward_error": "skip"}
    metrics = make_trainer(**common).evaluate()
    assert not [name for name in metrics if "reward" in name]
    assert "eval: 2 prompts, and no completion has a reward" in caplog.text
    best = {"load_best_model_at_end": True, "eval_on_start": True, "max_steps": 1}
    trainer = make_trainer(**common, **best, eval_strategy="steps", save_strategy="steps", save_steps=1)
    with pytest.raises(RecordError, match="no eval_total_reward, and --metric_for_best_model eval_total_reward needs"):
        trainer.train()


@pytest.mark.parametrize("metric", ["loss", "accuracy", "eval_letter_reward", "total"])
def test_a_best_metric_that_no_evaluation_has_is_refused_at_once(metric, make_trainer, sop_data):
    settings = {"eval_dataset_use": str(sop_data), "eval_strategy": "steps", "eval_steps": 1}
    expected = rf"^--metric_for_best_model {metric}: .* one of eval_letters_reward, eval_total_reward$"
    with pytest.raises(ValueError, match=expected):
        make_trainer(metric_for_best_model=metric, **settings)


@pytest.mark.parametrize("metric", ["letters_reward", "eval_total_reward", "eval_letters_reward_n"])
def test_checkpoints_go_by_any_metric_of_the_evaluation(metric, make_trainer, sop_data):
    settings = {"eval_dataset_use": f"{sop_data}%25", "eval_strategy": "steps", "eval_steps": 1, "max_steps": 1}
    trainer = make_trainer(metric_for_best_model=metric, **settings)
    trainer.train()
    assert trainer.state.best_metric is not None


def test_the_best_metric_of_several_data_sets_names_one_of_them(make_trainer, sop_data):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1, "load_best_model_at_end": True}
    settings |= {"save_strategy": "steps", "save_steps": 1}
    sets = (None, {"easy": f"{sop_data}%25", "hard": f"{sop_data}%25"})
    with pytest.raises(ValueError, match=r"no eval_total_reward; .* eval_easy_total_reward, eval_hard_letters_reward"):
        make_trainer(datasets=sets, **settings)
    trainer = make_trainer(datasets=sets, metric_for_best_model="hard_total_reward", **settings)
    trainer.train()
    assert trainer.state.best_metric is not None


def test_an_evaluation_of_no_prompt_needs_only_its_own_metric(caplog):
    assert evaluation_metrics([], "eval_a", needed="eval_b_total_reward") == {}
    assert "eval_a: every record was left out" in caplog.text
    with pytest.raises(RecordError, match="eval_a: every record was left out"):
        evaluation_metrics([], "eval_a", needed="a_total_reward")


def test_the_time_of_an_evaluation_is_not_logged_as_that_of_a_step(make_trainer, sop_data):
    trainer = make_trainer(eval_dataset_use=str(sop_data))
    trainer.evaluate()
    assert not [name for name in trainer.meter.flush() if name.startswith("time/")]
    trainer.train()
    assert all("time/vision_s" in row for row in trainer.state.log_history if "loss" in row)


class Sized(PromptBatch):
    """A batch without records that counts its rows of ids."""

    def __len__(self):
        return len(self.input_ids)


def test_batches_are_sampled_together_within_the_budget():
    """Each prompt is padded to the longest of its group, and has room for ten new tokens."""
    lengths = [10, 10, 30, 5, 90, 5]
    batches = [Sized([], [], [], ids, ids) for ids in (torch.zeros(1, n, dtype=torch.long) for n in lengths)]
    groups = list(in_budget(iter(batches), new_tokens=10, budget=80))
    # 2 x 20 fit; with the third 3 x 40 would not; 2 x 40 do; 100 exceeds the budget by itself.
    assert [[batch.input_ids.shape[1] for batch in group] for group in groups] == [[10, 10], [30, 5], [90], [5]]
    assert list(in_budget(iter([]), new_tokens=10, budget=80)) == []


def test_prompts_are_sampled_together_by_the_token_budget(make_trainer, sop_data, tmp_path):
    """Unless a batch size is given. The greedy completions and the metrics are those of one prompt at a time."""
    found = {}
    for name, settings in {"together": {}, "alone": {"per_device_eval_batch_size": 1}}.items():
        trainer = make_trainer(eval_dataset_use=str(sop_data), output_dir=str(tmp_path / name), **settings)
        draws = caught_draws(trainer)
        metrics = {key: value for key, value in trainer.evaluate().items() if "reward" in key}
        texts = [(row.record_id, row.completion) for row in read_rollouts(tmp_path / name, split="eval")]
        found[name] = [prompts for prompts, *_ in draws], metrics, texts
    assert found["together"][0] == [8] and found["alone"][0] == [1] * 8
    assert found["together"][1] == pytest.approx(found["alone"][1]) and found["together"][2] == found["alone"][2]


def test_a_mean_loss_has_no_interval_to_go_by():
    of_a_warmup = lambda prefix: [f"{prefix}_loss"]
    for metric in ("loss", "eval_loss", "loss_n"):
        require_metric(metric, [], of_a_warmup)
    with pytest.raises(ValueError, match="is measured by no eval_loss_ci95; expected one of eval_loss"):
        require_metric("loss_ci95", [], of_a_warmup)
