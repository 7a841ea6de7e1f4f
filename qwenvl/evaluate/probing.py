"""A probe: completions for the first prompts of a training run, their numbers, the verdict, and the next command."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from qwenvl.config.command_line import changed_flags
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError, told_to_the_user
from qwenvl.data.options import FrameOptions, PromptOptions, ReadingOptions
from qwenvl.evaluate.answers import (
    PASSES,
    Answers,
    as_json,
    differences,
    equal_chance,
    is_truncated,
    mean_score,
    pass_chances,
    reward_named,
    rows_of,
    share_interval,
    share_over,
)
from qwenvl.evaluate.questions import EVIDENCE, Questions, QuestionSamples
from qwenvl.evaluate.respondent import (
    Respondent,
    build_respondent,
    collator_of,
    loader_of,
    pass_reward,
    with_progress,
)
from qwenvl.evaluate.results_table import left_out_lines
from qwenvl.evaluate.settings import Request, setting_of
from qwenvl.model.weight_files import base_of_adapter
from qwenvl.rewards import RewardError, Rubric
from qwenvl.rewards.options import RewardOptions
from qwenvl.rollout.options import GenerationOptions
from qwenvl.run_lock import NAME
from qwenvl.run_log.health import CUT_OFF_SHARE, EQUAL_SHARE, Finding, interval_text
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.run_log.log import AS_IT_IS, Rollout, RunLog
from qwenvl.step.answer import in_budget, require_finite
from qwenvl.step.assemble import build_dataset, build_rewards, build_sampler, check_view, dataset_view
from qwenvl.step.rows import rollout_rows
from qwenvl.step.types import Scored
from qwenvl.types import TOTAL, BadSample, PromptBatch

COMMAND = "qwenvl probe"
NUMBERS = "probe.json"
SPLIT = "probe"  # of the rows in the folder
FORMATS = ("format", "strict_format")
GOOD = "good to train"
FORM_MISSING = 0.05  # share of completions in the expected form below which GRPO hardly ever sees one
HALF = 0.5
MOSTLY_RIGHT = 0.8  # pass@1
LITTLE = 0.02  # of the reward: what the right span brings below which looking can bring nothing
HARDLY_EVER_RIGHT = 0.1  # pass@samples
LARGEST_GROUP = 64


def probe(request: Request) -> dict[str, Any]:
    """The numbers of a model on a data set, from completions for the first records that training would draw, each once.

    With ``--output_dir`` every completion is written there as it comes.
    """
    config = request.config
    options = request.options
    log = None if options.output_dir is None else RunLog(options.output_dir)
    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        samples = options.samples or max(8, config.grpo_sample_size)
        question: dict[str, Any] = {
            "model": str(config.model_name_or_path),
            "data": str(config.dataset_use),
            "samples": samples,
            "group_size": config.grpo_sample_size,
            "pass_by": pass_reward(rubric, options),
            "pass_at": options.pass_at,
            "temperature": config.generation_temperature,
        }
        if log is not None:
            _refuse_foreign(log.folder)
        collator = collator_of(config)
        dataset, keys = _first_prompts(config, rubric, collator, options.limit)
        evidence = _evidence_loaders(config, dataset, keys, collator) if config.tools else None
        respondent = build_respondent(config, collator, rubric, group_size=samples)
        teacher = respondent  # the model itself, on the prompts that a teacher sees
        if config.teacher_path is not None:
            teacher = build_respondent(config, collator, rubric, config.teacher_path, group_size=samples)
    if log is not None:  # what an earlier probe wrote is replaced
        (log.folder / NUMBERS).unlink(missing_ok=True)
        log.begin()
        log.write_config({**config.to_dict(), "command": COMMAND})
    began = time.perf_counter()
    loader = loader_of(dataset, keys, collator, config)
    sampled = _sample(respondent, loader, SPLIT, log, question, teacher)
    if not sampled.prompts:
        raise RecordError(f"all {len(keys)} records were left out; the first: {sampled.left_out[0].error}")
    numbers = numbers_of(
        question=question,
        prompts=sampled.prompts,
        left_out=sampled.left_out,
        seconds=time.perf_counter() - began,
        taught=sampled.taught,
    )
    if evidence is not None:
        without_tools = respondent.with_toolbox(None)
        overview = _sample(without_tools, evidence.overview, "overview", log, question)
        right_span = _sample(without_tools, evidence.right_span, "right span", log, question)
        numbers["looks"] = worth_of_looks(overview.prompts, right_span.prompts, question["pass_by"])
    rubric.close()
    return numbers


@dataclass(frozen=True)
class _Sampled:
    """The completions for some records.

    Attributes:
        prompts: one for each record that could be read.
        left_out: the other records.
        taught: the completions of the teacher's prompts.
    """

    prompts: list[Answers[Rollout]]
    left_out: list[BadSample]
    taught: list[Answers[Rollout]]


def _sample(
    respondent: Respondent,
    loader: DataLoader,
    split: str,
    log: RunLog | None,
    question: dict[str, Any],
    teacher: Respondent | None = None,
) -> _Sampled:
    """The completions of each prompt, written as they come, and the records that were left out.

    Args:
        split: of the rows that are written.
        question: see ``numbers_of``.
        teacher: answers the teacher's prompts of the same records. Its completions come last and are not written.
    """
    sampled = _Sampled(prompts=[], left_out=[], taught=[])

    def readable() -> Iterator[PromptBatch]:
        for inputs in with_progress(loader, len(loader), "" if split == SPLIT else split):
            batch = inputs["prompts"]
            sampled.left_out.extend(batch.bad)
            if len(batch) > 0:  # a batch whose only record could not be read is empty
                yield batch

    new_tokens = respondent.sample.group_size * respondent.sample.params.max_new_tokens
    for batches in in_budget(readable(), new_tokens=new_tokens, budget=respondent.config.rollout_token_budget):
        groups = respondent.groups(batches)
        require_finite([each.rollout for each in groups])
        for group in groups:
            answers = _answers_of(group, split, question)
            sampled.prompts.extend(answers)
            if log is not None:
                log.log_rollouts(rows_of(answers))
        teacher_prompts = [batch.teacher for batch in batches if batch.teacher]
        if teacher is not None and teacher_prompts:
            for group in teacher.groups(teacher_prompts):
                sampled.taught.extend(_answers_of(group, split, question))
    return sampled


def _answers_of(scored: Scored, split: str, question: dict[str, Any]) -> list[Answers[Rollout]]:
    """The completions of a batch, prompt by prompt."""
    batch = scored.batch
    rows = list(rollout_rows(0, split, batch, scored.rollout, scored.rewards))
    group_size = len(rows) // len(batch)
    answers = []
    for p, prompt_tokens in enumerate(batch.attention_mask.sum(1).tolist()):
        group = rows[p * group_size : (p + 1) * group_size]
        answers.append(
            Answers.of(
                group,
                prompt_tokens=prompt_tokens,
                cluster=group[0].where,
                pass_by=question["pass_by"],
                pass_at=question["pass_at"],
            )
        )
    return answers


@dataclass(frozen=True)
class _EvidenceLoaders:
    """The records with ``evidence``, as they are and with the right span in place of the whole clip."""

    overview: DataLoader
    right_span: DataLoader


def _evidence_loaders(
    config: GRPOConfig, dataset: GRPODataset, keys: Sequence[tuple[int, int]], collator: GRPOCollator
) -> _EvidenceLoaders:
    """The prompts, without tools, of the records that show what looking can bring.

    Raises:
        RecordError: no record has ``evidence``, or that of one cannot be read.
    """
    records = {index: dataset.record(index) for _, index in keys}
    questions = Questions(records, clusters={}, controls=(AS_IT_IS, EVIDENCE))
    numbers = [number for number in questions.records if questions.applies(EVIDENCE, number)]
    if not numbers:
        raise RecordError(
            f'--tools: none of the {len(keys):,} records has one clip and "evidence": [[start, end], ...] in seconds, '
            "by which a probe measures what looking can bring; add it to some records, or probe without --tools"
        )
    samples = QuestionSamples(dataset, questions, config.seed)
    without_tools = GRPOCollator(collator.processor, PromptOptions.of(config))

    def under(control: str) -> DataLoader:
        return loader_of(samples, [(control, number) for number in numbers], without_tools, config)

    return _EvidenceLoaders(overview=under(AS_IT_IS), right_span=under(EVIDENCE))


def _first_prompts(
    config: GRPOConfig, rubric: Rubric, collator: GRPOCollator, limit: int
) -> tuple[GRPODataset, list[tuple[int, int]]]:
    """The data set, and the keys of the first records that training would draw, each once."""
    dataset = build_dataset(config.dataset_use, config, rubric, collator, training=True)
    dataset.view = dataset_view(config)
    if dataset.view is not None:
        check_view(config, dataset.view, dataset.records)
    keys: dict[int, tuple[int, int]] = {}
    for key in build_sampler(dataset, config, 1, collator):
        if key is not None:
            _, index = key  # (pass over the data, record)
            keys.setdefault(index, key)  # with weights a record may come several times
    return dataset, list(keys.values())[:limit]


def _refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that no probe writes."""
    present = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    if present - {NAME, NUMBERS, "run.json", "rollouts"}:
        raise FileExistsError(
            f"--output_dir {folder}: holds files that no probe wrote; give a new folder or that of an earlier probe"
        )


# ---- numbers


def numbers_of(
    question: dict[str, Any],
    prompts: Sequence[Answers[Rollout]],
    left_out: Sequence[BadSample],
    seconds: float,
    taught: Sequence[Answers[Rollout]] = (),
) -> dict[str, Any]:
    """The numbers of at least one prompt, as ``probe.json`` has them: docs/evaluation.md explains each.

    Args:
        question: the first rows of the numbers. ``model`` and ``data``, ``samples`` and ``group_size`` (completions
            per prompt, here and in training), ``pass_by`` and ``pass_at`` (a completion passes where this reward is at
            least this value) and ``temperature``.
        seconds: of the whole probe.
        taught: the completions of the teacher's prompts.

    Raises:
        RewardError: the reward ``pass_by`` has a value for no completion.
    """
    pass_by = question["pass_by"]
    if not any(each.passed for each in prompts):
        raise RewardError(f"--pass_by {pass_by}: it has no value for any completion; name another reward")
    rows = rows_of(prompts)
    reward_names = list(rows[0].rewards)
    has_answer_end = [float("</answer>" in row.completion) for row in rows if is_truncated(row)]
    asks_for_form = [float(_asks_for_form(row)) for row in rows]
    unique_completions = []  # different completions of each prompt
    for each in prompts:
        texts = {row.completion for row in each.rows}
        unique_completions.append(len(texts))
    form = next((name for name in FORMATS if name in reward_names), None)
    in_form = None
    if form is not None:
        in_form = share_over(prompts, lambda row: row.rewards[form] == 1)
    return as_json(
        {
            **question,
            "prompts": len(prompts),
            "left_out": [bad.error for bad in left_out],
            "pass_at_k": pass_chances(prompts, question["samples"]),
            "teacher": mean_score(taught, PASSES),
            "rewards": {name: mean_score(prompts, name) for name in (*reward_names, TOTAL)},
            "equal_groups": _equal_share(prompts, TOTAL, question["group_size"]),
            "equal_answers": _equal_share(prompts, pass_by, question["group_size"]),
            "truncated": share_over(prompts, is_truncated),
            "truncated_after_answer": _mean(has_answer_end),
            "format": in_form,
            "form_asked": _mean(asks_for_form),
            "unique": _mean(unique_completions),
            "completion_tokens": _mean([row.tokens for row in rows]),
            "longest_completion": max(row.tokens for row in rows),
            "prompt_tokens": _mean([each.prompt_tokens for each in prompts]),
            "longest_prompt": max(each.prompt_tokens for each in prompts),
            "seconds_per_prompt": seconds / len(prompts),
        }
    )


def _asks_for_form(row: Rollout) -> bool:
    """True if a turn of the prompt shows the form of an answer block."""
    return any("<answer>" in turn["text"] for turn in row.prompt)


def _equal_share(prompts: Sequence[Answers[Rollout]], name: str, group_size: int) -> Interval:
    """The share of groups of training in which all completions have an equal value of the reward ``name``."""
    chances = []
    for each in prompts:
        values = [reward_named(row, name) for row in each.rows]
        chances.append(equal_chance(values, group_size))
    return share_interval(chances)


def worth_of_looks(
    overview: Sequence[Answers[Rollout]], right_span: Sequence[Answers[Rollout]], pass_by: str
) -> dict[str, Any]:
    """The most that looking can bring, as ``probe.json`` has it: what the right span brings on the same records.

    Args:
        overview: completions of records as they are.
        right_span: of the same records with the span of their ``evidence`` in place of the whole clip.
        pass_by: the reward that is compared.
    """
    # In a probe the cluster of a prompt is the place of its record, so it names the record on both sides.
    before = {each.cluster: each for each in overview}
    after = {each.cluster: each for each in right_span}
    gain = differences(before, after, pass_by)
    clips = [before[where].rows[0].clips[0].path for where in gain]
    return as_json(
        {
            "records": len(gain),
            "overview": clustered_interval([before[where].scores[pass_by] for where in gain], clips),
            "right_span": clustered_interval([after[where].scores[pass_by] for where in gain], clips),
            "gain": clustered_interval(list(gain.values()), clips),
        }
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def judged(numbers: dict[str, Any], request: Request) -> dict[str, Any]:
    """The numbers with their verdict and the next command, as ``probe.json`` has them."""
    config = request.config
    findings = verdict(numbers, GenerationOptions.of(config), RewardOptions.of(config))
    base = base_of_adapter(str(config.model_name_or_path))
    return {
        **numbers,
        "verdict": [{"name": each.code, "words": each.message, "flags": each.flags} for each in findings],
        "next": next_command(findings, request, base),
    }


def verdict(numbers: dict[str, Any], generation: GenerationOptions, rewards: RewardOptions) -> list[Finding]:
    """The obstacles to training, the most urgent first, or the one finding ``GOOD``.

    Codes: cut off, format missing, looks bring nothing, looks not measured, too hard, too easy, no diversity, good to
    train. Completions that are truncated or lack the form do not show what the model knows, so difficulty, diversity
    and looks are judged only without these two findings. docs/evaluation.md has the rules.

    Args:
        numbers: of ``numbers_of``.
        generation, rewards: of the training run.
    """
    unread = list(_cut_off(numbers, generation))
    if numbers["truncated"]["mean"] < HALF:  # completions that are cut lack the end of the form
        unread += _form(numbers, rewards)
    if unread:
        return unread
    found = [*_looks(numbers), *_spread(numbers, generation)]
    if found:
        return found
    teach = 1 - numbers["equal_groups"]["mean"]
    text = f"{teach:.0%} of the groups of {numbers['group_size']} have rewards that differ, and teach something"
    if teach < HALF:
        text += ". The others cost as much and teach nothing"
    return [Finding(GOOD, text)]


def _cut_off(numbers: dict[str, Any], generation: GenerationOptions) -> Iterator[Finding]:
    """Completions that end at the limit: a stop string, if most were cut after a whole answer, else a higher limit."""
    share = numbers["truncated"]["mean"]
    limit = generation.generation_max_length
    stops = generation.stop_strings or ()
    if share < CUT_OFF_SHARE:
        return
    found = f"{share:.0%} of the completions end at the limit of {limit} tokens"
    if numbers["truncated_after_answer"] >= HALF and "</answer>" not in stops:
        text = f"{found}, {numbers['truncated_after_answer']:.0%} of these after a whole answer: stop there"
        yield Finding("cut off", text, flags=("--stop_strings", *stops, "</answer>"))
    else:
        yield Finding("cut off", f"{found}: allow more", flags=("--generation_max_length", str(2 * limit)))


def _form(numbers: dict[str, Any], rewards: RewardOptions) -> Iterator[Finding]:
    """Completions without the form that the format reward asks for."""
    if numbers["format"] is None or numbers["format"]["mean"] >= FORM_MISSING:
        return
    tags = "<answer> </answer>"
    without_thinking = ""
    if rewards.response_format == "think_answer":
        tags = "<think> </think>, then <answer> </answer>"
        without_thinking = ", or drop the thinking by --response_format answer_only"
    found = f"{numbers['format']['mean']:.0%} of the completions have the form that the format reward asks for"
    text = f"{found}: show an example of it in the prompt{without_thinking}, or teach it first by qwenvl warmup"
    prompts_ask = numbers["form_asked"] >= HALF  # a system prompt would only repeat it
    yield Finding("format missing", text, flags=() if prompts_ask else ("--system", f"Reply in this form: {tags}."))


def _looks(numbers: dict[str, Any]) -> Iterator[Finding]:
    """Looks that can bring nothing: with the right span the reward is hardly higher than on the overview."""
    looks = numbers.get("looks")
    if not looks:
        return
    gain = looks["gain"]  # its values are None without a record, and its ends with records of one clip alone
    if (gain["mean"] or 0) >= LITTLE and (gain["low"] or 0) > 0:
        return
    by = numbers["pass_by"]
    if not looks["records"]:
        yield Finding("looks not measured", f"{by} has no value where records have `evidence`: name another --pass_by")
        return
    overview = looks["overview"]["mean"]
    span = looks["right_span"]["mean"]
    shown = "the overview shows enough: show fewer frames (--frame_counts 4,8)"
    if overview < MOSTLY_RIGHT:
        shown = "the model does not use the right span: show more pixels (--video_max_frame_pixels), or warm it up"
    yield Finding(
        "looks bring nothing",
        f"with the right span in place of the whole clip {by} is {span:.3f}, on the overview {overview:.3f}. Looking "
        f"can bring no more than that, and a policy that gains nothing by it stops to look. Either {shown}; or train "
        "without --tools",
    )


def _spread(numbers: dict[str, Any], generation: GenerationOptions) -> Iterator[Finding]:
    """Groups with equal rewards: the records are too hard, too easy, or the completions are too similar."""
    samples = numbers["samples"]
    size = numbers["group_size"]
    first = numbers["pass_at_k"]["1"]["mean"]
    best = numbers["pass_at_k"][str(samples)]["mean"]  # None where no prompt has a value for all completions
    equal = numbers["equal_groups"]["mean"]
    larger: tuple[str, ...] = ()
    if size < LARGEST_GROUP:
        larger = ("--grpo_sample_size", str(min(LARGEST_GROUP, max(samples, 2 * size))))
    if best is not None and best <= HARDLY_EVER_RIGHT and numbers["equal_answers"]["mean"] > EQUAL_SHARE:
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
            f"{equal:.0%} of the groups of {size} have equal rewards, and {numbers['unique']:.1f} of "
            f"{samples} completions differ: a prompt is answered alike each time. Sample more freely"
        )
        yield Finding("no diversity", text, flags=freer or larger)


def next_command(findings: Sequence[Finding], request: Request, base: str | None = None) -> str:
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


def table(numbers: dict[str, Any]) -> str:
    """The numbers, the verdict and the next command as text.

    Args:
        numbers: the content of ``probe.json``.
    """
    rows = list(_rows(numbers))
    width = max(len(name) for name, _ in rows) + 2
    asked = f"{numbers['prompts']:,} prompts, {numbers['samples']} completions each"
    passes = f"A completion passes where {numbers['pass_by']} is at least {numbers['pass_at']:g}"
    parts = [
        [
            f"{numbers['model']} on {numbers['data']}: {asked}, at temperature {numbers['temperature']:g}",
            f"{passes}. In brackets: the 95 % interval.",
        ],
        [f"  {name:<{width}}{value}" for name, value in rows],
        left_out_lines(numbers["left_out"], "--json"),
        [f"{finding['name']}: {finding['words']}." for finding in numbers["verdict"]],
        ["next:", f"  {numbers['next']}"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _rows(numbers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    size = numbers["group_size"]
    for k, interval in numbers["pass_at_k"].items():
        yield f"pass@{k}", _shown(interval)
    if numbers["teacher"]["n"]:
        yield "pass@1 of the teacher", _shown(numbers["teacher"])
    yield f"groups of {size} without spread", _shown(numbers["equal_groups"])
    yield f"groups of {size} of equal {numbers['pass_by']}", _shown(numbers["equal_answers"])
    if numbers["format"] is not None:
        yield "in the asked form", _shown(numbers["format"])
    yield "truncated", _shown(numbers["truncated"])
    for name, reward in numbers["rewards"].items():
        yield f"reward {name}", _shown(reward)
    looks = numbers.get("looks")
    if looks:
        yield f"{numbers['pass_by']} on the overview", f"{_shown(looks['overview'])} without tools"
        yield f"{numbers['pass_by']} with the right span", f"{_shown(looks['right_span'])} without tools"
        gain = interval_text(looks["gain"], signed=True) if looks["records"] else "not known"
        yield "the most looking can bring", f"{gain} on {looks['records']:,} records with `evidence`"
    yield "different completions", f"{numbers['unique']:.1f} of {numbers['samples']}"
    yield "completion tokens", f"{numbers['completion_tokens']:,.0f}, the longest {numbers['longest_completion']:,}"
    yield "prompt tokens", f"{numbers['prompt_tokens']:,.0f}, the longest {numbers['longest_prompt']:,}"
    yield "seconds per prompt", f"{numbers['seconds_per_prompt']:.2f}"


def _shown(interval: dict[str, Any]) -> str:
    if interval["n"] == 0:
        return "not known: no prompt has as many values"
    return interval_text(interval)
