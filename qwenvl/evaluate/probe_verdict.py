"""The verdict on the numbers of a probe, and the next command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.config.command_line import changed_flags
from qwenvl.data.options import FrameOptions, PromptOptions, ReadingOptions
from qwenvl.evaluate.answers import as_json
from qwenvl.evaluate.probe_numbers import ProbeNumbers
from qwenvl.evaluate.requests import ProbeRequest
from qwenvl.evaluate.results_table import left_out_lines
from qwenvl.evaluate.settings import setting_of
from qwenvl.model.weight_files import base_of_adapter
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import GenerationOptions
from qwenvl.run_log.evaluation_numbers import interval_text
from qwenvl.run_log.health import CUT_OFF_SHARE, EQUAL_SHARE, Finding
from qwenvl.run_log.intervals import Interval

GOOD = "good to train"
FORM_MISSING = 0.05  # share of completions in the expected form below which GRPO hardly ever sees one
HALF = 0.5
MOSTLY_RIGHT = 0.8  # pass@1
LITTLE = 0.02  # of the reward: what the right span brings below which looking can bring nothing
HARDLY_EVER_RIGHT = 0.1  # pass@samples
LARGEST_GROUP = 64


def verdict(numbers: ProbeNumbers, generation: GenerationOptions, rewards: RewardOptions) -> list[Finding]:
    """The obstacles to training, the most urgent first, or the one finding ``GOOD``.

    Codes: cut off, format missing, looks bring nothing, looks not measured, too hard, too easy, no diversity, good to
    train. Completions that are truncated or lack the form do not show what the model knows, so difficulty, diversity
    and looks are judged only without these two findings. docs/evaluation.md has the rules.

    Args:
        numbers: of ``numbers_of``.
        generation, rewards: of the training run.
    """
    unread = list(_cut_off(numbers, generation))
    if numbers.truncated.mean < HALF:  # completions that are cut lack the end of the form
        unread += _form(numbers, rewards)
    if unread:
        return unread
    found = [*_looks(numbers), *_spread(numbers, generation)]
    if found:
        return found
    teach = 1 - numbers.equal_groups.mean
    text = f"{teach:.0%} of the groups of {numbers.question.group_size} have rewards that differ, and teach something"
    if teach < HALF:
        text += ". The others cost as much and teach nothing"
    return [Finding(GOOD, text)]


def _cut_off(numbers: ProbeNumbers, generation: GenerationOptions) -> Iterator[Finding]:
    """Completions that end at the limit: a stop string, if most were cut after a whole answer, else a higher limit."""
    share = numbers.truncated.mean
    limit = generation.generation_max_length
    stops = generation.stop_strings or ()
    if share < CUT_OFF_SHARE:
        return
    found = f"{share:.0%} of the completions end at the limit of {limit} tokens"
    if numbers.truncated_after_answer >= HALF and "</answer>" not in stops:
        text = f"{found}, {numbers.truncated_after_answer:.0%} of these after a whole answer: stop there"
        yield Finding("cut off", text, flags=("--stop_strings", *stops, "</answer>"))
    else:
        yield Finding("cut off", f"{found}: allow more", flags=("--generation_max_length", str(2 * limit)))


def _form(numbers: ProbeNumbers, rewards: RewardOptions) -> Iterator[Finding]:
    """Completions without the form that the format reward asks for."""
    if numbers.format is None or numbers.format.mean >= FORM_MISSING:
        return
    tags = "<answer> </answer>"
    without_thinking = ""
    if rewards.response_format == "think_answer":
        tags = "<think> </think>, then <answer> </answer>"
        without_thinking = ", or drop the thinking by --response_format answer_only"
    found = f"{numbers.format.mean:.0%} of the completions have the form that the format reward asks for"
    text = f"{found}: show an example of it in the prompt{without_thinking}, or teach it first by qwenvl warmup"
    prompts_ask = numbers.form_asked >= HALF  # a system prompt would only repeat it
    yield Finding("format missing", text, flags=() if prompts_ask else ("--system", f"Reply in this form: {tags}."))


def _looks(numbers: ProbeNumbers) -> Iterator[Finding]:
    """Looks that can bring nothing: with the right span the reward is hardly higher than on the overview."""
    looks = numbers.looks
    if looks is None:
        return
    # The gain is NaN without a record, and so are its ends with records of one clip alone.
    if looks.gain.mean >= LITTLE and looks.gain.low > 0:
        return
    by = numbers.question.pass_by
    if not looks.records:
        yield Finding("looks not measured", f"{by} has no value where records have `evidence`: name another --pass_by")
        return
    overview = looks.overview.mean
    span = looks.right_span.mean
    shown = "the overview shows enough: show fewer frames (--frame_counts 4,8)"
    if overview < MOSTLY_RIGHT:
        shown = "the model does not use the right span: show more pixels (--video_max_frame_pixels), or warm it up"
    yield Finding(
        "looks bring nothing",
        f"with the right span in place of the whole clip {by} is {span:.3f}, on the overview {overview:.3f}. Looking "
        f"can bring no more than that, and a policy that gains nothing by it stops to look. Either {shown}; or train "
        "without --tools",
    )


def _spread(numbers: ProbeNumbers, generation: GenerationOptions) -> Iterator[Finding]:
    """Groups with equal rewards: the records are too hard, too easy, or the completions are too similar."""
    samples = numbers.question.samples
    size = numbers.question.group_size
    first = numbers.pass_at_k[1].mean
    best = numbers.pass_at_k[samples].mean  # NaN where no prompt has a value for all completions
    equal = numbers.equal_groups.mean
    larger: tuple[str, ...] = ()
    if size < LARGEST_GROUP:
        larger = ("--grpo_sample_size", str(min(LARGEST_GROUP, max(samples, 2 * size))))
    if best <= HARDLY_EVER_RIGHT and numbers.equal_answers.mean > EQUAL_SHARE:
        text = (
            f"of {samples} completions one passes for {best:.0%} of the prompts: there is nothing to prefer. Take "
            "easier records, a reward with finer steps or a larger model, or teach the solutions first by qwenvl warmup"
        )
        if equal <= EQUAL_SHARE:
            text += ". Its rewards differ, but not by the answer"
        yield Finding("too hard", text, flags=larger if best > 0 else ())
    elif equal > EQUAL_SHARE and first >= MOSTLY_RIGHT:
        text = f"{first:.0%} of the completions pass: take harder records. Larger groups hold a wrong answer more often"
        yield Finding("too easy", text, flags=larger)
    elif equal > EQUAL_SHARE:
        freer: tuple[str, ...] = ()
        if generation.generation_temperature < 1:
            freer += ("--generation_temperature", "1.0")
        if generation.generation_top_p != 1:
            freer += ("--generation_top_p", "1.0")
        text = (
            f"{equal:.0%} of the groups of {size} have equal rewards, and {numbers.unique:.1f} of "
            f"{samples} completions differ: a prompt is answered alike each time. Sample more freely"
        )
        yield Finding("no diversity", text, flags=freer or larger)


def next_command(findings: Sequence[Finding], request: ProbeRequest, base: str | None = None) -> str:
    """The next command: this probe with the flags that help, the training, or a look at the data where no flag helps.

    Args:
        request: of this probe.
        base: the base model, if the model is an adapter.
    """
    config = request.config
    model = str(config.model_name_or_path)
    data = str(config.dataset_use)
    flags: list[str] = []
    for finding in findings:
        flags += finding.flags
    if flags:
        # A group of training needs as many completions of the probe, so a set number of them grows with it.
        if request.options.samples is not None and "--grpo_sample_size" in flags:
            group_size = flags[flags.index("--grpo_sample_size") + 1]
            flags += ["--samples", group_size]
        return shlex.join(["qwenvl", "probe", *without_flags(request.argv, flags), *flags])
    if [finding.code for finding in findings] != [GOOD]:
        shown = changed_flags(config, (ReadingOptions, FrameOptions, PromptOptions), without=("on_long_prompt",))
        tools = ["--tools", *config.tools] if config.tools else []
        return shlex.join(["qwenvl", "preview", data, "--n", "8", "--model", base or model, *shown, *tools])
    words = ["qwenvl", "train"]
    if request.file is not None:
        words += ["--config", str(request.file)]
    if request.words:  # without words the file names model and data
        words += ["--model_name_or_path", base or model]
        if base is not None:
            words += ["--lora_enable", "--start_from_weights", model]
        words += ["--dataset_use", data]
    words += request.flags
    if request.file is None:
        words += ["--output_dir", "runs/" + re.sub(r"[^\w.-]+", "-", Path(data).stem)]
    return shlex.join(words)


def without_flags(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without the flags that others set, and without their values.

    Example:
        >>> without_flags(["m", "d", "--seed", "3", "--samples=8"], ["--samples", "16"])
        ['m', 'd', '--seed', '3']
    """
    named = {setting_of(word) for word in flags} - {None}
    kept = []
    flag = None
    for word in argv:
        flag = setting_of(word) or flag  # a word without a name is a value of the last flag
        if flag not in named:
            kept.append(word)
    return kept


@dataclass(frozen=True)
class JudgedProbe:
    """The numbers of a probe with the verdict and the next command."""

    numbers: ProbeNumbers
    findings: tuple[Finding, ...]
    next: str

    def as_json(self) -> dict[str, Any]:
        """As ``probe.json`` has them."""
        findings = [{"name": each.code, "words": each.message, "flags": list(each.flags)} for each in self.findings]
        return self.numbers.as_json() | {"verdict": findings, "next": self.next}

    def table(self) -> str:
        """The numbers, the verdict and the next command as text."""
        numbers = self.numbers
        question = numbers.question
        rows = list(_rows(numbers))
        width = max(len(name) for name, _ in rows) + 2
        asked = f"{numbers.prompts:,} prompts, {question.samples} completions each"
        passes = f"A completion passes where {question.pass_by} is at least {question.pass_at:g}"
        parts = [
            [
                f"{question.model} on {question.data}: {asked}, at temperature {question.temperature:g}",
                f"{passes}. In brackets: the 95 % interval.",
            ],
            [f"  {name:<{width}}{value}" for name, value in rows],
            left_out_lines(numbers.left_out, "--json"),
            [f"{finding.code}: {finding.message}." for finding in self.findings],
            ["next:", f"  {self.next}"],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part)


def judged(numbers: ProbeNumbers, request: ProbeRequest) -> JudgedProbe:
    """The numbers with their verdict and the next command."""
    config = request.config
    findings = verdict(numbers, GenerationOptions.of(config), RewardOptions.of(config))
    base = base_of_adapter(str(config.model_name_or_path))
    return JudgedProbe(numbers, tuple(findings), next_command(findings, request, base))


def _rows(numbers: ProbeNumbers) -> Iterator[tuple[str, str]]:
    """The names and values of the table."""
    question = numbers.question
    groups = f"groups of {question.group_size}"
    for k, interval in numbers.pass_at_k.items():
        yield f"pass@{k}", _shown(interval)
    if numbers.teacher.n:
        yield "pass@1 of the teacher", _shown(numbers.teacher)
    yield f"{groups} without spread", _shown(numbers.equal_groups)
    yield f"{groups} of equal {question.pass_by}", _shown(numbers.equal_answers)
    if numbers.format is not None:
        yield "in the asked form", _shown(numbers.format)
    yield "truncated", _shown(numbers.truncated)
    for name, reward in numbers.rewards.items():
        yield f"reward {name}", _shown(reward)
    looks = numbers.looks
    if looks is not None:
        yield f"{question.pass_by} on the overview", f"{_shown(looks.overview)} without tools"
        yield f"{question.pass_by} with the right span", f"{_shown(looks.right_span)} without tools"
        gain = interval_text(as_json(looks.gain), signed=True) if looks.records else "not known"
        yield "the most looking can bring", f"{gain} on {looks.records:,} records with `evidence`"
    yield "different completions", f"{numbers.unique:.1f} of {question.samples}"
    yield "completion tokens", f"{numbers.completion_tokens:,.0f}, the longest {numbers.longest_completion:,}"
    yield "prompt tokens", f"{numbers.prompt_tokens:,.0f}, the longest {numbers.longest_prompt:,}"
    yield "seconds per prompt", f"{numbers.seconds_per_prompt:.2f}"


def _shown(interval: Interval) -> str:
    if interval.n == 0:
        return "not known: no prompt has as many values"
    return interval_text(as_json(interval))
