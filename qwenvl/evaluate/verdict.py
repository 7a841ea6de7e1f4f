"""What the numbers of a probe say about training, and which flags would help."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.evaluate.facts import Facts
from qwenvl.evaluate.settings import Words, setting_of
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import SamplingOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

GOOD = "good to train"
CUT_OFF = 0.1  # share of truncated completions from which the rewards judge the limit
FORM_MISSING = 0.05  # share of completions in the asked form below which GRPO hardly ever sees one
FEW_TEACH = 0.8  # share of groups with equal rewards from which training is mostly wasted
HALF = 0.5
MOSTLY_RIGHT = 0.8  # pass@1
HARDLY_EVER_RIGHT = 0.1  # pass@samples
LARGEST_GROUP = 64


@dataclass(frozen=True)
class Finding:
    """One thing that the numbers say.

    Attributes:
        name: in a few words: cut off, format missing, too hard, too easy, no diversity, good to train.
        words: why, and what helps, in a sentence or two.
        flags: of training, that would help.
    """

    name: str
    words: str
    flags: tuple[str, ...] = ()


def verdict(facts: Facts, sampling: SamplingOptions, rewards: RewardOptions) -> list[Finding]:
    """What stands in the way of training, the first thing to mend first, or that nothing does.

    - cut off: 10 % of the completions or more end at the limit.
    - format missing: fewer than 5 % have the form that the format reward asks for, and at least half are whole.

    Completions that are not whole or can't be read do not tell what the model knows. Where they are and can:

    - too hard: one of the samples passes for at most 10 % of the prompts, and 80 % of the groups have answers that are
      scored alike.
    - too easy: 80 % of the completions pass, and 80 % of the groups have equal rewards.
    - no diversity: 80 % of the groups have equal rewards, and it is neither of the two.
    - good to train: none of these.

    Args:
        sampling, rewards: of the training run.
    """
    unread = list(_cut_off(facts, sampling))
    if facts.truncated.mean < HALF:
        unread += _form(facts, rewards)
    return unread or list(_spread(facts, sampling)) or [_good(facts)]


def _cut_off(facts: Facts, sampling: SamplingOptions) -> Iterator[Finding]:
    share, limit, stops = facts.truncated.mean, sampling.generation_max_length, sampling.stop_strings or ()
    if share < CUT_OFF:
        return
    said = f"{share:.0%} of the completions end at the limit of {limit} tokens"
    if facts.truncated_after_answer >= HALF and "</answer>" not in stops:
        words = f"{said}, {facts.truncated_after_answer:.0%} of these after a whole answer: stop there"
        yield Finding("cut off", words, ("--stop_strings", *stops, "</answer>"))
    else:
        yield Finding("cut off", f"{said}: allow more", ("--generation_max_length", str(2 * limit)))


def _form(facts: Facts, rewards: RewardOptions) -> Iterator[Finding]:
    if facts.format is None or facts.format.mean >= FORM_MISSING:
        return
    thinks = rewards.response_format == "think_answer"
    said = f"{facts.format.mean:.0%} of the completions have the form that the format reward asks for"
    if thinks and facts.answer_only >= HALF:
        words = f"{said}, but {facts.answer_only:.0%} are an answer without thinking: ask for that"
        yield Finding("format missing", words, ("--response_format", "answer_only"))
    elif facts.form_asked < HALF:
        tags = "<think> </think>, then <answer> </answer>" if thinks else "<answer> </answer>"
        words = f"{said}: say in the prompt what the form is"
        yield Finding("format missing", words, ("--system", f"Reply in this form: {tags}."))
    else:
        words = (
            f"{said}, though the prompts name its tags: show an example of it there, or teach it first by qwenvl warmup"
        )
        yield Finding("format missing", words)


def _spread(facts: Facts, sampling: SamplingOptions) -> Iterator[Finding]:
    most, size = max(facts.pass_at_k), sampling.grpo_sample_size
    first, best, equal = facts.pass_at_k[1].mean, facts.pass_at_k[most].mean, facts.equal_groups.mean
    larger = () if size >= LARGEST_GROUP else ("--grpo_sample_size", str(min(LARGEST_GROUP, max(most, 2 * size))))
    if best <= HARDLY_EVER_RIGHT and facts.equal_answers.mean >= FEW_TEACH:
        words = (
            f"of {most} completions one passes for {best:.0%} of the prompts: there is nothing to prefer. Take easier "
            "records, a reward with finer steps or a larger model, or teach the solutions first by qwenvl warmup"
        )
        if equal < FEW_TEACH:
            words += ". Its rewards differ, but not by the answer"
        yield Finding("too hard", words, larger if best > 0 else ())
    elif equal >= FEW_TEACH and first >= MOSTLY_RIGHT:
        words = (
            f"{first:.0%} of the completions pass: take harder records. Larger groups hold a wrong answer more often"
        )
        yield Finding("too easy", words, larger)
    elif equal >= FEW_TEACH:
        warmer = () if sampling.generation_temperature >= 1 else ("--generation_temperature", "1.0")
        wider = () if sampling.generation_top_p == 1 else ("--generation_top_p", "1.0")
        words = (
            f"{equal:.0%} of the groups of {size} have equal rewards, and {facts.unique:.1f} of "
            f"{facts.question.samples} completions differ: a prompt is answered alike each time. Sample more freely"
        )
        yield Finding("no diversity", words, (*warmer, *wider) or larger)


def _good(facts: Facts) -> Finding:
    teach = 1 - facts.equal_groups.mean
    words = f"{teach:.0%} of the groups of {facts.question.group_size} have rewards that differ, and teach something"
    if teach < HALF:
        words += ". The others cost as much and teach nothing"
    return Finding(GOOD, words)


def next_command(findings: Sequence[Finding], words: Words, config: GRPOConfig, base: str | None = None) -> str:
    """What to type next: a probe with the flags that help, the training, or a look at the data where no flag helps.

    Args:
        words: of the probe that was made.
        config: its settings.
        base: of the model, where that is an adapter.
    """
    model, data = str(config.model_name_or_path), str(config.dataset_use)
    flags = [flag for finding in findings for flag in finding.flags]
    kept = _without(words.flags, flags)
    file = [] if words.file is None else ["--config", str(words.file)]
    if flags:
        places = [] if words.model is None else [words.model, str(words.data)]
        # By default there are as many samples as a group has, or more.
        own = _without(words.own, ["--samples"]) if "--grpo_sample_size" in flags else words.own
        return shlex.join(["qwenvl", "probe", *places, *file, *kept, *flags, *own])
    if [finding.name for finding in findings] != [GOOD]:
        catalog = ["--dataset_catalog", config.dataset_catalog] if config.dataset_catalog else []
        return shlex.join(["qwenvl", "preview", data, "--n", "8", "--model", base or model, *catalog])
    named = []
    if words.model is not None:
        adapter = [] if base is None else ["--lora_enable", "--start_from_weights", model]
        named = ["--model_name_or_path", base or model, *adapter, "--dataset_use", data]
    name = re.sub(r"[^\w.-]+", "-", Path(data).stem)
    output = [] if words.file is not None else ["--output_dir", f"runs/{name}"]
    return shlex.join(["qwenvl", "train", *file, *named, *words.flags, *output])


def _without(flags: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The flags with their values, but for those that ``changes`` set."""
    changed, kept, keeps = {setting_of(word) for word in changes} - {None}, [], True
    for word in flags:
        if (name := setting_of(word)) is not None:
            keeps = name not in changed
        if keeps:
            kept.append(word)
    return kept
