"""The numbers of an evaluation as lines of text.

They are made from the content of ``evaluation.json``, which an earlier version may have written.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from qwenvl.data.prompt_settings import as_said
from qwenvl.evaluate.answers import PASSES
from qwenvl.evaluate.results import MANY_UNREAD
from qwenvl.evaluate.timelines import MEASURES, procedure_lines, step_text
from qwenvl.failure import counted
from qwenvl.rewards.table import SHAPING, TABLE
from qwenvl.run_log.evaluation_numbers import compared_records, interval_text, silent_models
from qwenvl.run_log.health import CUT_OFF_SHARE
from qwenvl.run_log.log import AS_IT_IS, NUMBERS, SAMPLES

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
    procedure: Iterable[str] = ()
    if found.get("procedure"):
        procedure = procedure_lines(found["procedure"], DEVIATIONS_SHOWN, NUMBERS)
    # A record that is left out of a model under several controls is one record here, so the last error of each.
    errors = {each["doc_id"]: each["error"] for each in found["left_out"]}
    parts: list[Iterable[str]] = [
        _head(found["protocol"]),
        _scores(found),
        _notes(found),
        _controls(found),
        _looks_shown(found),
        _timelines_shown(found),
        *_steps_shown(found),
        procedure,
        _differences(found),
        _trained_otherwise(found),
        left_out_lines(list(errors.values()), NUMBERS, everywhere=_left_out_everywhere(found, len(errors))),
    ]
    texts = ["\n".join(part) for part in parts]
    text = "\n\n".join(each for each in texts if each)
    written = min(os.path.relpath(folder), str(folder), key=len)
    page = shlex.join(["qwenvl", "report", written])
    return f"{text}\n\nwritten to {written}: {NUMBERS}, {SAMPLES}\nits page:\n  {page}"


def _left_out_everywhere(found: dict[str, Any], records: int) -> bool:
    """Whether the records that were left out have no completion of any model under any control."""
    return len(found["left_out"]) == records * len(found["models"]) * len(found["controls"])


def left_out_lines(errors: Sequence[str], lists_all: str, everywhere: bool = True) -> list[str]:
    """The number of records that were left out, and the errors of the first three. Empty where there are none.

    Args:
        errors: one for each record.
        lists_all: the file or the flag that shows all of them.
        everywhere: no number counts any of them. False: the numbers of some models or controls may.
    """
    if not errors:
        return []
    by = "which no number above counts" if everywhere else "which not all numbers above count"
    lines = [f"left out: {counted(len(errors), 'record')}, {by}"]
    lines += [f"  {error}" for error in errors[:SHOWN]]
    if len(errors) > SHOWN:
        lines.append(f"  ... and {len(errors) - SHOWN:,} more ({lists_all} lists all)")
    return lines


def _head(protocol: dict[str, Any]) -> Iterator[str]:
    data = protocol["data"]
    decoding = protocol["decoding"]
    passes = protocol["passes"]
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


def _as_it_is(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of ``numbers`` with all evidence, one for each model."""
    return [each for each in found["numbers"] if each["control"] == AS_IT_IS]


def _scores(found: dict[str, Any]) -> Iterator[str]:
    numbers = _as_it_is(found)
    if not numbers:
        return
    with_interval = [found["protocol"]["passes"]["by"], PASSES]
    # pass@1 is the mean of ``passes``, which stands there already.
    counts = [k for k in numbers[0]["pass_at_k"] if k != "1"]
    others = [name for name in numbers[0]["scores"] if name not in with_interval]
    rows = [["", *with_interval, *(f"pass@{k}" for k in counts), *others, "no answer", "cut off", "tokens"]]
    for each in numbers:
        scores = each["scores"]
        row = [each["model"]]
        row += [interval_text(scores[name]) if name in scores else "-" for name in with_interval]
        row += [_mean(each["pass_at_k"].get(k)) for k in counts]
        row += [_mean(scores.get(name)) for name in others]
        row += [f"{each[name]['mean']:.1%}" for name in ("no_answer", "truncated")]
        row.append(f"{each['tokens']:.0f}")
        rows.append(row)
    yield from _aligned(rows)


def _notes(found: dict[str, Any]) -> Iterator[str]:
    """Reasons to distrust a score."""
    by = found["protocol"]["passes"]["by"]
    limit = found["protocol"]["decoding"]["max_new_tokens"]
    reads_answer_block = by in TABLE and by not in SHAPING
    silent = silent_models(found)
    for each in _as_it_is(found):
        model = each["model"]
        truncated = each["truncated"]["mean"]
        unread = each["no_answer"]["mean"]
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
        elif unread > MANY_UNREAD and reads_answer_block and model not in silent:
            yield (
                f"{model}: {unread:.1%} of the completions have no <answer> that rewards could read: its score tells "
                "of the form too"
            )


def _controls(found: dict[str, Any]) -> Iterator[str]:
    """The drop of each model under each control. Drops that say something about the form alone have a star."""
    by = found["protocol"]["passes"]["by"]
    silent = silent_models(found)
    models = [model["name"] for model in found["models"] if model["name"] not in silent]
    controls = dict.fromkeys(each["control"] for each in found["drops"])
    if not controls or not models:
        return
    scores = {(each["model"], each["control"]): each["scores"].get(by) for each in found["numbers"]}
    drops = {(each["model"], each["control"]): each for each in found["drops"]}
    rows = [["Does it look?", *models]]
    for control in controls:
        cells = [_drop_cell(scores.get((model, control)), drops[model, control], by) for model in models]
        rows.append([control, *cells])
    yield from _aligned(rows)
    yield f"{by} without the evidence, and by how much it is lower than with it, on the same records."
    for drop in found["drops"]:
        if not drop["comparable"] and drop["model"] not in silent:
            yield _not_comparable(drop, by)


def _drop_cell(score: dict[str, Any] | None, drop: dict[str, Any], by: str) -> str:
    """The score under a control and its drop, ``-`` where one of them has no value."""
    if score is None or by not in drop["scores"]:
        return "-"
    mark = "" if drop["comparable"] else " *"
    return f"{_mean(score)}, drop {interval_text(drop['scores'][by])}{mark}"


def _not_comparable(drop: dict[str, Any], by: str) -> str:
    """The footnote of a star."""
    answered = drop["answered"]
    among = "No record has one with and without the evidence."
    if by in answered["scores"]:
        interval = interval_text(answered["scores"][by])
        among = f"Drop among answered: {interval} on {answered['records']:,} records."
    return (
        f"* {drop['model']}, {drop['control']}: not comparable, {drop['no_answer']['mean']:.1%} of the completions "
        f"have no answer. {among}"
    )


def _looks_shown(found: dict[str, Any]) -> Iterator[str]:
    by = found["protocol"]["passes"]["by"]
    rows = []
    for each in found["numbers"]:
        looks = each.get("looks")  # earlier versions wrote none
        if not looks:
            continue
        row = [each["model"], _control_shown(each), f"{looks['looked']['mean']:.1%}", f"{looks['calls']:.2f}"]
        for name in ("with_look", "without_look", "evidence_iou"):
            row.append(interval_text(looks[name]))
        row.append("-" if looks["refused"] is None else f"{looks['refused']['mean']:.1%}")
        rows.append(row)
    if rows:
        head = ["Looking again", "", "looked", "calls", f"{by} with a look", "without", "IoU with evidence", "refused"]
        yield from _aligned([head, *rows])


def _timelines_shown(found: dict[str, Any]) -> Iterator[str]:
    """The measures of timelines, a line for each model and control."""
    rows = []
    for each in found["numbers"]:
        timelines = each.get("timelines")  # earlier versions wrote none
        if timelines:
            means = [interval_text(timelines["scores"][name]) for name in MEASURES]
            rows.append([each["model"], _control_shown(each), *means, f"{timelines['records']:,}"])
    if rows:
        head = ["Timelines", "", "F1@10", "F1@25", "F1@50", "edit", "frame accuracy", "records"]
        yield from _aligned([head, *rows])


def _control_shown(numbers: dict[str, Any]) -> str:
    """The control of a row, empty for the records as they are."""
    return "" if numbers["control"] == AS_IT_IS else numbers["control"]


def _steps_shown(found: dict[str, Any]) -> Iterator[list[str]]:
    """The steps of each model, and which of them it confuses with which."""
    for each in _as_it_is(found):
        timelines = each.get("timelines")
        if not timelines:
            continue
        names = {}
        rows = [[f"Steps, {each['model']}", "spans", "found", "start off by", "end off by"]]
        for row in timelines["steps"]:
            name = _short(step_text(row["step"], row["name"]))
            names[row["step"]] = name
            errors = ["-" if row[edge] is None else f"{row[edge]:.2f} s" for edge in ("start_error", "end_error")]
            rows.append([name, f"{row['spans']:,}", f"{row['recall']:.1%}", *errors])
        confused = [_confusion(row, names) for row in timelines["confusions"][:CONFUSIONS_SHOWN]]
        yield [*_aligned(rows), *confused]


def _confusion(row: dict[str, Any], names: Mapping[int | str, str]) -> str:
    """A row of ``confusions`` in words.

    Args:
        names: of the steps of the solutions. The answer may name others.
    """

    def shown(step: int | str) -> str:
        return names[step] if step in names else _short(step_text(step))

    times = counted(row["count"], "time")
    if row["named"] is None:
        return f"{times} {shown(row['step'])} is missing"
    if row["step"] is None:
        return f"{times} {shown(row['named'])} is named where it is not"
    return f"{times} {shown(row['step'])} is taken for {shown(row['named'])}"


def _short(step: str) -> str:
    """A step as it fits into a table: descriptions of steps may be sentences."""
    return shorten(step, LONGEST_STEP, placeholder=" ...")


def _differences(found: dict[str, Any]) -> Iterator[str]:
    by = found["protocol"]["passes"]["by"]
    silent = silent_models(found)
    for each in found["differences"]:
        both_silent = each["before"] in silent and each["after"] in silent
        if both_silent or each["control"] != AS_IT_IS or by not in each["scores"]:
            continue
        records = compared_records(each)
        yield (
            f"{each['after']} - {each['before']}: {by} {interval_text(each['scores'][by], signed=True)}, on the same "
            f"{records:,} records: better on {each['better']:,}, equal on {each['equal']:,}, worse on "
            f"{each['worse']:,}."
        )


def _trained_otherwise(found: dict[str, Any]) -> Iterator[str]:
    """Prompt settings that a model was trained with and that the evaluation changes."""
    for each in found["models"]:
        for name, there, here in each["trained_otherwise"]:
            yield (
                f"{each['name']}: was trained with --{name} {as_said(there)}, and is evaluated with {as_said(here)}"
            )


def _mean(interval: dict[str, Any] | None) -> str:
    return "-" if interval is None or interval["mean"] is None else f"{interval['mean']:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield _GAP.join(cells).rstrip()
