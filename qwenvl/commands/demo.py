"""``qwenvl demo``: a tiny Qwen-VL model learns by GRPO to name the steps of assembly videos."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from qwenvl.data.errors import told_to_the_user
from qwenvl.demo.clips import make_labelled_folder
from qwenvl.demo.run import Demo, LookDemo, TimelineDemo, run_demo, show_result
from qwenvl.model.families import FAMILIES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo in the place of an earlier one, show its result and return the exit status."""
    parser = argparse.ArgumentParser(prog="qwenvl demo", description=__doc__)
    of_folder = f"runs/{Demo.folder_name}, {LookDemo.folder_name} or {TimelineDemo.folder_name}"
    folder = f"where everything goes, in the place of an earlier demo [{of_folder}]"
    parser.add_argument("--output_dir", type=Path, help=folder)
    parser.add_argument("--seed", type=int, default=0, help="of clips, weights and sampling [%(default)s]")
    plain = Demo.defaults
    look = LookDemo.defaults
    timed = TimelineDemo.defaults
    steps = f"{plain.steps}, of Qwen3.5 {plain.linear_steps}, with --look {look.steps}, with --timeline {timed.steps}"
    parser.add_argument("--steps", type=int, help=f"optimizer steps of GRPO [{steps}]")
    clips = f"{plain.clips}, with --look {look.clips}, with --timeline {timed.clips}"
    parser.add_argument("--clips", type=int, help=f"training clips, at least 8; more are held out [{clips}]")
    families = f"{plain.family}, with --look {look.family}, with --timeline {timed.family}"
    parser.add_argument("--family", choices=tuple(FAMILIES), help=f"of the model [{families}]")
    tasks = parser.add_mutually_exclusive_group()
    of_look = "clips of a minute, of which the model sees four frames: it learns to look at the second in question"
    tasks.add_argument("--look", dest="kind", action="store_const", const=LookDemo, help=of_look)
    of_timeline = "clips of 12 seconds with three steps: it learns to say which step is shown from when to when"
    tasks.add_argument("--timeline", dest="kind", action="store_const", const=TimelineDemo, help=of_timeline)
    parser.set_defaults(kind=Demo)
    only = "write ten clips, steps.txt, labels.csv and question.txt, as a user has them, and train nothing"
    parser.add_argument("--only-data", action="store_true", help=only)
    args = parser.parse_args(argv)
    args.output_dir = args.output_dir or Path("runs", args.kind.folder_name)
    if args.only_data:
        of_a_run = (args.steps, args.clips, args.family)
        if args.kind is not Demo or any(each is not None for each in of_a_run):
            parser.error("--only-data trains nothing: leave out --steps, --clips, --family, --look and --timeline")
        with told_to_the_user("qwenvl demo"):
            make_labelled_folder(args.output_dir, seed=args.seed)
        print(f"{args.output_dir}: clips/ with ten clips, steps.txt, labels.csv, question.txt")
        return 0
    if (args.steps is not None and args.steps < 1) or (args.clips is not None and args.clips < 8):
        parser.error("expected --steps of at least 1 and --clips of at least 8, a batch")
    demo = args.kind.of(
        args.output_dir.resolve(),
        seed=args.seed,
        steps=args.steps,
        clips=args.clips,
        family=args.family,
    )
    with told_to_the_user("qwenvl demo", errors=(OSError,)):
        run_demo(demo)
    show_result(demo)
    return 0
