"""``evaluation.json`` as lines of text."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qwenvl.evaluate.results import MANY_UNREAD, PASSES
from qwenvl.health import CUT_OFF_SHARE
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.runlog import AS_IT_IS

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
            yield f"* {each['model']}, {each['control']}: not comparable, {share}."


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
