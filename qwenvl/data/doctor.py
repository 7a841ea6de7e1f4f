"""``qwenvl data check | stats | convert``: learn in a minute what is wrong with a data set."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from qwenvl.data.catalog import resolve_datasets
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.convert import write_records
from qwenvl.data.errors import told_to_the_user
from qwenvl.data.examine import Report, examine, quantiles
from qwenvl.data.order import Part, draws_per_epoch
from qwenvl.data.record_file import read_records
from qwenvl.data.records import ReadOptions, RecordCheck, parse_columns
from qwenvl.rewards.build import build_rubric
from qwenvl.types import Record

SHOWN_PER_KIND = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` begins with; 1 when the data are bad, 2 when the command is."""
    args = _parser().parse_args(argv)
    with told_to_the_user(f"qwenvl data {args.command}"):
        return args.run(args)


def check(args: argparse.Namespace) -> int:
    """Decode every record and report; 1 if any is bad."""
    with redirect_stdout(sys.stderr):  # some libraries announce themselves on the way; the report is to stand alone
        report = examine(
            resolve_datasets(args.dataset, args.dataset_catalog),
            options=_read_options(args),
            check_record=_record_check(args.reward_funcs),
            dataset_options=frame_options(args),
            collator=make_collator(args),
            jobs=args.jobs,
            progress=_progress,
        )
        if args.write_clean:
            count = write_records(report.good, Path(args.write_clean))
            print(f"wrote {count} good records to {args.write_clean}")
    if args.json:
        print(json.dumps(report.summary(), indent=1, ensure_ascii=False))
    else:
        print(render(report, args.dataset))
    return 1 if report.problems or not report.good else 0


def stats(args: argparse.Namespace) -> int:
    """Count what the records hold, without decoding anything, and how often training draws from each data set."""
    parts, records = read_parts(args)
    solutions = Counter(record.solution.strip() for record in records)
    numbers = {
        "records": len(records),
        "clips": sum(len(record.videos) for record in records),
        "images": sum(len(record.images) for record in records),
        "with meta": sum(any(record.clip_meta) for record in records),
        "different media": len({path for record in records for path in (*record.videos, *record.images)}),
        "different prompts": len({record.messages for record in records}),
        "different solutions": len(solutions),
    }
    lengths = {
        "turns per prompt": quantiles([len(record.messages) for record in records]),
        "characters per prompt": quantiles([sum(len(m.text) for m in record.messages) for record in records]),
        "characters per solution": quantiles([len(record.solution) for record in records]),
    }
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


def convert(args: argparse.Namespace) -> int:
    """Write the records of a data set in another form and kind of file."""
    count = write_records(read_from(args), Path(args.out))
    print(f"wrote {count} records to {args.out}")
    return 0


def render(report: Report, name: str) -> str:
    """The report for people."""
    numbers = report.summary()
    lines = [
        f"{name}: {numbers['records']:,} records, {numbers['good']:,} good, {numbers['bad']:,} bad",
        f"  {numbers['clips']:,} clips, {numbers['images']:,} images, {numbers['text_only']:,} records of text alone",
    ]
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


_FRAME_FLAGS: dict[str, dict[str, Any]] = {
    "base_interval": {"type": float, "default": 2.0, "help": "seconds between frames (2.0)"},
    "video_fps": {"type": float, "default": None, "help": "frames per second, in place of --base_interval"},
    "video_min_frames": {"type": int, "default": 4, "help": "least frames of a clip (4)"},
    "video_max_frames": {"type": int, "default": 8, "help": "most frames of a clip (8)"},
    "video_backend": {"default": "auto", "help": "auto, torchcodec, pyav or decord (auto)"},
    "decode_timeout": {"type": float, "default": 60.0, "help": "seconds before a clip's decoder is killed (60)"},
}
_PROMPT_FLAGS: dict[str, dict[str, Any]] = {
    "video_min_frame_pixels": {"type": int, "default": 4 * 28 * 28, "help": "least pixels of a frame (3136)"},
    "video_max_frame_pixels": {"type": int, "default": 32 * 28 * 28, "help": "most pixels of a frame (25088)"},
    "min_pixels": {"type": int, "default": 16 * 28 * 28, "help": "least pixels of an image (12544)"},
    "max_pixels": {"type": int, "default": 576 * 28 * 28, "help": "most pixels of an image (451584)"},
    "max_prompt_length": {"type": int, "default": None, "help": "tokens above which a prompt is bad"},
    "fit_frames": {"action": "store_true", "help": "lower frames, then pixels, of prompts above --max_prompt_length"},
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qwenvl data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="decode every record, say what is wrong; exit code 1 if anything is")
    counting = commands.add_parser("stats", help="count what the records hold")
    converting = commands.add_parser("convert", help="write the records in another form and kind of file")
    for command, run in ((checking, check), (counting, stats), (converting, convert)):
        command.set_defaults(run=run)
        add_dataset_flags(command)
    for command in (checking, counting):
        command.add_argument("--json", action="store_true", help="print JSON")
    converting.add_argument("out", help="a path that ends in .json, .jsonl (also .gz), .parquet, .csv or .tsv")
    add_frame_flags(checking)
    checking.add_argument("--write-clean", metavar="OUT", help="write the good records there; kinds as for convert")
    checking.add_argument("--jobs", type=int, default=2, help="clips decoded at the same time (2)")
    checking.add_argument("--reward_funcs", nargs="*", default=["accuracy"], help="rewards that must be able to score")
    return parser


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """The data set and how its rows are read."""
    parser.add_argument("dataset", help="as --dataset_use of training: names of the catalog or paths, %%NN, :weight")
    parser.add_argument("--dataset_catalog", help="another catalog than data/datasets.yaml")
    parser.add_argument("--columns", default="", help="names in the file to names known here: question=prompt,...")
    parser.add_argument("--allow_outside_media", action="store_true", help="let media leave the media root")
    parser.add_argument("--allow_remote_media", action="store_true", help="let media be http(s) addresses")


def add_frame_flags(parser: argparse.ArgumentParser) -> None:
    """What is shown of media, with the names and defaults of training."""
    parser.add_argument("--model", help="a checkpoint: make the prompts with its processor and count their tokens")
    for name, options in (_FRAME_FLAGS | _PROMPT_FLAGS).items():
        parser.add_argument(f"--{name}", **options)


def frame_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of ``GRPODataset``."""
    return {name: getattr(args, name) for name in _FRAME_FLAGS}


def make_collator(args: argparse.Namespace) -> GRPOCollator | None:
    """A collator that gives prompts that are too long as bad samples; None without ``--model``."""
    if args.model is None:
        if args.max_prompt_length is not None:
            raise ValueError("--max_prompt_length counts tokens: give --model, whose processor makes them")
        if args.fit_frames:
            raise ValueError("--fit_frames has no effect without --model and --max_prompt_length")
        return None
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(args.model)
    policy = {} if args.max_prompt_length is None else {"on_long_prompt": "skip"}
    return GRPOCollator(processor, **policy, **{name: getattr(args, name) for name in _PROMPT_FLAGS})


def read_from(args: argparse.Namespace) -> list[Record]:
    """The records of the data set; the first bad row is an error."""
    return read_parts(args)[1]


def read_parts(args: argparse.Namespace) -> tuple[list[Part], list[Record]]:
    """The data sets named, and the records of all of them; the first bad row is an error."""
    parts, joined = [], []
    for source in resolve_datasets(args.dataset, args.dataset_catalog):
        records = read_records(source, seed=0, options=_read_options(args))
        parts.append(Part(source.name, len(records), source.weight))
        joined += records
    return parts, joined


def _read_options(args: argparse.Namespace) -> ReadOptions:
    return ReadOptions(
        allow_outside_media=args.allow_outside_media,
        allow_remote_media=args.allow_remote_media,
        columns=parse_columns(args.columns),
    )


def _record_check(names: list[str]) -> RecordCheck | None:
    return build_rubric(names).check_record if names else None


def _progress(findings: Iterator[Any], total: int) -> Iterator[Any]:
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
