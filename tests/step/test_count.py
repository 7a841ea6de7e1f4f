"""One optimizer step: its counts, the tokens of high entropy, and the further steps on the same completions."""

from dataclasses import replace

import pytest
import torch

from qwenvl.grpo.loss import StepCounts
from qwenvl.model.logprobs import Likelihood
from qwenvl.step import count as count_stage
from qwenvl.step.compare import Compare, no_advantages
from qwenvl.step.count import Count
from qwenvl.step.types import Experience, FixedLogprobs, Scored, TeacherScores, TrainStep
from tests.step.made import batch, context, nothing, scored

CPU = torch.device("cpu")


def experiences(*parts: Scored, leaves_out_truncated: bool = False) -> list[Experience]:
    return Compare(no_advantages, CPU, leaves_out_truncated, corrects_for_sampler=False)(parts, context())


def step_of(*parts: Scored, leaves_out_truncated: bool = False, top_entropy: float = 1.0) -> TrainStep:
    count = Count(CPU, reads_entropies=top_entropy < 1, top_entropy=top_entropy)
    return count(experiences(*parts, leaves_out_truncated=leaves_out_truncated), context())


def test_completions_and_tokens_are_counted_except_those_of_a_stand_in():
    step = step_of(scored([3, 1]), nothing(), scored([2, 4]))
    assert step.counts == StepCounts(completions=4, tokens=10, micro_batches=2, passes=3)


def test_the_wait_for_other_processes_is_measured():
    step = context()
    Count(CPU, reads_entropies=False, top_entropy=1.0)(experiences(scored([3])), step)
    assert "time/wait_s/1" in step.meter.flush(lambda state: [state, state])  # as two processes log it


def test_completions_and_tokens_of_all_processes_are_counted(monkeypatch):
    """The other process has as many micro-batches, one of them without prompts."""
    other = torch.tensor([2, 7, 1, 2])
    monkeypatch.setattr(count_stage, "reduce", lambda own, how: {"sum": own + other}[how])
    step = step_of(scored([3, 1]), scored([2, 4]))
    assert step.counts == StepCounts(completions=6, tokens=17, micro_batches=3, passes=4)


def test_completions_that_were_cut_count_without_their_tokens():
    parts = [scored([3, 1], cut=(0,)), nothing(), scored([2, 4], cut=(0, 1))]
    step = step_of(*parts, leaves_out_truncated=True)
    assert step.counts == StepCounts(completions=4, tokens=1, micro_batches=2, passes=3)
    first, second, third = (each.loss_mask for each in step.experiences)
    assert first.tolist() == [[False] * 3, [True, False, False]]
    assert not second.any() and not third.any()
    assert step_of(parts[0]).counts.tokens == 4  # without the rule


def with_entropies(part: Scored, *rows: list[float]) -> Scored:
    entropies = torch.full(part.rollout.completion_mask.shape, 99.0)  # what stands behind an end does not count
    for n, row in enumerate(rows):
        entropies[n, : len(row)] = torch.tensor(row)
    return replace(part, rollout=replace(part.rollout, entropies=entropies))


def test_tokens_of_highest_entropy_are_chosen_over_the_whole_step(monkeypatch):
    parts = [
        with_entropies(scored([3, 1]), [0.1, 0.9, 0.3], [0.8]),
        nothing(),  # its stand-in has no entropies
        with_entropies(scored([2, 2], cut=(1,)), [0.2, 0.4], [5.0, 5.0]),
    ]
    other = [torch.tensor([0.7, 0.6]), torch.tensor([0.5, 0.05])]
    monkeypatch.setattr(count_stage, "gather_object", lambda own: [*own, other])
    step = step_of(*parts, leaves_out_truncated=True, top_entropy=0.5)
    # Ten tokens: place 9 * 0.5, rounded up, is the sixth from below, 0.5.
    first, second, third = (step.policy_mask(each) for each in step.experiences)
    assert first.tolist() == [[False, True, False], [True, False, False]]
    assert third.tolist() == [[False, False], [False, False]]
    assert second is None
    assert step.counts.entropy == pytest.approx((0.1 + 0.9 + 0.3 + 0.8 + 0.2 + 0.4 + 0.7 + 0.6 + 0.5 + 0.05) / 10)
    assert step.next_iteration([batch(0)] * 3).counts == step.counts


def test_a_step_without_tokens_has_no_entropy():
    part = with_entropies(scored([2], cut=(0,)), [0.2, 0.4])
    step = step_of(part, leaves_out_truncated=True, top_entropy=0.2)
    assert step.counts.entropy is None and not step.policy_mask(step.experiences[0]).any()


def test_entropies_that_the_engine_did_not_give_are_missed():
    with pytest.raises(ValueError, match="--top_entropy_quantile"):
        step_of(scored([1]), top_entropy=0.2)


def test_each_iteration_has_the_same_experiences_in_the_same_order():
    step = step_of(*(scored([1]) for _ in range(3)))
    parts = step.experiences
    for iteration in range(3):
        assert step.iteration == iteration
        assert all(one is other for one, other in zip(step.experiences, parts, strict=True))
        step = step.next_iteration([batch(0) for _ in range(3)])


@pytest.mark.parametrize("drawn", [[batch(1)], [batch(0, bad=1)], []], ids=["a prompt", "a bad sample", "nothing"])
def test_batches_drawn_between_the_iterations_must_be_empty(drawn):
    with pytest.raises(RuntimeError, match="num_iterations"):
        step_of(scored([1])).next_iteration(drawn)


def test_fixed_logprobs_stay_with_their_micro_batch_in_later_iterations():
    step = step_of(scored([1]), scored([2]))
    assert step.fixed_of(0) is None and step.fixed_of(1) is None
    second = FixedLogprobs(torch.zeros(1, 2))
    step = step.with_fixed(1, second)
    assert step.fixed_of(0) is None and step.fixed_of(1) is second
    assert step.next_iteration([batch(0)] * 2).fixed_of(1) is second


def test_the_loss_is_computed_from_masks_and_fixed_logprobs():
    """The stand-in's token counts nowhere; a teacher adds its advantages, and weighs the KL to it."""
    step = step_of(nothing(), scored([2, 1]))
    stand_in, part = step.experiences
    nowhere = step.loss_inputs(stand_in, Likelihood(torch.ones(1, 1)), FixedLogprobs(torch.zeros(1, 1)))
    assert nowhere.mask.tolist() == [[False]]
    assert stand_in.rollout.completion_mask.tolist() == [[True]]  # for the forward, which other processes wait for

    part = replace(part, advantages=torch.tensor([1.0, -1.0]))
    scores = TeacherScores(torch.zeros(2, 2), torch.zeros(2, 2), weights=torch.tensor([[0.5, 0.25], [1.0, 1.0]]))
    fixed = FixedLogprobs(
        old=torch.full((2, 2), -3.0),
        reference=torch.full((2, 2), -4.0),
        teacher=scores,
        taught=torch.tensor([[0.1, 0.2], [0.3, 0.0]]),
    )
    policy = Likelihood(torch.full((2, 2), -2.0), divergences=torch.full((2, 2), 8.0))
    inputs = step.loss_inputs(part, policy, fixed)
    assert inputs.advantages.tolist() == [pytest.approx([1.1, 1.2]), pytest.approx([-0.7, -1.0])]
    assert inputs.divergences.tolist() == [[4.0, 2.0], [8.0, 8.0]]
    assert inputs.old_logprobs is fixed.old and inputs.ref_logprobs is fixed.reference
    assert inputs.log_ratio.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert inputs.mask.tolist() == [[True, True], [True, False]] and inputs.policy_mask is None
