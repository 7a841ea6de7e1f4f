"""When sampler and trainer are said to disagree."""

import pytest
import torch

from qwenvl.grpo.diagnostics import logprob_gaps
from qwenvl.runlog import read_metrics, read_parity, read_rollouts
from qwenvl.train.meter import Meter
from qwenvl.train.parity import ParityError, check_parity
from qwenvl.types import RolloutBatch


def rollout(logprobs):
    mask = torch.tensor([[True, True, False]])
    return RolloutBatch(torch.ones(1, 3, dtype=torch.long), mask, ["x"], ["stop"], logprobs)


def test_differences_are_measured_over_tokens_that_count():
    meter = Meter()
    ours = torch.tensor([[-1.0, -2.0, 0.0]])
    check_parity(rollout(torch.tensor([[-1.001, -2.0, 9.0]])), ours, half_precision=False, meter=meter)
    assert meter.flush() == {"parity/max": pytest.approx(1e-3, rel=1e-2), "parity/mean": pytest.approx(5e-4, rel=1e-2)}


@pytest.mark.parametrize(("difference", "half"), [(0.02, False), (0.005, False), (0.06, True), (3.0, True)])
def test_what_rounding_does_not_explain_stops_the_run(difference, half):
    ours = torch.tensor([[-1.0, -2.0, 0.0]])
    with pytest.raises(ParityError, match="positions, frames or templates"):
        check_parity(rollout(ours - difference), ours, half_precision=half, meter=Meter())


def test_half_precision_may_round_a_single_token_far_off():
    ours = torch.zeros(1, 100)
    theirs = RolloutBatch(torch.ones(1, 100).long(), torch.ones(1, 100).bool(), ["x"], ["stop"], ours.clone())
    theirs.logprobs[0, 3] = 1.5
    check_parity(theirs, ours, half_precision=True, meter=Meter())


def test_an_engine_without_logprobs_is_not_compared():
    meter = Meter()
    check_parity(rollout(None), torch.zeros(1, 3), half_precision=False, meter=meter)
    assert meter.flush() == {}


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


def test_gaps_are_those_of_each_row():
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    ours, theirs = torch.zeros(3, 3), torch.tensor([[0.5, -0.25, 9.0], [0.125, 9.0, 9.0], [9.0, 9.0, 9.0]])
    assert logprob_gaps(theirs, ours, mask) == [0.5, 0.125, 0.0]
