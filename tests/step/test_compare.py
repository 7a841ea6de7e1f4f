"""Rewards to advantages: relative to the group, among all processes, less the KL; and the tokens that count."""

import math
from dataclasses import replace

import pytest
import torch

from qwenvl.grpo.advantages import group_advantages
from qwenvl.step.compare import Compare, GroupAdvantages, no_advantages, value_table
from qwenvl.step.processes import Processes
from qwenvl.step.types import KLPenalty, Scored
from qwenvl.types import RewardBatch
from tests.step.made import context, nothing, scored

CPU = torch.device("cpu")


class TwoProcesses:
    """Process 1 of two, whose other process has a table of its own."""

    def __init__(self, other: torch.Tensor):
        self.other = other

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        return [self.other, own]


def compare(*parts: Scored, estimator="grpo", scale="none", processes=None, process=0, own_weights=False):
    advantages = GroupAdvantages(2, estimator, scale, processes or Processes())
    stage = Compare(advantages, CPU, leaves_out_truncated=False, corrects_for_sampler=own_weights)
    return stage(parts, context(process))


def test_each_reward_is_compared_with_its_group():
    """Two micro-batches of one and of two prompts, and one without prompts, whose stand-in has advantage 0."""
    one, none, two = compare(
        scored([1, 1], [1.0, 3.0]), nothing(), scored([1] * 4, [0.0, 0.0, 5.0, 1.0], prompts=2)
    )
    assert one.advantages.tolist() == [-1.0, 1.0]
    assert none.advantages.tolist() == [0.0] and none.completions == 0
    assert two.advantages.tolist() == [0.0, 0.0, 2.0, -2.0] and two.completions == 4


def test_a_scale_of_the_whole_step_takes_the_rewards_of_all_processes():
    """Centred by group, divided by the standard deviation of the six rewards of both processes, plus 1e-4."""
    other = torch.tensor([[0.0, 0.0], [4.0, 4.0]])
    rewards = [0.0, 4.0, 1.0, 3.0, 2.0, 2.0]
    mean = sum(rewards) / 6
    deviation = math.sqrt(sum((each - mean) ** 2 for each in rewards) / 5)
    processes = TwoProcesses(other)
    one, two = compare(
        scored([1, 1], [1.0, 3.0]), scored([1, 1], [2.0, 2.0]), scale="batch", processes=processes, process=1
    )
    expected = group_advantages(torch.tensor(rewards), 2, "batch").tolist()
    assert one.advantages.tolist() == pytest.approx(expected[2:4])
    assert two.advantages.tolist() == pytest.approx(expected[4:]) == [0.0, 0.0]
    assert one.advantages[1].item() == pytest.approx(1 / (deviation + 1e-4), rel=1e-4)


def test_the_kl_is_taken_off_before_rewards_are_compared():
    penalty = KLPenalty(torch.tensor([0.5, 1.5], dtype=torch.float64), ref_logprobs=torch.zeros(2, 1))
    [part] = compare(replace(scored([1, 1], [1.0, 3.0]), penalty=penalty))
    assert part.advantages.tolist() == [-0.5, 0.5]  # of 0.5 and 1.5
    assert part.rewards.total.tolist() == [1.0, 3.0] and part.penalty is penalty


def test_a_teacher_alone_gives_no_advantages():
    stage = Compare(no_advantages, CPU, leaves_out_truncated=False, corrects_for_sampler=False)
    [part] = stage([scored([1, 2], [1.0, 3.0])], context())
    assert part.advantages.tolist() == [0.0, 0.0] and part.loss_mask.sum() == 3


def test_a_value_that_is_not_there_is_nan():
    rewards = RewardBatch(("a", "b"), (1.0, 2.0), [[1.0, None], [0.5, 0.25]], torch.tensor([2.0, math.nan]))
    expected = torch.tensor([[2.0, 1.0, 0.5], [math.nan, math.nan, 0.25]])
    torch.testing.assert_close(value_table(rewards), expected, equal_nan=True, rtol=0, atol=0)


def test_logprobs_of_an_engine_with_weights_of_its_own_must_be_there():
    with pytest.raises(ValueError, match="no log-probs"):
        compare(scored([1, 1]), own_weights=True)

    def given(logprobs: list[list[float]]) -> Scored:
        part = scored([2, 1])
        return replace(part, rollout=replace(part.rollout, logprobs=torch.tensor(logprobs)))

    [part] = compare(given([[-1.0, -2.0], [-1.0, math.nan]]), own_weights=True)  # the NaN is padding
    assert part.sampler_logprobs is part.rollout.logprobs
    with pytest.raises(ValueError, match="a token no finite log-prob"):
        compare(given([[-1.0, -math.inf], [-1.0, 0.0]]), own_weights=True)
