"""The pages of an evaluation and of labels: records with the answers of models, filters and jumps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qwenvl.run_log.evaluation_numbers import compared_records, interval_text, signed_number, silent_models
from qwenvl.run_log.log import AS_IT_IS, EvaluationSample, read_evaluation, read_samples
from qwenvl.run_log.report.page_data import PageData, as_json
from qwenvl.run_log.report.pages import (
    Strip,
    completion_as_shown,
    dataset_of,
    mean,
    media_as_shown,
    strips_of,
    strips_shown,
    write_pages,
)
from qwenvl.run_log.report.timelines import Reading, solution_as_shown
from qwenvl.run_log.report.write import ReportError, Written, begin_report, write_index
from qwenvl.run_log.run import each_once, finite
from qwenvl.types import FrameInfo

# In the order that they need each other.
SCRIPTS = ("core.js", "timeline.js", "group.js", "list.js", "evaluation.js")
LABEL_SCRIPTS = (*SCRIPTS[:-1], "spans.js", "kept.js", "label_record.js", "label_parts.js", "labels.js")
CONTROLS = {
    AS_IT_IS: ("as it is", ""),
    "blank": ("grey frames", "Every frame and image was grey."),
    "shuffled": ("shuffled frames", "The frames were in random order."),
    "single_frame": ("one frame", "The middle frame was shown in place of all."),
    "other_clip": ("another clip", "The clip of another record was shown."),
    "text_only": ("text alone", "Nothing was shown."),
    "no_look": ("no looks", "Every look at the clip was refused."),
    "other_span": ("looks elsewhere", "Looks showed another span of the same length."),
    "evidence": ("the evidence shown", "The span of the evidence was shown in place of the whole clip."),
}
"""The name of each control on the page, and what was shown."""
EVIDENCE = "evidence"  # the one control that adds something

# Marks of a record, added up. The script of the page knows them by these numbers.
NO_ANSWER = 1  # without a control a completion of any model has no answer
TRUNCATED = 2  # or is truncated


Answers = Sequence[EvaluationSample]
"""The completions of one record by control, model and place among them. The first is of the record as it is."""


def marks(record: Answers) -> int:
    """``NO_ANSWER`` and ``TRUNCATED`` of a record, added up."""
    found = 0
    for each in record:
        if each.control == AS_IT_IS:
            if not each.answer:
                found |= NO_ANSWER
            if each.finish_reason == "length":
                found |= TRUNCATED
    return found


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
    missing = sorted({"models", "controls", "protocol", "numbers", "drops", "differences"} - facts.keys())
    if missing:
        raise ReportError(f"{source}: evaluation.json has no {missing[0]!r}; no evaluation of this library wrote it")
    records = asked_of(facts, read_samples(source).values())
    if not records:
        raise ReportError(f"{source}: the evaluation has written no completion yet")
    begin_report(folder)
    data = PageData.of(folder)
    names = each_once(record[0].rewards for record in records)
    places = write_pages((_as_shown(record, names, read) for record in records), 0, data)
    data.write("run-0/index.js", f"report.index(0, {as_json(index(facts, records, places))})")
    title = "Evaluation of " + " and ".join(each["name"] for each in facts["models"])
    numbers = {**_shown_numbers(facts), "signed_number": signed_number}
    silent = silent_models(facts)
    shown = {**facts, "drops": [row for row in facts["drops"] if row["model"] not in silent]}
    page = write_index(folder, "evaluation.html", SCRIPTS, title=title, facts=shown, **numbers)
    # Controls show other frames, so each completion has strips of its own.
    strips: list[Strip] = []
    for record in records:
        for completion in record:
            strips += strips_of([completion])
    return Written(page=page, summary=facts, strips=list(dict.fromkeys(strips)))


def headline(facts: Mapping[str, Any]) -> Iterator[str]:
    """The results in words: each further model against the first, and what the last one loses without the evidence."""
    by = facts["protocol"]["passes"]["by"]
    last = facts["models"][-1]["name"]
    silent = silent_models(facts)
    for model in silent:
        yield f"{model} has no answer on any record: its {by} says nothing about what it sees."
    for row in facts["differences"]:
        both_silent = row["before"] in silent and row["after"] in silent
        if row["control"] == AS_IT_IS and by in row["scores"] and not both_silent:
            score = row["scores"][by]
            compared = _compared(row["after"], row["before"], score)
            yield f"{compared}: {by} {_signed(score)} on the same {compared_records(row):,} records."
    if last in silent:
        return
    drops = [row for row in facts["drops"] if row["model"] == last and by in row["scores"]]
    for row in drops:
        if row["comparable"] and row["control"] != EVIDENCE:
            score = row["scores"][by]
            how = "uses what it is shown" if (score["low"] or 0) > 0 else "may not use what it is shown"
            yield f"{last} {how}: with {_shown(row['control'])} {by} changes by {_signed(_negative(score))}."
            break
    for row in drops:
        if row["control"] == EVIDENCE:
            change = _signed(_negative(row["scores"][by]))
            yield f"Looking at the right span could bring {last} about {change} {by}."
    if not facts["differences"] and facts["numbers"]:
        row = facts["numbers"][0]
        score = row["scores"].get(by)
        if score is not None:  # a score and no change: it has no sign
            yield f"{last}: {by} {_signed(score).replace('+', '')} on {row['records']:,} records."


def _compared(after: str, before: str, difference: Mapping[str, Any]) -> str:
    """Two models in words, by the interval of their difference. Without an interval nothing can be said."""
    low = difference["low"]
    high = difference["high"]
    if low is None or low <= 0 <= high:
        return f"{after} and {before} do not differ measurably"
    return f"{after} answers better than {before}" if low > 0 else f"{after} answers worse than {before}"


def _shown(control: str) -> str:
    """The name of a control on the page. One of a user's own keeps its name."""
    name, _ = CONTROLS.get(control, (control, ""))
    return name


def _signed(score: Mapping[str, Any]) -> str:
    """A mean and its interval, each with its sign."""
    if score["mean"] is None:  # no record has a value on both sides
        return "not known"
    return interval_text(score, signed=True)


def _negative(score: Mapping[str, Any]) -> dict[str, Any]:
    """The change that is a drop the other way round: the ends of its interval change places."""
    if score["mean"] is None:
        return dict(score)
    if score["low"] is None:
        return {"mean": -score["mean"], "low": None, "high": None}
    return {"mean": -score["mean"], "low": -score["high"], "high": -score["low"]}


def readable(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The protocol in words: a name and a text for each topic."""
    protocol = facts["protocol"]
    data = protocol["data"]
    prompts = protocol["prompts"]
    yield "data", f"{data['dataset_use']}: {data['records']:,} of {data['of']:,} records"
    yield "decoding", _decoding_in_words(protocol["decoding"])
    yield "frames", f"{_frames_in_words(protocol['frames'])}, decoded by {protocol['decoder']}"
    yield "pixels", f"{prompts['video_min_frame_pixels']:,} to {prompts['video_max_frame_pixels']:,} of a frame"
    yield "rewards", " + ".join(f"{weight:g} {name}" for name, weight in protocol["rewards"].items())
    yield "a completion passes", f"if {protocol['passes']['by']} is at least {protocol['passes']['at']:g}"
    yield "seed", str(protocol["seed"])
    yield "settings of", facts["settings_of"] or "the defaults of training"
    yield "time", f"{facts['began']} to {facts['ended'] or 'now'}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in protocol["versions"].items())


def _decoding_in_words(decoding: Mapping[str, Any]) -> str:
    if decoding["method"] == "greedy":
        how = "the greedy completion"
    else:
        how = f"{decoding['samples']} completions at temperature {decoding.get('temperature', 0):g}"
    stops = f", stopped at {' '.join(decoding['stop_strings'])}" if decoding["stop_strings"] else ""
    return f"{how}, at most {decoding['max_new_tokens']:,} tokens{stops}"


def _frames_in_words(frames: Mapping[str, Any]) -> str:
    if frames.get("frame_counts"):
        return f"evenly spaced, one of {frames['frame_counts']} of a clip"
    rate = f"{frames['video_fps']:g} per second" if frames["video_fps"] else f"one every {frames['base_interval']:g} s"
    return f"{rate}, {frames['video_min_frames']} to {frames['video_max_frames']} of a clip"


def _shown_numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the page that are computed from those of ``evaluation.json``."""
    by = facts["protocol"]["passes"]["by"]
    places = {each["name"]: place for place, each in enumerate(facts["models"])}
    dots = []
    left = 0.0  # ends of the axis: 0 to 1, and as far as a score or its interval reaches
    right = 1.0
    for row in facts["numbers"]:
        if by in row["scores"] and row["scores"][by]["mean"] is not None:
            score = row["scores"][by]
            dots.append(
                {"control": row["control"], "model": row["model"], "place": places[row["model"]], "score": score}
            )
            for end in (score["mean"], score["low"], score["high"]):
                if end is not None:
                    left = min(left, end)
                    right = max(right, end)
    # pass@1 is the mean of ``passes``, which stands there already.
    counts = [k for k in facts["numbers"][0]["pass_at_k"] if k != "1"] if facts["numbers"] else []
    return {
        "headline": list(headline(facts)),
        "controls": {control: _shown(control) for control in facts["controls"]},
        "looks": [row for row in facts["numbers"] if row.get("looks")],
        "dots": dots,
        "span": (left, right),
        "ticks": [left + (right - left) * n / 4 for n in range(5)],
        "passes_at": counts,
        "readable": list(readable(facts)),
    }


def asked_of(facts: Mapping[str, Any], samples: Iterable[EvaluationSample]) -> list[Answers]:
    """The records in their order, each with its completions by control, model and place."""
    models = {each["name"]: place for place, each in enumerate(facts["models"])}
    controls = {name: place for place, name in enumerate(facts["controls"])}

    def key(each: EvaluationSample) -> tuple[int, int, int, int]:
        return each.doc_id, controls[each.control], models[each.model], each.sample

    known = [each for each in samples if each.model in models and each.control in controls]
    records: dict[int, list[EvaluationSample]] = {}
    for each in sorted(known, key=key):
        records.setdefault(each.doc_id, []).append(each)
    return list(records.values())


def index(facts: Mapping[str, Any], records: Sequence[Answers], places: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The index of all records for filters and jumps: columns of numbers, and the texts that they number."""
    models = [each["name"] for each in facts["models"]]
    datasets = list(dict.fromkeys(_dataset(record[0]) for record in records))
    numbers = {name: n for n, name in enumerate(datasets)}
    means: dict[str, dict[str, list[float | None]]] = {}
    for control in facts["controls"]:
        means[control] = {}
        for model in models:
            means[control][model] = finite([_mean_total(record, model, control) for record in records])
    return {
        "models": models,
        "controls": facts["controls"],
        "silent": silent_models(facts),  # equal scores with and without the evidence mean nothing there
        "shown": {control: CONTROLS.get(control, (control, "")) for control in facts["controls"]},
        "datasets": datasets,
        "ids": [record[0].record_id for record in records],
        "columns": {
            "data": [numbers[_dataset(record[0])] for record in records],
            **places,
            "marks": [marks(record) for record in records],
        },
        "means": means,
    }


def _mean_total(record: Answers, model: str, control: str) -> float | None:
    return mean(each.total for each in record if each.model == model and each.control == control)


def _dataset(sample: EvaluationSample) -> str:
    return sample.dataset or dataset_of(sample.where)


def _as_shown(record: Answers, names: Sequence[str], read: Reading) -> dict[str, Any]:
    """The page's object of a record: the shared fields, then each control with the completions of each model."""
    head = record[0]
    by_control: dict[str, list[EvaluationSample]] = {}
    for each in record:
        by_control.setdefault(each.control, []).append(each)
    return {
        "id": head.record_id,
        "where": head.where,
        "prompt": list(head.prompt),
        "solution": head.target,
        "truth": read.solution(head.target),
        "rewards": list(names),
        "fitted": head.fitted,
        "views": [_view_as_shown(control, samples, names, read) for control, samples in by_control.items()],
    }


def _view_as_shown(control: str, samples: Answers, names: Sequence[str], read: Reading) -> dict[str, Any]:
    """The page's object of a record under a control: what was shown, and the completions of each model."""
    shown = samples[0]
    timelines = read.timelines(shown.prompt, shown.completion, shown.target, shown.rewards)
    by_model: dict[str, list[dict[str, Any]]] = {}
    for each in samples:
        completion = completion_as_shown(each, solution=each.target, advantage=None, names=names, read=read)
        by_model.setdefault(each.model, []).append(completion)
    return {
        "control": control,
        # The spans are those of the record's own clip.
        "evidence": () if control == "other_clip" else shown.evidence,
        "timeline": solution_as_shown(timelines, shown.clips),
        **media_as_shown(shown.clips, shown.images),
        "models": list(by_model.items()),
    }


# ---- labels: the doubtful ones first, to correct and to save


def doubt(row: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """A key that sorts labels: no answer first, then little agreement, then a low log-prob, and what failed last.

    Returns:
        Whether it failed, whether it has an answer, agreement, log-prob.
    """
    if row["error"] is not None:
        return True, False, 0.0, 0.0
    agreement = 1.0 if row["agreement"] is None else row["agreement"]  # None: a single vote
    return False, bool(row["answer"]), agreement, row["logprob"] or 0.0


def has_answer(row: Mapping[str, Any]) -> bool:
    """Whether a label has an answer that can be saved: spans where its question is about a timeline, else any text."""
    timeline = row.get("timeline")
    return bool(timeline["spans"] if timeline else row.get("answer"))


def has_other_step(row: Mapping[str, Any]) -> bool:
    """Whether the timeline of a label has a step that is not in the list of its prompt."""
    timeline = row.get("timeline")
    listed = [number for number, _ in row.get("steps", ())]
    spans = timeline["spans"] if timeline else []
    return bool(listed) and any(span["number"] not in listed for span in spans)


def lists_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The steps and options of all prompts, each list once, and for each answer that is a text the place of its own.

    None for timelines and for rows without an answer.
    """
    lists: list[dict[str, Any]] = []
    places: list[int | None] = []
    place_of: dict[str, int] = {}
    for row in rows:
        if row.get("answer") is None or row.get("timeline") is not None:
            places.append(None)
            continue
        offered = {key: row.get(key, []) for key in ("steps", "options")}
        place = place_of.setdefault(as_json(offered), len(lists))
        if place == len(lists):
            lists.append(offered)
        places.append(place)
    return lists, places


def different_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that a browser keeps answers by. Records with the same clip and question share theirs: numbers follow.

    Example:
        >>> different_keys([{"key": "a", "id": ""}, {"key": "b", "id": ""}, {"key": "a", "id": ""}])
        ['a', 'b', 'a 2']
    """
    keys = [row.get("key") or row["id"] for row in rows]
    taken = set(keys)
    counts: Counter[str] = Counter()
    different = []
    for key in keys:
        counts[key] += 1
        own = key
        if counts[key] > 1:
            own = f"{key} {counts[key]}"
            while own in taken:  # an id may end in a number
                counts[key] += 1
                own = f"{key} {counts[key]}"
        taken.add(own)
        different.append(own)
    return different


def record_as_shown(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A record for the page: its turns, and all other fields as JSON text, which the page copies into what it saves.

    As numbers they would change there: JavaScript rounds integers above 2^53.
    """
    if record is None:
        return None
    others = {name: value for name, value in record.items() if name != "conversations"}
    return {"turns": record["conversations"], "others": as_json(others)}


WITHOUT_RECORD: dict[str, Any] = {"steps": [], "options": [], "timeline": None, "vote_spans": [], "files": []}
"""The fields of a row that could not be read: no list of steps, no options, no timeline, no file to play."""


def write_labels(folder: Path, model: str, rows: Sequence[Mapping[str, Any]], command: str) -> Written:
    """Write ``index.html``, its scripts and its data into a folder.

    Args:
        command: trains the model again on the saved labels.
        rows: of ``Labels``, each also with its ``id``, its ``prompt`` (messages, each with ``role`` and ``text``) and
            ``record``, the row to save it as: a conversation without its last turn. Those that could be read have
            the ``steps`` of the prompt's list, the ``options`` of a question that is answered by letters, the
            ``timeline`` of the answer (None: the question is about none) and of each vote (``vote_spans``), and for
            each clip the address of its file (``files``), None where there is none.
    """
    # The numbers of equal keys follow the order of the records, not that of the answers.
    keyed = sorted(zip(different_keys(rows), rows, strict=True), key=lambda pair: doubt(pair[1]))
    keys = [key for key, _ in keyed]
    rows = [row for _, row in keyed]
    shown = []
    strips: list[Strip] = []
    for row in rows:
        clips = [FrameInfo.of(clip) for clip in row.get("clips", ())]
        images = row.get("images", ())
        record = record_as_shown(row.get("record"))
        shown.append({**WITHOUT_RECORD, **row, **media_as_shown(clips, images), "record": record})
        strips += strips_shown(clips, images)
    data = PageData.of(folder)
    places = write_pages(shown, 0, data)
    lists, list_of = lists_of(rows)
    index = {
        "ids": [row["id"] for row in rows],
        "keys": keys,  # what a browser keeps answers by
        "answers": [row.get("answer") for row in rows],  # None: an error
        "answered": [has_answer(row) for row in rows],
        # By these the page knows which answers training would refuse. It has the rule, as people type answers there.
        "lists": lists,
        "list_of": list_of,
        "other_step": [has_other_step(row) for row in rows],
        "timed": any(row.get("timeline") is not None for row in rows),  # the page has an editor of spans
        "columns": {
            **places,
            "agreement": [row.get("agreement") for row in rows],
            "logprob": [row.get("logprob") for row in rows],
        },
    }
    data.write("run-0/index.js", f"report.index(0, {as_json(index)})")
    page = write_index(
        folder,
        "labels.html",
        LABEL_SCRIPTS,
        title=f"Labels by {model}",
        model=model,
        count=len(rows),
        command=command,
    )
    return Written(page=page, summary=index, strips=list(dict.fromkeys(strips)))
