"""When sampler and trainer are said to disagree."""

import pytest
import torch

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
