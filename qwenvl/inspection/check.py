"""``qwenvl data check``: reads and decodes every record as training would, and reports the bad ones."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from qwenvl.config.flags import FlagParser
from qwenvl.console import show
from qwenvl.data.errors import BadMediaError, RecordError, place_of
from qwenvl.data.options import RUN_SEED, PromptOptions, SampleOptions
from qwenvl.data.order import Part, draws_per_epoch
from qwenvl.data.records.catalog import DatasetSource, resolve_datasets
from qwenvl.data.records.clip_settings import settings_read
from qwenvl.data.records.framing import unframed
from qwenvl.data.records.parse import ReadOptions, RecordCheck, media_hints, unread_keys_of, unread_text
from qwenvl.data.records.presets import how_counted, how_read, span_hints
from qwenvl.data.records.record_file import RecordFile, check_together
from qwenvl.data.timeline_hints import TimelineTimes, fineness, short_spans, span_problems, timeline_times, unread_times
from qwenvl.data.tool_options import ToolOptions
from qwenvl.failure import beginning, counted, visible
from qwenvl.files import check_new
from qwenvl.inspection.convert import check_kind, write_records
from qwenvl.inspection.flags import add_dataset_flags, add_frame_flags, hints_by, make_collator
from qwenvl.inspection.options import DEFAULT_REWARDS, CheckOptions
from qwenvl.rewards.resolve import build_rubric
from qwenvl.types import Hint, Record

if TYPE_CHECKING:  # they load torch, which the other commands do without
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.data.dataset import GRPODataset
    from qwenvl.data.prompt_length import MediaSizes

_FILES = "Fetch or encode these files again: a copy was interrupted, say. Or leave the rows out with --write_clean."
ADVICE = {
    "JSON": "A file is one array of objects, or one object a line; mend the places named.",
    "form": "docs/data.md shows the forms of records.",
    "tags": "Write one <video> or <image> in the prompt for each medium, in their order.",
    "media path": "Media paths start at the media root: that of the catalog, else the annotation's folder.",
    "missing media": "Put the files under the media root, or leave the rows out with --write_clean.",
    **dict.fromkeys(("empty media", "cut short", "not a video", "unreadable media", "damaged media"), _FILES),
    "meta and clip disagree": "frame_cnts must sum to the clip's frames, nframes be at most these, and video_start lie "
    "within its seconds: were the clips cut or re-encoded after it?",
    "solution": "The rewards of this check can't score these solutions: mend them, or name other rewards.",
    "duplicate id": "Give each record its own id, or none.",
    "too long": "Raise --max_prompt_length, or show less: --fit_frames where needed, --video_max_frames and the like "
    "everywhere.",
}
LOWERED = "fewer frames to fit"
DECODE_CHECK = "strict with PyAV, else fast"  # the default
SHOWN_PER_KIND = 5

HintsOf = Callable[[Record, "MediaSizes"], list[Hint]]
Problem = dict[str, str]  # "kind" and "message"


@dataclass(frozen=True)
class CheckedRecord:
    """A record that can be trained on.

    Attributes:
        where: its place and id.
        images: the number of its images.
        frames: for each clip the number of shown frames.
        seconds: for each clip the seconds from the first shown frame to the last.
        tokens: the tokens of its prompt, vision tokens included. None without a processor.
        rescaled: the number of clips that differ a little from their ``meta``.
        lowered: the frames that were left out so that the prompt fits, in words.
        lengths: the ``clip_lengths`` of its clips.
        settings: the names of the frame settings that were read from its row.
        timeline: the times of its timeline. None where it has none.
    """

    where: str
    images: int
    frames: tuple[int, ...]
    seconds: tuple[float, ...]
    tokens: int | None
    rescaled: int
    lowered: str
    hints: tuple[Hint, ...]
    lengths: tuple[tuple[float, int], ...]
    settings: tuple[str, ...]
    timeline: TimelineTimes | None = None


@dataclass
class CheckReport:
    """The result of ``examine``.

    Attributes:
        good: the records that can be trained on, in the order of their files. An access reads its record again.
        checked: one entry for each good record.
        problems: the rows that can't be trained on, each with the reason.
        warnings: the hints about all other rows.
        read_as: the formats that were guessed, by the name of the data set.
        solutions: the number of good records with each solution.
        drawn: the number of records in an epoch, by the name of the data set.
        counted: the number of the first option in answers, by the name of the data set.
        unread: the number of good records with each key that nothing reads.
    """

    good: Sequence[Record] = ()
    checked: list[CheckedRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    read_as: dict[str, str] = field(default_factory=dict)
    solutions: Counter[str] = field(default_factory=Counter)
    drawn: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def timelines(self) -> list[TimelineTimes]:
        """The times of the good records with a timeline."""
        return [each.timeline for each in self.checked if each.timeline is not None]

    def summary(self) -> dict[str, Any]:
        """The report as JSON: counts, problems by kind, and quantiles over the good records."""
        bad_by_kind = Counter(problem["kind"] for problem in self.problems)
        warned_by_kind = Counter(warning["kind"] for warning in self.warnings)
        advice = [ADVICE[problem["kind"]] for problem in self.problems if problem["kind"] in ADVICE]
        settings: Counter[str] = Counter()
        frames: list[int] = []
        seconds: list[float] = []
        tokens: list[int] = []
        text_only = 0
        for each in self.checked:
            settings.update(each.settings)
            frames += each.frames
            seconds += each.seconds
            if each.tokens is not None:
                tokens.append(each.tokens)
            text_only += not each.frames and not each.images
        return {
            "records": len(self.good) + len(self.problems),
            "good": len(self.good),
            "bad": len(self.problems),
            "bad_by_kind": dict(bad_by_kind.most_common()),
            "clips": len(frames),
            "images": sum(each.images for each in self.checked),
            "text_only": text_only,
            "frames_per_clip": quantiles(frames),
            "seconds_per_clip": quantiles(seconds),
            "prompt_tokens": quantiles(tokens),
            "solutions": dict(self.solutions.most_common(20)),
            "drawn_per_epoch": self.drawn,
            "fitted_prompts": warned_by_kind[LOWERED],
            "rescaled_clips": sum(each.rescaled for each in self.checked),
            "read_as": self.read_as,
            "frame_settings": dict(settings.most_common()),
            "options_counted_from": self.counted,
            "unread_keys": dict(self.unread),
            "advice": list(dict.fromkeys(advice)),
            "problems": self.problems,
            "warnings": self.warnings,
        }


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    add_frame_flags(parser)
    parser.set_defaults(decode_check=DECODE_CHECK)
    parser.add_options(CheckOptions)
    parser.set_defaults(reward_funcs=DEFAULT_REWARDS)


def run(args: argparse.Namespace) -> int:
    """Check the data set and print the report. Return 1 if any record is bad."""
    CheckOptions.of(args)  # raises for a value out of its bounds
    # PyAV is the only decoder that reports errors.
    if args.decode_check == DECODE_CHECK:
        args.decode_check = "fast" if args.video_backend == "decord" else "strict"
    if args.write_clean:
        check_new(args.write_clean, "--write_clean")
        check_kind(Path(args.write_clean))  # now, and not after hours of decoding
    rubric = build_rubric(args.reward_funcs) if args.reward_funcs else None
    reading = ReadOptions.of(args)
    with redirect_stdout(sys.stderr):  # for libraries that print while they load
        collator = make_collator(args, _offered_tools(args))
        report = examine(
            resolve_datasets(args.dataset, args.dataset_catalog),
            options=reading,
            check_record=rubric.check_record if rubric else None,
            sample_options=SampleOptions.of(args, on_bad_sample="error"),
            collator=collator,
            look_for=hints_by(args, collator),
            columns=rubric.columns if rubric else (),
            rewards=rubric.names if rubric else (),
            jobs=args.jobs,
            seed=args.seed,
        )
    if args.json:
        print(json.dumps(report.summary(), indent=1, ensure_ascii=False))
    else:
        show(render(report, args.dataset))
    # Behind the report: records of two files that have one id cannot be in one.
    if args.write_clean and not report.good:
        print(f"--write_clean {args.write_clean}: no record is good, so that nothing is written", file=sys.stderr)
    elif args.write_clean:
        with redirect_stdout(sys.stderr):
            # The file is read with the flags of the check, which put their texts around prompts again.
            good = (unframed(record, reading) for record in report.good)
            show(write_records(good, Path(args.write_clean)))
    if rubric:
        check_together(report.good, rubric.check_records, args.dataset)
    return 1 if report.problems or not report.good else 0


def _offered_tools(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The schemas of the tools that prompts offer. Without a model there are none, as ``make_collator`` says."""
    if not args.tools or args.model is None:
        return []
    from qwenvl.tools.functions import schemas_of  # it loads torch

    return schemas_of(ToolOptions(tools=args.tools))


def examine(
    sources: Sequence[DatasetSource],
    *,
    options: ReadOptions | None = None,
    check_record: RecordCheck | None = None,
    sample_options: SampleOptions | None = None,
    collator: GRPOCollator | None = None,
    look_for: HintsOf | None = None,
    columns: Collection[str] = (),
    rewards: Collection[str] = (),
    jobs: int = 2,
    seed: int = RUN_SEED,
) -> CheckReport:
    """Read all rows, decode the media of each as evaluation does, and build its prompt if there is a ``collator``.

    Args:
        sample_options: the choice and decoding of frames. ``on_bad_sample`` must be ``error``.
        look_for: returns the hints about a record and its decoded media.
        columns: the fields of records that the rewards read. Keys that nothing reads are reported.
        rewards: their names. Empty: there are none.
        jobs: clips decoded at the same time, each in a process of its own.
        seed: draws the rows of a data set that is taken in part.
    """
    from torch.utils.data import ConcatDataset
    from tqdm import tqdm

    from qwenvl.data.dataset import GRPODataset
    from qwenvl.data.hints import few_frames
    from qwenvl.data.prompt_length import Ruler

    report = CheckReport()
    files = _opened(sources, report, options, check_record, seed)
    _add_facts_of_files(report, files)
    tokenizing = threading.Lock()  # tokenizers are not thread-safe
    ruler = collator.ruler if collator else Ruler.without_model(PromptOptions())
    fit_to = None if collator is None else collator.options.fit_to
    dataset = GRPODataset((), sample_options, training=False, ruler=ruler, fit_to=fit_to)

    check = partial(_check_one, dataset=dataset, collator=collator, tokenizing=tokenizing, look_for=look_for)
    good: list[list[int]] = [[] for _ in files]  # indices in each file
    questions: dict[int, tuple[str, str]] = {}  # place and solution by the hash of the question, see ``_repeated``
    hinted: dict[Hint, list[str]] = defaultdict(list)
    rows = _rows_of(files)
    bar = tqdm(total=sum(map(len, files)), unit="record", disable=not sys.stderr.isatty())
    with bar, ThreadPoolExecutor(jobs) as pool:
        while True:
            batch = list(islice(rows, 16 * jobs))  # not all rows at once: they are in memory
            if not batch:
                break
            results = pool.map(check, [row.record for row in batch])
            for row, result in zip(batch, results, strict=True):
                bar.update()
                if isinstance(result, dict):
                    report.problems.append(result)
                    continue
                assert isinstance(row.record, Record)
                good[row.file].append(row.index)
                _add_record(report, row.record, result, columns)
                report.warnings += _repeated(row.record, questions)
                for hint in result.hints:
                    hinted[hint].append(result.where)
    report.good = ConcatDataset(map(RecordFile.subset, files, good)) if files else ()
    _add_hints(report, hinted)
    lengths = [length for each in report.checked for length in each.lengths]
    report.warnings += [hint._asdict() for hint in few_frames(lengths, dataset.options)]
    report.warnings += [hint._asdict() for hint in short_spans(report.timelines)]
    if rewards:
        unread = unread_times(len(report.timelines), len(report.checked), rewards)
        report.warnings += [hint._asdict() for hint in unread]
    return report


def _opened(
    sources: Sequence[DatasetSource],
    report: CheckReport,
    options: ReadOptions | None,
    check_record: RecordCheck | None,
    seed: int,
) -> list[RecordFile]:
    """The files of the data sets. A file that can't be read as a whole is a problem of the report."""
    files: list[RecordFile] = []
    for source in sources:
        try:
            files.append(RecordFile(source, seed=seed, options=options, check_record=check_record))
        except RecordError as error:
            report.problems.append({"kind": error.kind, "message": str(error)})
    return files


@dataclass(frozen=True)
class _Row:
    """A row of one of the files.

    Attributes:
        file, index: the number of the file, and that of the row in it, from 0.
        record: the record of the row, or the error about it.
    """

    file: int
    index: int
    record: Record | RecordError


def _rows_of(files: Sequence[RecordFile]) -> Iterator[_Row]:
    """The rows of all files, one at a time in memory."""
    for number, file in enumerate(files):
        for index, record in enumerate(file.iterate()):
            yield _Row(file=number, index=index, record=record)


def _add_record(report: CheckReport, record: Record, result: CheckedRecord, columns: Collection[str]) -> None:
    """Count a good record."""
    report.checked.append(result)
    report.solutions[record.solution.strip()] += 1
    report.unread += unread_keys_of([record], columns)
    if result.lowered:
        report.warnings.append({"kind": LOWERED, "message": f"{result.where}: {result.lowered}"})


def _add_facts_of_files(report: CheckReport, files: Sequence[RecordFile]) -> None:
    """Add the facts about each file as a whole to a report: draws in an epoch, format, first number of options."""
    drawn = draws_per_epoch([Part(file.source.name, len(file), file.source.weight) for file in files])
    for file, count in zip(files, drawn, strict=True):
        name = file.source.name
        report.drawn[name] = count
        if file.read_as is not None:
            report.read_as[name] = file.read_as
        if file.first_number is not None:
            report.counted[name] = file.first_number


def _add_hints(report: CheckReport, hinted: Mapping[Hint, Sequence[str]]) -> None:
    """Add hints to a report, each with the number of its records, and the hints about records without media."""
    for hint, where in hinted.items():
        message = f"{hint.message} ({counted(len(where), 'record')}, the first is {where[0]})"
        report.warnings.append({"kind": hint.kind, "message": message})
    text_alone = sum(not each.frames and not each.images for each in report.checked)
    report.warnings += [hint._asdict() for hint in media_hints(len(report.checked), text_alone)]


def _check_one(
    record: Record | RecordError,
    dataset: GRPODataset,
    collator: GRPOCollator | None,
    tokenizing: threading.Lock,
    look_for: HintsOf | None,
) -> CheckedRecord | Problem:
    """The result of a row whose media are decoded and whose prompt is made, or the reason why it can't be trained on.

    Args:
        tokenizing: held while tokens are counted, as tokenizers are not thread-safe.
    """
    from qwenvl.data.hints import clip_lengths, picture_hints
    from qwenvl.data.prompt_length import MediaSizes

    if isinstance(record, RecordError):
        return {"kind": record.kind, "message": str(record)}
    where = place_of(record)
    try:
        with tokenizing if dataset.fit_to else nullcontext():  # fitting frames to a length counts tokens
            sample = dataset.load(record)
    except BadMediaError as error:
        return {"kind": error.kind, "message": f"{where}: {error}"}
    tokens = None
    if collator is not None:
        with tokenizing:
            batch = collator([sample])["prompts"]
        if batch.bad:
            return {"kind": "too long", "message": batch.bad[0].error}
        tokens = batch.input_ids.shape[1]
    infos = [clip.info for clip in sample.videos]
    fewer = sample.fewer_frames
    hints: list[Hint] = []
    if look_for is not None:
        hints += look_for(record, MediaSizes.of(sample))
        hints += picture_hints(sample.videos)
    hints += span_hints(record, infos)
    hints += span_problems(record, infos)
    settings: list[str] = []
    for meta in (*record.clip_meta, *record.image_sizes):
        settings += settings_read(meta)
    return CheckedRecord(
        where=where,
        images=len(record.images),
        frames=tuple(len(info.indices) for info in infos),
        seconds=tuple(info.times[-1] - info.times[0] for info in infos),
        tokens=tokens,
        rescaled=sum(info.rescaled for info in infos),
        lowered=", ".join(fewer),
        hints=tuple(hints),
        lengths=tuple(clip_lengths(infos, record.clip_meta)),
        settings=tuple(dict.fromkeys(settings)),
        timeline=timeline_times(record, infos),
    )


def _repeated(record: Record, first: dict[int, tuple[str, str]]) -> list[Problem]:
    """A warning if an earlier record, in ``first``, asks the same of the same media. Else the record is added there.

    Questions are known by their hash of 64 bits: among a billion, two have the same one with a chance of 3 %.
    """
    question = record.question_hash
    place, solution = first.setdefault(question, (record.where, record.solution))
    if place == record.where:
        return []
    same = "and has the same solution" if solution == record.solution else "but has another solution"
    return [{"kind": "repeated", "message": f"{record.where} asks the same as {place} {same}"}]


def render(report: CheckReport, name: str) -> str:
    """The report as text to be read."""
    numbers = report.summary()
    lines = [
        f"{name}: {counted(numbers['records'], 'record')}, {numbers['good']:,} good, {numbers['bad']:,} bad",
        f"  {counted(numbers['clips'], 'clip')}, {counted(numbers['images'], 'image')}, "
        f"{counted(numbers['text_only'], 'record')} of text alone",
    ]
    lines += [f"  {how_read(data_set, preset)}" for data_set, preset in report.read_as.items()]
    lines += [f"  {how_counted(data_set, number)}" for data_set, number in report.counted.items()]
    if report.unread:
        lines.append(f"  {unread_text(report.unread, len(report.checked))}")
    for title in ("frames_per_clip", "seconds_per_clip", "prompt_tokens"):
        if numbers[title]:
            shown = ", ".join(f"{quantile} {_short(value)}" for quantile, value in numbers[title].items())
            lines.append(f"  {title.replace('_', ' ')}: {shown}")
    if numbers["frame_settings"]:
        settings = [f"{key} of {counted(count, 'record')}" for key, count in numbers["frame_settings"].items()]
        lines.append(f"  frame settings read: {', '.join(settings)}")
    if report.solutions:
        [(text, count)] = report.solutions.most_common(1)
        lines.append(f"  {counted(len(report.solutions), 'solution')}, {count:,} times {beginning(visible(text))}")
    if len(report.drawn) > 1:
        drawn = ", ".join(f"{count:,} of {data_set}" for data_set, count in report.drawn.items())
        lines.append(f"  drawn in an epoch: {drawn}")
    if report.timelines:
        lines.append(f"  {fineness(report.timelines)}")
    if numbers["rescaled_clips"]:
        differing = counted(numbers["rescaled_clips"], "clip")
        lines.append(f"  of {differing} the frame_cnts differ a little from the frames, and are rescaled")
    lines += _problem_lines("bad", report.problems)
    lines += _problem_lines("worth a look", report.warnings)
    if numbers["advice"]:
        lines += ["", "what to do"]
        lines += [f"  {advice}" for advice in numbers["advice"]]
    return "\n".join(lines)


def _problem_lines(title: str, problems: Sequence[Problem]) -> list[str]:
    """The first problems of each kind, the most frequent kind first."""
    lines: list[str] = []
    for kind, count in Counter(problem["kind"] for problem in problems).most_common():
        messages = [problem["message"] for problem in problems if problem["kind"] == kind]
        lines += ["", f"{title}: {kind} ({count:,})"]
        lines += [f"  {beginning(visible(message), 300)}" for message in messages[:SHOWN_PER_KIND]]
        if count > SHOWN_PER_KIND:
            lines.append(f"  ... and {count - SHOWN_PER_KIND:,} more (--json lists all)")
    return lines


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The minimum, median, 95th percentile (the nearest value) and maximum. Empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    place = math.ceil(0.95 * len(ordered)) - 1
    return {"min": ordered[0], "median": median(ordered), "p95": ordered[place], "max": ordered[-1]}


def _short(value: float) -> str:
    """A number with four digits, or as a whole from 1,000 on."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
