"""``qwenvl data stats``: counts what the records hold, without decoding, and how often training draws each data set."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from qwenvl.config.flags import FlagParser
from qwenvl.data.order import Part, draws_per_epoch
from qwenvl.data.records.record_file import JoinedRecords
from qwenvl.doctor.flags import add_dataset_flags, opened
from qwenvl.failure import visible
from qwenvl.types import Record


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the counts."""
    files = opened(args)
    parts = [Part(file.source.name, len(file), file.source.weight) for file in files]
    numbers, lengths, solutions = _count(JoinedRecords(files))
    drawn = list(zip(parts, draws_per_epoch(parts), strict=True))
    if args.json:
        datasets = {
            part.name: {"records": part.size, "drawn_per_epoch": count, "times_per_record": round(count / part.size, 3)}
            for part, count in drawn
        }
        shown = {"datasets": datasets, "solutions": dict(solutions.most_common(20))}
        print(json.dumps(numbers | lengths | shown, indent=1))
        return 0
    lines = [f"{name:<26}{value:,}" for name, value in numbers.items()]
    lines += [f"{name:<26}{spread(values)}" for name, values in lengths.items()]
    if len(parts) > 1:
        lines += ["", "drawn in an epoch"]
        lines += [
            f"{count:>8,}  of {part.size:,} records, each {count / part.size:.3g} times: {part.name}"
            for part, count in drawn
        ]
    lines += ["", "most frequent solutions"]
    lines += [f"{count:>8,}  {truncated(solution, 100)}" for solution, count in solutions.most_common(10)]
    print("\n".join(lines))
    return 0


def _count(records: Iterable[Record]) -> tuple[dict[str, int], dict[str, dict[str, float]], Counter[str]]:
    """Counts, quantiles of lengths, and how often each solution occurs. One record at a time is in memory."""
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


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The minimum, median, 95th percentile and maximum. Empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return {"min": ordered[0], "median": at(0.5), "p95": at(0.95), "max": ordered[-1]}


def spread(values: dict[str, float]) -> str:
    """Quantiles as text: ``min 4, median 16, p95 64, max 64``."""
    return ", ".join(
        f"{name} {value:,.4g}" if value < 1000 else f"{name} {value:,.0f}" for name, value in values.items()
    )


def truncated(text: str, length: int) -> str:
    """The text in one line of at most ``length`` characters."""
    text = visible(text)
    return text if len(text) <= length else text[: length - 3] + "..."
