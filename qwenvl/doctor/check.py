"""Look at every record of a data set as training would see it, and say what is wrong with it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import BadMediaError, FramePlanError, LongPromptError, RecordError
from qwenvl.data.fit import what_was_lowered
from qwenvl.data.media.resize import Thumbnails
from qwenvl.data.options import SampleOptions
from qwenvl.data.prompt_length import MediaSizes
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, RecordCheck
from qwenvl.data.records.record_file import JoinedRecords, RecordFile
from qwenvl.doctor.spread import quantiles
from qwenvl.hint import Hint
from qwenvl.types import Fitted, Record

HintsOf = Callable[[Record, MediaSizes], list[Hint]]

ADVICE = {
    "JSON": "A file is one array of objects, or one object a line; mend the places named.",
    "form": "docs/data.md shows the forms of records.",
    "tags": "Write one <video> or <image> in the prompt for each medium, in their order.",
    "media path": "Media paths start at the media root: that of the catalog, else the annotation's folder.",
    "missing media": "Put the files under the media root, or take the rows out with --write-clean.",
    "empty media": "A copy or download was probably interrupted: fetch these files again.",
    "cut short": "A copy or download was probably interrupted: fetch these files again.",
    "not a video": "The name says video, the content does not: look at how these files were made.",
    "unreadable media": "Fetch or encode these files again, or take the rows out with --write-clean.",
    "damaged media": "Fetch these files again, or record them anew. --decode_check fast takes what decoders hide.",
    "meta and clip disagree": "frame_cnts must sum to the clip's frames, and spans lie within its seconds: were "
    "the clips cut or re-encoded after it?",
    "solution": "The rewards of this check can't score these solutions: mend them, or name other rewards.",
    "duplicate id": "Give each record its own id, or none.",
    "too long": "Raise --max_prompt_length, or show less: --fit_frames where needed, --video_max_frames and the like "
    "everywhere.",
}

NOT_LOOKED_AT = 64  # pixels of the longer side of frames that are decoded for nobody
WRONG_HEADER = "the file says something else than it shows"


@dataclass(frozen=True)
class Finding:
    """What became of one record.

    Attributes:
        where: its place and id.
        problem: why it can't be trained on, beginning with its place. None for a good one.
        kind: the problem in a few words.
        images: how many it has.
        frames, seconds: of each of its clips: frames shown, and the time from the first to the last of them.
        tokens: length of the prompt, vision tokens included. None without a processor.
        fitted: what was lowered to make it fit.
        rescaled: clips that differ a little from what ``meta`` says.
        notes: what the files of its clips say wrongly of their frames, each with its path.
        hints: what is worth a look.
    """

    where: str = ""
    problem: str | None = None
    kind: str = ""
    images: int = 0
    frames: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    tokens: int | None = None
    fitted: Fitted | None = None
    rescaled: int = 0
    notes: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass
class Report:
    """What ``examine`` found.

    Attributes:
        good: records that can be trained on, in the order read. Each is read again when it is asked for.
        read_as: the format that was guessed, by the name of the data set.
        problems: {"kind", "message"} of each row that can't.
        warnings: as ``problems``, of rows that can.
        findings: of the good ones.
    """

    good: Sequence[Record] = ()
    read_as: dict[str, str] = field(default_factory=dict)
    problems: list[dict[str, str]] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add_problem(self, kind: str, message: str) -> None:
        self.problems.append({"kind": kind, "message": message})

    def summary(self) -> dict[str, Any]:
        """Return what a script may want: counts, problems by kind, and quantiles of what the good records hold."""
        fine = self.findings
        tokens = [finding.tokens for finding in fine if finding.tokens is not None]
        return {
            "records": len(self.good) + len(self.problems),
            "good": len(self.good),
            "bad": len(self.problems),
            "bad_by_kind": dict(Counter(problem["kind"] for problem in self.problems).most_common()),
            "clips": sum(len(finding.frames) for finding in fine),
            "images": sum(finding.images for finding in fine),
            "text_only": sum(not finding.frames and not finding.images for finding in fine),
            "frames_per_clip": quantiles([n for finding in fine for n in finding.frames]),
            "seconds_per_clip": quantiles([s for finding in fine for s in finding.seconds]),
            "prompt_tokens": quantiles(tokens),
            "fitted_prompts": sum(finding.fitted is not None for finding in fine),
            "rescaled_clips": sum(finding.rescaled for finding in fine),
            "wrong_headers": sum(len(finding.notes) for finding in fine),
            "read_as": self.read_as,
            "advice": list(dict.fromkeys(ADVICE[p["kind"]] for p in self.problems if p["kind"] in ADVICE)),
            "problems": self.problems,
            "warnings": self.warnings,
        }


def examine(
    sources: Sequence[DatasetSource],
    *,
    options: ReadOptions | None = None,
    check_record: RecordCheck | None = None,
    sample_options: SampleOptions | None = None,
    collator: GRPOCollator | None = None,
    look_for: HintsOf | None = None,
    all_frames: bool = False,
    jobs: int = 2,
    progress: Callable[[Iterator, int], Iterable] | None = None,
) -> Report:
    """Read all rows, decode the media of each as evaluation does, and build its prompt if there is a ``collator``.

    Args:
        sample_options: how frames are chosen and decoded. With ``on_bad_sample`` other than ``error``
            failures are not told.
        look_for: says what is worth a look in a record and its decoded media.
        all_frames: also decode the frames of each clip that its sample does not show.
        jobs: clips decoded at the same time, each in a process of its own.
        progress: a function as tqdm is. It gets an iterator, which yields once for each row, and the number of rows.
    """
    report = Report()
    files = list(_opened(sources, options, check_record, report))
    report.read_as = {file.source.name: file.read_as for file in files if file.read_as is not None}
    tokenizing = threading.Lock()  # tokenizers may not be shared
    limit = None
    if collator is not None and collator.limit is not None and collator.limit.fit_frames:
        limit = replace(collator.limit, lock=tokenizing)
    ruler = Thumbnails(NOT_LOOKED_AT) if collator is None else collator.ruler
    dataset = GRPODataset((), sample_options, training=False, limit=limit, ruler=ruler)
    good: list[list[int]] = [[] for _ in files]
    asked: dict[int, tuple[str, str]] = {}
    rows = ((number, index, row) for number, file in enumerate(files) for index, row in enumerate(file.iterate()))

    def look(place: tuple[int, int, Record | RecordError]) -> tuple[Finding, tuple[int, int, Record | RecordError]]:
        return _finding(place[2], dataset, collator, tokenizing, look_for, all_frames), place

    with ThreadPoolExecutor(jobs) as pool:
        found = _in_order(pool, look, rows, ahead=4 * jobs)
        for finding, (number, index, record) in progress(found, sum(map(len, files))) if progress else found:
            if finding.problem is not None:
                report.add_problem(finding.kind, finding.problem)
                continue
            good[number].append(index)
            report.findings.append(finding)
            report.warnings += _repeated(record, asked)
    report.good = JoinedRecords([file.subset(indices) for file, indices in zip(files, good, strict=True)])
    report.warnings += [
        {"kind": WRONG_HEADER, "message": f"{finding.where}: {note}"}
        for finding in report.findings
        for note in finding.notes
    ]
    report.warnings += [
        {"kind": "lowered to fit", "message": f"{finding.where}: {what_was_lowered(finding.fitted)}"}
        for finding in report.findings
        if finding.fitted is not None
    ]
    report.warnings += _hints_of(report.findings)
    return report


def _in_order(pool: ThreadPoolExecutor, look: Callable, places: Iterable, ahead: int) -> Iterator:
    """Map as ``pool.map`` does, but take the next place only when one is done, so that few records are in memory."""
    waiting: deque = deque()
    for place in places:
        waiting.append(pool.submit(look, place))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _opened(
    sources: Sequence[DatasetSource], options: ReadOptions | None, check_record: RecordCheck | None, report: Report
) -> Iterator[RecordFile]:
    for source in sources:
        try:
            yield RecordFile(source, seed=0, options=options, check_record=check_record)
        except RecordError as error:  # the file as a whole
            report.add_problem(error.kind, str(error))


def _finding(
    record: Record | RecordError,
    dataset: GRPODataset,
    collator: GRPOCollator | None,
    tokenizing: threading.Lock,
    look_for: HintsOf | None,
    all_frames: bool,
) -> Finding:
    if isinstance(record, RecordError):
        return Finding(problem=str(record), kind=record.kind)
    where = f"{record.where} (id {record.id})"
    try:
        sample = dataset.load(record)
        for number in range(len(record.videos) if all_frames else 0):
            with dataset.open(record, number) as clip:
                clip.check_all()
    except LongPromptError as error:
        return Finding(where, str(error), error.kind)
    except (BadMediaError, FramePlanError) as error:
        return Finding(where, f"{where}: {error}", error.kind)
    infos = [clip.info for clip in sample.videos]
    tokens = None
    if collator is not None:
        with tokenizing:
            batch = collator([sample])["prompts"]
        if batch.bad:
            return Finding(where, batch.bad[0].error, "too long")
        tokens = batch.input_ids.shape[1]
    return Finding(
        where,
        images=len(record.images),
        frames=tuple(len(info.indices) for info in infos),
        seconds=tuple(info.times[-1] - info.times[0] for info in infos),
        tokens=tokens,
        fitted=sample.fitted,
        rescaled=sum(info.rescaled for info in infos),
        notes=tuple(f"{info.path}: {note}" for info in infos for note in info.notes),
        hints=tuple(look_for(record, MediaSizes.of(sample))) if look_for else (),
    )


def _hints_of(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Each hint once, with how many records it is true of, and the first of them."""
    places: dict[Hint, list[str]] = defaultdict(list)
    for finding in findings:
        for hint in finding.hints:
            places[hint].append(finding.where)
    return [
        {"kind": hint.kind, "message": f"{hint.message} ({len(where):,} records, the first is {where[0]})"}
        for hint, where in places.items()
    ]


def _repeated(record: Record, asked: dict[int, tuple[str, str]]) -> list[dict[str, str]]:
    """Return a warning if the record asks the same of the same media as one in ``asked``. Add it there if not.

    Questions are known by their hash: of a billion, one would be taken for another by a chance of 3 %.
    """
    place, solution = asked.setdefault(
        hash((record.messages, record.videos, record.images)), (record.where, record.solution)
    )
    if place == record.where:
        return []
    same = "and has the same solution" if solution == record.solution else "but has another solution"
    return [{"kind": "repeated", "message": f"{record.where} asks the same as {place} {same}"}]
