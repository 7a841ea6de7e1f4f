"""One optimizer step: its counts, the experience of each micro-batch, and the further steps on the same completions."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.loss import StepCounts
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import Likelihood
from qwenvl.step.count import Experience, Step
from qwenvl.types import BadSample, PromptBatch, Record, RewardBatch, RolloutBatch

RECORD = Record("r", (), "", (), (), (), {}, "data.json[0]")
REWARDS = RewardBatch((), (), [], torch.zeros(0))
ARGS = GRPOConfig(use_cpu=True)


def batch(prompts: int, bad: int = 0) -> PromptBatch:
    ids = torch.ones(prompts, 3, dtype=torch.long)
    failed = [BadSample(RECORD, "broken")] * bad
    return PromptBatch([RECORD] * prompts, [0] * prompts, [[]] * prompts, ids, ids, bad=failed)


def experience(lengths: list[int]) -> Experience:
    """Completions of these lengths."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rollout = RolloutBatch(ids, mask, texts=[""] * len(lengths), finish_reasons=["stop"] * len(lengths))
    prompts = PromptInputs.of_text(torch.ones(1, 3, dtype=torch.long))
    return Experience(batch(1), prompts, rollout, REWARDS, torch.zeros(len(lengths)), mask)


def stand_in() -> Experience:
    """The experience of a micro-batch without prompts."""
    one = experience([1])
    return replace(one, batch=batch(0), loss_mask=torch.zeros_like(one.loss_mask))


def test_completions_and_tokens_are_counted_and_those_of_a_stand_in_are_not():
    step = Step.of([experience([3, 1]), stand_in(), experience([2, 4])], ARGS)
    assert step.counts == StepCounts(completions=4, tokens=10, micro_batches=3)


def test_the_wait_for_other_processes_is_measured(monkeypatch):
    done = []

    @contextmanager
    def clock(name):
        done.append(name)
        yield
        done.append("ends")

    monkeypatch.setattr("qwenvl.step.count.gather_object", lambda own: done.append("gathers") or own)
    Step.of([experience([3])], ARGS, clock)
    assert done == ["time/wait_s", "gathers", "ends"]


def test_completions_and_tokens_of_all_processes_are_counted(monkeypatch):
    monkeypatch.setattr("qwenvl.step.count.gather_object", lambda own: [*own, [(2, 7), (0, 0)]])
    step = Step.of([experience([3, 1]), experience([2, 4])], ARGS)
    assert step.counts == StepCounts(completions=6, tokens=17, micro_batches=4)


def test_tokens_that_do_not_count_are_masked_in_the_loss():
    part = stand_in()
    part.old_logprobs = torch.zeros(1, 1)
    inputs = part.loss_inputs(Likelihood(torch.ones(1, 1), torch.ones(1, 1)))
    assert inputs.mask.tolist() == [[False]]
    assert part.rollout.completion_mask.tolist() == [[True]]  # of forwards and of the run folder


def cut(part: Experience, *rows: int) -> Experience:
    """The experience with the completions of these rows cut at the limit."""
    part.rollout.finish_reasons = ["length" if n in rows else "stop" for n in range(len(part.advantages))]
    return part


def test_completions_that_were_cut_count_without_their_tokens():
    parts = [cut(experience([3, 1]), 0), cut(stand_in(), 0), cut(experience([2, 4]), 0, 1)]
    step = Step.of(parts, GRPOConfig(use_cpu=True, mask_truncated_completions=True))
    assert step.counts == StepCounts(completions=4, tokens=1, micro_batches=3)
    assert parts[0].loss_mask.tolist() == [[False] * 3, [True, False, False]]
    assert not parts[1].loss_mask.any() and not parts[2].loss_mask.any()
    assert Step.of([cut(experience([3, 1]), 0), parts[2]], ARGS).counts.tokens == 4  # without the rule


def with_entropies(part: Experience, *rows: list[float]) -> Experience:
    entropies = torch.full(part.rollout.completion_mask.shape, 99.0)  # what stands behind an end does not count
    for n, row in enumerate(rows):
        entropies[n, : len(row)] = torch.tensor(row)
    part.rollout.entropies = entropies
    return part


def test_the_tokens_of_highest_entropy_are_those_of_the_whole_step(monkeypatch):
    parts = [
        with_entropies(experience([3, 1]), [0.1, 0.9, 0.3], [0.8]),
        stand_in(),  # a stand-in has no entropies
        with_entropies(cut(experience([2, 2]), 1), [0.2, 0.4], [5.0, 5.0]),
    ]
    other = [torch.tensor([0.7, 0.6]), torch.tensor([0.5, 0.05])]  # of another process
    monkeypatch.setattr(
        "qwenvl.step.count.gather_object",
        lambda own: [*own, other if isinstance(own[0][0], torch.Tensor) else [(2, 2), (1, 2)]],
    )
    rules = GRPOConfig(use_cpu=True, mask_truncated_completions=True, top_entropy_quantile=0.5)
    step = Step.of(parts, rules)
    # Ten tokens: place 9 * 0.5, rounded up, is the sixth from below, 0.5.
    assert parts[0].policy_mask.tolist() == [[False, True, False], [True, False, False]]
    assert parts[2].policy_mask.tolist() == [[False, False], [False, False]]
    assert parts[1].policy_mask is None and parts[0].loss_inputs(Likelihood(torch.ones(2, 3))).policy_mask is not None
    assert step.counts.tokens == 10
    assert step.counts.entropy == pytest.approx((0.1 + 0.9 + 0.3 + 0.8 + 0.2 + 0.4 + 0.7 + 0.6 + 0.5 + 0.05) / 10)
    assert step.next_iteration([batch(0)] * 3).counts == step.counts


def test_a_step_without_tokens_has_no_entropy():
    parts = [with_entropies(cut(experience([2]), 0), [0.2, 0.4])]
    step = Step.of(parts, GRPOConfig(use_cpu=True, mask_truncated_completions=True, top_entropy_quantile=0.2))
    assert step.counts.entropy is None and not parts[0].policy_mask.any()


def test_what_the_engine_did_not_give_is_missed():
    with pytest.raises(ValueError, match="this engine does not give them"):
        Step.of([experience([1])], GRPOConfig(use_cpu=True, top_entropy_quantile=0.2))
    corrects = GRPOConfig(use_cpu=True, rollout_engine="vllm_server", vllm_server=["h:1"])
    with pytest.raises(ValueError, match="the engine gave no log-probs"):
        Step.of([experience([1])], corrects)
    part = experience([2, 1])
    part.rollout.logprobs = torch.tensor([[-1.0, -2.0], [-1.0, math.nan]])
    Step.of([part], corrects)
    assert part.sampler_logprobs is part.rollout.logprobs
    part.rollout.logprobs[0, 1] = -math.inf
    with pytest.raises(ValueError, match="the engine gave a token no finite log-prob"):
        Step.of([part], corrects)


def test_each_iteration_has_the_same_experiences_in_the_same_order():
    parts = [experience([1]) for _ in range(3)]
    step = Step.of(parts, ARGS)
    for iteration in range(3):
        assert step.iteration == iteration
        assert list(step.experiences) == parts
        step = step.next_iteration([batch(0) for _ in range(3)])


@pytest.mark.parametrize("drawn", [[batch(1)], [batch(0, bad=1)], []], ids=["a prompt", "a bad sample", "nothing"])
def test_what_is_drawn_between_the_iterations_must_be_empty(drawn):
    step = Step.of([experience([1])], ARGS)
    with pytest.raises(RuntimeError, match="in the midst of the steps on the same completions"):
        step.next_iteration(drawn)
