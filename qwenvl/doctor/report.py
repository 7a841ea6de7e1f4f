"""``qwenvl report``: what became of runs, as a folder of pages that opens without a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from qwenvl.report.run import read_runs
from qwenvl.report.write import ReportError, Written, write_report
from qwenvl.rewards.functions.text import answer_of, solution_of
from qwenvl.runlog import RunLogError


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and say where it is. Ends with status 2 where a folder is none of a run."""
    args = _parser().parse_args(argv)
    out = args.out or args.run[0] / "report"
    try:
        written = make_report(args.run, out)
    except (RunLogError, ReportError) as error:
        print(f"qwenvl report: {error}", file=sys.stderr)
        return 2
    print(f"wrote {written.page}; open it in a browser")
    return 0


def make_report(folders: Sequence[Path], out: Path) -> Written:
    """Read the runs and write their report."""
    return write_report(read_runs(folders), out, read_answer)


def read_answer(completion: str, solution: str) -> tuple[str | None, str]:
    """What a completion answers, None without an answer, and what the solution says, as the rewards read them."""
    return answer_of(completion), solution_of(solution)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qwenvl report", description=__doc__)
    parser.add_argument("run", type=Path, nargs="+", help="the output_dir of a run; several are laid over each other")
    parser.add_argument("--out", type=Path, help="the folder to write [report in the folder of the first run]")
    return parser
