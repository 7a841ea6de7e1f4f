"""When sampler and trainer are said to disagree."""

from types import SimpleNamespace

import pytest
import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.runlog import read_metrics, read_parity, read_rollouts
from qwenvl.train.meter import Meter
from qwenvl.train.parity import ParityCheck, ParityError
from qwenvl.types import RolloutBatch


def checked(sampled, trained, **settings) -> dict[str, float]:
    """What is logged of one row of completion tokens with these log-probs of sampler and trainer."""
    mask = torch.arange(sampled.shape[1])[None] < sampled.shape[1] - 1  # the last one is padding
    rollout = RolloutBatch(mask.long(), mask, ["x"], ["stop"], sampled)
    batch = SimpleNamespace(records=[])
    meter, log = Meter(), SimpleNamespace(log_parity=list)
    experience = SimpleNamespace(rollout=rollout, old_logprobs=trained, staleness=0, batch=batch)
    ParityCheck(GRPOConfig(use_cpu=True, **settings), meter, log)(0, experience)
    return meter.flush()


def test_differences_are_measured_over_tokens_that_count():
    found = checked(torch.tensor([[-1.001, -2.0, 9.0]]), torch.tensor([[-1.0, -2.0, 0.0]]))
    assert found == {"parity/max": pytest.approx(1e-3, rel=1e-2), "parity/mean": pytest.approx(5e-4, rel=1e-2)}


@pytest.mark.parametrize(("difference", "half"), [(0.02, False), (0.005, False), (0.06, True), (3.0, True)])
def test_what_rounding_does_not_explain_stops_the_run(difference, half):
    ours = torch.tensor([[-1.0, -2.0, 0.0]])
    with pytest.raises(ParityError, match="positions, frames or templates"):
        checked(ours - difference, ours, bf16=half)


def test_half_precision_may_round_a_single_token_far_off():
    theirs = torch.zeros(1, 101)
    theirs[0, 3] = 1.5
    checked(theirs, torch.zeros(1, 101), bf16=True)


def test_dropout_on_adapters_leaves_it_out_which_is_said_once(make_trainer, tmp_path, caplog):
    settings = {"lora_enable": True, "lora_r": 4, "lora_dropout": 0.5, "gradient_accumulation_steps": 2, "max_steps": 1}
    make_trainer(**settings).train()
    assert caplog.text.count("check_parity: left out, because lora_dropout") == 1
    assert not list(read_parity(tmp_path / "run"))


def test_how_far_each_completion_is_off_is_written_down(make_trainer, tmp_path):
    """Of the checked steps alone, and of a run that the check stops too."""
    trainer = make_trainer(check_parity="every", per_device_train_batch_size=2)
    trainer.train()
    log, rollouts = read_parity(tmp_path / "run"), list(read_rollouts(tmp_path / "run"))
    assert [each.step for each in log] == [1, 1, 2, 2]
    assert {(each.step, each.where) for each in log} == {(each.step, each.where) for each in rollouts}
    assert all(len(each.gaps) == 3 for each in log)
    largest = [max(max(each.gaps) for each in log if each.step == step) for step in (1, 2)]
    assert largest == [row["parity/max"] for row in read_metrics(tmp_path / "run", "train")]

    stopped = make_trainer(output_dir=str(tmp_path / "stopped"))
    other, plain = {"calls": 0}, stopped.completion_likelihood

    def off(*args):
        likelihood = plain(*args)
        other["calls"] += 1
        return likelihood._replace(logprobs=likelihood.logprobs - 5 if other["calls"] == 1 else likelihood.logprobs)

    stopped.completion_likelihood = off
    with pytest.raises(ParityError):
        stopped.train()
    assert [round(gap) for each in read_parity(tmp_path / "stopped") for gap in each.gaps] == [5, 5, 5]
