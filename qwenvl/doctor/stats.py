"""``qwenvl data stats``: counts what the records hold, without decoding, and how often training draws each data set."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from qwenvl.config.flags import FlagParser
from qwenvl.data.order import Part, draws_per_epoch
from qwenvl.data.records.record_file import JoinedRecords
from qwenvl.doctor.flags import add_dataset_flags, record_files
from qwenvl.failure import visible


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the counts. One record at a time is in memory."""
    files = record_files(args)
    numbers = dict.fromkeys(("records", "clips", "images", "with meta"), 0)
    media, prompts, solutions = set[int](), set[int](), Counter[str]()
    turns, prompt_lengths, solution_lengths = [], [], []
    for record in JoinedRecords(files):
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
    lines = [f"{name:<26}{value:,}" for name, value in numbers.items()]
    for name, values in (("prompt", prompt_lengths), ("solution", solution_lengths)):
        lines.append(f"{f'characters per {name}':<26}{spread(quantiles(values))}")
    lines.append(f"{'turns per prompt':<26}{spread(quantiles(turns))}")
    if len(files) > 1:
        parts = [Part(file.source.name, len(file), file.source.weight) for file in files]
        lines += ["", "drawn in an epoch"]
        lines += [
            f"{count:>8,}  of {part.size:,} records, each {count / part.size:.3g} times: {part.name}"
            for part, count in zip(parts, draws_per_epoch(parts), strict=True)
        ]
    lines += ["", "most frequent solutions"]
    lines += [f"{count:>8,}  {truncated(solution, 100)}" for solution, count in solutions.most_common(10)]
    print("\n".join(lines))
    return 0


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
