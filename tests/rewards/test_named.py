import pytest

from qwenvl.rewards.function import RewardError
from qwenvl.rewards.named import build_rubric
from qwenvl.rewards.options import RewardSettings


def test_the_default_rubric_by_hand():
    batch = build_rubric().score(["<think>a</think><answer>(1)</answer>", "(1)"], {"solution": ["(1)(2)"] * 2})
    assert batch.names == ("format", "accuracy")
    assert batch.total.tolist() == [pytest.approx(0.3 * 1 + 0.7 * 0.5), 0.0]
    answer_only = build_rubric(response_format="answer_only", format_reward_weight=1.0, accuracy_reward_weight=0.0)
    assert answer_only.score(["<answer>(3)</answer>"], {"solution": ["(1)"]}).total.tolist() == [1.0]


def test_names_and_functions_with_weights():
    def short(completions):
        return [float(len(text) < 40) for text in completions]

    rubric = build_rubric(["strict_format", short], [0.5, 2])
    assert rubric.names == ("strict_format", "short") and rubric.weights == (0.5, 2.0)
    assert rubric.score(["<think>a</think><answer>b</answer>"], {}).total.tolist() == [2.5]
    assert build_rubric(["format"]).weights == (1.0,)
    assert build_rubric(reward_weights=[0.1, 0.9]).weights == (0.1, 0.9)


def test_the_default_rubric_refuses_solutions_without_actions():
    assert "names no action" in build_rubric().check_solution("<answer></answer>")
    assert build_rubric().check_solution("(1) insert the fan") is None


def test_refusals():
    with pytest.raises(RewardError, match="did you mean accuracy"):
        build_rubric(["acuracy"])
    for words in ("format accuracy", "format,accuracy", "format, accuracy"):
        with pytest.raises(
            RewardError, match=r"these are several names: a settings file lists them, \[format, accuracy"
        ):
            build_rubric([words])
    with pytest.raises(RewardError, match="--format_reward_weight has no effect with --reward_weights"):
        build_rubric(["format"], [1.0], format_reward_weight=0.3)
    with pytest.raises(RewardError, match="--accuracy_reward_weight has no effect with --reward_funcs"):
        build_rubric(["format"], accuracy_reward_weight=0.3)
    with pytest.raises(RewardError, match="2 reward weights for 1 functions"):
        build_rubric(["format"], [1.0, 2.0])


def test_workers_without_anything_to_run_in_them_are_refused():
    with pytest.raises(RewardError, match="--reward_workers has no effect"):
        build_rubric(["count"], settings=RewardSettings(reward_workers=2))
    settings = RewardSettings(reward_workers=2, correctness_func="math_accuracy")
    assert build_rubric(["cosine"], settings=settings).names == ("cosine",)
