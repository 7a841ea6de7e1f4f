"""Stages without a trainer, on made inputs: what is replaced, what is reused, and what is drawn for which purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from qwenvl.model.logprobs import Likelihood
from qwenvl.step.logprobs import Logprobs
from qwenvl.step.penalty import KLInReward
from qwenvl.step.pipeline import Pipeline
from qwenvl.step.processes import Processes
from qwenvl.step.refill import Refill
from qwenvl.step.sample import seed_of
from qwenvl.step.types import Experience, FixedLogprobs, Scored, Stage, StepContext
from qwenvl.types import PromptBatch, RewardBatch
from tests.step.made import RECORD, batch, context, scored


def numbered(*numbers: int) -> PromptBatch:
    """Prompts of the records with these numbers."""
    made = batch(len(numbers))
    made.records = [replace(RECORD, id=str(number), index=number) for number in numbers]
    # What a collator fills in for each prompt.
    made.images_per_prompt = made.videos_per_prompt = [0] * len(numbers)
    made.fitted, made.opened_think = [None] * len(numbers), [False] * len(numbers)
    return made


class OddTeachNothing:
    """Groups of two: those of odd records have equal rewards."""

    def __init__(self):
        self.asked: list[tuple[tuple[object, ...], list[list[int]]]] = []

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[Scored]:
        numbers = [[record.index for record in each.records] for each in batches]
        self.asked.append((step.purpose, numbers))
        made = []
        for each, own in zip(batches, numbers, strict=True):
            rewards = []
            for number in own:
                rewards += [1.0, 1.0] if number % 2 else [0.0, float(number)]
            made.append(replace(scored([1] * len(rewards), rewards, prompts=len(own)), batch=each))
        return made


@dataclass
class InOrder:
    """Draws the records from 10 on, as many as are missing, and keeps what it was asked."""

    asked: list[tuple[int, set[int]]]
    next_number: int = 10

    def draw(self, step: int, epoch: int, number: int, missing: int, had: set[int]) -> list[tuple[int, int]]:
        self.asked.append((missing, set(had)))
        first, self.next_number = self.next_number, self.next_number + missing
        return [(epoch, index) for index in range(first, first + missing)]


class Indices:
    """A data set whose sample of a key is the number of the record."""

    def __getitem__(self, key: tuple[int, int]) -> int:
        return key[1]


def refill(
    groups: Stage[PromptBatch, Scored], order: InOrder, rounds: int, by: str = "total", by_function: bool = False
) -> Refill:
    return Refill(
        groups=groups,
        dataset=Indices(),
        collate=lambda numbers: {"prompts": numbered(*numbers)},
        order=order,
        by=by,
        rounds=rounds,
        group_size=2,
        by_function=by_function,
        processes=Processes(),
    )


def test_groups_that_teach_nothing_are_replaced_in_rounds_and_kept_for_the_run_folder():
    """Of records 1, 2 and 3, 4: 1 and 3 teach nothing. Round 1 draws 10 and 11, and 11 teaches nothing: round 2 draws
    12 in its place."""
    groups, order, step = OddTeachNothing(), InOrder([]), context()
    one, two = refill(groups, order, rounds=3)([numbered(1, 2), numbered(3, 4)], step)
    assert [record.index for record in one.batch.records] == [10, 2]
    assert [record.index for record in two.batch.records] == [12, 4]
    assert one.rewards.total.tolist() == [0.0, 10.0, 0.0, 2.0] and two.rewards.total.tolist() == [0.0, 12.0, 0.0, 4.0]
    assert [[r.index for r in each.batch.records] for each in one.dropped] == [[1]]
    assert [[r.index for r in each.batch.records] for each in two.dropped] == [[3], [11]]
    assert [[r.index for r in each.records] for each in two.refills] == [[11], [12]]
    had = {1, 2, 3, 4}
    assert order.asked == [(2, had), (1, had | {10, 11}), (0, had | {10, 11, 12})]
    assert groups.asked == [
        ((), [[1, 2], [3, 4]]),
        (("refill", 0, 1), [[10], [11]]),
        (("refill", 0, 2), [[], [12]]),  # the first micro-batch takes part without prompts
    ]
    logged = step.meter.flush()
    # Seven groups were sampled, and four of them teach something.
    assert logged["filter/kept_frac"] == pytest.approx(4 / 7)
    assert logged["filter/rounds"] == 2 and logged["filter/unfilled_frac"] == 0


def test_a_group_that_no_round_replaces_stays():
    step = context()
    [part] = refill(OddTeachNothing(), InOrder([], next_number=11), rounds=1)([numbered(1, 2)], step)
    assert [record.index for record in part.batch.records] == [1, 2]
    assert step.meter.flush()["filter/unfilled_frac"] == 0.5


def open_groups(
    functions: dict[str, list[float | None]], weights: tuple[float, ...], by: str, by_function: bool
) -> list[bool]:
    """For each group of two whether it would be replaced, given the values of each reward function."""
    prompts = len(next(iter(functions.values()))) // 2
    values = [[math.nan if each is None else each for each in column] for column in functions.values()]
    total = sum(weight * torch.tensor(column).nan_to_num() for weight, column in zip(weights, values, strict=True))
    rewards = RewardBatch(tuple(functions), weights, list(functions.values()), total)
    part = replace(scored([1] * 2 * prompts, [0.0] * 2 * prompts, prompts=prompts), rewards=rewards)
    stage = refill(lambda batches, step: [part], InOrder([]), rounds=1, by=by, by_function=by_function)
    return stage.equal(part.rewards)


def test_groups_are_replaced_by_the_values_of_one_function():
    """The totals of all groups differ by `letters`. Groups without values of `right` go by their totals."""
    letters = [0.0, 0.1] * 4
    right = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, None, None]
    functions = {"right": right, "letters": letters}
    assert open_groups(functions, (1.0, 1.0), "right", by_function=False) == [True, True, False, False]
    assert open_groups(functions, (1.0, 1.0), "total", by_function=False) == [False] * 4


UP, DOWN, SAME = [0.0, 1.0, 0.0, 1.0], [0.0, -1.0, 0.0, 0.0], [1.0] * 4


@pytest.mark.parametrize(
    ("functions", "weights", "by_function", "replaced"),
    [
        ({"up": UP, "down": DOWN}, (1.0, 1.0), False, [True, False]),
        ({"up": UP, "down": DOWN}, (1.0, 1.0), True, [False, False]),  # functions that cancel out
        ({"up": UP, "same": SAME}, (0.0, 1.0), True, [True, True]),  # a reward without weight: all advantages are 0
    ],
    ids=["by the total", "by each function", "without the function of weight 0"],
)
def test_gdpo_keeps_groups_by_each_function_that_weighs(functions, weights, by_function, replaced):
    assert open_groups(functions, weights, "total", by_function) == replaced


def test_draws_are_a_function_of_seed_process_records_and_purpose():
    prompts, step = [numbered(1), numbered(2)], context()
    seeds = {
        seed_of(prompts, step),
        seed_of([numbered(2), numbered(1)], step),
        seed_of(prompts, context(process=1)),
        seed_of(prompts, replace(step, seed=1)),
        seed_of(prompts, step.drawing_for("refill", 0, 1)),
    }
    assert len(seeds) == 5
    assert seed_of([numbered(1, 2)], context()) == seed_of(prompts, step), "not of how prompts are grouped"


class Constant:
    """A likelihood that gives each token of a model the log-prob that the model is."""

    def of_rollout(self, model, prompts, rollout, **settings) -> Likelihood:
        return Likelihood(torch.full(rollout.completion_mask.shape, float(model.value)))

    def exact_logprobs(self, model, prompts, rollout):
        raise AssertionError("nothing is compared here")


class Model(torch.nn.Module):
    def __init__(self, value: float):
        super().__init__()
        self.value = value


class FrozenModel:
    """A reference that counts how often it is asked for."""

    def __init__(self, value: float):
        self.value, self.asked = value, 0

    def model(self):
        self.asked += 1
        return SimpleContext(Model(self.value))


class SimpleContext:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *error):
        return None


def with_logprobs(part: Scored, value: float) -> Scored:
    logprobs = torch.full(part.rollout.completion_mask.shape, value)
    return replace(part, rollout=replace(part.rollout, logprobs=logprobs))


def test_the_kl_in_the_reward_is_beta_times_the_difference_over_the_sampled_tokens():
    """Log-probs -1 of the policy and -1.5 of the reference: 0.5 for each token, times 0.2."""
    stage = KLInReward(FrozenModel(-1.5), Constant(), beta=0.2)
    one, none = stage([with_logprobs(scored([3, 1], [1.0, 1.0]), -1.0), scored([], prompts=0)], context())
    assert one.penalty.amounts.tolist() == pytest.approx([0.3, 0.1])
    assert one.compared_rewards.total.tolist() == pytest.approx([0.7, 0.9])
    assert one.rewards.total.tolist() == [1.0, 1.0]
    assert none.penalty.amounts.numel() == 0
    with pytest.raises(ValueError, match="kl_in_reward"):
        stage([scored([1])], context())


def experience(sampled_at: float, staleness: int = 0) -> Experience:
    part = with_logprobs(scored([2, 1]), sampled_at)
    return Experience(
        **{**vars(part), "staleness": staleness}, advantages=torch.zeros(2), loss_mask=part.rollout.completion_mask
    )


def logprobs_stage(reference: FrozenModel | None, ratio_from_sampler: bool = False) -> Logprobs:
    parity = SimpleNamespace(check=lambda *given: None, probe=lambda *given: None)
    return Logprobs(
        likelihood=Constant(),
        reference=reference,
        teacher=None,
        parity=parity,
        sample=None,
        ratio_from_sampler=ratio_from_sampler,
    )


def test_the_first_iteration_fixes_old_policy_and_reference_and_later_ones_reuse_them():
    reference = FrozenModel(-2.0)
    stage, part = logprobs_stage(reference), experience(-9.0)
    policy, fixed = stage(Model(-1.0), part, None, "none", context())
    assert policy.logprobs.eq(-1.0).all() and fixed.old.eq(-1.0).all() and fixed.reference.eq(-2.0).all()
    later, again = stage(Model(-3.0), part, fixed, "none", context())
    assert later.logprobs.eq(-3.0).all() and again.old is fixed.old and again.reference is fixed.reference
    assert reference.asked == 1 and not fixed.old_is_sampler


@pytest.mark.parametrize(("staleness", "old"), [(0, -1.0), (2, -9.0)])
def test_the_ratio_of_completions_of_older_weights_may_reach_back_to_them(staleness, old):
    stage = logprobs_stage(None, ratio_from_sampler=True)
    _, fixed = stage(Model(-1.0), experience(-9.0, staleness), None, "none", context())
    assert fixed.old.eq(old).all() and fixed.old_is_sampler == (staleness > 0) and fixed.reference is None
    assert isinstance(fixed, FixedLogprobs)


def test_stages_of_a_pipeline_run_in_order_within_the_weights_of_the_policy():
    done = []

    class Sampler:
        def ready(self, step):
            return SimpleContext(done.append("ready"))

        def finish(self, step):
            done.append("finish")

    def stage(name):
        return lambda batches, step: done.append(name) or batches

    pipeline = Pipeline(Sampler(), stage("groups"), (stage("kl"), stage("own")), stage("compare"), stage("count"))
    assert pipeline([numbered(1)], context()) and done == [
        "ready", "groups", "finish", "kl", "own", "compare", "count",
    ]  # fmt: skip
