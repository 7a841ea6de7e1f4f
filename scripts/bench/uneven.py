"""Where the time of a step goes on 8 to 512 GPUs, computed from the completions of a run: nothing is run here.

    python scripts/bench/uneven.py runs/sop
    python scripts/bench/uneven.py runs/sop --gpus 8 64 --prompts 2

Groups are drawn from those of the run, as many for each GPU as --prompts says. Seconds that the run logged give those
of a sampled and of a trained token. What the model leaves out: a batch of more completions takes no longer for a token,
prompts take no time, and neither do messages between machines. Three ways to use the same GPUs:

- *local*: each samples its own groups, waits until all have, and trains on them.
- *apart*: some GPUs only sample and the others only train, by turns. A place that is free takes the next completion.
- *asynchronous*: the same, at the same time: rollouts are of an older policy, and nobody waits for the longest one.

Where there are two kinds of GPUs, the split in eighths is taken whose step is shortest.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qwenvl.runlog import read_metrics, read_rollouts

Group = Sequence[int]  # tokens of each completion
WAYS = ("local", "apart", "asynchronous")


@dataclass(frozen=True)
class Rates:
    """Seconds of one GPU for a token: sampled, whatever the number of completions beside it, and trained."""

    sampled: float
    trained: float


@dataclass(frozen=True)
class Spent:
    """Seconds of a step, and which shares of the GPUs' time are sampling and training. The rest is waiting."""

    seconds: float
    sampling: float
    training: float


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 32, 128, 512], help="multiples of 8")
    parser.add_argument("--prompts", type=int, default=1, help="groups of a step for each GPU [%(default)s]")
    parser.add_argument("--steps", type=int, default=50, help="steps that are averaged [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if any(gpus < 8 or gpus % 8 for gpus in args.gpus):
        parser.error("--gpus: multiples of 8")
    groups, rates = groups_of(args.run), rates_of(args.run)
    lengths = sorted(n for group in groups for n in group)
    print(
        f"computed, not measured: {len(groups)} groups of {args.run}, {mean(map(len, groups)):.1f} completions each, "
        f"{mean(lengths):.0f} tokens on average, {lengths[len(lengths) // 2]} in the middle, {lengths[-1]} at most\n"
        f"{1000 * rates.sampled:.2f} ms for a sampled token, {1000 * rates.trained:.3f} ms for a trained one\n\n"
        "| GPUs | way | seconds | sampling | training | waiting |\n|---|---|---|---|---|---|"
    )
    for gpus in args.gpus:
        for way in WAYS:
            spent = average(way, groups, gpus, args.prompts, rates, args.steps, args.seed)
            waiting = max(0.0, 1 - spent.sampling - spent.training)  # which rounding may take below 0
            shares = f"{spent.sampling:.0%} | {spent.training:.0%} | {waiting:.0%}"
            print(f"| {gpus} | {way} | {spent.seconds:.2f} | {shares} |")


def groups_of(run: Path) -> list[Group]:
    """The tokens of the completions of each group of training."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for row in read_rollouts(run, split="train"):
        groups[row.step, row.record_id, row.epoch, row.dropped].append(row.tokens)
    if not groups:
        raise SystemExit(f"{run}: no completions of training in it")
    return list(groups.values())


def rates_of(run: Path) -> Rates:
    """Seconds for a token, from those that the run logged for its steps: the longest completion, and all tokens."""
    longest: dict[int, int] = defaultdict(int)
    tokens: dict[int, int] = defaultdict(int)
    for row in read_rollouts(run, split="train"):
        longest[row.step] = max(longest[row.step], row.tokens)
        tokens[row.step] += row.tokens
    rows = [row for row in read_metrics(run, "train") if row["step"] in longest and "time/sample_s" in row]
    if not rows:
        raise SystemExit(f"{run}: metrics.jsonl has no seconds of its steps")
    processes = max(1, len(list(Path(run).glob("rollouts/rank-*.jsonl"))))
    trained = sum(row.get("time/logp_s", 0.0) + row.get("time/backward_s", 0.0) for row in rows)
    return Rates(
        sampled=sum(row["time/sample_s"] for row in rows) / sum(longest[row["step"]] for row in rows),
        trained=trained * processes / sum(tokens[row["step"]] for row in rows),
    )


def average(way: str, groups: list[Group], gpus: int, prompts: int, rates: Rates, steps: int, seed: int) -> Spent:
    """The mean of some steps of one way, on groups that are drawn alike for all ways."""
    draw = random.Random(f"{seed} {gpus} {prompts}")
    drawn = [[draw.choice(groups) for _ in range(gpus * prompts)] for _ in range(steps)]
    splits = [0] if way == "local" else [gpus * eighth // 8 for eighth in range(1, 8)]
    return min((_mean([step(way, each, gpus, split, rates) for each in drawn]) for split in splits), key=_seconds)


def step(way: str, drawn: list[Group], gpus: int, samplers: int, rates: Rates) -> Spent:
    """One step on the groups that were drawn, in order: those of the first GPU come first.

    Args:
        samplers: GPUs that only sample. 0 for ``local``.
    """
    tokens = sum(map(sum, drawn))
    if way == "local":
        each = len(drawn) // gpus
        own = [drawn[n : n + each] for n in range(0, len(drawn), each)]
        sampling = [rates.sampled * max(max(group) for group in part) for part in own]
        training = [rates.trained * sum(map(sum, part)) for part in own]
        seconds = max(sampling) + max(training)
        return Spent(seconds, sum(sampling) / gpus / seconds, sum(training) / gpus / seconds)
    trainers, places = gpus - samplers, len(drawn) // gpus * len(drawn[0])
    training = rates.trained * tokens / trainers
    steady = rates.sampled * tokens / (samplers * places)  # all places are taken all the time
    if way == "apart":
        sampling = rates.sampled * makespan([n for group in drawn for n in group], samplers * places)
        seconds = sampling + training
    else:
        seconds = max(steady, training)
    return Spent(seconds, samplers / gpus * steady / seconds, trainers / gpus * training / seconds)


def makespan(lengths: Sequence[int], places: int) -> int:
    """When the last of some jobs ends, each of which takes the place that is free first."""
    ends = [0] * min(places, len(lengths))
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def _mean(steps: list[Spent]) -> Spent:
    """Of seconds, and of shares by the seconds that they are of."""
    seconds = sum(each.seconds for each in steps)
    shares = [sum(getattr(s, name) * s.seconds for s in steps) / seconds for name in ("sampling", "training")]
    return Spent(seconds / len(steps), *shares)


def _seconds(spent: Spent) -> float:
    return spent.seconds


if __name__ == "__main__":
    main()
