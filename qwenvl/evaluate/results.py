"""The numbers of an evaluation with 95 % intervals, as pure functions of its samples, and their table.

They are rows of ``evaluation.json``, as docs/evaluation.md describes them.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

from qwenvl.data.prompt_settings import as_said
from qwenvl.evaluate.timelines import (
    MEASURES,
    confusion_rows,
    procedure_lines,
    read_answer,
    step_rows,
    step_text,
)
from qwenvl.failure import counted
from qwenvl.rewards.functions.looking import answered_calls, looks_iou
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.run_log.health import CUT_OFF_SHARE, SAME_REWARD, says_nothing, signed_number
from qwenvl.run_log.intervals import Interval, clustered_interval
from qwenvl.run_log.log import AS_IT_IS, NUMBERS, SAMPLES, EvaluationSample, Rollout
from qwenvl.types import TOTAL

PASSES = "passes"
MANY_UNREAD = 0.1  # share of completions without an answer above which a score says more about the form
Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Answers:
    """The completions of one prompt by one model.

    Attributes:
        rows: of an evaluation or of a run.
        prompt_tokens: vision tokens included.
        cluster: a key that correlated prompts share.
        scores: means over the completions, by reward, ``total`` and ``passes``.
        passed: of those that have a value of the reward that decides.
    """

    rows: Sequence[Any]
    prompt_tokens: int
    cluster: str
    scores: dict[str, float]
    passed: list[bool]

    @classmethod
    def of(
        cls, rows: Sequence[Rollout | EvaluationSample], tokens: int, cluster: str, pass_by: str, pass_at: float
    ) -> Answers:
        """With the scores of at least one completion."""
        columns = {name: [row.rewards[name] for row in rows] for name in rows[0].rewards}
        columns[TOTAL] = [row.total for row in rows]
        known = {name: [value for value in values if value is not None] for name, values in columns.items()}
        passed = [value >= pass_at - SAME_REWARD for value in known[pass_by]]
        means = {name: sum(values) / len(values) for name, values in (known | {PASSES: passed}).items() if values}
        return cls(rows, tokens, cluster, means, passed)


_Records = dict[int, Answers]  # of one model and control, by number
_Row = dict[str, Any]


def results_of(
    samples: Iterable[EvaluationSample],
    models: Sequence[str],
    controls: Sequence[str],
    pass_by: str,
    pass_at: float,
) -> dict[str, list[_Row]]:
    """The numbers of all models under all controls, on any selection of samples, such as those of one data set.

    - ``numbers``: a row for each model and control.
    - ``drops``: the worth of the evidence to each model, its scores without a control minus those under it.
    - ``differences``: the scores of each further model minus those of the first.

    Drops and differences are paired: over the records that both sides have.

    Args:
        models, controls: in the order of the tables. Models are compared with the first.
        pass_by, pass_at: a completion passes where this reward is at least this value.
    """
    rows: dict[tuple[str, str, int], list[EvaluationSample]] = {}
    for sample in samples:
        if sample.model in models and sample.control in controls:
            rows.setdefault((sample.model, sample.control, sample.doc_id), []).append(sample)
    found: dict[tuple[str, str], _Records] = {(model, control): {} for model in models for control in controls}
    for model, control, number in sorted(rows):
        own = rows[model, control, number]
        answers = Answers.of(own, own[0].prompt_tokens, own[0].cluster, pass_by, pass_at)
        found[model, control][number] = answers
    full = {model: found[model, AS_IT_IS] for model in models}
    first, lesser = models[0], [control for control in controls if control != AS_IT_IS]
    return as_json(
        {
            "numbers": [_numbers(*key, records, pass_by) for key, records in found.items() if records],
            "drops": [_drop(m, c, found[m, c], full[m], pass_by, pass_at) for m in models for c in lesser],
            "differences": [
                _difference(first, model, control, found[first, control], found[model, control], pass_by)
                for model in models[1:]
                for control in controls
            ],
        }
    )


def _numbers(model: str, control: str, found: _Records, pass_by: str) -> _Row:
    prompts = list(found.values())
    rows = [row for each in prompts for row in each.rows]
    names = dict.fromkeys(name for each in prompts for name in each.scores)
    return {
        "model": model,
        "control": control,
        "records": len(prompts),
        "clusters": len({each.cluster for each in prompts}),
        "scores": {name: mean_score(prompts, name) for name in names},
        "pass_at_k": pass_chances(prompts, max(len(each.passed) for each in prompts)),
        "no_answer": share_over(prompts, lambda row: not row.answer),
        "truncated": share_over(prompts, is_truncated),
        "tokens": sum(row.tokens for row in rows) / len(rows),
        "longest": max(row.tokens for row in rows),
        "prompt_tokens": sum(each.prompt_tokens for each in prompts) / len(prompts),
        "fitted": sum(each.rows[0].fitted is not None for each in prompts),
        "looks": _looks(prompts, rows, pass_by),
        "timelines": _timelines(prompts),
    }


def mean_score(prompts: Sequence[Answers], name: str) -> Interval:
    """The mean of a reward, of ``total`` or of ``passes`` over the prompts that have a value."""
    own = [each for each in prompts if name in each.scores]
    interval = share_interval if name == PASSES else clustered_interval
    return interval([each.scores[name] for each in own], [each.cluster for each in own])


def pass_chances(prompts: Sequence[Answers], most: int) -> dict[int, Interval]:
    """pass@k by k up to ``most``, each over the prompts that have as many completions with a value."""
    found = {}
    for k in sample_counts(most):
        own = [each for each in prompts if len(each.passed) >= k]
        chances = [pass_at_k(len(each.passed), sum(each.passed), k) for each in own]
        found[k] = share_interval(chances, [each.cluster for each in own])
    return found


def _looks(prompts: Sequence[Answers], rows: Sequence[EvaluationSample], pass_by: str) -> _Row | None:
    """How completions used their tools. None without tools. A look is a call that was answered."""
    turns = [row.turns for row in rows if row.turns]
    calls = [call for each in turns for turn in each for call in turn.calls]
    if not turns:
        return None
    looked = lambda row: bool(answered_calls(row.turns))
    reward = lambda row: row.total if pass_by == TOTAL else row.rewards[pass_by]
    return {
        "looked": share_over(prompts, looked),
        "calls": len(calls) / len(turns),
        "with_look": mean_over(prompts, lambda row: reward(row) if looked(row) else None),
        "without_look": mean_over(prompts, lambda row: None if looked(row) else reward(row)),
        "evidence_iou": mean_over(prompts, lambda row: looks_iou(row.turns, row.evidence) if row.evidence else None),
        "refused": {"mean": sum(call.error is not None for call in calls) / len(calls)} if calls else None,
    }


def _timelines(prompts: Sequence[Answers]) -> _Row | None:
    """The measures of timelines over the records that are about one. None without such a record."""
    read = []
    for each in prompts:
        answers = [read_answer(row) for row in each.rows]
        own = [answer for answer in answers if answer is not None]
        if own:
            read.append(replace(each, rows=own))
    if not read:
        return None
    everything = [answer for each in read for answer in each.rows]
    return {
        "records": len(read),
        "scores": {name: mean_over(read, measure) for name, measure in MEASURES.items()},
        "steps": step_rows(everything),
        "confusions": confusion_rows(everything),
    }


def mean_over(
    prompts: Sequence[Answers],
    of: Callable[[Any], float | None],
    interval: Callable[..., Interval] = clustered_interval,
) -> Interval:
    """The mean over prompts of the means over their completions. Where ``of`` is None the completion does not count."""
    each = [[value for value in map(of, answers.rows) if value is not None] for answers in prompts]
    known = [(sum(own) / len(own), answers.cluster) for own, answers in zip(each, prompts, strict=True) if own]
    return interval([value for value, _ in known], [cluster for _, cluster in known])


def share_over(prompts: Sequence[Answers], of: Callable[[Any], bool]) -> Interval:
    """The share of completions for which ``of`` is true."""
    return mean_over(prompts, lambda row: float(of(row)), share_interval)


def is_truncated(row: Rollout | EvaluationSample) -> bool:
    """Whether a completion was cut at the longest length."""
    return row.finish_reason == "length"


def _drop(model: str, control: str, without: _Records, full: _Records, pass_by: str, pass_at: float) -> _Row:
    """The drop, and the one over the completions that have an answer block (``answered``).

    The drop is not comparable if over 10 % of the completions under the control have no answer block: then it is one of
    the form. A model that never writes an answer block is comparable: its rewards read the text.
    """
    no_answer = share_over([*without.values()], lambda row: not row.answer)
    never = not any(row.answer for each in full.values() for row in each.rows)

    def answered(found: _Records) -> _Records:
        own = {n: [row for row in each.rows if row.answer] for n, each in found.items()}
        return {n: Answers.of(rows, 0, found[n].cluster, pass_by, pass_at) for n, rows in own.items() if rows}

    return {
        **{"model": model, "control": control, **_paired(without, full)},
        **{"no_answer": no_answer, "comparable": never or not no_answer.mean > MANY_UNREAD},
        "answered": _paired(answered(without), answered(full)),
    }


def _paired(before: _Records, after: _Records) -> _Row:
    """The difference of each score on the records that both have it for."""
    both, scores = [number for number in before if number in after], {}
    for name in dict.fromkeys(name for number in both for name in before[number].scores):
        own = differences(before, after, name)
        scores[name] = clustered_interval([*own.values()], [before[n].cluster for n in own])
    return {"records": len(both), "scores": scores}


def differences(before: Mapping[Any, Answers], after: Mapping[Any, Answers], name: str) -> dict[Any, float]:
    """The difference of a score for each key that both have it for."""
    both = [key for key in before if key in after and name in before[key].scores and name in after[key].scores]
    return {key: after[key].scores[name] - before[key].scores[name] for key in both}


def _difference(before: str, after: str, control: str, of_before: _Records, of_after: _Records, pass_by: str) -> _Row:
    gains = differences(of_before, of_after, pass_by).values()
    better, worse = sum(gain > SAME_REWARD for gain in gains), sum(gain < -SAME_REWARD for gain in gains)
    return {
        **{"before": before, "after": after, "control": control, **_paired(of_before, of_after)},
        **{"better": better, "equal": len(gains) - better - worse, "worse": worse},
    }


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k completions passes, unbiased, from ``passed`` of ``samples`` that did.

    1 - C(samples - passed, k) / C(samples, k), k at most ``samples`` (arXiv:2107.03374, equation 1).

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def sample_counts(most: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to 128, and ``most``. Empty for 0."""
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most] * (most > 0)


def equal_chance(rewards: Sequence[float | None], k: int) -> float:
    """The chance that k of a prompt's completions all have equal rewards, by all choices of k among those at hand.

    Such a group has no policy gradient. A completion without a reward (None) does not count in its group.

    Example:
        >>> equal_chance([1.0, 1.0, 1.0, 0.0], 2)  # 3 of the 6 pairs
        0.5
    """
    known = sorted(reward for reward in rewards if reward is not None)
    missing = len(rewards) - len(known)
    alike: list[list[float]] = []  # the rewards of each value
    for reward in known:
        if alike and reward - alike[-1][0] <= SAME_REWARD:
            alike[-1].append(reward)
        else:
            alike.append([reward])
    without_any = math.comb(missing, k)
    equal = without_any + sum(math.comb(len(own) + missing, k) - without_any for own in alike)
    return equal / math.comb(len(rewards), k)


def share_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """``clustered_interval`` of values from 0 to 1, with Wilson's (1927) ends where all are 0 or all are 1.

    The bootstrap's interval would be empty there.

    Example:
        >>> round(share_interval([0.0] * 20).high, 3)
        0.161
    """
    if set(values) not in ({0.0}, {1.0}):
        return clustered_interval(values, clusters)
    n = len(values if clusters is None else set(clusters))
    z = Z_975**2 / n
    if values[0] == 0:
        return Interval(0.0, 0.0, z / (1 + z), n)
    return Interval(1.0, (1 + z / 2) / (1 + z) - z / 2 / (1 + z), 1.0, n)


def as_json(value: Any) -> Any:
    """JSON values. An ``Interval`` becomes an object of its mean, its ends and ``n``, and NaN becomes None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- as lines of text

SHOWN = 3  # records that were left out
DEVIATIONS_SHOWN = 20  # records that deviate from a procedure, of each model
CONFUSIONS_SHOWN = 5
_GAP = "   "
LONGEST_STEP = 60  # characters


def table(found: dict[str, Any], folder: str | os.PathLike[str]) -> str:
    """The numbers, the worth of the evidence, and where the protocol and the page are.

    Args:
        found: the content of ``evaluation.json``.
    """
    errors = {each["doc_id"]: each["error"] for each in found["left_out"]}
    parts: list[Iterable[str]] = [
        _head(found["protocol"]),
        _scores(found),
        _notes(found),
        _controls(found),
        _looks_shown(found),
        _timelines_shown(found),
        *_steps_shown(found),
        procedure_lines(found["procedure"], DEVIATIONS_SHOWN, NUMBERS) if found.get("procedure") else (),
        _differences(found),
        [
            f"{each['name']}: was trained with --{name} {as_said(there)}, and is evaluated with {as_said(here)}"
            for each in found["models"]
            for name, there, here in each["trained_otherwise"]
        ],
        left_out_lines([*errors.values()], NUMBERS),
    ]
    text = "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))
    written = min(os.path.relpath(folder), str(folder), key=len)
    page = shlex.join(["qwenvl", "report", written])
    return f"{text}\n\nwritten to {written}: {NUMBERS}, {SAMPLES}\nits page:\n  {page}"


def left_out_lines(errors: Sequence[str], lists_all: str) -> list[str]:
    """The number of records that were left out, and the errors of the first three. Empty where there are none."""
    head = f"left out: {counted(len(errors), 'record')}, which no number above counts"
    more = [f"  ... and {len(errors) - SHOWN:,} more ({lists_all} lists all)"] * (len(errors) > SHOWN)
    return [head, *(f"  {error}" for error in errors[:SHOWN]), *more] if errors else []


def _head(protocol: dict[str, Any]) -> Iterator[str]:
    data, decoding, passes = protocol["data"], protocol["decoding"], protocol["passes"]
    how = "the greedy completion"
    if decoding["method"] != "greedy":
        how = f"{decoding['samples']} completions at temperature {decoding['temperature']:g}"
    records = counted(data["records"], "record")
    if data["records"] != data["of"]:
        records = f"{data['records']:,} of {counted(data['of'], 'record')}"
    yield f"{data['dataset_use']}: {records}, {how} of each."
    yield (
        f"A completion passes where {passes['by']} is at least {passes['at']:g}. In brackets: the 95 % interval, drawn "
        f"over {counted(data['clusters'], 'group')} of records ({data['cluster_by']})."
    )


def _scores(found: dict[str, Any]) -> Iterator[str]:
    own = [each for each in found["numbers"] if each["control"] == AS_IT_IS]
    if not own:
        return
    first = [found["protocol"]["passes"]["by"], PASSES]
    more = [k for k in own[0]["pass_at_k"] if k != "1"]
    others = [name for name in own[0]["scores"] if name not in first]
    rows = [["", *first, *(f"pass@{k}" for k in more), *others, "no answer", "cut off", "tokens"]]
    for each in own:
        scores, chances = each["scores"], each["pass_at_k"]
        shares = (f"{each[name]['mean']:.1%}" for name in ("no_answer", "truncated"))
        means = [*(chances.get(k) for k in more), *(scores.get(name) for name in others)]
        intervals = (interval_text(scores[name]) if name in scores else "-" for name in first)
        rows.append([each["model"], *intervals, *map(_mean, means), *shares, f"{each['tokens']:.0f}"])
    yield from _aligned(rows)


def _silent(found: dict[str, Any]) -> set[str]:
    """The models whose completions have no answer at all: no control and no comparison says anything about them."""
    by = found["protocol"]["passes"]["by"]
    own = [each for each in found["numbers"] if each["control"] == AS_IT_IS]
    return {each["model"] for each in own if says_nothing(each, by)}


def _notes(found: dict[str, Any]) -> Iterator[str]:
    """Reasons to distrust a score."""
    by, limit = found["protocol"]["passes"]["by"], found["protocol"]["decoding"]["max_new_tokens"]
    silent = _silent(found)
    for each in found["numbers"]:
        model, truncated, unread = each["model"], each["truncated"]["mean"], each["no_answer"]["mean"]
        if each["control"] != AS_IT_IS:
            continue
        if model in silent:
            yield (
                f"{model}: no completion has an answer, so its {by} says nothing about what it sees; qwenvl probe with "
                "the same flags names what is in the way"
            )
        if each["fitted"]:
            yield f"{model}: of {each['fitted']:,} records less was shown than asked for, so that their prompts fit"
        if truncated >= CUT_OFF_SHARE:
            yield (
                f"{model}: {truncated:.1%} of the completions were cut at {limit:,} tokens: raise "
                "--generation_max_length before you trust its score"
            )
        elif unread > MANY_UNREAD and by in TABLE and by not in SHAPING and model not in silent:
            yield (
                f"{model}: {unread:.1%} of the completions have no <answer> that rewards could read: its score tells "
                "of the form too"
            )


def _controls(found: dict[str, Any]) -> Iterator[str]:
    if not found["drops"]:
        return
    by = found["protocol"]["passes"]["by"]
    numbers = {(each["model"], each["control"]): each["scores"] for each in found["numbers"]}
    drops = {(each["model"], each["control"]): each for each in found["drops"]}
    silent = _silent(found)
    names = [model["name"] for model in found["models"] if model["name"] not in silent]
    if not names:
        return

    def cell(key: tuple[str, str]) -> str:
        drop, score = drops[key], numbers.get(key, {}).get(by)
        mark = "" if drop["comparable"] else " *"
        shown = score is not None and by in drop["scores"]
        return f"{_mean(score)}, drop {interval_text(drop['scores'][by])}{mark}" if shown else "-"

    controls = dict.fromkeys(each["control"] for each in found["drops"])
    rows = [[control, *(cell((name, control)) for name in names)] for control in controls]
    yield from _aligned([["Does it look?", *names], *rows])
    yield f"{by} without the evidence, and by how much it is lower than with it, on the same records."
    for each in found["drops"]:
        if not each["comparable"] and each["model"] not in silent:
            share = f"{each['no_answer']['mean']:.1%} of the completions have no answer"
            among, answered = "No record has one with and without the evidence.", each["answered"]
            if by in answered["scores"]:
                interval = interval_text(answered["scores"][by])
                among = f"Drop among answered: {interval} on {answered['records']:,} records."
            yield f"* {each['model']}, {each['control']}: not comparable, {share}. {among}"


def _looks_shown(found: dict[str, Any]) -> Iterator[str]:
    by = found["protocol"]["passes"]["by"]
    rows = [["Looking again", "", "looked", "calls", f"{by} with a look", "without", "IoU with evidence", "refused"]]
    for each in found["numbers"]:
        if looks := each.get("looks"):  # earlier versions wrote none
            names = ("with_look", "without_look", "evidence_iou")
            means = ("-" if looks[name]["mean"] is None else interval_text(looks[name]) for name in names)
            refused = "-" if looks["refused"] is None else f"{looks['refused']['mean']:.1%}"
            control = "" if each["control"] == AS_IT_IS else each["control"]
            looked = f"{looks['looked']['mean']:.1%}", f"{looks['calls']:.2f}"
            rows.append([each["model"], control, *looked, *means, refused])
    yield from _aligned(rows) if len(rows) > 1 else ()


def _timelines_shown(found: dict[str, Any]) -> Iterator[str]:
    """The measures of timelines, a line for each model and control."""
    rows = [["Timelines", "", "F1@10", "F1@25", "F1@50", "edit", "frame accuracy", "records"]]
    for each in found["numbers"]:
        if timelines := each.get("timelines"):  # earlier versions wrote none
            control = "" if each["control"] == AS_IT_IS else each["control"]
            means = [interval_text(timelines["scores"][name]) for name in MEASURES]
            rows.append([each["model"], control, *means, f"{timelines['records']:,}"])
    yield from _aligned(rows) if len(rows) > 1 else ()


def _steps_shown(found: dict[str, Any]) -> Iterator[list[str]]:
    """For each model its steps and what is confused with what."""
    for each in found["numbers"]:
        timelines = each.get("timelines")
        if not timelines or each["control"] != AS_IT_IS:
            continue
        names = {row["step"]: _short(step_text(row["step"], row["name"])) for row in timelines["steps"]}
        rows = [[f"Steps, {each['model']}", "spans", "found", "start off by", "end off by"]]
        for row in timelines["steps"]:
            errors = ["-" if row[edge] is None else f"{row[edge]:.2f} s" for edge in ("start_error", "end_error")]
            rows.append([names[row["step"]], f"{row['spans']:,}", f"{row['recall']:.1%}", *errors])
        confused = [_confusion(row, names) for row in timelines["confusions"][:CONFUSIONS_SHOWN]]
        yield [*_aligned(rows), *confused]


def _confusion(row: dict[str, Any], names: Mapping[int | str, str]) -> str:
    times = counted(row["count"], "time")
    shown = {key: names.get(row[key], _short(step_text(row[key]))) for key in ("step", "named") if row[key] is not None}
    if row["named"] is None:
        return f"{times} {shown['step']} is missing"
    if row["step"] is None:
        return f"{times} {shown['named']} is named where it is not"
    return f"{times} {shown['step']} is taken for {shown['named']}"


def _short(step: str) -> str:
    """A step as it fits into a table: descriptions of steps may be sentences."""
    return shorten(step, LONGEST_STEP, placeholder=" ...")


def _differences(found: dict[str, Any]) -> Iterator[str]:
    by, silent = found["protocol"]["passes"]["by"], _silent(found)
    for each in found["differences"]:
        if {each["before"], each["after"]} <= silent:
            continue
        if each["control"] == AS_IT_IS and by in each["scores"]:
            yield (
                f"{each['after']} - {each['before']}: {by} {interval_text(each['scores'][by], True)}, on the same "
                f"{each['records']:,} records: better on {each['better']:,}, equal on {each['equal']:,}, worse on "
                f"{each['worse']:,}."
            )


def _mean(interval: dict[str, Any] | None) -> str:
    return "-" if interval is None else f"{interval['mean']:.3f}"


def interval_text(interval: dict[str, Any], signed: bool = False) -> str:
    """A mean with its interval, three decimals each: ``0.963 [0.940, 0.983]``."""
    written = signed_number if signed else "{:.3f}".format
    ends = (interval["low"], interval["high"])
    shown = "" if None in ends else f" [{', '.join(map(written, ends))}]"  # one cluster has no interval
    return written(interval["mean"]) + shown


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
