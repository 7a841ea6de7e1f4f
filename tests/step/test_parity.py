"""When sampler and trainer are said to disagree."""

from types import SimpleNamespace

import pytest
import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.runlog import read_metrics
from qwenvl.step.meter import Meter
from qwenvl.step.parity import ParityCheck, ParityError
from qwenvl.types import RolloutBatch


def checked(sampled, trained, exact=None, **settings) -> dict[str, float]:
    """What is logged of one row of completion tokens with these log-probs of sampler and trainer."""
    mask = torch.arange(sampled.shape[1])[None] < sampled.shape[1] - 1  # the last one is padding
    rollout = RolloutBatch(
        mask.long(), mask, ["x"], ["stop"], sampled, boots=frozenset(["a"] if exact is not None else [])
    )
    meter, experience = Meter(), SimpleNamespace(rollout=rollout, staleness=0)
    ParityCheck(GRPOConfig(use_cpu=True, **settings), meter).check(0, experience, trained, lambda: exact)
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
    assert not any("parity/max" in row for row in read_metrics(tmp_path / "run"))


def test_a_server_in_half_precision_is_held_to_the_trainers_own_rounding():
    ours = torch.zeros(1, 101)
    exact = ours + 0.03
    found = checked(
        ours + 0.059, ours, exact, bf16=True
    )  # less than twice the rounding, more than without a measurement
    assert found["parity/noise"] == pytest.approx(0.03) and found["parity/mean"] == pytest.approx(0.059)
    with pytest.raises(ParityError, match=r"expected at most 2 and 0\.06"):
        checked(ours + 0.07, ours, exact, bf16=True)
