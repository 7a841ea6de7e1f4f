"""Makes the report of runs with the pictures of their clips, and answers as the rewards read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from qwenvl.config.flags import describe
from qwenvl.config.settings import FLAG_GROUPS, WARMUP_GROUPS
from qwenvl.config.trainer_settings import TrainerSettings
from qwenvl.rewards.functions.actions import list_of_turns
from qwenvl.rewards.functions.text import answer_of, solution_of
from qwenvl.rewards.functions.timelines import matches, overlaps, read_pair
from qwenvl.rewards.table import about_a_timeline
from qwenvl.run_log.log import plain
from qwenvl.run_log.report.timelines import FOUND_AT, Messages, ReadTimelines
from qwenvl.run_log.report.write import Written, write_pictures, write_report
from qwenvl.run_log.run import read_runs
from qwenvl.timeline import timeline_in

MOST_PICTURES = 300  # clips and images that one call decodes


def make_report(folders: Sequence[Path], out: Path) -> Written:
    """Read the runs and write their report, with the pictures that it has already."""
    defaults: dict[str, Any] = {}
    for setting in fields(TrainerSettings):
        defaults[setting.name] = None if setting.default is MISSING else setting.default
    for group in (*WARMUP_GROUPS, *FLAG_GROUPS):
        defaults |= {name: default for name, _, default, _ in describe(group)}
    return write_report(read_runs(folders), out, RewardsReading(), plain(defaults))


class RewardsReading:
    """Reads completions and solutions as the rewards do. See ``qwenvl.run_log.report.timelines.Reading``."""

    def answer(self, completion: str) -> str | None:
        """The answer of a completion, or None where it has no answer."""
        return answer_of(completion)

    def solution(self, solution: str) -> str:
        """The content of the answer block of a solution, or the whole solution without such a block."""
        return solution_of(solution)

    def timelines(
        self, prompt: Messages, completion: str, solution: str, rewards: Mapping[str, float | None]
    ) -> ReadTimelines | None:
        """The timelines of a completion and its solution, merged as the rewards see them. None where they are none."""
        if not has_spans(solution):
            return None
        named, true = read_pair(answer_of(completion) or "", solution_of(solution), list_of_turns(prompt))
        if not about_a_timeline(true, rewards):
            return None
        best = overlaps(named, true).max(axis=1).tolist() if named else []
        found = dict(matches(FOUND_AT, named, true))
        return ReadTimelines(named, true, best, found)


@lru_cache(maxsize=256)
def has_spans(solution: str) -> bool:
    """Whether a solution has spans. The completions of a group share theirs, and most runs ask for no timeline."""
    return bool(timeline_in(solution_of(solution)))


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
    if bad:
        summary += f"; {bad:,} can't be shown, each with its reason on the page"
    if len(pictures) < len(written.strips):
        summary += "; another call makes more"
    return summary
