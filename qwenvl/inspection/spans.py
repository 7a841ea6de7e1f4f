"""Reads labels of ``qwenvl data from-folder`` that have times: tables of spans, and folders of label files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.options import SampleOptions
from qwenvl.data.records.text import text_rows, whole_lines
from qwenvl.data.records.timelines import span_between
from qwenvl.failure import counted
from qwenvl.files import plain_file
from qwenvl.inspection.clips import may_be_one_file
from qwenvl.inspection.label_columns import column_names, named_cells
from qwenvl.timeline import TimedStep, time_text, written_timeline

if TYPE_CHECKING:
    from qwenvl.data.media.reader import Clip

BACKGROUND = ("SIL", "background", "action_start", "action_end")
"""Labels of the public sets of action segmentation where nothing happens."""

LABEL_FILE = ".txt"
"""The ending of label files, of which each clip of a folder has one."""

# The columns of a span, in seconds or in frames.
SECONDS = ("start", "end")
FRAMES = ("start_frame", "end_frame")
_KNOWN = {"clip", "step", "answer", *SECONDS, *FRAMES}
OBSERVATION = "Observation id"  # in a table of BORIS: one person's labels of a clip
# Columns by which a table is one of BORIS, of earlier versions or with some columns left out too.
_OF_BORIS = frozenset(("Media file", "Media file name", "Start (s)", "Stop (s)", "Total length", "Media duration (s)"))
# "1-30 SIL": first and last frame from 1, as Breakfast has it.
_FRAME_LINE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})[\s,]+(\S.*)")
# "0.0 3.5 take": seconds, as Audacity has it, or with commas in the place of blanks.
_SECOND = r"([0-9]{1,9}(?:\.[0-9]+)?)"
_TIME_LINE = re.compile(rf"{_SECOND}\s+{_SECOND}\s+(\S.*)")
_COMMA_TIME_LINE = re.compile(rf"{_SECOND}\s*,\s*{_SECOND}\s*,\s*(?![0-9]+\s*,)(\S.*)")
# Of "0,0.5,1.5,take" the first number is an index. "2 screws" is a label.
_THIRD_NUMBER = re.compile(r"[0-9]+\.[0-9]+[\s,]|[0-9]+\s*,")
_NUMBERED_LINE = re.compile(r"([0-9]{1,9})(?:\s|[,;:])\s*\S")
_TWO_NUMBERS = re.compile(r"[0-9][0-9.]*[\s,]+[0-9]")


@dataclass(frozen=True)
class LabelledSpan:
    """A span as a file has it.

    Attributes:
        where: file and line.
        clip: the clip by its name in the file.
        step: the step by its number or name in the file.
        start, end: seconds, or with ``in_frames`` the first frame and the frame after the last, from 0.
        of_player: frames were counted by a player's clock, as seconds are, and not by the pictures of the clip.
        more: the other columns of the row.
        source: the file, task or observation that has all labels of its clip. Empty for rows of other tables.
        frames_of_file: of a file with a label for each frame, how many it has. None: the file is no such one.
    """

    where: str
    clip: str
    step: str
    start: Any
    end: Any
    in_frames: bool = False
    of_player: bool = False
    more: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    frames_of_file: int | None = None


@dataclass(frozen=True)
class ClipTimeline:
    """The timeline of a clip, with the steps' numbers, and the fields of its record."""

    spans: list[TimedStep]
    duration: float
    more: Mapping[str, str]

    @property
    def answer(self) -> str:
        """The answer of the record, without tags."""
        return written_timeline(self.spans)

    def without(self, columns: Collection[str]) -> ClipTimeline:
        """The same without some of the other columns."""
        return replace(self, more={name: cell for name, cell in self.more.items() if name not in columns})

    def fields(self) -> dict[str, Any]:
        """The fields of the record: timeline, seconds of the clip, and the other columns."""
        rows = [{"step": span.number, "start": span.start, "end": span.end} for span in self.spans]
        return {**self.more, "timeline": rows, "duration": self.duration}


def has_spans(path: Path, columns: Mapping[str, str]) -> bool:
    """Whether labels are spans: files in a folder, or a table with start and end.

    Raises:
        RecordError: the table has answers too.
    """
    if path.is_dir():
        return True
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    names = set(column_names(path, columns, _KNOWN).values())
    edges = next((each for each in (SECONDS, FRAMES) if names.issuperset(each)), None)
    if edges is not None and "answer" in names:
        raise RecordError(
            f"{path}: has answers, and times in {' and '.join(edges)}; where each answer is the step of a span: "
            "--columns answer=step; else rename these columns"
        )
    return edges is not None


def table_spans(path: Path, columns: Mapping[str, str]) -> Iterator[LabelledSpan | RecordError]:
    """The spans of a table with the columns clip, step, start and end, or start_frame and end_frame.

    Args:
        columns: maps names of the file to these names.
    """
    names = column_names(path, columns, _KNOWN)
    has_seconds = not set(SECONDS).isdisjoint(names.values())
    has_observations = OBSERVATION in names.values()
    # Of each observation of BORIS, its first clip.
    first_clips: dict[str, str] | None = None if _OF_BORIS.isdisjoint(names) else {}
    rows = text_rows(plain_file(path))
    for number in range(rows.length):
        try:
            row = rows.row(number)
            cells = named_cells(row.content, names, row.where)
            if not cells:
                continue
            _check_observation(cells, row.where, first_clips)
            has_frames = not cells.keys().isdisjoint(FRAMES)
            if has_frames and not cells.keys().isdisjoint(SECONDS):
                raise RecordError(f"{row.where}: has a span in seconds and one in frames; leave the columns of one out")
            # A row without times lacks those of its table.
            edges = FRAMES if has_frames or not has_seconds else SECONDS
            missing = [name for name in ("clip", "step", *edges) if name not in cells]
            if missing:
                raise RecordError(f"{row.where}: expected clip, step, start and end, got none for {missing[0]}")
            start: str | int = cells[edges[0]]
            end: str | int = cells[edges[1]]
            in_frames = edges == FRAMES
            if in_frames:
                start = _whole(cells[edges[0]], edges[0], row.where)
                end = _whole(cells[edges[1]], edges[1], row.where) + 1  # the last frame is included
            yield LabelledSpan(
                where=row.where,
                clip=cells["clip"].replace("\\", "/"),
                step=cells["step"],
                start=start,
                end=end,
                in_frames=in_frames,
                more={name: cell for name, cell in cells.items() if name not in _KNOWN},
                source=f"{path}, observation {cells.get(OBSERVATION, '')!r}" if has_observations else "",
            )
        except RecordError as error:
            yield error


def _check_observation(cells: Mapping[str, str], where: str, first_clips: dict[str, str] | None) -> None:
    """Check that the times of a row of BORIS are those of its clip.

    BORIS counts from the start of the observation: its media one after the other, and an offset before the first.

    Args:
        first_clips: the clip that each observation has named first, to which that of this row is added. None: the
            table is not one of BORIS.

    Raises:
        RecordError: the observation has several media, or an offset.
    """
    durations = cells.get("Media duration (s)", "")
    source = cells.get("Source", "")
    clip = cells.get("clip", "")
    is_of_several = ";" in durations or (source.startswith("player #") and re.search("[;|]", source) is not None)
    if OBSERVATION in cells and first_clips is not None:
        first = first_clips.setdefault(cells[OBSERVATION], clip)
        is_of_several = is_of_several or clip != first
    if is_of_several:
        raise RecordError(
            f"{where}: is of an observation of several media, whose times count from the start of the first one; make "
            "an observation of each clip"
        )
    offset = cells.get("Time offset (s)", "0")
    if re.search("[1-9]", offset):
        raise RecordError(
            f"{where}: is of an observation with a time offset of {offset} s, which is part of its times; set it to 0 "
            "in BORIS and export the table again"
        )


def folder_spans(folder: Path, clips: Sequence[str]) -> Iterator[LabelledSpan | RecordError]:
    """The spans of a folder of label files, ``NAME.txt`` for the clip ``NAME.mp4``.

    A file has a label for each frame, one a line, or lines ``first-last label`` in frames from 1, or lines
    ``start end label`` in seconds.
    """
    for path, named in _clips_of_files(folder, clips).items():
        if len(named) > 1:
            # The same name in two folders, or with two endings.
            first, second = named[:2]
            yield RecordError(
                f"{path}: may be that of {first} and of {second}; each clip needs a label file of its own, at its own "
                f"path in the folder of labels, such as {folder / Path(first).with_suffix(LABEL_FILE)}"
            )
            continue
        lines = whole_lines(path)
        lines = [line.strip() for line in lines]
        while lines and not lines[-1]:
            lines.pop()
        yield from of_source(str(path), _file_spans(path, named[0], lines))


def files_without_clip(folder: Path, clips: Sequence[str]) -> list[str]:
    """The label files of a folder that fit no clip, by their paths in it."""
    used = _clips_of_files(folder, clips)
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() == LABEL_FILE and path not in used]
    return [path.relative_to(folder).as_posix() for path in files]


def _clips_of_files(folder: Path, clips: Sequence[str]) -> dict[Path, list[str]]:
    """The clips that each label file of a folder may be that of: at their own path, or else by their file name.

    A file at the path of a clip is no other clip's.
    """
    found: dict[Path, list[str]] = {}
    own_paths = {clip: folder / Path(clip).with_suffix(LABEL_FILE) for clip in clips}
    taken = set(own_paths.values())
    for clip, own_path in own_paths.items():
        by_name = folder / f"{Path(clip).stem}{LABEL_FILE}"
        if own_path.is_file():
            found.setdefault(own_path, []).append(clip)
        elif by_name not in taken and by_name.is_file():
            found.setdefault(by_name, []).append(clip)
    return found


def of_source(
    source: str, labelled: Iterator[LabelledSpan | RecordError]
) -> Iterator[LabelledSpan | RecordError]:
    """Labels with the file or task that has them."""
    for each in labelled:
        yield replace(each, source=source) if isinstance(each, LabelledSpan) else each


def _file_spans(path: Path, clip: str, lines: Sequence[str]) -> Iterator[LabelledSpan | RecordError]:
    """The spans of one label file. Its first line decides on the form of all lines."""
    first = lines[0] if lines else ""
    for form in (_FRAME_LINE, _TIME_LINE, _COMMA_TIME_LINE):
        if form.fullmatch(first):
            yield from _line_spans(path, clip, lines, form)
            return
    numbers = [_NUMBERED_LINE.match(line) for line in lines]
    if len(lines) > 1 and all(numbers):
        counted_lines = [int(found[1]) for found in numbers if found]
        if counted_lines == [*range(counted_lines[0], counted_lines[0] + len(lines))]:
            yield RecordError(f"{path}:1: expected a label alone on each line, got a number in front of it, {first!r}")
            return
    if _TWO_NUMBERS.match(first):  # such as "0,1 2,9 take"
        yield RecordError(f"{path}:1: expected start, end and label, with decimal points, got {first!r}")
        return
    yield from _label_spans(path, clip, lines)


def _line_spans(
    path: Path, clip: str, lines: Sequence[str], form: re.Pattern[str]
) -> Iterator[LabelledSpan | RecordError]:
    """The spans of a file with a span a line, in frames or in seconds by its form."""
    for number, line in enumerate(lines, start=1):
        found = form.fullmatch(line)
        if found is None:
            yield RecordError(f"{path}:{number}: expected a span like that of line 1, {lines[0]!r}, got {line!r}")
        elif form is not _FRAME_LINE and _THIRD_NUMBER.match(found[3]):
            yield RecordError(f"{path}:{number}: expected start, end and label, got three numbers in front, {line!r}")
        elif form is _FRAME_LINE:
            yield LabelledSpan(
                where=f"{path}:{number}",
                clip=clip,
                step=found[3],
                start=int(found[1]) - 1,  # the file counts from 1
                end=int(found[2]),  # and includes the last frame
                in_frames=True,
            )
        else:
            yield LabelledSpan(f"{path}:{number}", clip=clip, step=found[3], start=found[1], end=found[2])


def _label_spans(path: Path, clip: str, lines: Sequence[str]) -> Iterator[LabelledSpan | RecordError]:
    """The spans of a file with a label for each frame: the runs of equal lines."""
    frame = 0
    for label, run in groupby(lines):
        length = len(list(run))
        where = f"{path}:{frame + 1}"
        if label:
            yield LabelledSpan(
                where,
                clip=clip,
                step=label,
                start=frame,
                end=frame + length,
                in_frames=True,
                frames_of_file=len(lines),
            )
        else:
            yield RecordError(f"{where}: expected a label for each frame, got an empty line")
        frame += length


# ---- from spans to timelines


@dataclass
class SpanReader:
    """Makes the timelines of clips from labelled spans.

    Attributes:
        root: the folder of the clips.
        number_of: the number of the step that a label names. Raises ValueError where it names none.
        clip_of: the clip that a label names. Raises ValueError where there is none.
        names: the names of the steps. Step n is the one at n - 1.
        background: labels that are no steps, in lower case.
        label_fps: frames per second that labels in frames count. None: the frames of the clip.
        left_out: the number of spans of each background label.
        late: the clips with spans by the clock of players, which begins before their pictures, and by how many seconds
            these are late.
        overlapping: the clips with spans of one step that overlap, and such a step.
        shorter: the clips with more frames than their file has labels, by more than a few, and both numbers.
        differing: columns that differ between the spans of a clip. Its record has one value at most.
    """

    root: Path
    number_of: Callable[[str], int]
    clip_of: Callable[[str], str]
    names: Sequence[str]
    background: frozenset[str] = frozenset(label.casefold() for label in BACKGROUND)
    label_fps: float | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    late: dict[str, float] = field(default_factory=dict)
    overlapping: dict[str, str] = field(default_factory=dict)
    shorter: dict[str, tuple[int, int]] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)

    def timelines(self, labelled: Iterator[LabelledSpan | RecordError]) -> dict[str, ClipTimeline]:
        """The timelines by clip.

        Raises:
            RecordError: spans are wrong. The message lists them with file and line.
        """
        problems: list[str] = []
        by_clip: dict[str, list[LabelledSpan]] = {}
        # Each source and each name is told once: a file may have thousands of labels.
        told_sources: set[str] = set()
        told_names: set[str] = set()
        for each in labelled:
            if isinstance(each, RecordError):
                problems.append(str(each))
                continue
            try:
                clip = self.clip_of(each.clip)
            except ValueError as error:
                problems.append(f"{each.where}: {error}")
                continue
            of_clip = by_clip.setdefault(clip, [])
            of_clip.append(each)
            # Rows of a table without observations have no source: there a clip has many.
            first = of_clip[0]
            if each.source != first.source and each.source not in told_sources:
                told_sources.add(each.source)
                problems.append(f"{each.source}: has labels of {clip}, and so has {first.source}; keep one of the two")
            elif not may_be_one_file(each.clip, first.clip) and each.clip not in told_names:
                told_names.add(each.clip)
                problems.append(f"{each.where}: {each.clip!r} would be {clip}, and so would {first.clip!r}; keep one")
        found = {}
        for clip, spans in by_clip.items():
            timeline = self._timeline(clip, spans, problems)
            if timeline is not None:
                found[clip] = timeline
        if problems:
            lines = "".join(f"\n  {problem}" for problem in problems[:MOST_PROBLEMS])
            more = len(problems) - MOST_PROBLEMS
            ending = f"\n  ... and {more:,} more" if more > 0 else ""
            raise RecordError(f"{counted(len(problems), 'span')} can't be used:{lines}{ending}", "solution")
        return {clip: each.without(self.differing) for clip, each in found.items()}

    def _timeline(self, clip: str, labelled: Sequence[LabelledSpan], problems: list[str]) -> ClipTimeline | None:
        """The timeline of one clip. None where it has no step. Problems are added to the list."""
        from qwenvl.data.media.open import open_clip  # loads the decoder, which other tables do without

        first = labelled[0]
        path = str((self.root / clip).resolve())  # the decoder's process may have another working folder
        try:
            with open_clip(path, timeout=SampleOptions.decode_timeout) as opened:
                times = FrameTimes.of(opened, self.label_fps)
                delay = opened.delay
        except BadMediaError as error:
            problems.append(f"{first.where}: {error}")
            return None
        problem = _problem_of_file(times, labelled)
        if problem is not None:
            problems.append(problem)
            return None
        labels_of_file = first.frames_of_file
        if labels_of_file is not None and labels_of_file < times.frames - SPARE_FRAMES:
            self.shorter[clip] = (labels_of_file, times.frames)
        if delay > NOTICED_DELAY and any(each.of_player or not each.in_frames for each in labelled):
            self.late[clip] = delay
        spans: list[TimedStep] = []
        more: dict[str, str] = {}
        filled_in: Counter[str] = Counter()  # the number of spans by column
        for each in labelled:
            try:
                span = self._span(each, times)
                if span is None:
                    continue
                filled_in.update(each.more.keys())
                for name, cell in each.more.items():
                    if more.setdefault(name, cell) != cell:
                        self.differing.add(name)
                if span in spans:
                    raise ValueError(f"{clip} has {span.name!r} at {time_text(span.start)} s twice; leave one out")
            except ValueError as error:
                problems.append(f"{each.where}: {error}")
                continue
            spans.append(span)
        # A cell that is empty differs too.
        self.differing.update(name for name, count in filled_in.items() if count < len(spans))
        spans.sort(key=lambda span: (span.start, span.end))
        for number, span in enumerate(spans):
            if any(other.number == span.number and other.end > span.start for other in spans[:number]):
                self.overlapping.setdefault(clip, span.name)
        return ClipTimeline(spans, round(times.duration, 3), more) if spans else None

    def _span(self, labelled: LabelledSpan, times: FrameTimes) -> TimedStep | None:
        """The span of a label. None: it is background, which is counted.

        Raises:
            ValueError: it is no span of a step in the clip.
        """
        if labelled.in_frames and labelled.start < 0:  # of background too: all other spans would be a frame early
            raise ValueError("a span begins before the first frame of the clip, which is number 1")
        if labelled.step.casefold() in self.background:
            # Labels at another rate than the clip's would be at wrong times, the steps among them too.
            if labelled.in_frames and times.is_far_beyond(labelled.end):
                raise ValueError(times.beyond(labelled.end))
            self.left_out[labelled.step] += 1
            return None
        number = self.number_of(labelled.step)
        start = times.at(labelled.start) if labelled.in_frames else labelled.start
        end = times.at(labelled.end) if labelled.in_frames else labelled.end
        start, end = span_between(start, end, times.duration)
        return TimedStep(start, end, number, self.names[number - 1])


def _problem_of_file(times: FrameTimes, labelled: Sequence[LabelledSpan]) -> str | None:
    """The reason why the labels of a clip's file are not those of its frames, with the place of it, or None."""
    first = labelled[0]
    missing = times.missing_labels(first.frames_of_file)
    if missing is not None:
        file, _, _ = first.where.rpartition(":")
        return f"{file}: {missing}"
    if times.has_head(labelled):
        return (
            f"{first.where}: {first.step!r} seems to be the name of a column: the file has one line more than the clip "
            "has frames; leave it out"
        )
    return None


MOST_PROBLEMS = 10  # lines of an error
NOTICED_DELAY = 0.1  # seconds: people mark spans no more exactly


@dataclass(frozen=True)
class FrameTimes:
    """The times of the frames that labels count.

    Attributes:
        times: seconds of each frame of the clip.
        duration: seconds of the clip.
        label_fps: frames per second of the labels. None: they count the frames of the clip.
    """

    times: Sequence[float]
    duration: float
    label_fps: float | None = None

    @classmethod
    def of(cls, clip: Clip, label_fps: float | None) -> FrameTimes:
        """The times of an open clip."""
        return cls(clip.frame_times, max(clip.duration, clip.frame_times[-1]), label_fps)

    def at(self, frame: int) -> float:
        """The seconds at which a frame begins. The one after the last begins at the end of the clip.

        Raises:
            ValueError: the clip has fewer frames.
        """
        if self.label_fps is not None:
            return frame / self.label_fps
        if frame < len(self.times):
            return self.times[frame]
        # Labels of public sets are often a frame or two longer than what decoders show.
        if frame <= len(self.times) + SPARE_FRAMES:
            return self.duration
        raise ValueError(self.beyond(frame))

    @property
    def frames(self) -> int:
        """The frames that labels can count."""
        return len(self.times) if self.label_fps is None else int(self.duration * self.label_fps)

    def is_far_beyond(self, frame: int) -> bool:
        """Whether a frame lies so far beyond the clip that labels must have another rate, background too."""
        return frame - self.frames > max(SPARE_FRAMES, MISSING_SHARE * self.frames)

    def beyond(self, frame: int) -> str:
        """A sentence about a frame beyond the clip."""
        return (
            f"frame {frame:,} is beyond the clip, which has {self.frames:,} in {time_text(self.duration)} s; "
            "--label_fps says how many frames of the labels are a second"
        )

    def has_head(self, spans: Sequence[LabelledSpan]) -> bool:
        """Whether the first label of a file with a label for each frame is the name of a column.

        The file then has one label more than the clip has frames, and no other of its labels is the first one.
        """
        first = spans[0]
        is_alone = first.end == 1 and all(each.step != first.step for each in spans[1:])
        return self.label_fps is None and first.frames_of_file == len(self.times) + 1 and is_alone

    def missing_labels(self, labels: int | None) -> str | None:
        """A sentence where a file with a label for each frame has too few of them for the clip, else None.

        Labels at another rate than the clip's would all be read at wrong times.

        Args:
            labels: of the file. None: it is no such file.
        """
        if labels is None:
            return None
        frames = self.frames
        counted_at = "" if self.label_fps is None else f" at --label_fps {self.label_fps:g}"
        if frames - labels <= MISSING_SHARE * frames:
            return None
        rate = labels / self.duration
        return (
            f"has {counted(labels, 'label')}, a line for each frame, and the clip has {counted(frames, 'frame')} in "
            f"{time_text(self.duration)} s{counted_at}; if the labels have a rate of their own, give it, such as "
            f"--label_fps {rate:.3g}; spans are lines such as 0.0 3.5 take_cup"
        )


SPARE_FRAMES = 2  # by which labels may be longer than their clip
# And by which they may be shorter, of the frames: annotations end a moment before their clips. Of a short clip no frame
# may be missing: a list of its steps has as many lines.
MISSING_SHARE = 0.05


# As spreadsheets write a cell of a time: 0:07 becomes 00:07:00, of which a person has meant seconds.
_WHOLE_MINUTES = re.compile(r"[0-9]{1,3}:[0-9]{2}:00(?:\.0*)?")
# A time as they keep it, a share of a day: 0:07:00 is 0.00486111111.
_LONG_SHARE_OF_A_DAY = re.compile(r"0?\.[0-9]{7,}")
_BELOW_ONE = re.compile(r"0|0?\.[0-9]+")


def notice_about_times(labelled: Sequence[LabelledSpan | RecordError]) -> str:
    """What a person should know of times that a spreadsheet may have changed, or nothing.

    They are whole minutes wherever they have hours, or shares of a day, all below 1.
    """
    times: set[str] = set()
    for each in labelled:
        if isinstance(each, LabelledSpan) and not each.in_frames:
            times |= {str(each.start), str(each.end)}
    with_hours = [time for time in times if time.count(":") == 2]
    if any(re.search("[1-9]", time) for time in with_hours) and all(map(_WHOLE_MINUTES.fullmatch, with_hours)):
        return "times are whole minutes; of 0:07 a spreadsheet makes 00:07:00: format its cells as text"
    # Of 0:09:00 it is 0.00625: not every share is a long one.
    if any(map(_LONG_SHARE_OF_A_DAY.fullmatch, times)) and all(map(_BELOW_ONE.fullmatch, times)):
        return "times are all below 1 s; of 0:07:00 a spreadsheet keeps 0.004861111 days: format its cells as text"
    return ""


def _whole(text: str, name: str, where: str) -> int:
    """The number of a frame. RecordError: the cell holds something else."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise RecordError(f"{where}: {name}: expected the number of a frame, from 0, got {text!r}")
    return int(text)
