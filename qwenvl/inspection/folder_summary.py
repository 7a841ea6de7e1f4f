"""What ``qwenvl data from-folder`` says of a folder of clips and its labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwenvl.failure import beginning, counted, visible
from qwenvl.inspection.clips import is_hidden
from qwenvl.inspection.steps import Steps

SHOWN = 10  # lines of a list
LONGEST_ANSWER = 200  # characters of an answer in a list

Label = tuple[str, dict[str, Any]]
"""The answer of a clip, without tags, and the other columns of the table."""


@dataclass(frozen=True)
class FoundLabels:
    """The labels of a folder of clips.

    Attributes:
        by_clip: the label of each clip that has one.
        steps: those of the procedure, None without a list.
        timelines: whether the answers are timelines.
        counted: the answers or steps that the summary counts, with their numbers.
        left_out: labels that are no steps, with their numbers.
        counts_frames: spans are given in frames, and the clips' own rates say at what seconds.
        late, overlapping, shorter: see ``SpanReader``.
        other_folder: the folder of the clips where they were labelled, if it has another name here.
        unused: label files that fit no clip.
        not_read: files in the folder of label files that are none.
        about_times: see ``notice_about_times``.
        differing: see ``SpanReader``.
        other_kinds: what exports have beside spans, with their numbers.
    """

    by_clip: dict[str, Label]
    steps: Steps | None
    timelines: bool
    counted: Mapping[str, int]
    left_out: Mapping[str, int]
    counts_frames: bool = False
    late: Mapping[str, float] = field(default_factory=dict)
    overlapping: Mapping[str, str] = field(default_factory=dict)
    shorter: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    other_folder: str = ""
    unused: Sequence[str] = ()
    not_read: Sequence[str] = ()
    about_times: str = ""
    differing: Collection[str] = ()
    other_kinds: Mapping[str, int] = field(default_factory=dict)


def summary(root: Path, clips: Sequence[str], found: FoundLabels) -> str:
    """The clips and answers that were found."""
    lines = [f"{root}: {counted(len(clips), 'clip')}"]
    missing = [clip for clip in clips if clip not in found.by_clip]
    if missing:
        lines += [f"  {len(missing):,} without an answer, left out:", *first_lines(list(map(visible, missing)), "    ")]
    counts = Counter(found.counted).most_common()
    title = "  the spans:" if found.timelines else "  the answers:"
    answers = [f"{count:>6,}  {beginning(visible(answer), LONGEST_ANSWER)}" for answer, count in counts]
    lines += [title, *first_lines(answers, "    ")]
    if found.counts_frames:
        lines.append("  frame numbers count the frames of each clip; of labels at a rate of their own: --label_fps 25")
    if found.shorter:
        short, (count, frames) = min(found.shorter.items(), key=lambda each: each[1][0] / each[1][1])
        lines.append(
            f"  {counted(len(found.shorter), 'label file')} of fewer labels than frames ({count:,} of {frames:,} for "
            f"{visible(short)}): labels at a rate of their own are read at wrong times without --label_fps"
        )
    if found.late:
        clip, delay = next(iter(found.late.items()))
        lines.append(
            f"  times count from the first picture. That of {counted(len(found.late), 'clip')} comes later than the "
            f"clock of players begins ({delay:.2f} s in {visible(clip)}): spans that were read off it are late by that"
        )
    if found.overlapping:
        clip, step = next(iter(found.overlapping.items()))
        lines.append(
            f"  spans of one step overlap in {counted(len(found.overlapping), 'clip')} ({visible(step)!r} in "
            f"{visible(clip)}), as where two people have labelled it: each is kept"
        )
    if found.other_folder:
        lines.append(f"  labels of the clips of {visible(found.other_folder)!r} are taken for those of this folder")
    if found.about_times:
        lines.append(f"  {found.about_times}")
    if found.differing:
        names = beginning(visible(", ".join(sorted(found.differing))), LONGEST_ANSWER)
        lines.append(f"  columns that differ between the spans of a clip, left out: {names}")
    if found.unused:
        names = beginning(visible(", ".join(found.unused)), LONGEST_ANSWER)
        lines.append(f"  {counted(len(found.unused), 'label file')} of no clip, left out: {names}")
    if found.not_read:
        names = beginning(visible(", ".join(found.not_read)), LONGEST_ANSWER)
        lines.append(f"  {counted(len(found.not_read), 'file')} beside them that are no label files, left out: {names}")
    if found.other_kinds:
        kinds = ", ".join(f"{visible(kind)} ({count:,})" for kind, count in found.other_kinds.items())
        lines.append(f"  annotations of other kinds than spans, left out: {beginning(kinds, LONGEST_ANSWER)}")
    if found.left_out:
        labels = ", ".join(f"{visible(label)} ({count:,})" for label, count in found.left_out.items())
        lines.append(f"  spans that are no step (--background): {labels}")
    return "\n".join(lines)


def not_taken(root: Path, clips: Sequence[str], ours: Iterable[Any]) -> Iterator[str]:
    """The files of the folder that are no clips, counted by their endings, the hidden ones, and links to folders.

    Args:
        ours: files that the command reads or writes itself, and the folder of label files.
    """
    known = {Path(str(path)).resolve() for path in ours if path is not None}
    known |= {(root / clip).resolve() for clip in clips}
    others = []
    linked = []  # folders, whose clips are not found
    for path in root.rglob("*"):
        full = path.resolve()
        if path.is_symlink() and path.is_dir():
            linked.append(path.relative_to(root).as_posix())
        if path.is_file() and known.isdisjoint([full, *full.parents]):
            others.append(path)
    names = [path.relative_to(root).as_posix() for path in others]
    hidden = [name for name in names if is_hidden(name)]
    endings = Counter(Path(name).suffix.lower() or "without an ending" for name in names if name not in hidden)
    if endings:
        ordered = sorted(endings.items(), key=lambda each: (-each[1], each[0]))
        shown = ", ".join(f"{count:,} {beginning(visible(ending), 20)}" for ending, count in ordered[:SHOWN])
        total = endings.total()
        are_none = "that is no clip by its ending" if total == 1 else "that are no clips by their endings"
        yield f"  {counted(total, 'file')} {are_none}, left out: {shown}"
    if hidden:
        yield f"  {counted(len(hidden), 'hidden file')}, left out"
    if linked:
        shown = beginning(visible(", ".join(linked)), LONGEST_ANSWER)
        yield f"  {counted(len(linked), 'link')} to a folder, not followed: {shown}"


def first_lines(lines: Sequence[str], indent: str = "  ") -> list[str]:
    """The first lines, indented, and a line with the number of the other ones."""
    shown = list(lines[:SHOWN])
    if len(lines) > SHOWN:
        shown.append(f"... and {len(lines) - SHOWN:,} more")
    return [indent + line for line in shown]
