"""The verdict of a probe: whether to train, which flags would help, and the next command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qwenvl.evaluate.settings import ProbeOptions, ProbeRequest, setting_of
from qwenvl.health.rules import CUT_OFF_SHARE, EQUAL_SHARE, Finding
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

GOOD = "good to train"
FORM_MISSING = 0.05  # share of completions in the asked form below which GRPO hardly ever sees one
HALF = 0.5
MOSTLY_RIGHT = 0.8  # pass@1
HARDLY_EVER_RIGHT = 0.1  # pass@samples
LARGEST_GROUP = 64
_SHARED = ("samples", "limit", "pass_by", "pass_at")  # options of a probe that the next one repeats


def verdict(numbers: dict[str, Any], sampling: SamplingOptions, rewards: RewardOptions) -> list[Finding]:
    """The obstacles to training, the most urgent first, or the one finding ``GOOD``.

    Codes: cut off, format missing, too hard, too easy, no diversity, good to train. Completions that are truncated or
    lack the form do not show what the model knows, so difficulty and diversity are judged only without these two
    findings. docs/concepts.md has the rules.

    Args:
        numbers: of ``numbers_of``.
        sampling, rewards: of the training run.
    """
    unread = list(_cut_off(numbers, sampling))
    if numbers["truncated"]["mean"] < HALF:
        unread += _form(numbers, rewards)
    return unread or list(_spread(numbers, sampling)) or [_good(numbers)]


def _cut_off(numbers: dict[str, Any], sampling: SamplingOptions) -> Iterator[Finding]:
    share, limit, stops = numbers["truncated"]["mean"], sampling.generation_max_length, sampling.stop_strings or ()
    if share < CUT_OFF_SHARE:
        return
    found = f"{share:.0%} of the completions end at the limit of {limit} tokens"
    if numbers["truncated_after_answer"] >= HALF and "</answer>" not in stops:
        text = f"{found}, {numbers['truncated_after_answer']:.0%} of these after a whole answer: stop there"
        yield Finding("cut off", text, flags=("--stop_strings", *stops, "</answer>"))
    else:
        yield Finding("cut off", f"{found}: allow more", flags=("--generation_max_length", str(2 * limit)))


def _form(numbers: dict[str, Any], rewards: RewardOptions) -> Iterator[Finding]:
    if numbers["format"] is None or numbers["format"]["mean"] >= FORM_MISSING:
        return
    thinks = rewards.response_format == "think_answer"
    found = f"{numbers['format']['mean']:.0%} of the completions have the form that the format reward asks for"
    if thinks and numbers["answer_only"] >= HALF:
        text = f"{found}, but {numbers['answer_only']:.0%} are an answer without thinking: ask for that"
        yield Finding("format missing", text, flags=("--response_format", "answer_only"))
    elif numbers["form_asked"] < HALF:
        tags = "<think> </think>, then <answer> </answer>" if thinks else "<answer> </answer>"
        text = f"{found}: say in the prompt what the form is"
        yield Finding("format missing", text, flags=("--system", f"Reply in this form: {tags}."))
    else:
        help_ = "show an example of it there, or teach it first by qwenvl warmup"
        yield Finding("format missing", f"{found}, though the prompts name its tags: {help_}")


def _spread(numbers: dict[str, Any], sampling: SamplingOptions) -> Iterator[Finding]:
    most, size, chances = numbers["samples"], sampling.grpo_sample_size, numbers["pass_at_k"]
    first, best, equal = chances["1"]["mean"], chances[str(most)]["mean"], numbers["equal_groups"]["mean"]
    larger = () if size >= LARGEST_GROUP else ("--grpo_sample_size", str(min(LARGEST_GROUP, max(most, 2 * size))))
    if best is not None and best <= HARDLY_EVER_RIGHT and numbers["equal_answers"]["mean"] > EQUAL_SHARE:
        text = (
            f"of {most} completions one passes for {best:.0%} of the prompts: there is nothing to prefer. Take easier "
            "records, a reward with finer steps or a larger model, or teach the solutions first by qwenvl warmup"
        )
        if equal <= EQUAL_SHARE:
            text += ". Its rewards differ, but not by the answer"
        yield Finding("too hard", text, flags=larger if best > 0 else ())
    elif equal > EQUAL_SHARE and first >= MOSTLY_RIGHT:
        text = f"{first:.0%} of the completions pass: take harder records. Larger groups hold a wrong answer more often"
        yield Finding("too easy", text, flags=larger)
    elif equal > EQUAL_SHARE:
        warmer = () if sampling.generation_temperature >= 1 else ("--generation_temperature", "1.0")
        wider = () if sampling.generation_top_p == 1 else ("--generation_top_p", "1.0")
        text = (
            f"{equal:.0%} of the groups of {size} have equal rewards, and {numbers['unique']:.1f} of "
            f"{numbers['samples']} completions differ: a prompt is answered alike each time. Sample more freely"
        )
        yield Finding("no diversity", text, flags=(*warmer, *wider) or larger)


def _good(numbers: dict[str, Any]) -> Finding:
    teach = 1 - numbers["equal_groups"]["mean"]
    text = f"{teach:.0%} of the groups of {numbers['group_size']} have rewards that differ, and teach something"
    if teach < HALF:
        text += ". The others cost as much and teach nothing"
    return Finding(GOOD, text)


def next_command(findings: Sequence[Finding], request: ProbeRequest, base: str | None = None) -> str:
    """The next command: a probe with the flags that help, the training, or a look at the data where no flag helps.

    Args:
        request: of this probe.
        base: the base model, if the model is an adapter.
    """
    config, options = request.config, request.options
    model, data = str(config.model_name_or_path), str(config.dataset_use)
    file = [] if request.file is None else ["--config", str(request.file)]
    if flags := [flag for finding in findings for flag in finding.flags]:
        words = [] if request.model is None else [request.model, str(request.data)]
        kept = _without(request.flags, flags)
        # By default there are as many samples as a group has, or more.
        shared = ("limit", "pass_by", "pass_at") if "--grpo_sample_size" in flags else _SHARED
        changed = [name for name in shared if getattr(options, name) != getattr(ProbeOptions, name)]
        own = [word for name in changed for word in (f"--{name}", str(getattr(options, name)))]
        return shlex.join(["qwenvl", "probe", *words, *file, *kept, *flags, *own])
    if [finding.code for finding in findings] != [GOOD]:
        catalog = ["--dataset_catalog", config.dataset_catalog] if config.dataset_catalog else []
        return shlex.join(["qwenvl", "preview", data, "--n", "8", "--model", base or model, *catalog])
    named = []
    if request.model is not None:
        adapter = [] if base is None else ["--lora_enable", "--start_from_weights", model]
        named = ["--model_name_or_path", base or model, *adapter, "--dataset_use", data]
    name = re.sub(r"[^\w.-]+", "-", Path(data).stem)
    output = [] if request.file is not None else ["--output_dir", f"runs/{name}"]
    return shlex.join(["qwenvl", "train", *file, *named, *request.flags, *output])


def _without(flags: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The flags with their values, but for those that ``changes`` set."""
    changed, kept, keeps = {setting_of(word) for word in changes} - {None}, [], True
    for word in flags:
        if (name := setting_of(word)) is not None:
            keeps = name not in changed
        if keeps:
            kept.append(word)
    return kept
