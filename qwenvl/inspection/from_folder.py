"""``qwenvl data from-folder``: writes the records of a folder of clips, a list of steps and a table of answers.

Answers are written in one form: ``<answer>(2) insert the fan (3) fasten the screw</answer>``. A table of spans gives
timelines, ``0.0-3.5 (2) insert the fan``, a span a line.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.console import show
from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import VIDEO_SUFFIXES
from qwenvl.data.records.cells import with_types
from qwenvl.data.records.forms import CONTROL_TOKENS
from qwenvl.data.records.frame_settings import ROW_KEYS
from qwenvl.data.records.option_columns import options_in
from qwenvl.data.records.parse import MISSING, parse_columns, text_or_file
from qwenvl.data.records.text import text_rows
from qwenvl.data.seeds import stable_random
from qwenvl.failure import beginning, counted
from qwenvl.files import is_utf8, plain_file, written_whole
from qwenvl.inspection import span_exports, spans
from qwenvl.inspection.clips import (
    clip_at_path,
    clip_of_cell,
    clips_by_name,
    composed,
    find_clips,
    folder_of_export,
    is_absolute,
    is_hidden,
    is_read_again,
)
from qwenvl.inspection.convert import OWN_KEYS, write_records
from qwenvl.inspection.folder_summary import FoundLabels, Label, first_lines, not_taken, summary
from qwenvl.inspection.label_columns import LABEL_TABLE, as_cell, column_names, is_label_table, named_cells, of_cell
from qwenvl.inspection.steps import (
    Steps,
    answer_in,
    check_step_names,
    number_of,
    numbered,
    read_steps,
    steps_of_labels,
)
from qwenvl.rewards.functions.text import TAGS
from qwenvl.rewards.table import FOR_TIMELINES
from qwenvl.timeline import timeline_in
from qwenvl.types import Message, Record

# In capitals, as prompts show them. Another letter, such as x, may be the answer itself.
_OPTION_LETTER = re.compile(r"[(\[]?[A-H][)\].:]?")
STEPS = "{steps}"  # the place of the list of steps in a question
QUESTION = "The video shows an operator at work. Which of these steps does the operator perform, in order?"
FORM = (
    "First think about what the video shows, within <think> </think>. Then give the answer within <answer> </answer>."
)
STEPS_FORM = (
    "First think about what the video shows, within <think> </think>. Then name the steps within <answer> </answer>, "
    "each with its number: <answer>(number) step (number) step</answer>."
)
TIMELINE_QUESTION = (
    "The video shows an operator at work. Which of these steps does the operator perform, and from when to when?"
)
TIMELINE_FORM = (
    "First think about what the video shows, within <think> </think>. Then write, within <answer> </answer>, a line "
    "for each time that a step is performed, with its start and end in seconds: "
    "<answer>start-end (number) step</answer>."
)
_MODEL = "Qwen/Qwen3.5-4B"
# Columns with the frames per second of labels, in small letters. --label_fps says them.
_RATES = ("fps", "frame_rate", "frame rate", "framerate", "label_fps")


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
    parser.add_argument("--no-form", action="store_true", help="add nothing on how to answer to the question")
    parser.add_argument("--steps", metavar="FILE", help="the steps of the procedure, one a line, numbered or not")
    answers = parser.add_mutually_exclusive_group(required=True)
    answers.add_argument(
        "--answers",
        metavar="CSV",
        help="a table with the columns clip and answer, .csv (commas or semicolons) or .tsv; or a row for each span, "
        "with the columns clip, step, start and end (seconds) or start_frame and end_frame; or a folder with a label "
        "file for each clip (NAME.txt); or an export of Label Studio (.json) or ELAN (.eaf)",
    )
    answers.add_argument("--write-labels", metavar="CSV", help="write a table of the clips to be filled in, and end")
    parser.add_argument(
        "--columns", metavar="NAME=KNOWN,...", help='names of the table by known ones: "Behavior=step,Start (s)=start"'
    )
    parser.add_argument(
        "--label_fps", type=float, metavar="FPS", help="frames per second that labels in frames count (the clip's own)"
    )
    parser.add_argument(
        "--background",
        metavar="LABELS",
        help=f"labels of spans that are no steps, separated by commas ({','.join(spans.BACKGROUND)})",
    )
    parser.add_argument("--out", metavar="JSON", help="the file of records (DIR/records.json)")
    parser.add_argument(
        "--split", type=float, metavar="SHARE", help="share of the clips held out: a second file of them"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files of records that are there")


def run(args: argparse.Namespace) -> int:
    """Write the records, or with ``--write-labels`` an empty table of answers."""
    root = Path(args.folder)
    clips = find_clips(root)
    if args.write_labels is not None:
        _write_labels(args, clips)
        for line in not_taken(root, clips, ours=[args.write_labels]):
            show(line)
        return 0
    steps = read_steps(Path(args.steps)) if args.steps is not None else None
    found = _labels(args, root, clips, steps)
    labels = found.by_clip
    if not labels:
        raise RecordError(
            f"{args.answers}: no clip has an answer; expected the columns clip and answer, or clip, step, start and end"
        )
    question = _prompt(text_or_file(args.question), found.steps, timelines=found.timelines, adds_form=not args.no_form)
    out, held_out = _targets(args)
    held = _held_out(root, labels, args.split) if held_out else set()
    records = [_record_of(root, clip, question, label) for clip, label in labels.items()]
    kept = [record for record in records if record.id not in held]
    # Files come before what is said of them: a reader such as `head` closes its pipe early, which ends the command.
    written = [write_records(kept, out)]
    if held_out is not None:
        written.append(write_records([record for record in records if record.id in held], held_out))
    show(summary(root, clips, found))
    for line in not_taken(root, clips, ours=[out, held_out, args.answers, args.steps, args.question]):
        show(line)
    for line in written:
        show(line)
    media_root = out.parent.resolve()  # that of the file, unless a catalog gives another
    inside = all(Path(record.videos[0]).is_relative_to(media_root) for record in records)
    _print_indented("\neach prompt:", question)
    _print_indented("the first solution:", records[0].solution)
    _print_indented("\nnext:", _next_commands(out, held_out, timelines=found.timelines, inside=inside))
    return 0


def _write_labels(args: argparse.Namespace, clips: Sequence[str]) -> None:
    """Write an empty table of answers.

    Raises:
        RecordError: a table can't hold the name of a clip, or not so that it is read as this clip again.
    """
    for name in ("question", "steps", "columns", "label_fps", "background", "out", "split"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} has no effect with --write-labels: leave it out")
    path = Path(args.write_labels)
    if path.exists():
        raise FileExistsError(f"{path}: is there already; name another file, or fill this one in")
    named = clips_by_name(clips)
    for clip in clips:
        if not is_utf8(clip):
            raise RecordError(f"{args.folder}: the name of {clip!r} is not UTF-8, which tables are in; rename it")
        if not is_read_again(clip, named):
            raise RecordError(f"{args.folder}: a table can't tell {clip!r} from another clip; rename the file")
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("clip", "answer"))
        table.writerows((as_cell(clip), "") for clip in clips)
    show(f"wrote {counted(len(clips), 'clip')} to {args.write_labels}: add the answers, then pass it as --answers")


def _record_of(root: Path, clip: str, question: str, label: Label) -> Record:
    """The record of a clip with its label."""
    answer, fields = label
    cells = {name: value for name, value in fields.items() if isinstance(value, str)}  # of further columns
    return Record(
        id=clip,
        messages=(Message("user", question),),
        solution=f"<answer>{answer}</answer>",
        videos=(str((root / clip).resolve()),),
        images=(),
        clip_meta=(None,),
        fields={**fields, **with_types(cells)},
        where=clip,
    )


def _next_commands(out: Path, held_out: Path | None, *, timelines: bool, inside: bool) -> str:
    """The commands that check, show and train on the records, a line each.

    Args:
        timelines: the answers are timelines, which have rewards of their own.
        inside: the clips are below the folder of ``out``.
    """
    files = [str(out)] if held_out is None else [str(out), str(held_out)]
    check = ["qwenvl", "data", "check", ",".join(files)]
    preview = ["qwenvl", "preview", str(out), "--n", "8"]
    train = ["qwenvl", "train", "--model_name_or_path", _MODEL, "--dataset_use", str(out)]
    if held_out is not None:
        train += ["--eval_dataset_use", str(held_out), "--eval_strategy", "epoch"]
    if timelines:
        check += ["--reward_funcs", *FOR_TIMELINES]
        train += ["--reward_funcs", "format", *FOR_TIMELINES]
    train += ["--output_dir", f"runs/{out.absolute().parent.name}"]
    commands = [check, preview, train]
    if not inside:
        commands = [[*command, "--allow_outside_media"] for command in commands]
    return "\n".join(shlex.join(command) for command in commands)


def _print_indented(title: str, text: str) -> None:
    """Print a title, and the lines of a text below it."""
    show(title)
    for line in text.splitlines():
        show(f"  {line}")


@dataclass(frozen=True)
class _OneFolder:
    """The clips of labels whose paths are of another machine, all below one folder there.

    Clips of several folders may have the same names. Of these, one folder is that of the clips.

    Attributes:
        folder: its path there. Empty where the labels do not say it.
        named: see ``clips_by_name``.
    """

    folder: str
    named: dict[str, list[str]]

    @classmethod
    def of(cls, root: Path, labelled: Iterable[Any], named: dict[str, list[str]]) -> _OneFolder:
        """The folder of the same name as ``root`` if there are labels of it, else that of the first label."""
        folders = []
        for path in {each.clip: None for each in labelled if isinstance(each, spans.LabelledSpan)}:
            with suppress(ValueError):
                folders.append(folder_of_export(path, clip_at_path(path, named)))
        known = list(filter(None, folders))
        name = composed(root.resolve().name).casefold()
        of_this_name = [folder for folder in known if folder.rpartition("/")[2].casefold() == name]
        return cls(next(iter([*of_this_name, *known]), ""), named)

    def clip(self, path: str) -> str:
        """The clip at a path. ValueError: there is none, or it is one of another folder."""
        clip = clip_at_path(path, self.named)
        folder = folder_of_export(path, clip)
        if folder.casefold() not in ("", self.folder.casefold()):
            raise ValueError(
                f"{path!r} is a clip of {folder!r}, and other labels are of clips of {self.folder!r}, which may have "
                "the same names: take the folder above both, or the labels of one"
            )
        return clip

    def other_than(self, root: Path) -> str:
        """The folder there, if it is none of this machine that holds the clips. Empty where it is."""
        own = composed(root.resolve().as_posix()).casefold()
        is_own = own == self.folder.casefold() or own.endswith(f"/{self.folder.casefold()}")
        return "" if is_own else self.folder


def _labels(args: argparse.Namespace, root: Path, clips: Sequence[str], steps: Steps | None) -> FoundLabels:
    """The labels of the table or folder that ``--answers`` names."""
    path = Path(args.answers)
    columns = parse_columns(args.columns or "")
    named = clips_by_name(clips)
    is_export = span_exports.is_export(path)
    if not is_export and not spans.has_spans(path, columns):
        for name in ("label_fps", "background"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} has no effect: {path} has answers and no spans; leave it out")
        by_clip = _from_table(path, root, clips, steps, columns, text_or_file(args.question) or "")
        answers = Counter(answer for answer, _ in by_clip.values())
        return FoundLabels(by_clip=by_clip, steps=steps, timelines=False, counted=answers, left_out={})
    if args.label_fps is not None and not 0 < args.label_fps < 10_000:
        raise ValueError(f"--label_fps must be above 0, got {args.label_fps:g}")
    background = spans.BACKGROUND if args.background is None else args.background.split(",")
    if columns and (is_export or path.is_dir()):
        raise ValueError(f"--columns has no effect: {path} is no table; leave it out")
    given = _given_labels(path, clips, columns)
    labelled = given.labelled
    if not labelled:
        expected = f"; expected files such as {Path(clips[0]).stem}.txt" if path.is_dir() else ""
        raise RecordError(f"{path}: no label of a clip in it{expected}")
    rows = [each for each in labelled if isinstance(each, spans.LabelledSpan)]
    in_frames = any(each.in_frames for each in rows)
    if args.label_fps is not None and rows and not in_frames:
        raise ValueError(f"--label_fps has no effect: the spans of {path} are in seconds; leave it out")
    from_elsewhere = is_export or path.is_dir() or any(is_absolute(each.clip) for each in rows)
    of_one_folder = _OneFolder.of(root, labelled, named)
    listed = steps_of_labels(rows, background) if steps is None else steps
    no_steps = frozenset(label.strip().casefold() for label in background)
    _check_no_background(listed, no_steps, str(args.steps))
    check_step_names(listed, str(path) if steps is None else str(args.steps))
    reader = spans.SpanReader(
        root=root,
        number_of=lambda label: number_of(listed, label),
        clip_of=of_one_folder.clip if from_elsewhere else lambda name: clip_of_cell(name, named),
        names=listed,
        background=no_steps,
        label_fps=args.label_fps,
    )
    timelines = reader.timelines(iter(labelled))
    counts: Counter[str] = Counter()
    for timeline in timelines.values():
        counts.update(f"({span.number}) {span.name}" for span in timeline.spans)
        reserved = _reserved(timeline.more, {"timeline", "duration"}, in_frames=in_frames)
        if reserved is not None:
            raise RecordError(f"{path}: the column {reserved!r} has another meaning in records; rename it")
    # In the order of the folder, whatever that of the labels is.
    by_clip = {clip: (timelines[clip].answer, timelines[clip].fields()) for clip in clips if clip in timelines}
    counts_frames = args.label_fps is None and in_frames
    return FoundLabels(
        by_clip=by_clip,
        steps=listed,
        timelines=True,
        counted=counts,
        left_out=reader.left_out,
        counts_frames=counts_frames,
        late=reader.late,
        overlapping=reader.overlapping,
        shorter=reader.shorter,
        other_folder=of_one_folder.other_than(root) if from_elsewhere else "",
        unused=spans.files_without_clip(path, clips) if path.is_dir() else (),
        not_read=_not_read(path) if path.is_dir() else (),
        about_times=spans.notice_about_times(labelled),
        differing=reader.differing,
        other_kinds=given.other_kinds,
    )


def _check_no_background(steps: Steps, background: Collection[str], where: str) -> None:
    """Check that no step is left out as background. ValueError: one is."""
    for name in steps:
        if name.casefold() in background:
            raise ValueError(
                f"{where}: {name!r} is a step, and spans of this name are background; leave it out of the steps, or "
                "give --background other names"
            )


def _given_labels(path: Path, clips: Sequence[str], columns: Mapping[str, str]) -> span_exports.Export:
    """The labels with times of an export, of a folder of label files and exports of ELAN, or of a table."""
    if span_exports.is_export(path):
        return span_exports.read_export(path)
    if not path.is_dir():
        return span_exports.Export(list(spans.table_spans(path, columns)))
    found = span_exports.Export(list(spans.folder_spans(path, clips)))
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() in span_exports.FOR_EACH_CLIP and not is_hidden(file.relative_to(path).as_posix()):
            export = span_exports.read_export(file)
            found.labelled.extend(export.labelled)
            found.other_kinds.update(export.other_kinds)
    return found


def _not_read(folder: Path) -> list[str]:
    """The files of a folder of labels that are neither label files nor clips, by their paths in it."""
    read = {spans.LABEL_FILE, *span_exports.FOR_EACH_CLIP, *VIDEO_SUFFIXES}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix.lower() not in read]
    names = [path.relative_to(folder).as_posix() for path in files]
    return [name for name in names if not is_hidden(name)]


def _reserved(columns: Mapping[str, Any], more: Collection[str] = (), in_frames: bool = True) -> str | None:
    """The first of some columns, in alphabetical order, whose name means something else in records.

    Args:
        more: further names that do.
        in_frames: labels may be in frames, and a column such as ``FPS`` their rate. Beside seconds it is that of clips.
    """
    reserved = {*OWN_KEYS, *ROW_KEYS, "question", "reward_model", *more}
    found = [each for each in columns if each in reserved or (in_frames and each.casefold() in _RATES)]
    return min(found, default=None)


def _prompt(question: str | None, steps: Steps | None, *, timelines: bool, adds_form: bool) -> str:
    """The prompt of every record: a clip, the question, the steps, and how to answer.

    Args:
        timelines: answers are timelines, which the default question and form ask for.
        adds_form: how to answer is added where the question has no ``<answer>``.
    """
    if steps is None and (question is None or STEPS in question):
        raise ValueError("no list of steps: give --steps, a file with a step a line, or a --question without {steps}")
    default = TIMELINE_QUESTION if timelines else QUESTION
    text = (default if question is None else question).strip()
    if steps is not None and STEPS in text:
        # Each step is on a line of its own: rewards and hints read a list by the lines that begin with its numbers.
        pieces = [piece.strip(" \t") for piece in text.split(STEPS)]
        text = pieces[0]
        for piece in pieces[1:]:
            before = "" if text.endswith("\n") or not text else "\n"
            behind = "" if piece.startswith("\n") or not piece else "\n"
            text += before + numbered(steps) + behind + piece
    elif steps is not None:
        text = f"{text}\n{numbered(steps)}"
    if "<answer>" in text and not adds_form:
        raise ValueError("--no-form has no effect: the question has an <answer>, and nothing is added; leave it out")
    if "<answer>" not in text and adds_form:
        if timelines:
            form = TIMELINE_FORM
        else:
            form = FORM if steps is None else STEPS_FORM
        text += "\n" + form
    return text if "<video>" in text else "<video>\n" + text


def _targets(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file of records, and the file of held-out records."""
    out = Path(args.out) if args.out is not None else Path(args.folder) / "records.json"
    # In --dataset_use commas separate data sets, and % stands before a share of one.
    if out.suffix != ".json" or set(str(out)) & set(",%"):
        raise ValueError(f"--out {out}: expected a path without ',' and '%' that ends in .json")
    if args.split is not None and not 0 < args.split < 1:
        raise ValueError(f"--split must be above 0 and below 1, got {args.split:g}")
    held_out = out.with_name(f"{out.stem}_held_out.json")
    if args.split is None and held_out.exists():
        raise ValueError(
            f"{held_out}: holds clips out, by an earlier --split, which {out} would train on; delete it, or give "
            "--split or another --out"
        )
    written = [out] if args.split is None else [out, held_out]
    for path in written:
        for name in ("answers", "steps", "question"):
            given = getattr(args, name)
            if given is not None and path.exists() and os.path.exists(given) and os.path.samefile(path, given):
                raise ValueError(f"{path}: is --{name}, and would be replaced by the records; give another --out")
        if path.exists() and not args.overwrite:
            raise ValueError(f"{path}: is there already; pass --overwrite to replace it, or another --out")
    return out, held_out if args.split is not None else None


def _held_out(root: Path, clips: Collection[str], share: float) -> set[str]:
    """A share of ``clips``, at least one of them and not all.

    Each clip is ordered by a random number of its own: clips that are added later move few others. Several names of
    one file, by links, are held out together.
    """
    names: dict[Path, list[str]] = {}
    for clip in clips:
        names.setdefault((root / clip).resolve(), []).append(clip)
    if len(names) < 2:
        raise ValueError("--split needs at least two clips with an answer: leave it out, or add answers")
    ordered = sorted(names.values(), key=_random_number)
    count = round(share * len(ordered))
    count = min(max(1, count), len(ordered) - 1)
    return {clip for own in ordered[:count] for clip in own}


def _random_number(names: Sequence[str]) -> int:
    """The random number by which a clip with these names is ordered."""
    return stable_random(0, "held out", names[0]).getrandbits(64)


def _from_table(
    path: Path, root: Path, clips: Sequence[str], steps: Steps | None, columns: Mapping[str, str], question: str
) -> dict[str, Label]:
    """The labels of a CSV file with the columns ``clip`` and ``answer``. Other columns become fields of the records.

    It may be the table that ``qwenvl label`` has written, whose other columns are about its model. A clip with an empty
    answer has no label. The error lists all lines that are wrong.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise RecordError(
            f"{path}: expected a .csv or .tsv file with the columns clip and answer; --write-labels begins one"
        )
    names = column_names(path, columns, known=("clip", "answer"))
    rows = text_rows(plain_file(path))
    problems: list[str] = []
    found: dict[str, Label] = {}
    line_of: dict[str, str] = {}
    named = clips_by_name(clips)
    of_a_model = is_label_table(names.values())
    for number in range(rows.length):
        try:
            row = rows.row(number)
            cells = named_cells(row.content, names, row.where)
            if not cells:
                continue
            if of_a_model:
                cells = _label_cells(cells, named, root, question)
            if "clip" not in cells:
                raise ValueError(f"expected the columns clip and answer, and a clip, got {', '.join(cells)}")
            reserved = _reserved(cells)
            if reserved is not None:
                raise ValueError(f"the column {reserved!r} has another meaning in records; rename it")
            clip = clip_of_cell(cells.pop("clip"), named)
            if line_of.setdefault(clip, row.where) != row.where:
                raise ValueError(f"{clip} is at {line_of[clip]} too; a clip has one answer")
            answer = cells.pop("answer", "")
            if answer and answer not in MISSING:
                found[clip] = (answer_in(steps, answer) if steps else _free_answer(answer), cells)
        except RecordError as error:
            problems.append(str(error))
        except ValueError as error:
            problems.append(f"{row.where}: {error}")
    if problems:
        what = f"{counted(len(problems), 'line')} of the table can't be used:"
        raise RecordError("\n".join([what, *first_lines(problems)]), "solution")
    return {clip: found[clip] for clip in clips if clip in found}


def _label_cells(
    cells: Mapping[str, str], named: dict[str, list[str]], root: Path, question: str
) -> dict[str, str]:
    """The cells of a row of ``qwenvl label``, with the clip as the folder names it, without what its model has said.

    Args:
        named: see ``clips_by_name``.

    Raises:
        ValueError: the folder has no such clip, the path is that of another one, or the answer is a timeline, or a
            letter of options that the question has not.
    """
    others = {name: cell for name, cell in cells.items() if name not in LABEL_TABLE}
    answer = of_cell(cells.get("answer", ""))
    if timeline_in(answer):
        raise ValueError(
            f"the answer {beginning(answer, 40)!r} is a timeline: correct it on the page of `qwenvl label --page`, "
            "which saves records"
        )
    if _OPTION_LETTER.fullmatch(answer) and options_in(question) is None:
        raise ValueError(
            f"the answer {answer!r} is the letter of an option, and --question has none: write them into it, each in a "
            "line, such as 'A. the left one'"
        )
    # The table has paths as they were given to the command.
    cell = of_cell(cells.get("clip", ""))
    clip = clip_at_path(cell.replace("\\", "/"), named)
    # A path of another machine is found by its end. One of this machine must be that of the clip itself.
    if os.path.exists(cell) and not os.path.samefile(cell, root / clip):
        raise ValueError(f"{cell!r} is another file than {str(root / clip)!r}; take the folder of that clip")
    return {"clip": clip, "answer": answer, **others}


def _free_answer(answer: str) -> str:
    """An answer without the tags around it.

    Raises:
        ValueError: it holds a tag or a token that has a meaning in records.
    """
    text = answer.removeprefix("<answer>").removesuffix("</answer>").strip()
    # Refused here, where the line of the table is known: training would refuse the record later.
    for mark in (*TAGS, "<video>", "<image>", *CONTROL_TOKENS):
        if mark in text:
            raise ValueError(f"the answer {text[:80]!r} holds {mark}, which has a meaning in records; leave it out")
    return text
