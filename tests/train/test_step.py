"""One optimizer step: its counts, the experience of each micro-batch, and the further steps on the same completions."""

import pytest
import torch

from qwenvl.grpo.surrogates import StepCounts
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.train.step import Experience, Step
from qwenvl.types import BadSample, PromptBatch, Record, RewardBatch, RolloutBatch

RECORD = Record("r", (), "", (), (), (), {}, "data.json[0]")
REWARDS = RewardBatch((), (), [], torch.zeros(0))


def batch(prompts: int, bad: int = 0) -> PromptBatch:
    ids = torch.ones(prompts, 3, dtype=torch.long)
    failed = [BadSample(RECORD, "broken")] * bad
    return PromptBatch([RECORD] * prompts, [0] * prompts, [[]] * prompts, ids, ids, bad=failed)


def experience(lengths: list[int], counted: list[bool] | None = None, place: PromptBatch | None = None) -> Experience:
    """Completions of these lengths."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rollout = RolloutBatch(ids, mask, texts=[""] * len(lengths), finish_reasons=["stop"] * len(lengths))
    counted = torch.tensor([True] * len(lengths) if counted is None else counted)
    prompts = PromptInputs.of_text(torch.ones(1, 3, dtype=torch.long))
    return Experience(place or batch(1), prompts, rollout, REWARDS, torch.zeros(len(lengths)), counted)


def test_completions_and_tokens_are_counted_and_those_of_a_stand_in_are_not():
    step = Step.of([batch(1), batch(0), batch(1)], [experience([3, 1]), experience([1], [False]), experience([2, 4])])
    assert step.counts == StepCounts(completions=4, tokens=10, micro_batches=3)


def test_completions_and_tokens_of_all_processes_are_counted(monkeypatch):
    monkeypatch.setattr("qwenvl.train.step.gather_object", lambda own: [*own, [(2, 7), (0, 0)]])
    step = Step.of([batch(1), batch(1)], [experience([3, 1]), experience([2, 4])])
    assert step.counts == StepCounts(completions=6, tokens=17, micro_batches=4)


def test_tokens_that_do_not_count_are_masked_in_the_loss():
    part = experience([2, 1], [True, False])
    part.old_logprobs = torch.zeros(2, 2)
    inputs = part.loss_inputs(Likelihood(torch.ones(2, 2), torch.ones(2, 2)))
    assert inputs.mask.tolist() == [[True, True], [False, False]]
    assert part.rollout.completion_mask.tolist() == [[True, True], [True, False]]  # of forwards and of the run folder


def test_each_iteration_has_the_same_experiences_in_the_same_order():
    places = [batch(2), batch(0, bad=2), batch(1)]
    parts = [experience([1]) for _ in places]
    step = Step.of(places, parts)
    for iteration in range(3):
        assert step.iteration == iteration
        assert [step.experience_of(place) for place in reversed(places)] == parts[::-1]
        places = [batch(0) for _ in range(3)]
        step = step.again(places)


def test_a_micro_batch_of_another_step_is_an_error():
    step = Step.of([batch(1)], [experience([1])])
    with pytest.raises(RuntimeError, match="not drawn for this optimizer step"):
        step.experience_of(batch(1))


@pytest.mark.parametrize("drawn", [[batch(1)], [batch(0, bad=1)], []], ids=["a prompt", "a bad sample", "nothing"])
def test_what_is_drawn_between_the_iterations_must_be_empty(drawn):
    step = Step.of([batch(1)], [experience([1])])
    with pytest.raises(RuntimeError, match="in the midst of the steps on the same completions"):
        step.again(drawn)
