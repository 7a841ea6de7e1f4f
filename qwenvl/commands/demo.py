"""``qwenvl demo``: a tiny Qwen-VL model learns by GRPO to name the steps of assembly videos."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from qwenvl.demo.clips import make_labelled_folder
from qwenvl.demo.run import Demo, LookDemo, run_demo, show_result
from qwenvl.model.families import FAMILIES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo in the place of an earlier one, show its result and return the exit status."""
    parser = argparse.ArgumentParser(prog="qwenvl demo", description=__doc__)
    folders = "where everything goes, in the place of an earlier demo [runs/demo, with --look runs/demo_look]"
    parser.add_argument("--output_dir", type=Path, help=folders)
    parser.add_argument("--seed", type=int, default=0, help="of clips, weights and sampling [%(default)s]")
    (steps, linear_steps, clips, family), (look_steps, _, look_clips, look_family) = Demo.defaults, LookDemo.defaults
    count = f"optimizer steps of GRPO [{steps}, of Qwen3.5 {linear_steps}, with --look {look_steps}]"
    parser.add_argument("--steps", type=int, help=count)
    count = f"training clips, at least 8; more are held out [{clips}, with --look {look_clips}]"
    parser.add_argument("--clips", type=int, help=count)
    parser.add_argument("--family", choices=tuple(FAMILIES), help=f"of the model [{family}, with --look {look_family}]")
    look = "clips of a minute, of which the model sees four frames: it learns to look at the second in question"
    parser.add_argument("--look", action="store_true", help=look)
    only = "write ten clips, steps.txt, labels.csv and question.txt, as a user has them, and train nothing"
    parser.add_argument("--only-data", action="store_true", help=only)
    args = parser.parse_args(argv)
    args.output_dir = args.output_dir or Path("runs/demo_look" if args.look else "runs/demo")
    if args.only_data:
        make_labelled_folder(args.output_dir, seed=args.seed)
        print(f"{args.output_dir}: clips/ with ten clips, steps.txt, labels.csv, question.txt")
        return 0
    if (args.steps is not None and args.steps < 1) or (args.clips is not None and args.clips < 8):
        parser.error("expected --steps of at least 1 and --clips of at least 8, a batch")
    kind = LookDemo if args.look else Demo
    demo = kind(args.output_dir.resolve(), args.seed, args.steps or 0, args.clips or 0, args.family)
    run_demo(demo)
    show_result(demo)
    return 0
