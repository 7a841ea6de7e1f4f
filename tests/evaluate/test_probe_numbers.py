"""The numbers of a probe, redone by hand."""

import pytest

from qwenvl.evaluate.probe_results import PromptGroup, numbers_of, passed
from qwenvl.rewards import RewardError
from qwenvl.types import BadSample, Message, Record

THOUGHT = "<think>a</think><answer>1</answer>"
QUESTION = {"model": "model", "data": "data", "samples": 4, "group_size": 2}
QUESTION |= {"pass_by": "accuracy", "pass_at": 1.0, "temperature": 0.7}


def group(accuracy, form=(0.0, 0.0, 0.0, 0.0), texts=("a", "b", "a", "a"), tokens=(1, 2, 3, 4), **more) -> PromptGroup:
    total = tuple(None if a is None else a + f for a, f in zip(accuracy, form, strict=True))
    rewards = {"format": tuple(form), "accuracy": tuple(accuracy), "total": total}
    return PromptGroup("data.json[0]", 10, texts, tokens, tuple(count == 4 for count in tokens), rewards, **more)


def test_numbers_by_hand():
    groups = [
        group((1.0, 0.0, 0.0, 0.0), entropy=5.0),
        group((1.0, 1.0, 1.0, 1.0), form=(1.0, 1.0, 0.6, 1.0), texts=(THOUGHT,) * 4, entropy=10.0),
    ]
    record = Record("7", (Message("user", "?"),), "1", (), (), (), {}, "data.json[7]")
    numbers = numbers_of(QUESTION, groups, [BadSample(record, "data.json[7]: gone")], {"all": 6.0})
    assert {k: interval["mean"] for k, interval in numbers["pass_at_k"].items()} == {"1": 0.625, "2": 0.75, "4": 1.0}
    assert numbers["equal_groups"]["mean"] == pytest.approx((3 / 6 + 3 / 6) / 2)  # three of the six pairs, twice
    assert numbers["equal_answers"]["mean"] == pytest.approx((3 / 6 + 1) / 2)
    assert numbers["equal_groups_of_all"]["mean"] == 0.0
    assert numbers["format"]["mean"] == (0 + 3 / 4) / 2
    assert numbers["truncated"]["mean"] == 1 / 4 and numbers["truncated_after_answer"] == 1 / 2
    assert numbers["unique"] == (2 + 1) / 2
    assert numbers["entropy"] == 15.0 / 20
    assert (numbers["completion_tokens"], numbers["longest_completion"], numbers["prompt_tokens"]) == (2.5, 4, 10)
    assert numbers["rewards"]["accuracy"]["mean"] == (1 / 4 + 1) / 2
    assert (numbers["prompts"], numbers["left_out"], numbers["seconds"]) == (2, ["data.json[7]: gone"], {"all": 3.0})
    assert numbers["samples"] == 4 and numbers["rewards"]["total"]["n"] == 2


def test_what_passes_is_the_value_of_one_reward():
    one = group((0.9, 1.0 - 1e-9, None, 0.2))
    assert passed(one, "accuracy", 1.0) == [False, True, False]
    assert passed(one, "total", 0.9) == [True, True, False]


def test_a_prompt_with_too_few_values_is_left_out_of_pass_at_k():
    numbers = numbers_of(QUESTION, [group((1.0, None, 0.0, None)), group((None,) * 4)], [], {})
    assert [(each["mean"], each["n"]) for each in numbers["pass_at_k"].values()][:2] == [(0.5, 1), (1.0, 1)]
    assert numbers["pass_at_k"]["4"] == {"mean": None, "low": None, "high": None, "n": 0}


def test_a_reward_that_applies_nowhere_can_not_tell_what_passes():
    with pytest.raises(RewardError, match="--pass_by accuracy: it has no value for any completion"):
        numbers_of(QUESTION, [group((None,) * 4)], [], {})


def test_an_answer_alone_is_no_form_where_the_prompt_opens_a_think_block():
    alone = ("<answer>1</answer>",) * 3 + ("1",)
    assert numbers_of(QUESTION, [group((1.0,) * 4, texts=alone)], [], {})["answer_only"] == 0.75
    assert numbers_of(QUESTION, [group((1.0,) * 4, texts=alone, opened_think=True)], [], {})["answer_only"] == 0.0
