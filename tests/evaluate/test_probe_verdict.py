"""What the numbers say, rule by rule, and the command that follows."""

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.evaluate.probe_results import next_command, verdict
from qwenvl.evaluate.settings import ProbeOptions, ProbeRequest, probe_request
from qwenvl.health.rules import Finding
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions


def share(mean: float) -> dict:
    return {"mean": mean, "low": 0.0, "high": 1.0, "n": 50}


HEALTHY = {
    **{"samples": 8, "group_size": 4, "truncated_after_answer": 0.0, "answer_only": 0.0, "form_asked": 1.0},
    "pass_at_k": {"1": share(0.4), "2": share(0.5), "4": share(0.6), "8": share(0.7)},
    **{"equal_groups": share(0.3), "equal_answers": share(0.4), "truncated": share(0.02), "format": share(0.9)},
    "unique": 6.0,
}


def found(sampling=None, rewards=None, right=None, **changes) -> list[tuple[str, tuple[str, ...]]]:
    """Names and flags of what is found where the healthy numbers have these changes."""
    shares = ("equal_groups", "equal_answers", "truncated", "format")
    changes = {name: share(value) if name in shares and value is not None else value for name, value in changes.items()}
    if right is not None:
        changes["pass_at_k"] = dict(zip(("1", "8"), map(share, right), strict=True))
    findings = verdict(HEALTHY | changes, SamplingOptions(**(sampling or {})), RewardOptions(**(rewards or {})))
    return [(finding.code, finding.flags) for finding in findings]


def test_nothing_stands_in_the_way():
    [finding] = verdict(HEALTHY, SamplingOptions(), RewardOptions())
    assert finding == Finding("good to train", "70% of the groups of 4 have rewards that differ, and teach something")
    [finding] = verdict(HEALTHY | {"equal_groups": share(0.7)}, SamplingOptions(), RewardOptions())
    assert finding.message.endswith("teach something. The others cost as much and teach nothing")


def test_cut_off():
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


def test_format_missing():
    assert found(format=0.05) == [("good to train", ())]
    assert found(format=0.04) == [("format missing", ())]
    asked = ("--system", "Reply in this form: <think> </think>, then <answer> </answer>.")
    assert found(format=0.04, form_asked=0.4) == [("format missing", asked)]
    alone = ("--response_format", "answer_only")
    assert found(format=0.04, answer_only=0.5) == [("format missing", alone)]
    only = {"response_format": "answer_only"}
    said = ("--system", "Reply in this form: <answer> </answer>.")
    assert found(rewards=only, format=0.0, answer_only=0.0, form_asked=0.0) == [("format missing", said)]
    assert [name for name, _ in found(format=0.0, truncated=0.2)] == ["cut off", "format missing"]
    assert found(format=None) == [("good to train", ())]


def test_too_hard():
    equal = {"equal_groups": 0.95, "equal_answers": 0.95}
    assert found(**equal, right=(0.02, 0.1)) == [("too hard", ("--grpo_sample_size", "8"))]
    assert found(**equal, right=(0.0, 0.0)) == [("too hard", ())]
    # The form is learned, the answer is not.
    assert found(equal_groups=0.3, equal_answers=0.95, right=(0.0, 0.0)) == [("too hard", ())]
    # A reward with fine steps teaches, though none of the answers is quite right.
    assert found(equal_groups=0.3, equal_answers=0.3, right=(0.0, 0.0)) == [("good to train", ())]


def test_too_easy_and_no_diversity():
    assert found(equal_groups=0.9, equal_answers=0.9, right=(0.5, 0.5)) == [("good to train", ())]
    equal = {"equal_groups": 0.91, "equal_answers": 0.91}
    assert found(**equal, right=(0.8, 1.0)) == [("too easy", ("--grpo_sample_size", "8"))]
    freely = ("--generation_temperature", "1.0", "--generation_top_p", "1.0")
    assert found(**equal, right=(0.5, 0.5)) == [("no diversity", freely)]
    free = {"generation_temperature": 1.2, "generation_top_p": 1.0, "grpo_sample_size": 16}
    assert found(free, **equal, right=(0.5, 0.5)) == [("no diversity", ("--grpo_sample_size", "32"))]
    assert found({**free, "grpo_sample_size": 64}, **equal, right=(0.5, 0.5)) == [("no diversity", ())]


CONFIG = SimpleNamespace(model_name_or_path="m", dataset_use="data/my set.json", dataset_catalog=None)
WORDS = ProbeRequest(
    *(CONFIG, ProbeOptions(samples=16), None),
    *("m", "data/my set.json", ("--seed", "3", "--generation_top_p", "0.9")),
)
FILE = ProbeRequest(CONFIG, ProbeOptions(), Path("run.yaml"), None, None, ())
GOOD, STUCK = Finding("good to train", ""), Finding("too hard", "")
WIDER = Finding("no diversity", "", flags=("--generation_top_p", "1.0"))


@pytest.mark.parametrize(
    ("finding", "request_", "base", "command"),
    [
        (
            WIDER,
            WORDS,
            None,
            "qwenvl probe m 'data/my set.json' --seed 3 --generation_top_p 1.0 --samples 16",
        ),
        (
            GOOD,
            WORDS,
            None,
            "qwenvl train --model_name_or_path m --dataset_use 'data/my set.json' --seed 3 --generation_top_p 0.9 "
            "--output_dir runs/my-set",
        ),
        (
            GOOD,
            replace(WORDS, flags=()),
            "base",
            "qwenvl train --model_name_or_path base --lora_enable --start_from_weights m --dataset_use "
            "'data/my set.json' --output_dir runs/my-set",
        ),
        (GOOD, replace(FILE, flags=("--seed", "3")), None, "qwenvl train --config run.yaml --seed 3"),
        (WIDER, FILE, None, "qwenvl probe --config run.yaml --generation_top_p 1.0"),
        (STUCK, WORDS, None, "qwenvl preview 'data/my set.json' --n 8 --model m"),
    ],
)
def test_what_to_type_next(finding, request_, base, command):
    assert next_command([finding], request_, base) == command


def test_larger_groups_have_as_many_samples():
    probed = probe_request(["m", "data.json", "--samples", "8", "--grpo_sample_size", "8", "--limit", "9"])
    larger = Finding("too easy", "", flags=("--grpo_sample_size", "16"))
    command = shlex.split(next_command([larger], probed))
    assert command == ["qwenvl", "probe", "m", "data.json", "--grpo_sample_size", "16", "--limit", "9"]
    probe_request(command[2:])


@pytest.mark.parametrize("places", [["m", "data/sop.json"], ["run.yaml"]])
def test_training_takes_the_command_that_a_good_probe_ends_with(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("model_name_or_path: m\ndataset_use: data/sop.json\nmax_steps: 7\nuse_cpu: true\n")
    request = probe_request([*places, "--use_cpu", "--reward_funcs", "count", "--samples", "16", "--video_fps=1"])
    probed = request.config
    command = shlex.split(next_command([GOOD], request))
    assert command[:2] == ["qwenvl", "train"]
    trained = parse_args(command[2:])
    for name in ("model_name_or_path", "dataset_use", "reward_funcs", "video_fps", "use_cpu"):
        assert getattr(trained, name) == getattr(probed, name), name
    assert trained.max_steps == (7 if places == ["run.yaml"] else -1)
