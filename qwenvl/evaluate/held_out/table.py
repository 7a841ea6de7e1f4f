"""An evaluation as lines of text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qwenvl.evaluate.held_out.asking import LeftOut
from qwenvl.evaluate.held_out.protocol import ModelFacts
from qwenvl.evaluate.held_out.results import MAJORITY, PASSES, Numbers, Results
from qwenvl.evaluate.scores import Interval
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.runlog.evaluation import AS_IT_IS

SHOWN = 3  # records that were left out
MANY_CUT, MANY_UNREAD = 0.05, 0.1  # shares of completions from which it is said
_GAP = "   "


def table(
    results: Results,
    protocol: Mapping[str, Any],
    models: Sequence[ModelFacts],
    left_out: Sequence[LeftOut],
    folder: str | os.PathLike[str],
) -> str:
    """The numbers, what the evidence is worth, the protocol, and where everything lies."""
    parts = [
        _head(protocol, models),
        _scores(results, protocol),
        _notes(results, protocol),
        _controls(results, protocol, models),
        _differences(results, protocol),
        *_strata(results, protocol),
        _protocol(protocol, models),
        _left_out(left_out),
    ]
    text = "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))
    return f"{text}\n\nwritten to {os.path.relpath(folder)}: evaluation.json, samples.jsonl"


def _head(protocol: Mapping[str, Any], models: Sequence[ModelFacts]) -> Iterator[str]:
    data, decoding, passes = protocol["data"], protocol["decoding"], protocol["passes"]
    how = (
        "the greedy completion"
        if decoding["method"] == "greedy"
        else f"{decoding['samples']} completions at temperature {decoding['temperature']:g}"
    )
    of = "" if data["records"] == data["of"] else f" of {data['of']:,}"
    yield f"{data['dataset_use']}: {data['records']:,}{of} records, {how} of each."
    yield (
        f"A completion passes where {passes['by']} is at least {passes['at']:g}. In brackets: the 95 % interval, drawn "
        f"over {data['clusters']:,} groups of records ({data['cluster_by']})."
    )


def _scores(results: Results, protocol: Mapping[str, Any]) -> Iterator[str]:
    own = [each for each in results.numbers if each.control == AS_IT_IS]
    by = protocol["passes"]["by"]
    first = [by, PASSES] + [MAJORITY] * any(MAJORITY in each.scores for each in own)
    more = [k for k in own[0].pass_at_k if k > 1] if own else []
    others = [name for name in (own[0].scores if own else ()) if name not in first]
    header = ["", *first, *(f"pass@{k}" for k in more), *others, "no answer", "cut off", "tokens"]

    def cells(each: Numbers) -> list[str]:
        scores = each.scores
        return [
            each.model,
            *(_interval(scores[name]) if name in scores else "-" for name in first),
            *(f"{each.pass_at_k[k].mean:.3f}" if k in each.pass_at_k else "-" for k in more),
            *(f"{scores[name].mean:.3f}" if name in scores else "-" for name in others),
            f"{each.no_answer.mean:.1%}",
            f"{each.truncated.mean:.1%}",
            f"{each.tokens:.0f}",
        ]

    yield from _aligned([header, *map(cells, own)])


def _notes(results: Results, protocol: Mapping[str, Any]) -> Iterator[str]:
    """What makes a score say less than it seems to."""
    by = protocol["passes"]["by"]
    for each in results.numbers:
        if each.control != AS_IT_IS:
            continue
        if each.fitted:
            yield f"{each.model}: of {each.fitted:,} records less was shown than asked for, so that their prompts fit"
        if each.truncated.mean >= MANY_CUT:
            yield (
                f"{each.model}: {each.truncated.mean:.1%} of the completions were cut at "
                f"{protocol['decoding']['max_new_tokens']:,} tokens: raise --generation_max_length before you trust "
                "its score"
            )
        elif each.no_answer.mean >= MANY_UNREAD and by in TABLE and by not in SHAPING:
            yield (
                f"{each.model}: {each.no_answer.mean:.1%} of the completions have no <answer> that rewards could read: "
                "its score tells of the form too"
            )


def _controls(results: Results, protocol: Mapping[str, Any], models: Sequence[ModelFacts]) -> Iterator[str]:
    if not results.drops:
        return
    by = protocol["passes"]["by"]
    numbers = {(each.model, each.control): each for each in results.numbers}
    drops = {(each.model, each.control): each for each in results.drops}
    names = [model.name for model in models]
    rows = [["Does it look?", *names]]
    for control in dict.fromkeys(each.control for each in results.drops):
        row = [control]
        for name in names:
            drop, scored = drops[name, control].scores.get(by), numbers.get((name, control))
            if drop is None or scored is None or by not in scored.scores:
                row.append("-")
            else:
                row.append(f"{scored.scores[by].mean:.3f}, drop {_interval(drop)}")
        rows.append(row)
    yield from _aligned(rows)
    yield f"{by} without the evidence, and by how much it is lower than with it, on the same records."


def _differences(results: Results, protocol: Mapping[str, Any]) -> Iterator[str]:
    by = protocol["passes"]["by"]
    for each in results.differences:
        if each.control == AS_IT_IS and by in each.scores:
            yield (
                f"{each.after} - {each.before}: {by} {_interval(each.scores[by], True)}, on the same {each.records:,} "
                f"records: better on {each.better:,}, equal on {each.equal:,}, worse on {each.worse:,}."
            )


def _strata(results: Results, protocol: Mapping[str, Any]) -> Iterator[Iterator[str]]:
    by = protocol["passes"]["by"]
    for kind in dict.fromkeys(stratum.by for stratum in results.strata):
        strata = [stratum for stratum in results.strata if stratum.by == kind]
        names = list(dict.fromkeys(each.model for stratum in strata for each in stratum.numbers))
        pairs = [f"{each.after} - {each.before}" for each in strata[0].differences]
        rows = [[f"{by} by {kind}", "records", *names, *pairs]]
        for stratum in strata:
            own = {each.model: each for each in stratum.numbers}
            rows.append(
                [
                    stratum.value,
                    f"{max(each.records for each in stratum.numbers):,}",
                    *(_interval(own[name].scores[by]) if name in own else "-" for name in names),
                    *(_interval(each.scores[by], True) if by in each.scores else "-" for each in stratum.differences),
                ]
            )
        yield _aligned(rows)


def _protocol(protocol: Mapping[str, Any], models: Sequence[ModelFacts]) -> Iterator[str]:
    decoding, frames, prompts = protocol["decoding"], protocol["frames"], protocol["prompts"]
    rate = f"{frames['video_fps']:g} a second" if frames["video_fps"] else f"one every {frames['base_interval']:g} s"
    rate += ", where the picture changes" if frames.get("frame_sampler") == "change" else ""
    rewards = ", ".join(f"{weight:g} {name}" for name, weight in protocol["rewards"].items())
    yield (
        f"protocol: frames {rate}, {frames['video_min_frames']} to {frames['video_max_frames']} of a clip unless its "
        f"record says otherwise, {prompts['video_min_frame_pixels']:,} to {prompts['video_max_frame_pixels']:,} pixels "
        f"each, decoded by {protocol['decoder']}"
    )
    yield f"  at most {decoding['max_new_tokens']:,} new tokens; rewards {rewards}; seed {protocol['seed']}"
    for each in models:
        yield (
            f"  {each.name}: {each.family}, {each.dtype}, positions by {each.positions}, template "
            f"{each.template_hash[:8]}, prompts {each.prompts_hash[:8]}" + (f", on {each.base}" if each.base else "")
        )
        for name, there, here in each.trained_otherwise:
            yield f"    was trained with --{name} {there}, and is asked with {here}"


def _left_out(left_out: Sequence[LeftOut]) -> Iterator[str]:
    records = {(each.doc_id, each.error): each for each in left_out}
    if records:
        yield f"left out: {len({number for number, _ in records}):,} records, which no number above counts"
        yield from (f"  {each.error}" for each in list(records.values())[:SHOWN])
        if len(records) > SHOWN:
            yield f"  ... and {len(records) - SHOWN:,} more (evaluation.json lists all)"


def _interval(interval: Interval, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if interval.low != interval.low:  # NaN: nothing to draw over
        return f"{interval.mean:{sign}.3f}"
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
