"""``qwenvl data from-folder``: a folder of clips becomes files of records."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.parse import text_or_file
from qwenvl.doctor.convert import MediaPaths
from qwenvl.doctor.from_folder.clips import ClipFolder
from qwenvl.doctor.from_folder.labels import Label, from_folders, from_table, write_table
from qwenvl.doctor.from_folder.steps import StepList
from qwenvl.files import written_whole

FOLDERS = "folders"
STEPS = "{steps}"
QUESTION = "The video shows an operator at work. Which of these steps does the operator perform, in order?"
FORM = (
    "First think about what the video shows, within <think> </think>. Then give the answer within <answer> </answer>."
)
STEPS_FORM = (
    "First think about what the video shows, within <think> </think>. Then name the steps within <answer> </answer>, "
    "each with its number: <answer>(number) step (number) step</answer>."
)
_MODEL = "Qwen/Qwen3.5-4B"
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    """Run the command.

    Raises:
        ValueError, OSError: what is wrong with the arguments, the folder or the table of answers.
    """
    folder = ClipFolder.read(Path(args.folder))
    if args.write_labels is not None:
        _refuse(args, "with --write-labels", "answers", "question", "steps", "out", "split", "seed")
        write_table(Path(args.write_labels), folder.clips)
        print(f"wrote {_count(folder.clips)} to {args.write_labels}: fill in their answers, then pass it as --answers")
        return 0
    if args.split is None:
        _refuse(args, "without --split", "seed")
    steps = StepList.read(Path(args.steps)) if args.steps is not None else None
    labels, steps = _labels(args, folder, steps)
    if not labels:
        raise RecordError(f"{args.answers}: no clip has an answer")
    question = prompt_of(text_or_file(args.question), steps)
    out, held_out = _targets(args)
    labelled = [clip for clip in folder.clips if clip in labels]
    held = folder.held_out(labelled, args.split, args.seed or 0) if held_out else set()
    print("\n".join(_summary(folder, labels, steps if args.steps is None else None)))
    for path, clips in ((out, [c for c in labelled if c not in held]), (held_out, [c for c in labelled if c in held])):
        if path is not None:
            outside = write_rows(path, folder.root, question, {clip: labels[clip] for clip in clips})
            print(f"wrote {len(clips):,} records{', held out,' if path == held_out else ''} to {path}")
    first = f"<answer>{labels[labelled[0]].answer}</answer>"
    print("\n".join(["", "each prompt:", *_indented(question), "the first solution:", *_indented(first)]))
    print("\n".join(["", "next:", *(f"  {line}" for line in _next(out, held_out, outside))]))
    return 0


def prompt_of(question: str | None, steps: StepList | None) -> str:
    """The prompt of every record: a clip, the question, the steps, and how to answer.

    Raises:
        ValueError: there is nothing to ask, or ``{steps}`` without steps.
    """
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


def write_rows(path: Path, root: Path, prompt: str, labels: dict[str, Label]) -> bool:
    """Write a record for each clip. Return whether clips lie outside of the file's folder, and are named in full."""
    media = MediaPaths(path.with_name(path.name + ".media"))
    rows: list[dict[str, Any]] = []
    for clip, label in labels.items():
        solution = f"<answer>{label.answer}</answer>"
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": solution}]
        video = media(str((root / clip).absolute().resolve()))
        rows.append({"id": clip, "video": video, "conversations": turns, **label.fields})
    with written_whole(path) as partial:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return bool(media.outside)


def _refuse(args: argparse.Namespace, when: str, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} has no effect {when}: leave it out")


def _labels(
    args: argparse.Namespace, folder: ClipFolder, steps: StepList | None
) -> tuple[dict[str, Label], StepList | None]:
    """The labels of the clips, and the steps."""
    if args.answers is None:
        raise ValueError(
            "give --answers: a table with the columns clip and answer (--write-labels labels.csv writes one to fill "
            "in), or folders, where each clip lies in a folder that is named by its answer"
        )
    if args.answers == FOLDERS:
        return from_folders(folder.clips, steps)
    return from_table(Path(args.answers), folder.clips, steps), steps


def _targets(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file of records, and that of the records held out."""
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


def _summary(folder: ClipFolder, labels: dict[str, Label], steps: StepList | None) -> list[str]:
    """What was found. ``steps`` are those that the names of the folders gave."""
    lines = [f"{folder.root}: {_count(folder.clips)}"]
    if folder.others:
        lines.append("  other files, passed over: " + _tally(folder.others))
    if missing := [clip for clip in folder.clips if clip not in labels]:
        shown = missing[:_SHOWN] + ["..."] * (len(missing) > _SHOWN)
        lines += [f"  {len(missing):,} without an answer, left out:", *(f"    {clip}" for clip in shown)]
    for group in folder.copies:
        answers = {labels[clip].answer for clip in group if clip in labels}
        lines.append(f"  the same content{' and different answers' * (len(answers) > 1)}: {', '.join(group)}")
    if steps is not None:
        lines += ["  the steps, by the names of the folders:", *(f"    {line}" for line in str(steps).splitlines())]
    lines += ["  the answers:", *_counted(label.answer for label in labels.values())]
    return lines


def _counted(answers: Iterable[str]) -> list[str]:
    counts = Counter(answers).most_common()
    more = [f"    ... and {len(counts) - _SHOWN:,} more"] * (len(counts) > _SHOWN)
    return [*(f"    {count:>6,}  {answer}" for answer, count in counts[:_SHOWN]), *more]


def _next(out: Path, held_out: Path | None, outside: bool) -> list[str]:
    """The commands to go on with."""
    flag = " --allow_outside_media" if outside else ""
    data = shlex.quote(str(out))
    name = shlex.quote(f"runs/{out.absolute().parent.name}")
    evaluated = f" --eval_dataset_use {shlex.quote(str(held_out))} --eval_strategy epoch" if held_out else ""
    return [
        f"qwenvl data check {data}{flag}",
        f"qwenvl preview {data} --n 8{flag}",
        f"qwenvl train --model_name_or_path {_MODEL} --dataset_use {data}{evaluated} --output_dir {name}{flag}",
    ]


def _count(clips: tuple[str, ...]) -> str:
    folders = len({clip.rpartition("/")[0] for clip in clips})
    clips_ = f"{len(clips):,} clip{'s' * (len(clips) != 1)}"
    return clips_ + (f" in {folders:,} folders" if folders > 1 else "")


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common())


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
