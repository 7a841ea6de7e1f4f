"""The answers of clips: from a table with a line for each clip, or from the names of the folders that they lie in."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qwenvl.data.errors import RecordError
from qwenvl.doctor.from_folder.steps import StepList
from qwenvl.files import plain_file, written_whole

_CLIP, _ANSWER = "clip", "answer"
# Columns that would be read as something else in a record.
_TAKEN = {"id", "conversations", "messages", "prompt", "question", "solution", "video", "videos", "image", "images"}
_TAKEN |= {"meta", "reward_model", "video_start", "video_end", "video_fps", "frames_fps"}
_SHOWN = 10


@dataclass(frozen=True)
class Label:
    """What is known of a clip.

    Attributes:
        answer: as a solution has it, without tags.
        fields: other columns of the table.
    """

    answer: str
    fields: dict[str, str] = field(default_factory=dict)


def from_table(path: Path, clips: tuple[str, ...], steps: StepList | None) -> dict[str, Label]:
    """The labels of a CSV file with the columns ``clip`` and ``answer``. Other columns become fields of the records.

    A clip is named by its path from the folder, by its file name, or by that without ending, where only one clip has
    it. Columns are separated by commas, semicolons or tabs. A clip with an empty answer has no label.

    Raises:
        RecordError: naming each line that is wrong, up to ten.
    """
    labels: dict[str, Label] = {}
    line_of: dict[str, int] = {}
    problems: list[str] = []
    find = _finder(clips)
    for line, row in _rows(path):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            clip = find(row.pop(_CLIP))
            if clip in line_of:
                raise ValueError(f"{clip} stands on line {line_of[clip]} too; a clip has one answer")
            line_of[clip] = line
            if answer := row.pop(_ANSWER).strip():
                labels[clip] = Label(steps.answer(answer) if steps else _untagged(answer), _filled(row))
        except ValueError as error:
            problems.append(f"{path}:{line}: {error}")
    _raise(problems, "lines of the table can't be used")
    return labels


def from_folders(clips: tuple[str, ...], steps: StepList | None) -> tuple[dict[str, Label], StepList]:
    """The labels that the names of the folders give, and the steps: without ``steps``, the folders are the steps.

    ``03_insert_the_fan/a.mp4`` shows the step "insert the fan". Clips that lie in no folder have no label.

    Raises:
        RecordError: no clip lies in a folder, or the name of a folder is no step.
    """
    folders = {clip: clip.split("/")[-2] for clip in clips if "/" in clip}
    if not folders:
        raise RecordError(
            "--answers folders: all clips lie in the folder itself; expected one folder for each answer, such as "
            "insert_the_fan/a.mp4"
        )
    names = list(dict.fromkeys(folders.values()))  # in the order of the clips
    try:
        found = steps or StepList(tuple(dict.fromkeys(map(_spoken, names))))
    except ValueError as error:
        raise RecordError(f"--answers folders: {error}") from None
    answers: dict[str, str] = {}
    problems: list[str] = []
    for name in names:
        try:
            answers[name] = found.answer(_spaced(name) if steps else _spoken(name))
        except ValueError as error:
            problems.append(f"{name}/: {error}")
    _raise(problems, "folders do not name a step")
    return {clip: Label(answers[name]) for clip, name in folders.items()}, found


def write_table(path: Path, clips: tuple[str, ...]) -> None:
    """Write a table of ``clips`` whose answers are to be filled in.

    Raises:
        FileExistsError: the file is there.
    """
    if path.exists():
        raise FileExistsError(f"{path}: is there already; name another file, or fill this one in")
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_CLIP, _ANSWER])
        writer.writerows([clip, ""] for clip in clips)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Line and columns of each row that is not blank, or what is wrong with it."""
    try:
        text = plain_file(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RecordError(f"{path}: expected UTF-8 text; save the table as CSV with UTF-8") from None
    lines = text.splitlines(keepends=True)
    first = lines[0] if lines else ""
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(lines, delimiter=delimiter)
    names = [name.strip() for name in next(reader, [])]
    names = [name.casefold() if name.casefold() in (_CLIP, _ANSWER) else name for name in names]
    if names.count(_CLIP) != 1 or names.count(_ANSWER) != 1:
        raise RecordError(f"{path}:1: expected a first line with the columns clip and answer, got {first.strip()!r}")
    if taken := sorted(_TAKEN & set(names)):
        raise RecordError(
            f"{path}:1: the column {taken[0]!r} has a meaning of its own in records, and here each clip gets one "
            "record with the same question; rename the column"
        )
    line = reader.line_num + 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                wrong = f'expected {len(names)} cells as in the first line, got {len(cells)}; put "..." around a text '
                wrong += f"with {delimiter!r} in it"
                yield line, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else wrong
            line = reader.line_num + 1
    except csv.Error as error:  # a quote without its partner, which makes one cell of the rest of the file
        raise RecordError(f"{path}:{line}: not readable as CSV: {error}", "CSV") from None


def _finder(clips: tuple[str, ...]) -> Callable[[str], str]:
    """A function that finds the clip that a cell names."""
    known, named = set(clips), dict[str, list[str]]()
    for clip in clips:
        path = Path(clip)
        for name in dict.fromkeys([clip, str(path.with_suffix("")), path.name, path.stem]):
            named.setdefault(name, []).append(clip)

    def find(cell: str) -> str:
        name = cell.strip().replace("\\", "/").removeprefix("./")
        found = [name] if name in known else named.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(found[:3]) + ", ..." * (len(found) > 3)
            raise ValueError(f"{name!r} may be {shown}; write the path from the folder")
        near = difflib.get_close_matches(name, named, n=1, cutoff=0.6)
        raise ValueError(f"there is no clip {name!r}" + (f"; did you mean {named[near[0]][0]}?" if near else ""))

    return find


def _untagged(answer: str) -> str:
    return answer.removeprefix("<answer>").removesuffix("</answer>").strip()


def _filled(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if name and value.strip()}


def _spaced(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _spoken(name: str) -> str:
    """The step that a folder's name says, without the number that orders it. Hyphens part its words if nothing else."""
    step = re.sub(r"^[0-9]{1,4}[\s.)-]+(?=\S)", "", _spaced(name))
    return step if " " in step else step.replace("-", " ").strip()


def _raise(problems: list[str], what: str) -> None:
    if problems:
        more = [f"... and {len(problems) - _SHOWN:,} more"] * (len(problems) > _SHOWN)
        lines = [*problems[:_SHOWN], *more]
        raise RecordError(f"{len(problems):,} {what}:" + "".join(f"\n  {line}" for line in lines), "solution")
