"""``qwenvl report``: the report of runs, or of an evaluation, as a folder of pages that needs no network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.other_names import unknown_flag
from qwenvl.inspection.run_report import MOST_PICTURES, RewardsReading, add_pictures, make_report
from qwenvl.run_log.log import NUMBERS, RunLogError
from qwenvl.run_log.report.evaluation import write_evaluation
from qwenvl.run_log.report.write import ReportError


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
        written = write_evaluation(args.run[0], out, RewardsReading()) if evaluations else make_report(args.run, out)
    except (RunLogError, ReportError) as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename or out}: {error.strerror}; give another folder with --out")
    print(f"wrote {written.page}; open it in a browser")
    summary = add_pictures(written, args.pictures)
    if summary:
        print(summary)
    return 0


def _failed(message: str) -> int:
    print(f"qwenvl report: {message}", file=sys.stderr)
    return 2


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("expected a whole number of at least 0")
    return number
