"""``qwenvl data from-folder``: writes the records of a folder of clips, a list of steps and a table of answers.

Answers come out in one form: ``<answer>(2) insert the fan (3) fasten the screw</answer>``.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from qwenvl.data.errors import RecordError
from qwenvl.data.records.parse import text_or_file
from qwenvl.data.seeds import stable_random
from qwenvl.doctor.convert import MediaPaths
from qwenvl.files import plain_file, written_whole
from qwenvl.rewards.functions.actions import action_numbers
from qwenvl.rewards.functions.text import normalized

FOLDERS = "folders"  # as --answers
STEPS = "{steps}"  # in a question
QUESTION = "The video shows an operator at work. Which of these steps does the operator perform, in order?"
FORM = (
    "First think about what the video shows, within <think> </think>. Then give the answer within <answer> </answer>."
)
STEPS_FORM = (
    "First think about what the video shows, within <think> </think>. Then name the steps within <answer> </answer>, "
    "each with its number: <answer>(number) step (number) step</answer>."
)
# fmt: off
VIDEO_SUFFIXES = frozenset([
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".flv", ".wmv", ".asf",
    ".3gp", ".ogv", ".vob",
])
RESERVED = frozenset([  # columns that have another meaning in records
    "id", "conversations", "messages", "prompt", "question", "solution", "video", "videos", "image", "images", "meta",
    "reward_model", "video_start", "video_end", "video_fps", "frames_fps",
])
# fmt: on
SHOWN = 10  # lines of a list
_MODEL = "Qwen/Qwen3.5-4B"
_LISTED = re.compile(r"\(?\s*([0-9]{1,4})\s*[).:]+\s*(.*)", re.DOTALL)  # "(2) insert", "2. insert", "2: insert"
_NUMBERED = re.compile(r"(?:step\s*)?\(?\s*([0-9]{1,4})\s*(?:[).:\s]+(.*))?", re.DOTALL | re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+(?:[\s,;|+&/]+[0-9]+)*")
_BRACKETED = re.compile(r"(?=\(\s*[0-9]{1,9}\s*\))")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("folder", metavar="DIR", help="the clips, in this folder and those below")
    parser.add_argument(
        "--question",
        metavar="TEXT",
        help="what is asked about every clip: a text, or a file that holds it (with steps: which of them are shown). "
        "The list of steps goes in the place of {steps} in it, or after it. Where it has no <answer>, how to answer is "
        "added",
    )
    parser.add_argument("--steps", metavar="FILE", help="the steps of the procedure, one a line, numbered or not")
    parser.add_argument(
        "--answers",
        metavar="CSV|folders",
        help="a table with the columns clip and answer, separated by commas, semicolons or tabs; or the word folders: "
        "the name of the folder that a clip lies in is its answer, and without --steps these names are the steps",
    )
    parser.add_argument("--write-labels", metavar="CSV", help="write a table of the clips to be filled in, and end")
    parser.add_argument("--out", metavar="JSON", help="the file of records (DIR/records.json)")
    parser.add_argument(
        "--split", type=float, metavar="SHARE", help="share of the clips held out: a second file of them"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="chooses the clips that are held out (0)")
    parser.add_argument("--overwrite", action="store_true", help="replace files of records that are there")


def run(args: argparse.Namespace) -> int:
    """Write the records, or with ``--write-labels`` an empty table of answers."""
    folder = ClipFolder.read(Path(args.folder))
    if args.write_labels is not None:
        for name in ("answers", "question", "steps", "out", "split", "seed"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} has no effect with --write-labels: leave it out")
        _write_table(Path(args.write_labels), folder.clips)
        print(f"wrote {folder.count} to {args.write_labels}: fill in their answers, then pass it as --answers")
        return 0
    if args.seed is not None and args.split is None:
        raise ValueError("--seed has no effect without --split: leave it out")
    if args.answers is None:
        raise ValueError(
            "give --answers: a table with the columns clip and answer (--write-labels labels.csv writes one to fill "
            "in), or folders, where each clip lies in a folder that is named by its answer"
        )
    steps = StepList.read(Path(args.steps)) if args.steps is not None else None
    if args.answers == FOLDERS:
        labels, steps = _from_folders(folder.clips, steps)
    else:
        labels = _from_table(Path(args.answers), folder.clips, steps)
    if not labels:
        raise RecordError(f"{args.answers}: no clip has an answer")
    question = _prompt(text_or_file(args.question), steps)
    out, held_out = _targets(args)
    labelled = [clip for clip in folder.clips if clip in labels]
    held = folder.held_out(labelled, args.split, args.seed or 0) if held_out else set()
    print(_summary(folder, labels, steps if args.steps is None else None))
    outside = False
    for path, note in ((out, ""), (held_out, ", held out,")):
        if path is not None:
            clips = [clip for clip in labelled if (clip in held) == bool(note)]
            outside = _write_rows(path, folder.root, question, {clip: labels[clip] for clip in clips})
            print(f"wrote {len(clips):,} records{note} to {path}")
    flag = " --allow_outside_media" if outside else ""
    data, name = shlex.quote(str(out)), shlex.quote(f"runs/{out.absolute().parent.name}")
    evaluated = f" --eval_dataset_use {shlex.quote(str(held_out))} --eval_strategy epoch" if held_out else ""
    for title, text in (
        ("\neach prompt:", question),
        ("the first solution:", f"<answer>{labels[labelled[0]].answer}</answer>"),
        (
            "\nnext:",
            f"qwenvl data check {data}{flag}\n"
            f"qwenvl preview {data} --n 8{flag}\n"
            f"qwenvl train --model_name_or_path {_MODEL} --dataset_use {data}{evaluated} --output_dir {name}{flag}",
        ),
    ):
        print("\n".join([title, *(f"  {line}" for line in text.splitlines())]))
    return 0


def _prompt(question: str | None, steps: StepList | None) -> str:
    """The prompt of every record: a clip, the question, the steps, and how to answer."""
    if question is None and steps is None:
        raise ValueError("give --question, what is to be asked about the clips, or --steps, a file with a step a line")
    text = (QUESTION if question is None else question).strip()
    if steps is None and STEPS in text:
        raise ValueError("the question has {steps} in it: give --steps, a file with a step a line")
    if steps is not None:
        text = text.replace(STEPS, str(steps)) if STEPS in text else f"{text}\n{steps}"
    if "<answer>" not in text:
        text += "\n" + (STEPS_FORM if steps is not None else FORM)
    return text if "<video>" in text else "<video>\n" + text


def _write_rows(path: Path, root: Path, prompt: str, labels: dict[str, Label]) -> bool:
    """Write a record for each clip. Return whether clips outside of the file's folder are named by their full paths."""
    media = MediaPaths(path.with_name(path.name + ".media"))
    rows = []
    for clip, label in labels.items():
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": f"<answer>{label.answer}</answer>"}]
        video = media(str((root / clip).absolute().resolve()))
        rows.append({"id": clip, "video": video, "conversations": turns, **label.fields})
    with written_whole(path) as partial:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return bool(media.outside)


def _targets(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file of records, and the file of held-out records."""
    out = Path(args.out) if args.out is not None else Path(args.folder) / "records.json"
    if out.suffix != ".json" or set(str(out)) & set(",%"):
        raise ValueError(f"--out {out}: expected a path without ',' and '%' that ends in .json")
    if args.split is not None and not 0 < args.split < 1:
        raise ValueError(f"--split must be above 0 and below 1, got {args.split:g}")
    held_out = out.with_name(f"{out.stem}_held_out.json") if args.split is not None else None
    for path in (out, held_out):
        if path is not None and path.exists() and not args.overwrite:
            raise ValueError(f"{path}: is there already; pass --overwrite to replace it, or another --out")
    return out, held_out


def _summary(folder: ClipFolder, labels: dict[str, Label], steps: StepList | None) -> str:
    """The clips and answers that were found, and the ``steps`` that the names of the folders gave."""
    lines = [f"{folder.root}: {folder.count}"]
    if folder.others:
        lines.append("  other files, passed over: " + ", ".join(f"{n:,} {s}" for s, n in folder.others.most_common()))
    if missing := [clip for clip in folder.clips if clip not in labels]:
        shown = missing[:SHOWN] + ["..."] * (len(missing) > SHOWN)
        lines += [f"  {len(missing):,} without an answer, left out:", *(f"    {clip}" for clip in shown)]
    for group in folder.copies:
        answers = {labels[clip].answer for clip in group if clip in labels}
        lines.append(f"  the same content{' and different answers' * (len(answers) > 1)}: {', '.join(group)}")
    if steps is not None:
        lines += ["  the steps, by the names of the folders:", *(f"    {line}" for line in str(steps).splitlines())]
    counts = Counter(label.answer for label in labels.values()).most_common()
    lines += ["  the answers:", *(f"    {count:>6,}  {answer}" for answer, count in counts[:SHOWN])]
    lines += [f"    ... and {len(counts) - SHOWN:,} more"] * (len(counts) > SHOWN)
    return "\n".join(lines)


@dataclass(frozen=True)
class ClipFolder:
    """The clips below the folder ``root``."""

    root: Path
    clips: tuple[str, ...]  # paths from ``root`` with "/", sorted, numbers within names by their value
    others: Counter[str]  # number of files with another suffix, by suffix
    copies: tuple[tuple[str, ...], ...]  # groups of clips with the same content, bit for bit

    @classmethod
    def read(cls, root: Path) -> ClipFolder:
        """Find the clips in ``root`` and the folders below, without hidden files and folders."""
        if not root.is_dir():
            raise (NotADirectoryError if root.exists() else FileNotFoundError)(f"{root}: expected a folder of clips")
        found: list[str] = []
        others: Counter[str] = Counter()
        for path in root.rglob("*"):
            clip = path.relative_to(root).as_posix()
            if "/." in f"/{clip}" or not path.is_file():  # .DS_Store, ._clip.mp4
                continue
            if (suffix := path.suffix.lower()) in VIDEO_SUFFIXES:
                found.append(clip)
            else:
                others[suffix or "no ending"] += 1
        if not found:
            raise RecordError(f"{root}: no clips; expected files that end in {', '.join(sorted(VIDEO_SUFFIXES))}")
        clips = tuple(sorted(found, key=_natural_order))
        sizes = {clip: (root / clip).stat().st_size for clip in clips}
        clips_of_size = Counter(sizes.values())
        same: dict[str, list[str]] = {}
        for clip in clips:
            if clips_of_size[sizes[clip]] > 1:
                same.setdefault(_digest(root / clip), []).append(clip)
        return cls(root, clips, others, tuple(tuple(group) for group in same.values() if len(group) > 1))

    @property
    def count(self) -> str:
        """The number of clips and folders, as text."""
        folders = len({clip.rpartition("/")[0] for clip in self.clips})
        clips = f"{len(self.clips):,} clip{'s' * (len(self.clips) != 1)}"
        return clips + (f" in {folders:,} folders" if folders > 1 else "")

    def held_out(self, clips: list[str], share: float, seed: int) -> set[str]:
        """A share of ``clips``, at least one of them and not all. Copies of a clip stay together."""
        first = {clip: group[0] for group in self.copies for clip in group}
        groups: dict[str, list[str]] = {}
        for clip in clips:
            groups.setdefault(first.get(clip, clip), []).append(clip)
        if len(groups) < 2:
            raise ValueError("--split needs at least two different clips with an answer")
        # Each clip is ordered by a random number of its own: clips that are added later move few others.
        order = sorted(groups, key=lambda clip: stable_random(seed, "held out", clip).getrandbits(64))
        held: list[str] = []
        for group in order[:-1]:
            if held and len(held) + len(groups[group]) > round(share * len(clips)):
                break
            held += groups[group]
        return set(held)


def _natural_order(path: str) -> list[list[tuple[int, int, str]]]:
    """A key that puts ``clip2`` before ``clip10``, and the files of a folder together."""
    pieces = [re.split(r"([0-9]+)", part.casefold()) for part in path.split("/")]
    return [[(0, int(text), "") if text.isdecimal() else (1, 0, text) for text in part if text] for part in pieces]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class StepList:
    """The steps of a procedure. Step n is ``names[n - 1]``.

    Example:
        >>> StepList(("take the lid", "insert the fan")).answer("2; take the lid")
        '(2) insert the fan (1) take the lid'
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("expected at least one step")
        for i, name in enumerate(self.names):
            if (found := action_numbers(name)) or "<" in name:  # rewards would read the number as that of a step
                what = f"({found[0]})" if found else "<"
                raise ValueError(f"step {i + 1}, {name!r}: {what} has a meaning in answers; write the name without")
            if (first := list(map(_plain, self.names)).index(_plain(name))) < i:
                raise ValueError(f"steps {first + 1} and {i + 1} have the same name, {name!r}")

    @classmethod
    def read(cls, path: Path) -> StepList:
        """The steps of a text file, one a line. Lines may be numbered, ``(1) take the lid``, and then count from 1."""
        names: list[str] = []
        numbered = 0
        for line, text in enumerate(plain_file(path).read_text("utf-8-sig").splitlines(), start=1):
            if not (text := " ".join(text.split())):
                continue
            if found := _LISTED.fullmatch(text):
                numbered += 1
                if int(found[1]) != len(names) + 1:
                    raise RecordError(f"{path}:{line}: expected step {len(names) + 1}, got {text!r}")
                text = found[2]
            names.append(text)
        if numbered not in (0, len(names)):
            raise RecordError(f"{path}: {numbered} of {len(names)} steps have a number; number all of them or none")
        try:
            return cls(tuple(names))
        except ValueError as error:
            raise RecordError(f"{path}: {error}") from None

    def __str__(self) -> str:
        return "\n".join(f"({number}) {name}" for number, name in enumerate(self.names, start=1))

    def answer(self, text: str) -> str:
        """An answer in the form of the list of steps, in the order of ``text``.

        The text has numbers ("2 3", "2;3"), numbers with names ("(2) insert the fan (3) ..."), or names between
        semicolons or commas. A ValueError names an item that is no step.
        """
        text = text.replace("<answer>", "").replace("</answer>", "").strip()
        if action_numbers(text):
            items: Sequence[str] = [item for item in _BRACKETED.split(text) if item.strip(" ,;|")]
        elif _NUMBERS.fullmatch(text):
            items = re.findall("[0-9]+", text)
        else:
            splits = ([text], re.split(r"[;|\n]", text), text.split(","))
            items = next((split for split in splits if all(self._number(item) for item in split)), splits[1])
        numbers = [self._number(item) or self._refuse(item) for item in items]
        return " ".join(f"({number}) {self.names[number - 1]}" for number in numbers)

    def _number(self, item: str) -> int | None:
        """The number of the step that an item of an answer names, or None."""
        names = list(map(_plain, self.names))
        if (plain := _plain(item)) in names:
            return names.index(plain) + 1
        found = _NUMBERED.fullmatch(item.strip(" ,;|"))
        if not found or not 1 <= int(found[1]) <= len(names):
            return None
        return int(found[1]) if _plain(found[2] or "") in ("", names[int(found[1]) - 1]) else None

    def _refuse(self, item: str) -> NoReturn:
        shown = item.strip(" ,;|")
        found = _NUMBERED.fullmatch(shown)
        if found and 1 <= int(found[1]) <= len(self.names):
            raise ValueError(f"{shown!r}: step {found[1]} is {self.names[int(found[1]) - 1]!r}")
        if found and not (found[2] or "").strip():
            raise ValueError(f"there is no step {found[1]}: the steps are 1 to {len(self.names)}")
        near = difflib.get_close_matches(_plain(item), list(map(_plain, self.names)), n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else "; if a clip may show none of them, list that as a step"
        raise ValueError(f"{shown!r} is no step{meant}")


def _plain(name: str) -> str:
    """A name by which steps are compared: ``Insert_the-fan`` is ``insert the fan``."""
    return normalized(re.sub(r"[\s_-]+", " ", name).strip(" ,;|"))


class Label(NamedTuple):
    """The answer of a clip, without tags, and the other columns of the table."""

    answer: str
    fields: dict[str, str]


def _write_table(path: Path, clips: tuple[str, ...]) -> None:
    """Write a table of ``clips`` whose answers are to be filled in."""
    if path.exists():
        raise FileExistsError(f"{path}: is there already; name another file, or fill this one in")
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("clip", "answer"), *((clip, "") for clip in clips)])


def _from_table(path: Path, clips: tuple[str, ...], steps: StepList | None) -> dict[str, Label]:
    """The labels of a CSV file with the columns ``clip`` and ``answer``. Other columns become fields of the records.

    A clip with an empty answer has no label. The error lists all lines that are wrong.
    """
    delimiter, names, rows = _read_table(path)
    labels: dict[str, Label] = {}
    line_of: dict[str, int] = {}
    problems: list[str] = []
    find = _finder(clips)
    for line, cells in rows:
        try:
            if len(cells) != len(names):
                raise ValueError(
                    f'expected {len(names)} cells as in the first line, got {len(cells)}; put "..." around a text '
                    f"with {delimiter!r} in it"
                )
            row = dict(zip(names, cells, strict=True))
            clip = find(row.pop("clip"))
            if clip in line_of:
                raise ValueError(f"{clip} stands on line {line_of[clip]} too; a clip has one answer")
            line_of[clip] = line
            if answer := row.pop("answer").strip():
                untagged = answer.removeprefix("<answer>").removesuffix("</answer>").strip()
                fields = {name: value for name, value in row.items() if name and value.strip()}
                labels[clip] = Label(steps.answer(answer) if steps else untagged, fields)
        except ValueError as error:
            problems.append(f"{path}:{line}: {error}")
    _raise(problems, "lines of the table can't be used")
    return labels


def _read_table(path: Path) -> tuple[str, list[str], list[tuple[int, list[str]]]]:
    """The delimiter, the names of the columns, and the line number and cells of each row that is not blank."""
    try:
        lines = plain_file(path).read_bytes().decode("utf-8-sig").splitlines(keepends=True) or [""]
    except UnicodeDecodeError:
        raise RecordError(f"{path}: expected UTF-8 text; save the table as CSV with UTF-8") from None
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=delimiter)
    names = [name.strip() for name in next(reader, [])]
    names = [name.casefold() if name.casefold() in ("clip", "answer") else name for name in names]
    if names.count("clip") != 1 or names.count("answer") != 1:
        raise RecordError(f"{path}:1: expected a first line with the columns clip and answer, got {lines[0].strip()!r}")
    if reserved := sorted(RESERVED & set(names)):
        raise RecordError(
            f"{path}:1: the column {reserved[0]!r} has a meaning of its own in records, and here each clip gets one "
            "record with the same question; rename the column"
        )
    rows = []
    line = reader.line_num + 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:  # a quote without its partner: the remaining lines are one cell
        raise RecordError(f"{path}:{line}: not readable as CSV: {error}", "CSV") from None
    return delimiter, names, rows


def _finder(clips: tuple[str, ...]) -> Callable[[str], str]:
    """Finds a clip by its path from the folder, or by its file name or stem if no other clip has it."""
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


def _from_folders(clips: tuple[str, ...], steps: StepList | None) -> tuple[dict[str, Label], StepList]:
    """The labels that the names of the folders give, and the steps: without ``steps``, the folders are the steps.

    ``03_insert_the_fan/a.mp4`` shows the step "insert the fan". Clips that are in no folder have no label.
    """
    folders = {clip: clip.split("/")[-2] for clip in clips if "/" in clip}
    if not folders:
        raise RecordError(
            "--answers folders: all clips lie in the folder itself; expected one folder for each answer, such as "
            "insert_the_fan/a.mp4"
        )
    names = {name: " ".join(name.replace("_", " ").split()) for name in folders.values()}  # in the order of the clips
    if steps is None:
        names = {name: _without_number(text) for name, text in names.items()}
    try:
        found = steps or StepList(tuple(dict.fromkeys(names.values())))
    except ValueError as error:
        raise RecordError(f"--answers folders: {error}") from None
    answers: dict[str, str] = {}
    problems: list[str] = []
    for name, text in names.items():
        try:
            answers[name] = found.answer(text)
        except ValueError as error:
            problems.append(f"{name}/: {error}")
    _raise(problems, "folders do not name a step")
    return {clip: Label(answers[name], {}) for clip, name in folders.items()}, found


def _without_number(name: str) -> str:
    """The step in a folder's name, without the number that orders it. Hyphens separate words if no space does."""
    step = re.sub(r"^[0-9]{1,4}[\s.)-]+(?=\S)", "", name)
    return step if " " in step else step.replace("-", " ").strip()


def _raise(problems: list[str], what: str) -> None:
    if problems:
        lines = problems[:SHOWN] + [f"... and {len(problems) - SHOWN:,} more"] * (len(problems) > SHOWN)
        raise RecordError(f"{len(problems):,} {what}:" + "".join(f"\n  {line}" for line in lines), "solution")
