"""Run the demo on several seeds and print a table. It ends with status 1 where one of them did not clearly learn.

    python scripts/bench/demo_seeds.py                    # seeds 0 to 4, a few minutes each
    python scripts/bench/demo_seeds.py --seeds 3 7 --steps 200 --family qwen3_5
    python scripts/bench/demo_seeds.py --look             # the demo in which a model learns to look again
    python scripts/bench/demo_seeds.py --timeline         # the demo of timelines, with F1@50

Each seed has its own clips, random weights, warm-up, order and sampling. A seed that was run before with the same
settings is not run again. "Clearly" means: the 95 % interval of the total reward on held-out clips lies above the one
from before GRPO, above what a model can get without looking, and above those of the trained model on blank and on
foreign clips, or without its look and with a look at another second.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from qwenvl.demo.run import MARK, Demo, LookDemo, TimelineDemo, run_demo
from qwenvl.model.families import FAMILIES
from qwenvl.run_log.log import AS_IT_IS, read_evaluation


class Score(NamedTuple):
    """Mean rewards of one evaluation."""

    total: float  # weighted sum of format and accuracy
    low: float  # its 95 % interval
    high: float
    exact: float  # share of the clips whose steps were named exactly; of timelines F1@50


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="optimizer steps of GRPO [as many as the demo takes]")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="of the model [that of the demo]")
    tasks = parser.add_mutually_exclusive_group()
    look = "the demo in which a model learns to look again"
    tasks.add_argument("--look", dest="kind", action="store_const", const=LookDemo, help=look)
    tasks.add_argument("--timeline", dest="kind", action="store_const", const=TimelineDemo, help="that of timelines")
    parser.set_defaults(kind=Demo)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo_seeds"))
    args = parser.parse_args(argv)
    task = args.kind.folder_name.removeprefix("demo").removeprefix("_")  # none, look or timeline
    folder = (args.output_dir / task).resolve()
    name = f"{args.family or 'default'}-{args.steps or 'default'}"
    demos: list[Demo] = [
        args.kind.of(folder / name / f"seed-{seed}", seed=seed, steps=args.steps, family=args.family)
        for seed in args.seeds
    ]
    lines, unclear = [], []
    for seed, demo in zip(args.seeds, demos, strict=True):
        mark = demo.folder / MARK
        if not (mark.is_file() and "minutes" in mark.read_text()):
            run_demo(demo)
        scores = scores_of(demo)
        lines.append(line(demo, seed, scores, json.loads(mark.read_text())["minutes"]))
        if not clear(demo, *scores):
            unclear.append(seed)
    print("\n" + "\n".join([*heading(demos[0]), *lines]))
    if unclear:
        print(f"\nnot clearly learned: seeds {unclear}")
    return 1 if unclear else 0


def scores_of(demo: Demo) -> list[Score]:
    """The model before GRPO, after it, and after it under each control."""
    found = {(each["model"], each["control"]): each for each in read_evaluation(demo.evaluation)["numbers"]}
    keys = [(demo.model.name, AS_IT_IS), *((demo.run.name, control) for control in (AS_IT_IS, *demo.controls))]
    scores = []
    for key in keys:
        numbers = found[key]
        total = numbers["scores"]["total"]
        of_timelines = isinstance(demo, TimelineDemo)
        exact = numbers["timelines"]["scores"]["f1@50"] if of_timelines else numbers["scores"]["passes"]
        scores.append(Score(total["mean"], total["low"], total["high"], exact["mean"]))
    return scores


def clear(demo: Demo, before: Score, after: Score, *controls: Score) -> bool:
    """Whether ``after`` is above everything that it must be above. With the evidence given it need not be."""
    _, blind, _ = demo.best_without_looking
    lower = [each for name, each in zip(demo.controls, controls, strict=True) if name != "evidence"]
    return after.low > max(blind, *(each.high for each in (before, *lower)))


def heading(demo: Demo) -> list[str]:
    columns = ["seed", "before", f"after {demo.steps} steps", *(f"with {control}" for control in demo.controls)]
    if isinstance(demo, TimelineDemo):
        columns += ["F1@50, before", "after", *(f"with {control}" for control in demo.controls)]
    else:
        columns += ["right, before", "after"]
    columns.append("minutes")
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def line(demo: Demo, seed: int, scores: list[Score], minutes: float) -> str:
    totals = [f"{score.total:.2f} ± {(score.high - score.low) / 2:.2f}" for score in scores]
    if isinstance(demo, TimelineDemo):
        exact = [f"{score.exact:.2f}" for score in scores]
    else:
        exact = [f"{score.exact:.0%}" for score in scores[:2]]
    return f"| {' | '.join([str(seed), *totals, *exact, f'{minutes:.1f}'])} |"


if __name__ == "__main__":
    sys.exit(main())
