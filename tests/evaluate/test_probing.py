"""The numbers of a probe redone by hand, its verdict rule by rule, and the command that follows."""

import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.evaluate.answers import Answers
from qwenvl.evaluate.options import PassOptions
from qwenvl.evaluate.probe_numbers import LooksWorth, ProbeNumbers, ProbeQuestion, numbers_of, worth_of_looks
from qwenvl.evaluate.probe_verdict import next_command, verdict
from qwenvl.evaluate.requests import probe_request
from qwenvl.evaluate.respondent import pass_reward
from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import GenerationOptions
from qwenvl.run_log.health import Finding
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.types import BadSample, FrameInfo, Message, Record
from tests.run_log.runs import rollout

THOUGHT = "<think>a</think><answer>1</answer>"
QUESTION = ProbeQuestion(
    model="model", data="data", samples=4, group_size=2, pass_by="accuracy", pass_at=1.0, temperature=0.7
)


def group(accuracy, form=(0.0, 0.0, 0.0, 0.0), texts=("a", "b", "a", "a"), where="d[0]") -> Answers:
    """Completions of 1, 2, 3 and 4 tokens, of which the last is truncated."""
    rows = [
        rollout(
            sample=n,
            completion=texts[n],
            tokens=n + 1,
            finish_reason="length" if n == 3 else "stop",
            rewards={"format": form[n], "accuracy": value},
            total=None if value is None else value + form[n],
        )
        for n, value in enumerate(accuracy)
    ]
    return Answers.of(rows, 10, where, "accuracy", 1.0)


def test_a_probe_counts_passes_equal_groups_and_cut_completions():
    groups = [
        group((1.0, 0.0, 0.0, 0.0)),
        group((1.0, 1.0, 1.0, 1.0), form=(1.0, 1.0, 0.6, 1.0), texts=(THOUGHT,) * 4, where="d[1]"),
    ]
    record = Record("7", (Message("user", "?"),), "1", (), (), (), {}, "data.json[7]")
    numbers = numbers_of(QUESTION, groups, [BadSample(record, "data.json[7]: gone")], 6.0)
    assert {k: interval.mean for k, interval in numbers.pass_at_k.items()} == {1: 0.625, 2: 0.75, 4: 1.0}
    assert numbers.equal_groups.mean == pytest.approx((3 / 6 + 3 / 6) / 2)  # three of the six pairs, twice
    assert numbers.equal_answers.mean == pytest.approx((3 / 6 + 1) / 2)
    assert numbers.format.mean == (0 + 3 / 4) / 2
    assert numbers.truncated.mean == 1 / 4 and numbers.truncated_after_answer == 1 / 2
    assert numbers.unique == (2 + 1) / 2
    assert (numbers.completion_tokens, numbers.longest_completion, numbers.prompt_tokens) == (2.5, 4, 10)
    assert numbers.rewards["accuracy"].mean == (1 / 4 + 1) / 2
    assert (numbers.prompts, numbers.seconds_per_prompt) == (2, 3.0)
    assert numbers.left_out == ("data.json[7]: gone",) and numbers.rewards["total"].n == 2
    written = numbers.as_json()
    assert list(written)[:8] == [*vars(QUESTION), "prompts"] and "looks" not in written
    assert written["pass_at_k"]["4"]["mean"] == 1.0 and written["left_out"] == ["data.json[7]: gone"]


def test_the_form_is_that_of_completions_that_the_format_reward_scores():
    """A record may route to other rewards by its field `reward`."""
    asked = group((1.0, 0.0, 1.0, 0.0), form=(1.0, 0.6, 0.0, 0.0))
    other = group((1.0, 0.0, 1.0, 0.0), where="d[1]")
    rows = [replace(row, rewards={"format": None, "accuracy": row.rewards["accuracy"]}) for row in other.rows]
    other = Answers.of(rows, 10, "d[1]", "accuracy", 1.0)
    assert numbers_of(QUESTION, [asked, other], [], 1.0).format.mean == 1 / 4
    assert numbers_of(QUESTION, [other], [], 1.0).format is None


def test_a_prompt_with_too_few_values_is_left_out_of_pass_at_k():
    numbers = numbers_of(QUESTION, [group((1.0, None, 0.0, None)), group((None,) * 4, where="d[1]")], [], 0.0)
    assert [(each.mean, each.n) for each in numbers.pass_at_k.values()][:2] == [(0.5, 1), (1.0, 1)]
    assert numbers.as_json()["pass_at_k"]["4"] == {"mean": None, "low": None, "high": None, "n": 0}


def test_pass_by_a_reward_without_values_is_refused():
    with pytest.raises(RewardError, match="--pass_by accuracy: it has no value for any completion"):
        numbers_of(QUESTION, [group((None,) * 4)], [], 0.0)


def test_the_gain_of_looking_is_a_paired_mean_with_clips_as_clusters():
    """Two clips with two records each, and one record that was left out when its span was shown."""
    at = lambda n: {"where": f"d[{n}]", "clips": (FrameInfo(f"{n // 2}.mp4", (0, 1), (0.0, 1.0)),)}
    made = lambda n, values: [rollout(rewards={"accuracy": value}, **at(n)) for value in values]
    make = lambda n, values: Answers.of(made(n, values), 10, f"d[{n}]", "accuracy", 1.0)
    overview = [make(0, [0.0, 1.0]), make(1, [0.0, None]), make(2, [1.0]), make(3, [1.0]), make(4, [1.0])]
    right_span = [make(0, [1.0, 1.0]), make(1, [1.0, 1.0]), make(2, [0.0]), make(3, [1.0])]
    found = worth_of_looks(overview, right_span, "accuracy")
    assert found.records == 4 and found.overview.mean == 2.5 / 4 and found.right_span.mean == 3 / 4
    gains = clustered_interval([0.5, 1.0, -1.0, 0.0], ["0.mp4"] * 2 + ["1.mp4"] * 2)
    assert found.gain == gains and gains.n == 2 and gains.mean == 0.125


@pytest.mark.parametrize(
    ("looks", "codes", "words"),
    [
        ((0.3, 0.6, (0.3, 0.2, 0.4)), ["good to train"], "teach something"),
        ((0.9, 0.9, (0.0, -0.1, 0.1)), ["looks bring nothing"], "Either the overview shows enough: show fewer frames"),
        ((0.3, 0.35, (0.05, -0.1, 0.1)), ["looks bring nothing"], "Either the model does not use the right span"),
        ((0.3, 0.31, (0.01, 0.005, 0.015)), ["looks bring nothing"], "is 0.310, on the overview 0.300. Looking can"),
        ((math.nan, math.nan, (math.nan,) * 3), ["looks not measured"], "name another --pass_by"),
    ],
)
def test_looks_without_a_gain_are_reported_before_training(looks, codes, words):
    overview, span, gain = looks
    records = 0 if math.isnan(overview) else 9
    worth = LooksWorth(records, share(overview), share(span), Interval(*gain, records))
    found = verdict(replace(HEALTHY, looks=worth), GenerationOptions(), RewardOptions())
    assert [each.code for each in found] == codes and words in found[0].message


def share(mean: float) -> Interval:
    return Interval(mean, 0.0, 1.0, 50)


HEALTHY = ProbeNumbers(
    question=replace(QUESTION, samples=8, group_size=4),
    prompts=50,
    left_out=(),
    pass_at_k={1: share(0.4), 2: share(0.5), 4: share(0.6), 8: share(0.7)},
    teacher=Interval(math.nan, math.nan, math.nan, 0),
    rewards={"accuracy": share(0.4)},
    equal_groups=share(0.3),
    equal_answers=share(0.4),
    truncated=share(0.02),
    truncated_after_answer=0.0,
    format=share(0.9),
    form_asked=0.0,
    unique=6.0,
    completion_tokens=20.0,
    longest_completion=40,
    prompt_tokens=90.0,
    longest_prompt=100,
    seconds_per_prompt=1.0,
)


def found(sampling=None, rewards=None, right=None, group_size=4, **changes) -> list[tuple[str, tuple[str, ...]]]:
    """Names and flags of what is found where the healthy numbers have these changes.

    Args:
        right: pass@1 and pass@8.
    """
    shares = ("equal_groups", "equal_answers", "truncated", "format")
    changes = {name: share(value) if name in shares and value is not None else value for name, value in changes.items()}
    if right is not None:
        changes["pass_at_k"] = dict(zip((1, 8), map(share, right), strict=True))
    numbers = replace(HEALTHY, question=replace(HEALTHY.question, group_size=group_size), **changes)
    findings = verdict(numbers, GenerationOptions(**(sampling or {})), RewardOptions(**(rewards or {})))
    return [(finding.code, finding.flags) for finding in findings]


def test_groups_that_differ_are_good_to_train():
    [finding] = verdict(HEALTHY, GenerationOptions(), RewardOptions())
    assert finding == Finding("good to train", "70% of the groups of 4 have rewards that differ, and teach something")
    [finding] = verdict(replace(HEALTHY, equal_groups=share(0.7)), GenerationOptions(), RewardOptions())
    assert finding.message.endswith("teach something. The others cost as much and teach nothing")


def test_a_completion_cut_at_the_limit_is_diagnosed_before_hard_questions():
    longer = ("--generation_max_length", "1024")
    assert found(truncated=0.1) == [("cut off", longer)]
    assert found(truncated=0.09) == [("good to train", ())]
    assert found(truncated=0.1, truncated_after_answer=0.5) == [("cut off", ("--stop_strings", "</answer>"))]
    both = ("--stop_strings", "END", "</answer>")
    assert found({"stop_strings": ["END"]}, truncated=0.1, truncated_after_answer=0.5) == [("cut off", both)]
    stops = {"stop_strings": ["</answer>"]}
    assert found(stops, truncated=0.1, truncated_after_answer=0.5) == [("cut off", longer)]
    # Whether it has the form is not asked of what is cut; nor whether it is hard.
    assert found(truncated=0.6, format=0.0, equal_groups=1.0, right=(0.0, 0.0)) == [("cut off", longer)]


def test_a_missing_format_is_diagnosed_with_the_system_turn_that_asks_for_it():
    assert found(format=0.05) == [("good to train", ())]
    said = ("--system", "Reply in this form: <think> </think>, then <answer> </answer>.")
    assert found(format=0.04) == [("format missing", said)]
    assert found(format=0.04, form_asked=0.5) == [("format missing", ())]
    only = {"response_format": "answer_only"}
    said = ("--system", "Reply in this form: <answer> </answer>.")
    assert found(rewards=only, format=0.0) == [("format missing", said)]
    assert [name for name, _ in found(format=0.0, truncated=0.2)] == ["cut off", "format missing"]
    assert found(format=None) == [("good to train", ())]


def test_groups_of_equal_wrong_answers_are_diagnosed_as_too_hard():
    equal = {"equal_groups": 0.95, "equal_answers": 0.95}
    assert found(**equal, right=(0.02, 0.1)) == [("too hard", ("--grpo_sample_size", "8"))]
    assert found(**equal, right=(0.0, 0.0)) == [("too hard", ())]
    # The form is learned, the answer is not.
    assert found(equal_groups=0.3, equal_answers=0.95, right=(0.0, 0.0)) == [("too hard", ())]
    # A reward with fine steps teaches, though none of the answers is quite right.
    assert found(equal_groups=0.3, equal_answers=0.3, right=(0.0, 0.0)) == [("good to train", ())]


def test_equal_groups_with_right_answers_are_diagnosed_as_too_easy_or_without_diversity():
    assert found(equal_groups=0.9, equal_answers=0.9, right=(0.5, 0.5)) == [("good to train", ())]
    equal = {"equal_groups": 0.91, "equal_answers": 0.91}
    assert found(**equal, right=(0.8, 1.0)) == [("too easy", ("--grpo_sample_size", "8"))]
    freely = ("--generation_temperature", "1.0", "--generation_top_p", "1.0")
    assert found(**equal, right=(0.5, 0.5)) == [("no diversity", freely)]
    free = {"generation_temperature": 1.2, "generation_top_p": 1.0}
    equal["right"] = (0.5, 0.5)
    assert found(free, **equal, group_size=16) == [("no diversity", ("--grpo_sample_size", "32"))]
    assert found(free, **equal, group_size=64) == [("no diversity", ())]


MODEL, DATA = "m", "data/my set.json"
GOOD, STUCK = Finding("good to train", ""), Finding("too hard", "")
WIDER = Finding("no diversity", "", flags=("--generation_top_p", "1.0"))
LARGER = Finding("too easy", "", flags=("--grpo_sample_size", "16"))


@pytest.mark.parametrize(
    ("finding", "argv", "base", "command"),
    [
        (WIDER, [MODEL, DATA, "--seed", "3"], None, f"qwenvl probe m '{DATA}' --seed 3 --generation_top_p 1.0"),
        (LARGER, [MODEL, DATA, "--samples", "8"], None, f"qwenvl probe m '{DATA}' --grpo_sample_size 16 --samples 16"),
        (WIDER, [MODEL, DATA, "--generation-top-p=0.9"], None, f"qwenvl probe m '{DATA}' --generation_top_p 1.0"),
        (STUCK, [MODEL, DATA, "--video_max_frames", "4"], None,
         f"qwenvl preview '{DATA}' --n 8 --model m --video_max_frames 4"),
        (GOOD, [MODEL, DATA, "--seed", "3", "--samples", "16"], None,
         f"qwenvl train --model_name_or_path m --dataset_use '{DATA}' --seed 3 --output_dir runs/my-set"),
        (GOOD, [MODEL, DATA], "base", "qwenvl train --model_name_or_path base --lora_enable --start_from_weights m "
         f"--dataset_use '{DATA}' --output_dir runs/my-set"),
        (GOOD, ["run.yaml", "--seed", "3"], None, "qwenvl train --config run.yaml --seed 3"),
        (WIDER, ["run.yaml"], None, "qwenvl probe run.yaml --generation_top_p 1.0"),
        (STUCK, [MODEL, DATA], None, f"qwenvl preview '{DATA}' --n 8 --model m"),
    ],
)  # fmt: skip
def test_the_next_command_is_understood(finding, argv, base, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("model_name_or_path: m\ndataset_use: data/sop.json\nmax_steps: 7\nuse_cpu: true\n")
    request = probe_request(argv)
    assert next_command([finding], request, base) == command
    words = shlex.split(command)
    if words[1] == "probe":
        probe_request(words[2:])
    if words[1] == "train":
        trained = parse_args(words[2:])
        assert (trained.dataset_use, trained.seed) == (request.config.dataset_use, request.config.seed)


@pytest.mark.parametrize(
    ("reward", "low", "high"),
    [
        ("accuracy", 0, 1),
        ("judge(base_url='http://localhost:1', model='m', choices='1 2 3 4 5', correct=5, wrong=1)", 0, 5),
        ("judge(base_url='http://localhost:1', model='m', correct=0.5, bad_format=-1)", -1, 0.5),
        ("caption_answers(base_url='http://localhost:1', model='m', correctness_func='box_giou')", -1, 1),
    ],
)
def test_a_completion_passes_at_a_value_that_some_completions_reach_and_not_all(reward, low, high):
    """By the values that the reward has with its arguments."""
    rubric = build_rubric(reward)
    assert pass_reward(rubric, PassOptions(pass_at=high)) == rubric.names[0]
    for pass_at in (low, high + 0.5):
        with pytest.raises(ValueError, match=f"expected above {low:g} and at most {high:g} of {rubric.names[0]}"):
            pass_reward(rubric, PassOptions(pass_at=pass_at))
