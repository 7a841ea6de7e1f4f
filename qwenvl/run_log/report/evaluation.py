"""The pages of an evaluation and of labels: records with the answers of models, filters and jumps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from qwenvl.run_log.health import says_nothing, signed_number
from qwenvl.run_log.log import AS_IT_IS, EvaluationSample, read_evaluation, read_samples
from qwenvl.run_log.report.pages import (
    as_json,
    completion_as_shown,
    dataset_of,
    mean,
    media_as_shown,
    strips_of,
    strips_shown,
    write_pages,
    write_script,
)
from qwenvl.run_log.report.timelines import Reading, solution_as_shown
from qwenvl.run_log.report.write import ReportError, Written, require_report_folder, write_index
from qwenvl.run_log.run import finite
from qwenvl.types import FrameInfo

# In the order that they need each other.
SCRIPTS = ("core.js", "timeline.js", "group.js", "list.js", "evaluation.js")
LABEL_SCRIPTS = (*SCRIPTS[:-1], "spans.js", "labels.js")
CONTROLS = {
    AS_IT_IS: ("as it is", ""),
    "blank": ("grey frames", "Every frame and image was grey."),
    "shuffled": ("shuffled frames", "The frames were in random order."),
    "single_frame": ("one frame", "The middle frame was shown in place of all."),
    "other_clip": ("another clip", "The clip of another record was shown."),
    "text_only": ("text alone", "Nothing was shown."),
    "no_look": ("no looks", "Every call was refused."),
    "other_span": ("looks elsewhere", "Looks showed another span of the same length."),
    "evidence": ("the evidence shown", "The span of the evidence was shown in place of the whole clip."),
}
"""The name of each control on the page, and what was shown."""
EVIDENCE = "evidence"  # the one control that adds something
NO_ANSWER, TRUNCATED = 1, 2
"""Marks of a record, added up: without a control a completion of any model has no answer, or is truncated."""


Answers = Sequence[EvaluationSample]
"""The completions of one record by control, model and place among them. The first is of the record as it is."""


def marks(record: Answers) -> int:
    """``NO_ANSWER`` and ``TRUNCATED`` of a record, added up."""
    own = [each for each in record if each.control == AS_IT_IS]
    cut = any(each.finish_reason == "length" for each in own)
    return NO_ANSWER * any(not each.answer for each in own) + TRUNCATED * cut


def write_evaluation(source: Path, folder: Path, read: Reading) -> Written:
    """Write ``index.html``, the page's scripts and its data into a folder. Pictures of an earlier page stay.

    Args:
        source: the folder of an evaluation.
        read: reads answers and solutions.

    Returns:
        ``evaluation.json`` as its summary, and the strips of all records in their order.

    Raises:
        ReportError: the folder holds something that is no report, or the evaluation has no completion yet.
        RunLogError: a file of the evaluation is not what it should be.
    """
    facts = read_evaluation(source)
    records = asked_of(facts, read_samples(source).values())
    if not records:
        raise ReportError(f"{source}: the evaluation has written no completion yet")
    require_report_folder(folder)
    data = folder / "data" / "run-0"
    names = list(dict.fromkeys(name for record in records for name in record[0].rewards))
    places = write_pages((_as_shown(record, names, read) for record in records), 0, data)
    write_script(data / "index.js", f"report.index(0, {as_json(index(facts, records, places))});\n")
    title = "Evaluation of " + " and ".join(each["name"] for each in facts["models"])
    numbers = {**_shown_numbers(facts), "signed_number": signed_number}
    page = write_index(folder, "evaluation.html", SCRIPTS, title=title, facts=facts, **numbers)
    strips = (strip for record in records for each in record for strip in strips_of([each]))
    return Written(page, facts, list(dict.fromkeys(strips)))


def headline(facts: Mapping[str, Any]) -> Iterator[str]:
    """The results in words: each further model against the first, and what the last one loses without the evidence."""
    by, last = facts["protocol"]["passes"]["by"], facts["models"][-1]["name"]
    own = [row for row in facts["numbers"] if row["control"] == AS_IT_IS]
    silent = {row["model"]: row for row in own if says_nothing(row, by)}.keys()
    for model in silent:
        yield f"{model} has no answer on any record: its {by} says nothing about what it sees."
    for row in facts["differences"]:
        if {row["before"], row["after"]} <= silent:
            continue
        if row["control"] == AS_IT_IS and by in row["scores"]:
            score, models = row["scores"][by], (row["after"], row["before"])
            how = "{} answers better than {}" if (score["low"] or 0) > 0 else "{} answers worse than {}"
            if score["low"] is None or score["low"] <= 0 <= score["high"]:
                how = "{} and {} do not differ measurably"
            yield f"{how.format(*models)}: {by} {_signed(score)} on the same {row['records']:,} records."
    if last in silent:
        return
    for row in facts["drops"]:
        if row["model"] == last and by in row["scores"] and row["comparable"] and row["control"] != EVIDENCE:
            score, shown = row["scores"][by], _shown(row["control"])
            how = "uses what it is shown" if (score["low"] or 0) > 0 else "may not use what it is shown"
            yield f"{last} {how}: with {shown} {by} changes by {_signed(score, -1)}."
            break
    for row in facts["drops"]:
        if row["model"] == last and by in row["scores"] and row["control"] == EVIDENCE:
            change = _signed(row["scores"][by], -1)
            yield f"Looking at the right span could bring {last} about {change} {by}."
    if not facts["differences"] and facts["numbers"]:
        score = facts["numbers"][0]["scores"].get(by)
        if score is not None:
            yield f"{last}: {by} {_signed(score).replace('+', '')} on {facts['numbers'][0]['records']:,} records."


def _shown(control: str) -> str:
    return CONTROLS.get(control, (control, ""))[0]


def _signed(score: Mapping[str, Any], sign: int = 1) -> str:
    if score["low"] is None:  # one cluster has no interval
        return signed_number(sign * score["mean"])
    low, high = sorted((sign * score["low"], sign * score["high"]))
    return f"{signed_number(sign * score['mean'])} [{signed_number(low)}, {signed_number(high)}]"


def readable(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The protocol in words: a name and a text for each topic."""
    protocol = facts["protocol"]
    data, decoding, frames, prompts = (protocol[name] for name in ("data", "decoding", "frames", "prompts"))
    yield "data", f"{data['dataset_use']}: {data['records']:,} of {data['of']:,} records"
    how = f"{decoding['samples']} completions at temperature {decoding.get('temperature', 0):g}"
    stops = f", stopped at {' '.join(decoding['stop_strings'])}" if decoding["stop_strings"] else ""
    how = "the greedy completion" if decoding["method"] == "greedy" else how
    yield "decoding", f"{how}, at most {decoding['max_new_tokens']:,} tokens{stops}"
    rate = f"{frames['video_fps']:g} per second" if frames["video_fps"] else f"one every {frames['base_interval']:g} s"
    count = f"{frames['video_min_frames']} to {frames['video_max_frames']} of a clip"
    if frames.get("frame_counts"):
        rate, count = "evenly spaced", f"one of {frames['frame_counts']} of a clip"
    yield "frames", f"{rate}, {count}, decoded by {protocol['decoder']}"
    yield "pixels", f"{prompts['video_min_frame_pixels']:,} to {prompts['video_max_frame_pixels']:,} of a frame"
    yield "rewards", " + ".join(f"{weight:g} {name}" for name, weight in protocol["rewards"].items())
    yield "a completion passes", f"if {protocol['passes']['by']} is at least {protocol['passes']['at']:g}"
    yield "seed", str(protocol["seed"])
    yield "settings of", facts["settings_of"] or "the defaults of training"
    yield "time", f"{facts['began']} to {facts['ended'] or 'now'}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in protocol["versions"].items())


def _shown_numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the page that are computed from those of ``evaluation.json``."""
    by, places = facts["protocol"]["passes"]["by"], {each["name"]: n for n, each in enumerate(facts["models"])}
    dots = [
        {"control": row["control"], "model": row["model"], "place": places[row["model"]], "score": row["scores"][by]}
        for row in facts["numbers"]
        if by in row["scores"]
    ]
    ends = [end for each in dots for name, end in each["score"].items() if name != "n" and end is not None]
    span = min(0.0, *ends, 0.0), max(1.0, *ends, 1.0)
    return {
        "headline": list(headline(facts)),
        "controls": {control: _shown(control) for control in facts["controls"]},
        "looks": [row for row in facts["numbers"] if row.get("looks")],
        "dots": dots,
        "span": span,
        "ticks": [span[0] + (span[1] - span[0]) * n / 4 for n in range(5)],
        "passes_at": [k for k in (facts["numbers"][0]["pass_at_k"] if facts["numbers"] else ()) if k != "1"],
        "readable": list(readable(facts)),
    }


def asked_of(facts: Mapping[str, Any], samples: Iterable[EvaluationSample]) -> list[Answers]:
    """The records in their order, each with its completions by control, model and place."""
    models = {each["name"]: n for n, each in enumerate(facts["models"])}
    controls = {name: n for n, name in enumerate(facts["controls"])}

    def key(each: EvaluationSample) -> tuple[int, int, int, int]:
        return each.doc_id, controls[each.control], models[each.model], each.sample

    known = (each for each in samples if each.model in models and each.control in controls)
    return [list(own) for _, own in groupby(sorted(known, key=key), key=lambda each: each.doc_id)]


def index(facts: Mapping[str, Any], records: Sequence[Answers], places: Mapping[str, list[int]]) -> dict[str, Any]:
    """The index of all records for filters and jumps: columns of numbers, and the texts that they number."""
    models = [each["name"] for each in facts["models"]]
    datasets = list(dict.fromkeys(_dataset(record[0]) for record in records))
    numbers = {name: n for n, name in enumerate(datasets)}
    total = lambda record, *key: mean(each.total for each in record if (each.model, each.control) == key)
    return {
        "models": models,
        "controls": facts["controls"],
        "shown": {control: CONTROLS.get(control, (control, "")) for control in facts["controls"]},
        "datasets": datasets,
        "ids": [record[0].record_id for record in records],
        "columns": {
            "data": [numbers[_dataset(record[0])] for record in records],
            **places,
            "marks": [marks(record) for record in records],
        },
        "means": {
            control: {model: finite([total(record, model, control) for record in records]) for model in models}
            for control in facts["controls"]
        },
    }


def _dataset(sample: EvaluationSample) -> str:
    return sample.dataset or dataset_of(sample.where)


def _as_shown(record: Answers, names: Sequence[str], read: Reading) -> dict[str, Any]:
    """The page's object of a record: the shared fields, then each control with the completions of each model."""
    head = record[0]
    views = []
    for control, own in groupby(record, key=lambda each: each.control):
        samples = list(own)
        shown = samples[0]
        timelines = read.timelines(shown.prompt, shown.completion, shown.target, shown.rewards)
        views.append(
            {
                "control": control,
                "evidence": () if control == "other_clip" else shown.evidence,
                "timeline": solution_as_shown(timelines, shown.clips),
                **media_as_shown(shown.clips, shown.images),
                "models": [
                    [model, [completion_as_shown(each, each.target, None, names, read) for each in rows]]
                    for model, rows in groupby(samples, key=lambda each: each.model)
                ],
            }
        )
    return {
        "id": head.record_id,
        "where": head.where,
        "prompt": list(head.prompt),
        "solution": head.target,
        "truth": read.solution(head.target),
        "rewards": list(names),
        "fitted": head.fitted,
        "views": views,
    }


# ---- labels: the doubtful ones first, to correct and to save


def doubt(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that sorts labels: no answer first, then little agreement, then a low log-prob, and what failed last."""
    if row["error"] is not None:
        return (True,)
    return False, bool(row["answer"]), 1.0 if row["agreement"] is None else row["agreement"], row["logprob"] or 0.0


def has_answer(row: Mapping[str, Any]) -> bool:
    """Whether a label has an answer that can be saved: spans where its question is about a timeline, else any text."""
    timeline = row.get("timeline")
    return bool(timeline["spans"] if timeline else row.get("answer"))


WITHOUT_RECORD: dict[str, Any] = {"steps": [], "timeline": None, "vote_spans": [], "files": []}
"""What a row has if it could not be read: no list of steps, no timeline, no file to play."""


def write_labels(folder: Path, model: str, rows: Sequence[Mapping[str, Any]], command: str) -> Written:
    """Write ``index.html``, its scripts and its data into a folder.

    Args:
        command: trains the model again on the saved labels.
        rows: of ``Labels``, each also with its ``id``, its ``prompt`` (messages, each with ``role`` and ``text``) and
            ``record``, the row to save it as: a conversation without its last turn. Those that could be read have
            the ``steps`` of the prompt's list, the ``timeline`` of the answer (None: the question is about none) and of
            each vote (``vote_spans``), and for each clip the address of its file (``files``), None where there is none.
    """
    rows = sorted(rows, key=doubt)
    media = [([FrameInfo.of(clip) for clip in row.get("clips", ())], row.get("images", ())) for row in rows]
    shown = ({**WITHOUT_RECORD, **row, **media_as_shown(*own)} for row, own in zip(rows, media, strict=True))
    places = write_pages(shown, 0, folder / "data" / "run-0")
    index = {
        "ids": [row["id"] for row in rows],
        "keys": [row.get("key") or row["id"] for row in rows],  # what a browser keeps answers by
        "answers": [row.get("answer") for row in rows],  # None: an error
        "answered": [has_answer(row) for row in rows],
        "columns": {
            **places,
            "agreement": [row.get("agreement") for row in rows],
            "logprob": [row.get("logprob") for row in rows],
        },
    }
    write_script(folder / "data" / "run-0" / "index.js", f"report.index(0, {as_json(index)});\n")
    texts = {"title": f"Labels by {model}", "model": model, "count": len(rows), "command": command}
    page = write_index(folder, "labels.html", LABEL_SCRIPTS, **texts)
    return Written(page, index, list(dict.fromkeys(strip for own in media for strip in strips_shown(*own))))
