"""The numbers of an evaluation with 95 % intervals, as pure functions of its samples, and their table.

They are rows of ``evaluation.json``, as docs/evaluation.md describes them.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qwenvl.grpo.diagnostics import Interval, clustered_interval
from qwenvl.health import CUT_OFF_SHARE, SAME_REWARD
from qwenvl.rewards.functions.looking import answered_calls, looks_iou
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.runlog import AS_IT_IS, EvaluationSample
from qwenvl.types import TOTAL

PASSES = "passes"
MANY_UNREAD = 0.1  # share of completions without an answer above which a score says more about the form
Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution


class _Record(NamedTuple):
    """The completions of one record by one model under one control.

    Attributes:
        scores: means over the completions, by reward, ``total`` and ``passes``.
        passed: of those that have a value of the reward that decides.
    """

    samples: list[EvaluationSample]
    scores: dict[str, float]
    passed: list[bool]

    @property
    def cluster(self) -> str:
        return self.samples[0].cluster


def _record_of(samples: list[EvaluationSample], pass_by: str, pass_at: float) -> _Record:
    columns = {name: [sample.rewards[name] for sample in samples] for name in samples[0].rewards}
    columns[TOTAL] = [sample.total for sample in samples]
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    passed = [value >= pass_at - SAME_REWARD for value in known[pass_by]]
    means = {name: sum(values) / len(values) for name, values in (known | {PASSES: passed}).items() if values}
    return _Record(samples, means, passed)


_Records = dict[int, _Record]  # of one model and control, by number
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
    by_model: dict[tuple[str, str], dict[int, list[EvaluationSample]]] = {}
    for sample in samples:
        by_model.setdefault((sample.model, sample.control), {}).setdefault(sample.doc_id, []).append(sample)
    found: dict[tuple[str, str], _Records] = {
        (model, control): {
            number: _record_of(own, pass_by, pass_at)
            for number, own in sorted(by_model.get((model, control), {}).items())
        }
        for model in models
        for control in controls
    }
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
    records = list(found.values())
    names = dict.fromkeys(name for record in records for name in record.scores)
    scores = {}
    for name in names:
        own = [record for record in records if name in record.scores]
        interval = share_interval if name == PASSES else clustered_interval
        scores[name] = interval([record.scores[name] for record in own], [record.cluster for record in own])
    chances = {}
    for k in sample_counts(max(len(record.passed) for record in records)):
        own = [record for record in records if len(record.passed) >= k]
        values = [pass_at_k(len(record.passed), sum(record.passed), k) for record in own]
        chances[k] = share_interval(values, [record.cluster for record in own])
    tokens = [sample.tokens for record in records for sample in record.samples]
    return {
        "model": model,
        "control": control,
        "records": len(records),
        "clusters": len({record.cluster for record in records}),
        "scores": scores,
        "pass_at_k": chances,
        "no_answer": _share(records, lambda sample: not sample.answer),
        "truncated": _share(records, lambda sample: sample.finish_reason == "length"),
        "tokens": sum(tokens) / len(tokens),
        "longest": max(tokens),
        "prompt_tokens": sum(record.samples[0].prompt_tokens for record in records) / len(records),
        "fitted": sum(record.samples[0].fitted is not None for record in records),
        "looks": _looks(records, pass_by),
    }


def _looks(records: Sequence[_Record], pass_by: str) -> _Row | None:
    """How completions used their tools. None without tools. A look is a call that was answered."""
    turns = [sample.turns for record in records for sample in record.samples if sample.turns]
    calls = [call for each in turns for turn in each for call in turn.calls]
    if not turns:
        return None
    looked = lambda sample: bool(answered_calls(sample.turns))
    reward = lambda sample: sample.total if pass_by == TOTAL else sample.rewards[pass_by]
    iou = lambda sample: looks_iou(sample.turns, sample.evidence) if sample.evidence else None
    return {
        "looked": _share(records, looked),
        "calls": len(calls) / len(turns),
        "with_look": _mean_over(records, lambda sample: reward(sample) if looked(sample) else None),
        "without_look": _mean_over(records, lambda sample: None if looked(sample) else reward(sample)),
        "evidence_iou": _mean_over(records, iou),
        "refused": {"mean": sum(call.error is not None for call in calls) / len(calls)} if calls else None,
    }


def _mean_over(
    records: Sequence[_Record],
    of: Callable[[EvaluationSample], float | None],
    interval: Callable[..., Interval] = clustered_interval,
) -> Interval:
    """The mean over records of the means over their completions. Where ``of`` is None the completion does not count."""
    each = [[value for value in map(of, record.samples) if value is not None] for record in records]
    known = [(sum(own) / len(own), record.cluster) for own, record in zip(each, records, strict=True) if own]
    return interval([value for value, _ in known], [cluster for _, cluster in known])


def _share(records: Sequence[_Record], of: Callable[[EvaluationSample], bool]) -> Interval:
    """The share of completions for which ``of`` is true."""
    return _mean_over(records, lambda sample: float(of(sample)), share_interval)


def _drop(model: str, control: str, without: _Records, full: _Records, pass_by: str, pass_at: float) -> _Row:
    """The drop, and the one over the completions that have an answer block (``answered``).

    The drop is not comparable if over 10 % of the completions under the control have no answer block: then it is one of
    the form. A model that never writes an answer block is comparable: its rewards read the text.
    """
    no_answer = _share([*without.values()], lambda sample: not sample.answer)
    never = not any(sample.answer for record in full.values() for sample in record.samples)

    def answered(found: _Records) -> _Records:
        own = {n: [sample for sample in record.samples if sample.answer] for n, record in found.items()}
        return {n: _record_of(samples, pass_by, pass_at) for n, samples in own.items() if samples}

    return {
        **{"model": model, "control": control, **_paired(without, full)},
        **{"no_answer": no_answer, "comparable": never or not no_answer.mean > MANY_UNREAD},
        "answered": _paired(answered(without), answered(full)),
    }


def _paired(before: _Records, after: _Records) -> _Row:
    """The difference of each score on the records that both have it for."""
    both = [number for number in before if number in after]
    scores = {}
    for name in dict.fromkeys(name for number in both for name in before[number].scores):
        own = [n for n in both if name in before[n].scores and name in after[n].scores]
        differences = [after[n].scores[name] - before[n].scores[name] for n in own]
        scores[name] = clustered_interval(differences, [before[n].cluster for n in own])
    return {"records": len(both), "scores": scores}


def _difference(before: str, after: str, control: str, of_before: _Records, of_after: _Records, pass_by: str) -> _Row:
    gains = [
        of_after[n].scores[pass_by] - record.scores[pass_by]
        for n, record in of_before.items()
        if n in of_after and pass_by in record.scores and pass_by in of_after[n].scores
    ]
    better, worse = sum(gain > SAME_REWARD for gain in gains), sum(gain < -SAME_REWARD for gain in gains)
    return {
        **{"before": before, "after": after, "control": control, **_paired(of_before, of_after)},
        **{"better": better, "equal": len(gains) - better - worse, "worse": worse},
    }


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k completions passes, unbiased, from ``passed`` of ``samples`` that did.

    1 - C(samples - passed, k) / C(samples, k) (arXiv:2107.03374, equation 1).

    Raises:
        ValueError: k is above ``samples``.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def sample_counts(most: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to 128, and ``most``. Empty for 0."""
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most] * (most > 0)


def equal_chance(rewards: Sequence[float | None], k: int) -> float:
    """The chance that k of a prompt's completions all have equal rewards, by all choices of k among those at hand.

    Such a group has no policy gradient. A completion without a reward (None) does not count in its group.

    Raises:
        ValueError: k is above the number of completions.

    Example:
        >>> equal_chance([1.0, 1.0, 1.0, 0.0], 2)  # 3 of the 6 pairs
        0.5
    """
    if not 1 <= k <= len(rewards):
        raise ValueError(f"groups of {k} out of {len(rewards)} completions")
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
    interval = clustered_interval(values, clusters)
    if not interval.n or interval.mean not in (0.0, 1.0):
        return interval
    z = Z_975**2 / interval.n
    if interval.mean == 0:
        return interval._replace(low=0.0, high=z / (1 + z))
    return interval._replace(low=(1 + z / 2) / (1 + z) - z / 2 / (1 + z), high=1.0)


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
_GAP = "   "


def table(found: dict[str, Any], folder: str | os.PathLike[str]) -> str:
    """The numbers, the worth of the evidence, and where the protocol and the page are.

    Args:
        found: the content of ``evaluation.json``.
    """
    parts: list[Iterable[str]] = [
        _head(found["protocol"]),
        _scores(found),
        _notes(found),
        _controls(found),
        _looks_shown(found),
        _differences(found),
        [
            f"{each['name']}: was trained with --{name} {there}, and is evaluated with {here}"
            for each in found["models"]
            for name, there, here in each["trained_otherwise"]
        ],
    ]
    if errors := dict.fromkeys((each["doc_id"], each["error"]) for each in found["left_out"]):
        more = [f"  ... and {len(errors) - SHOWN:,} more (evaluation.json lists all)"] * (len(errors) > SHOWN)
        count = len({number for number, _ in errors})
        head = f"left out: {count:,} records, which no number above counts"
        parts.append([head, *(f"  {error}" for _, error in [*errors][:SHOWN]), *more])
    text = "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))
    written = min(os.path.relpath(folder), str(folder), key=len)
    page = shlex.join(["qwenvl", "report", written])
    return f"{text}\n\nwritten to {written}: evaluation.json, samples.jsonl\nits page:\n  {page}"


def _head(protocol: dict[str, Any]) -> Iterator[str]:
    data, decoding, passes = protocol["data"], protocol["decoding"], protocol["passes"]
    how = "the greedy completion"
    if decoding["method"] != "greedy":
        how = f"{decoding['samples']} completions at temperature {decoding['temperature']:g}"
    of = "" if data["records"] == data["of"] else f" of {data['of']:,}"
    yield f"{data['dataset_use']}: {data['records']:,}{of} records, {how} of each."
    yield (
        f"A completion passes where {passes['by']} is at least {passes['at']:g}. In brackets: the 95 % interval, drawn "
        f"over {data['clusters']:,} groups of records ({data['cluster_by']})."
    )


def _scores(found: dict[str, Any]) -> Iterator[str]:
    own = [each for each in found["numbers"] if each["control"] == AS_IT_IS]
    by = found["protocol"]["passes"]["by"]
    first = [by, PASSES]
    more = [k for k in own[0]["pass_at_k"] if k != "1"] if own else []
    others = [name for name in (own[0]["scores"] if own else ()) if name not in first]
    rows = [["", *first, *(f"pass@{k}" for k in more), *others, "no answer", "cut off", "tokens"]]
    for each in own:
        scores, chances = each["scores"], each["pass_at_k"]
        rows.append(
            [
                each["model"],
                *(interval_text(scores[name]) if name in scores else "-" for name in first),
                *(_mean(chances[k]) if k in chances else "-" for k in more),
                *(_mean(scores[name]) if name in scores else "-" for name in others),
                f"{each['no_answer']['mean']:.1%}",
                f"{each['truncated']['mean']:.1%}",
                f"{each['tokens']:.0f}",
            ]
        )
    yield from _aligned(rows)


def _notes(found: dict[str, Any]) -> Iterator[str]:
    """Reasons to distrust a score."""
    by, limit = found["protocol"]["passes"]["by"], found["protocol"]["decoding"]["max_new_tokens"]
    for each in found["numbers"]:
        model, truncated, unread = each["model"], each["truncated"]["mean"], each["no_answer"]["mean"]
        if each["control"] != AS_IT_IS:
            continue
        if each["fitted"]:
            yield f"{model}: of {each['fitted']:,} records less was shown than asked for, so that their prompts fit"
        if truncated >= CUT_OFF_SHARE:
            yield (
                f"{model}: {truncated:.1%} of the completions were cut at {limit:,} tokens: raise "
                "--generation_max_length before you trust its score"
            )
        elif unread > MANY_UNREAD and by in TABLE and by not in SHAPING:
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
    names = [model["name"] for model in found["models"]]
    rows = [["Does it look?", *names]]
    for control in dict.fromkeys(each["control"] for each in found["drops"]):
        row = [control]
        for name in names:
            drop, scores = drops[name, control], numbers.get((name, control), {})
            mark = "" if drop["comparable"] else " *"
            shown = by in drop["scores"] and by in scores
            row.append(f"{_mean(scores[by])}, drop {interval_text(drop['scores'][by])}{mark}" if shown else "-")
        rows.append(row)
    yield from _aligned(rows)
    yield f"{by} without the evidence, and by how much it is lower than with it, on the same records."
    for each in found["drops"]:
        if not each["comparable"]:
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


def _differences(found: dict[str, Any]) -> Iterator[str]:
    by = found["protocol"]["passes"]["by"]
    for each in found["differences"]:
        if each["control"] == AS_IT_IS and by in each["scores"]:
            yield (
                f"{each['after']} - {each['before']}: {by} {interval_text(each['scores'][by], True)}, on the same "
                f"{each['records']:,} records: better on {each['better']:,}, equal on {each['equal']:,}, worse on "
                f"{each['worse']:,}."
            )


def _mean(interval: dict[str, Any]) -> str:
    return f"{interval['mean']:.3f}"


def interval_text(interval: dict[str, Any], signed: bool = False) -> str:
    """A mean with its interval, three decimals each: ``0.963 [0.940, 0.983]``."""
    sign, ends = "+" if signed else "", (interval["low"], interval["high"])
    if None in ends:  # one cluster
        return f"{interval['mean']:{sign}.3f}"
    return f"{interval['mean']:{sign}.3f} [{ends[0]:{sign}.3f}, {ends[1]:{sign}.3f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
