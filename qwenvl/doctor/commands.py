"""``qwenvl data check | stats | convert | from-folder``: learn in a minute what is wrong with a data set."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.data.errors import told_to_the_user
from qwenvl.data.options import SampleOptions
from qwenvl.data.parts import Part, draws_per_epoch
from qwenvl.data.records.parse import ReadOptions, RecordCheck
from qwenvl.data.records.presets.table import how_read
from qwenvl.data.records.record_file import JoinedRecords
from qwenvl.doctor.convert import Written, write_records
from qwenvl.doctor.flags import add_dataset_flags, add_frame_flags, hints_by, make_collator, opened, sources_of
from qwenvl.doctor.from_folder import command as from_folder
from qwenvl.doctor.repair import command as repair
from qwenvl.doctor.spread import quantiles
from qwenvl.rewards.named import build_rubric
from qwenvl.types import Record

if TYPE_CHECKING:
    from qwenvl.doctor.check import Report

SHOWN_PER_KIND = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` begins with. Return 1 when the data are bad, 2 when the command is."""
    args = parser().parse_args(argv)
    with told_to_the_user(f"qwenvl data {args.command}"):
        return args.run(args)


def check(args: argparse.Namespace) -> int:
    """Decode every record and report. Return 1 if any is bad."""
    from qwenvl.doctor.check import examine  # loads torch, which the other commands do without

    with redirect_stdout(sys.stderr):  # some libraries announce themselves on the way; the report is to stand alone
        report = examine(
            sources_of(args),
            options=ReadOptions.of(args),
            check_record=_record_check(args.reward_funcs),
            sample_options=SampleOptions.of(args, on_bad_sample="error", decode_check=_decode_check(args)),
            all_frames=args.all_frames,
            collator=(collator := make_collator(args)),
            look_for=hints_by(args, collator, args.reward_funcs),
            jobs=args.jobs,
            progress=_progress,
        )
        if args.write_clean:
            print(_written(write_records(report.good, Path(args.write_clean)), args.write_clean))
    if args.json:
        print(json.dumps(report.summary(), indent=1, ensure_ascii=False))
    else:
        print(render(report, args.dataset))
    return 1 if report.problems or not report.good else 0


def _decode_check(args: argparse.Namespace) -> str:
    """What was asked for, else strict with PyAV, the only decoder that tells errors."""
    return args.decode_check or ("strict" if args.video_backend in ("auto", "pyav") else "fast")


def stats(args: argparse.Namespace) -> int:
    """Count what the records hold, without decoding anything, and how often training draws from each data set."""
    files = opened(args)
    parts = [Part(file.source.name, len(file), file.source.weight) for file in files]
    numbers, lengths, solutions = _count(JoinedRecords(files))
    draws = draws_per_epoch(parts)
    if args.json:
        drawn = {
            part.name: {"records": part.size, "drawn_per_epoch": count, "times_per_record": round(count / part.size, 3)}
            for part, count in zip(parts, draws, strict=True)
        }
        shown = {"datasets": drawn, "solutions": dict(solutions.most_common(20))}
        print(json.dumps(numbers | lengths | shown, indent=1))
        return 0
    lines = [f"{name:<26}{value:,}" for name, value in numbers.items()]
    lines += [f"{name:<26}{_spread(spread)}" for name, spread in lengths.items()]
    if len(parts) > 1:
        lines += ["", "drawn in an epoch"]
        lines += [
            f"{count:>8,}  of {part.size:,} records, each {count / part.size:.3g} times: {part.name}"
            for part, count in zip(parts, draws, strict=True)
        ]
    lines += ["", "most frequent solutions"]
    lines += [f"{count:>8,}  {_cut(solution, 100)}" for solution, count in solutions.most_common(10)]
    print("\n".join(lines))
    return 0


def _count(records: Iterable[Record]) -> tuple[dict[str, int], dict[str, dict[str, float]], Counter[str]]:
    """Return counts, spreads of lengths, and how often each solution occurs. One record at a time is in memory."""
    numbers = dict.fromkeys(("records", "clips", "images", "with meta"), 0)
    media: set[int] = set()
    prompts: set[int] = set()
    solutions: Counter[str] = Counter()
    turns, prompt_lengths, solution_lengths = [], [], []
    for record in records:
        numbers["records"] += 1
        numbers["clips"] += len(record.videos)
        numbers["images"] += len(record.images)
        numbers["with meta"] += any(record.clip_meta)
        media.update(map(hash, (*record.videos, *record.images)))
        prompts.add(hash(record.messages))
        solutions[record.solution.strip()] += 1
        turns.append(len(record.messages))
        prompt_lengths.append(sum(len(message.text) for message in record.messages))
        solution_lengths.append(len(record.solution))
    numbers |= {"different media": len(media), "different prompts": len(prompts), "different solutions": len(solutions)}
    lengths = {
        "turns per prompt": quantiles(turns),
        "characters per prompt": quantiles(prompt_lengths),
        "characters per solution": quantiles(solution_lengths),
    }
    return numbers, lengths, solutions


def convert(args: argparse.Namespace) -> int:
    """Write the records of a data set in another form and kind of file."""
    records = JoinedRecords(opened(args))
    print(_written(write_records(records, Path(args.out)), args.out))
    return 0


def _written(written: Written, path: str) -> str:
    lines = [f"wrote {written.records:,} records to {path}"]
    if written.copied:
        lines.append(f"copied {written.copied:,} media that were part of the records to {path}.media")
    if written.outside:
        lines.append(
            f"{written.outside:,} media lie outside of its folder and are named in full: read it with "
            "--allow_outside_media, or give it a media_root in a catalog"
        )
    return "\n".join(lines)


def render(report: Report, name: str) -> str:
    """Return the report as text to be read."""
    numbers = report.summary()
    lines = [
        f"{name}: {numbers['records']:,} records, {numbers['good']:,} good, {numbers['bad']:,} bad",
        f"  {numbers['clips']:,} clips, {numbers['images']:,} images, {numbers['text_only']:,} records of text alone",
    ]
    lines += [f"  {how_read(*each)}" for each in report.read_as.items()]
    for title in ("frames_per_clip", "seconds_per_clip", "prompt_tokens"):
        if numbers[title]:
            lines.append(f"  {title.replace('_', ' ')}: {_spread(numbers[title])}")
    if numbers["rescaled_clips"]:
        lines.append(f"  {numbers['rescaled_clips']:,} clips differ a little from their frame_cnts, which are rescaled")
    lines += _histogram([finding.tokens for finding in report.findings if finding.tokens is not None])
    for title, listed in (("bad", report.problems), ("worth a look", report.warnings)):
        for kind, count in Counter(problem["kind"] for problem in listed).most_common():
            messages = [problem["message"] for problem in listed if problem["kind"] == kind]
            lines += ["", f"{title}: {kind} ({count:,})", *(f"  {_cut(m, 300)}" for m in messages[:SHOWN_PER_KIND])]
            if count > SHOWN_PER_KIND:
                lines.append(f"  ... and {count - SHOWN_PER_KIND:,} more (--json lists all)")
    if numbers["advice"]:
        lines += ["", "what to do", *(f"  {advice}" for advice in numbers["advice"])]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The parser of the commands' arguments."""
    all_of_them = argparse.ArgumentParser(prog="qwenvl data", description=__doc__)
    commands = all_of_them.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="decode every record, say what is wrong; exit code 1 if anything is")
    counting = commands.add_parser("stats", help="count what the records hold")
    converting = commands.add_parser("convert", help="write the records in another form and kind of file")
    of_a_folder = commands.add_parser("from-folder", help="write the records of a folder of clips")
    of_a_folder.set_defaults(run=from_folder.run)
    from_folder.add_arguments(of_a_folder)
    repairing = commands.add_parser("repair", help="make new files of clips that say something else than they show")
    repairing.set_defaults(run=repair.run)
    repair.add_arguments(repairing)
    for command, run in ((checking, check), (counting, stats), (converting, convert)):
        command.set_defaults(run=run)
        add_dataset_flags(command)
    for command in (checking, counting):
        command.add_argument("--json", action="store_true", help="print JSON")
    converting.add_argument("out", help="a path that ends in .json, .jsonl (also .gz), .parquet, .csv or .tsv")
    add_frame_flags(checking)
    checking.set_defaults(decode_check=None)  # strict, where the decoder can be
    checking.add_argument(
        "--all_frames", action="store_true", help="decode all frames of each clip, not only those that are shown"
    )
    checking.add_argument("--write-clean", metavar="OUT", help="write the good records there; kinds as for convert")
    checking.add_argument("--jobs", type=int, default=2, help="clips decoded at the same time (2)")
    checking.add_argument("--reward_funcs", nargs="*", default=["accuracy"], help="rewards that must be able to score")
    return all_of_them


def _record_check(names: list[str]) -> RecordCheck | None:
    return build_rubric(names).check_record if names else None


def _progress(findings: Iterator[Any], total: int) -> Iterable[Any]:
    from tqdm import tqdm

    return tqdm(findings, total=total, unit="record", disable=not sys.stderr.isatty())


def _spread(spread: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {value:,.4g}" if value < 1000 else f"{name} {value:,.0f}" for name, value in spread.items()
    )


def _histogram(tokens: list[int], rows: int = 8, width: int = 40) -> list[str]:
    if len(set(tokens)) < 2:
        return []
    low, step = min(tokens), -(-(max(tokens) - min(tokens) + 1) // rows)
    counts = Counter((value - low) // step for value in tokens)
    most = max(counts.values())
    lines = ["", "prompt tokens"]
    for row in range(max(counts) + 1):
        bar = "#" * -(-counts[row] * width // most)
        lines.append(f"  {low + row * step:>7,} to {low + (row + 1) * step - 1:>7,}  {counts[row]:>6,} {bar}")
    return lines


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."
