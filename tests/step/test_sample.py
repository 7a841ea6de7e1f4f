"""Requests to the engine, in training, in evaluation and for temporal_contrast, and the advantages of a step."""

from __future__ import annotations

import pytest
import torch

from qwenvl.grpo.advantages import group_advantages
from qwenvl.rollout.engine import EngineWithWeights, SamplingParams
from qwenvl.run_log.log import read_rollouts
from tests.train.conftest import caught_draws, logged, with_kernels
from tests.train.copying_engine import CopyingEngine

FLAGS = {
    "generation_temperature": 0.9,
    "generation_top_k": 20,
    "generation_top_p": 0.8,
    "generation_min_p": 0.01,
    "generation_repetition_penalty": 1.1,
    "stop_strings": ["</answer>", "\n\n"],
    "rollout_token_budget": 500,
}
PARAMS = SamplingParams(6, 0.9, 20, 0.8, 0.01, 1.1, ("</answer>", "\n\n"))


def test_every_sampling_flag_reaches_every_draw(make_trainer, sop_data):
    trainer = make_trainer(
        **FLAGS, temporal_contrast=True, per_device_train_batch_size=8, max_steps=1, eval_dataset_use=str(sop_data)
    )
    draws = caught_draws(trainer)
    trainer.train()
    assert [call[1:3] for call in draws] == [(3, PARAMS), (2, PARAMS)] and trainer.kernels.engine.token_budget == 500
    trainer.evaluate()
    greedy = SamplingParams(6, 0.0, 20, 0.8, 0.01, 1.1, ("</answer>", "\n\n"))
    assert [call[1:3] for call in draws[2:]] == [(1, greedy)]  # 500 tokens hold the eight prompts


def test_a_stop_string_ends_a_completion_without_counting_as_truncation(make_trainer):
    """Letters end completions: they are in the text, count as tokens, and are no truncation."""
    letters = list("abcdefghijklmnopqrstuvwxyz")
    trainer = make_trainer(stop_strings=letters, check_parity="every", per_device_train_batch_size=4, max_steps=2)
    trainer.kernels.engine.vision_ids += trainer.kernels.engine.end_ids  # nothing else ends a completion
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir))
    stopped = [row for row in rows if any(letter in row.completion for letter in letters)]
    assert stopped
    for row in rows:
        assert row.finish_reason == ("stop" if row in stopped else "length")
        assert row.tokens == 6 or row in stopped
    log = logged(trainer)
    assert all(row["parity/max"] < 1e-3 for row in log)
    truncated = [row["completion/truncated_frac"] for row in log]
    assert sum(truncated) / 2 * len(rows) == sum(row.finish_reason == "length" for row in rows)


@pytest.mark.parametrize("estimator", ["rloo", "gdpo"])
def test_advantages_compare_all_completions_of_the_step(make_trainer, estimator):
    """Four micro-batches of two prompts: each completion's advantage is the one among all of the step."""

    def length(completions, **columns):  # one of the eight prompts has none
        return [None if n < 3 else float(len(text) % 7) for n, text in enumerate(completions)]

    def letters(completions, **columns):
        return [sum(each.isalpha() for each in text) / max(1, len(text)) for text in completions]

    trainer = make_trainer(
        functions=(letters, length),
        reward_weights=[0.7, 0.3],
        advantage_estimator=estimator,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=1,
    )
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir))
    values = [[row.rewards[name] for row in rows] for name in ("letters", "length")]
    components = torch.tensor([[float("nan") if value is None else value for value in each] for each in values]).T
    totals = torch.tensor([row.total for row in rows])
    expected = group_advantages(totals, 3, "group", estimator, components, [0.7, 0.3])
    assert len(rows) == 24 and sum(row.rewards["length"] is None for row in rows) == 3
    assert [row.advantage for row in rows] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    assert expected.abs().max() > 0.1


def test_an_engine_has_the_weights_of_each_step_and_of_evaluations(make_trainer, sop_data):
    trainer = make_trainer(
        max_steps=4,
        num_iterations=2,
        eval_strategy="steps",
        eval_steps=2,
        eval_dataset_use=str(sop_data),
        check_parity="every",
        logging_steps=1,
    )
    engine = CopyingEngine(trainer.kernels.engine)
    assert isinstance(engine, EngineWithWeights) and not isinstance(trainer.kernels.engine, EngineWithWeights)
    with_kernels(trainer, engine=engine)
    trainer.train()
    # Before steps 1 and 3, which sample, for the evaluation after step 2 (as for step 3), and after step 4.
    assert engine.versions == [0, 2, 4]
    trainer.evaluate()
    assert engine.versions[-1] is None  # a script may have changed the weights
    rows = logged(trainer)
    assert all(row["parity/max"] < 1e-4 for row in rows if "parity/max" in row)
    assert "time/sync_s" in rows[0]
