"""Timelines in an evaluation: the measures of each answer, recall and errors of each step, and what deviates."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from qwenvl.failure import counted
from qwenvl.rewards.functions.actions import action_numbers, list_of_turns, listed_names
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.functions.timelines import edit_of, f1_at, frames_right, matches, overlaps, read_pair
from qwenvl.rewards.table import about_a_timeline
from qwenvl.run_log.log import AS_IT_IS, EvaluationSample
from qwenvl.run_log.report.timelines import FOUND_AT
from qwenvl.timeline import TimedStep, numbers_by_name, timeline_in

FPS = 10.0  # of frame accuracy, as the reward has it by default
NEAR_AT = 0.1  # and from which its edges are compared, and it is taken for another step

Row = dict[str, Any]


@dataclass(frozen=True)
class ReadAnswer:
    """A completion and its record as timelines.

    Attributes:
        named, true: merged spans of the answer and of the solution.
        duration: seconds of the clip. None where they are not known.
        names: names of the steps that the prompt lists, by number, as it writes them.
    """

    named: list[TimedStep]
    true: list[TimedStep]
    duration: float | None
    names: Mapping[int, str]


def read_answer(row: EvaluationSample) -> ReadAnswer | None:
    """The timelines of a completion. None where its record is not about one.

    A record is about a timeline if a reward for timelines scored it, or if its solution has spans with numbers.
    """
    named, true = read_pair(row.answer, solution_of(row.target), list_of_turns(row.prompt))
    if not about_a_timeline(true, row.rewards):
        return None
    durations = [clip.duration for clip in row.clips if clip.duration > 0]
    return ReadAnswer(
        named=named,
        true=true,
        duration=durations[0] if len(durations) == 1 else None,
        names=listed_names(row.prompt),
    )


MEASURES: dict[str, Callable[[ReadAnswer], float]] = {
    "f1@10": lambda read: f1_at(0.1, read.named, read.true),
    "f1@25": lambda read: f1_at(0.25, read.named, read.true),
    "f1@50": lambda read: f1_at(0.5, read.named, read.true),
    "edit": lambda read: edit_of(read.named, read.true),
    "frames": lambda read: frames_right(read.named, read.true, read.duration, FPS),
}
"""The measures of temporal action segmentation, by the names that tables give them. arXiv:1611.05267."""


def step_rows(answers: Iterable[ReadAnswer]) -> list[Row]:
    """The number of spans of each step of the solutions, their recall and the mean error of their edges.

    A span counts once for each completion of its record.

    ``recall`` is at an intersection over union of 0.5. ``start_error`` and ``end_error`` are mean absolute seconds over
    the spans with a match of at least 0.1, None without one.
    """
    spans: Counter[int | str] = Counter()
    found: Counter[int | str] = Counter()
    errors: dict[int | str, list[tuple[float, float]]] = {}
    names: dict[int | str, str] = {}
    for answer in answers:
        for span in answer.true:
            spans[span.step] += 1
            if not names.get(span.step):
                listed = answer.names.get(span.step) if isinstance(span.step, int) else None
                names[span.step] = listed or span.name
        for _, partner in matches(FOUND_AT, answer.named, answer.true):
            found[answer.true[partner].step] += 1
        for place, partner in matches(NEAR_AT, answer.named, answer.true):
            ours = answer.named[place]
            theirs = answer.true[partner]
            errors_of_edges = (abs(ours.start - theirs.start), abs(ours.end - theirs.end))
            errors.setdefault(theirs.step, []).append(errors_of_edges)
    rows = []
    for step in sorted(spans, key=_in_order):
        edges_of = errors.get(step, [])
        rows.append(
            {
                "step": step,
                "name": names[step],
                "spans": spans[step],
                "recall": found[step] / spans[step],
                "start_error": _mean([start for start, _ in edges_of]),
                "end_error": _mean([end for _, end in edges_of]),
            }
        )
    return rows


def confusion_rows(answers: Iterable[ReadAnswer]) -> list[Row]:
    """Confusions: pairs of a step and of the step that was named at its time, the most frequent first.

    A span of the solution without a match (at least 0.1) is taken for the span of the answer without a match that
    overlaps it most, by at least 0.1. ``named`` is None for a span that is missing. ``step`` is None for a span of the
    answer where the solution has nothing of the kind.
    """
    counts: Counter[tuple[int | str | None, int | str | None]] = Counter()
    for answer in answers:
        pairs = matches(NEAR_AT, answer.named, answer.true)
        matched = {place for place, _ in pairs}
        partners = {partner for _, partner in pairs}
        free = [span for place, span in enumerate(answer.named) if place not in matched]
        missed = [span for place, span in enumerate(answer.true) if place not in partners]
        # Every step is the same step here, so that times alone decide.
        overlap = overlaps([replace(span, number=0) for span in free], [replace(span, number=0) for span in missed])
        taken = set()
        for place, span in enumerate(missed):
            best = int(overlap[:, place].argmax()) if free else None
            if best is None or overlap[best, place] < NEAR_AT or best in taken or free[best].step == span.step:
                counts[span.step, None] += 1
            else:
                taken.add(best)
                counts[span.step, free[best].step] += 1
        for place, span in enumerate(free):
            if place not in taken:
                counts[None, span.step] += 1
    ordered = sorted(counts, key=lambda pair: (-counts[pair], str(pair)))
    return [{"step": step, "named": named, "count": counts[step, named]} for step, named in ordered]


# ---- against a procedure


@dataclass(frozen=True)
class Deviations:
    """The deviations of a sequence of steps from a procedure.

    Attributes:
        missing: numbers of the steps that do not occur.
        out_of_order: numbers of the fewest steps without which the others are in order, in the order of time.
        unknown: steps that the procedure does not have.
    """

    missing: list[int]
    out_of_order: list[int]
    unknown: list[int | str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.out_of_order or self.unknown)


def deviations(sequence: Sequence[int | str], steps: int) -> Deviations:
    """The deviations of a sequence from the procedure 1, 2, ... ``steps``. A step may come several times in a row.

    Example:
        >>> deviations([1, 2, 2, 5, 3, "wait"], 5)
        Deviations(missing=[4], out_of_order=[5], unknown=['wait'])
    """
    procedure = range(1, steps + 1)
    known = [step for step in sequence if isinstance(step, int) and step in procedure]
    unknown = [step for step in sequence if step not in procedure]
    missing = sorted(set(procedure) - set(known))
    kept = _longest_in_order(known)
    out_of_order = [step for place, step in enumerate(known) if place not in kept]
    return Deviations(missing, out_of_order, list(dict.fromkeys(unknown)))


def _longest_in_order(numbers: Sequence[int]) -> set[int]:
    """The places of the longest subsequence that does not fall, by patience sorting."""
    ends: list[int] = []  # the smallest last number of a subsequence of each length
    places: list[int] = []  # and its place
    before: list[int | None] = []  # the place that comes before each place in its subsequence
    for place, number in enumerate(numbers):
        length = bisect_right(ends, number)
        before.append(places[length - 1] if length else None)
        # Replaces the end of this length, or appends the first one.
        ends[length : length + 1] = [number]
        places[length : length + 1] = [place]
    kept: set[int] = set()
    last = places[-1] if places else None
    while last is not None:
        kept.add(last)
        last = before[last]
    return kept


def sequence_of(text: str, listed: Mapping[str, int]) -> list[int | str]:
    """The steps that an answer or solution names, in order: by the starts of its spans, else its ``(k)`` numbers."""
    spans = timeline_in(text, listed)
    return [span.step for span in spans] if spans else list(action_numbers(text))


def check_procedure(solutions: Iterable[str], steps: Sequence[str], file: str) -> None:
    """Check that at least one solution names a step of a procedure.

    Raises:
        ValueError: none does, so that answers cannot be compared with it.
    """
    listed = _numbers_of(steps)
    for solution in solutions:
        named = sequence_of(solution_of(solution), listed)
        if any(isinstance(step, int) and step <= len(steps) for step in named):
            return
    raise ValueError(
        f"--procedure {file}: no solution names one of its {len(steps)} steps; expected timelines, or numbers such as "
        "(2), in the solutions"
    )


def _numbers_of(steps: Sequence[str]) -> dict[str, int]:
    return numbers_by_name({name: number for number, name in enumerate(steps, start=1)})


def procedure_rows(samples: Iterable[EvaluationSample], steps: Sequence[str]) -> list[Row]:
    """The deviations from a procedure, for each record as it is: those of its first answer, and of its solution."""
    listed = _numbers_of(steps)
    rows = []
    for sample in samples:
        if sample.control != AS_IT_IS or sample.sample:
            continue
        answered = sequence_of(sample.answer, listed)
        expected = sequence_of(solution_of(sample.target), listed)
        rows.append(
            {
                "model": sample.model,
                "doc_id": sample.doc_id,
                "record_id": sample.record_id,
                "where": sample.where,
                "clips": [clip.path for clip in sample.clips],
                "answer": asdict(deviations(answered, len(steps))),
                "solution": asdict(deviations(expected, len(steps))),
            }
        )
    return rows


def procedure_lines(found: Mapping[str, Any], shown: int, lists_all: str) -> Iterable[str]:
    """The clips whose answers deviate from the procedure, for each model, and how this agrees with the solutions.

    Args:
        found: ``file``, ``steps`` and ``clips``, as ``evaluation.json`` has them.
        shown: most clips of a model.
        lists_all: the name of the file with all of them.
    """
    steps = found["steps"]
    for model in dict.fromkeys(row["model"] for row in found["clips"]):
        rows = [row for row in found["clips"] if row["model"] == model]
        flagged = [row for row in rows if any(row["answer"].values())]
        true = [row for row in rows if any(row["solution"].values())]
        both = sum(row in true for row in flagged)
        yield (
            f"{found['file']}, {len(steps)} steps: {model} finds deviations in {len(flagged):,} of {len(rows):,} "
            f"records. The solutions have {len(true):,}: {both:,} found, "
            f"{counted(len(flagged) - both, 'false alarm')}."
        )
        for row in flagged[:shown]:
            yield f"  {row['record_id']}: {deviation_text(row['answer'], steps)}"
        if len(flagged) > shown:
            yield f"  ... and {len(flagged) - shown:,} more ({lists_all} lists all)"


def deviation_text(row: Mapping[str, Sequence[Any]], steps: Sequence[str]) -> str:
    """Deviations in words: ``(4) close the lid is missing; (5) fasten is out of order``."""
    if len(row["missing"]) == len(steps) and not row["unknown"]:
        return "no step is named"
    ends = {"missing": "is missing", "out_of_order": "is out of order", "unknown": "is no step of the procedure"}
    parts = []
    for key, words in ends.items():
        for step in row[key]:
            known = isinstance(step, int) and 1 <= step <= len(steps)
            parts.append(f"{step_text(step, steps[step - 1] if known else '')} {words}")
    return "; ".join(parts)


def step_text(step: int | str, name: str = "") -> str:
    """A step as lists show it: ``(2) insert the fan``, or its name where it has no number."""
    return f"({step}) {name}".rstrip() if isinstance(step, int) else step


def _in_order(step: int | str) -> tuple[bool, int, str]:
    """A key that sorts numbers by their value, then names."""
    return (True, 0, step) if isinstance(step, str) else (False, step, "")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
