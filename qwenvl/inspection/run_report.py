"""The report of runs with the pictures of their clips, and answers as the rewards read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.flags import describe
from qwenvl.config.settings import FLAG_GROUPS
from qwenvl.rewards.functions.text import answer_of, solution_of
from qwenvl.run_log.log import plain
from qwenvl.run_log.report.write import Written, write_pictures, write_report
from qwenvl.run_log.run import read_runs

MOST_PICTURES = 300  # that one call decodes


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
        from qwenvl.inspection.pictures import make_pictures
    except ImportError as error:  # a report is also read where nothing is trained
        return f"without pictures of the frames: {error}"
    pictures = make_pictures(written.strips, written.folder / "pictures", most)
    write_pictures(written.folder, pictures)
    bad = sum("problem" in each for each in pictures.values())
    summary = f"with pictures of {len(pictures) - bad:,} of {len(written.strips):,} clips and images"
    summary += f"; {bad:,} can't be shown, each with its reason on the page" if bad else ""
    return summary + ("; another call makes more" if len(pictures) < len(written.strips) else "")
