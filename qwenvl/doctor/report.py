"""``qwenvl report``: the report of runs, or of an evaluation, as a folder of pages that needs no network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.flags import FLAG_GROUPS, describe, unknown_flag
from qwenvl.report.evaluation import write_evaluation
from qwenvl.report.run import read_runs
from qwenvl.report.write import ReportError, Written, write_pictures, write_report
from qwenvl.rewards.functions.text import answer_of, solution_of
from qwenvl.runlog import NUMBERS, RunLogError, plain

MOST_PICTURES = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="+",
        help="the output_dir of a run; several are laid over each other. Or that of one evaluation",
    )
    parser.add_argument("--out", type=Path, help="the folder to write [report in the folder of the first run]")
    parser.add_argument(
        "--pictures",
        type=_count,
        default=MOST_PICTURES,
        help="clips and images to decode for thumbnails, at least 0, the newest first; those of earlier calls are kept "
        "and do not count [%(default)s]",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print its path.

    Returns 2 if a folder is not that of a run.
    """
    parser = argparse.ArgumentParser(prog="qwenvl report", description=__doc__)
    add_arguments(parser)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flag(unknown[0], ("out", "pictures")))
    out = args.out or args.run[0] / "report"
    evaluations = [each for each in args.run if (each / NUMBERS).is_file()]
    try:
        if evaluations and len(args.run) > 1:
            raise ReportError(f"{evaluations[0]}: an evaluation has a page of its own: give its folder alone")
        written = write_evaluation(args.run[0], out, read_answer) if evaluations else make_report(args.run, out)
    except (RunLogError, ReportError) as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename or out}: {error.strerror}; give another folder with --out")
    print(f"wrote {written.page}; open it in a browser")
    if summary := add_pictures(written, args.pictures):
        print(summary)
    return 0


def _failed(message: str) -> int:
    print(f"qwenvl report: {message}", file=sys.stderr)
    return 2


def make_report(folders: Sequence[Path], out: Path) -> Written:
    """Read the runs and write their report, with the pictures that it has already."""
    defaults = {name: default for group in FLAG_GROUPS for name, _, default, _ in describe(group)}
    return write_report(read_runs(folders), out, read_answer, plain(defaults))


def read_answer(completion: str, solution: str) -> tuple[str | None, str]:
    """The answer of a completion, None without one, and the solution's, as the rewards read them."""
    return answer_of(completion), solution_of(solution)


def add_pictures(written: Written, most: int = MOST_PICTURES) -> str:
    """Decode at most ``most`` clips and images for the pages of a written report. Return a line about them, or none."""
    if not most or not written.strips:
        return ""
    try:
        from qwenvl.doctor.pictures import make_pictures
    except ImportError as error:  # a report is also read where nothing is trained
        return f"without pictures of the frames: {error}"
    pictures = make_pictures(written.strips, written.folder / "pictures", most)
    write_pictures(written.folder, pictures)
    bad = sum("problem" in each for each in pictures.values())
    summary = f"with pictures of {len(pictures) - bad:,} of {len(written.strips):,} clips and images"
    summary += f"; {bad:,} can't be shown, each with its reason on the page" if bad else ""
    return summary + ("; another call makes more" if len(pictures) < len(written.strips) else "")


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError("expected a whole number of at least 0")
    return number
