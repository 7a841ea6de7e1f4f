"""The difference of two runs on their held-out records, paired record by record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qwenvl.run_log.evaluation_numbers import interval_text
from qwenvl.run_log.intervals import clustered_interval, clusters_by
from qwenvl.run_log.report.pages import GroupRow, mean
from qwenvl.run_log.run import finite

TRAIN = "train"  # the split of the groups that were trained on


@dataclass(frozen=True)
class HeldOutDifference:
    """The mean total reward of a run minus that of another, on the held-out records that both have answered.

    Attributes:
        evaluation: its name, such as ``eval``.
        before, after: the names of the runs. The difference is that of ``after`` minus ``before``.
        steps: after which each of them was evaluated, the last time.
        records: that both have answered.
        difference: the mean over records.
        low, high: the ends of its 95 % interval, a bootstrap over records that share no clip or image. None where all
            records share one.
    """

    evaluation: str
    before: str
    after: str
    steps: tuple[int, int]
    records: int
    difference: float
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """The difference with its interval."""
        return interval_text({"mean": self.difference, "low": self.low, "high": self.high}, signed=True)


Rows = Sequence[GroupRow]  # the groups of a run


def held_out_differences(names: Sequence[str], rows: Sequence[Rows]) -> Iterator[HeldOutDifference]:
    """Each further run against the first, in every evaluation that both have.

    Args:
        names: of the runs.
        rows: the groups of each run.
    """
    first = {name: last_answers(rows[0], name) for name in evaluations_in(rows[0])}
    for number in range(1, len(names)):
        for evaluation in evaluations_in(rows[number]):
            if evaluation not in first:
                continue
            difference = difference_of(
                evaluation=evaluation,
                before=names[0],
                after=names[number],
                rows_before=first[evaluation],
                rows_after=last_answers(rows[number], evaluation),
            )
            if difference is not None:
                yield difference


def evaluations_in(rows: Rows) -> list[str]:
    """The names of the evaluations that groups are of."""
    return list(dict.fromkeys(row.split for row in rows if row.split != TRAIN))


def last_answers(rows: Rows, evaluation: str) -> list[GroupRow]:
    """The groups of the last time that an evaluation ran."""
    answers = [row for row in rows if row.split == evaluation]
    last = max(row.step for row in answers)
    return [row for row in answers if row.step == last]


def difference_of(
    evaluation: str, before: str, after: str, rows_before: Rows, rows_after: Rows
) -> HeldOutDifference | None:
    """The difference of two runs in an evaluation. None where no record has a reward in both.

    Args:
        before, after: the names of the runs.
        rows_before, rows_after: their answers, see ``last_answers``.
    """
    rewards_before = rewards_by_record(rows_before)
    rewards_after = rewards_by_record(rows_after)
    both = [record for record in rewards_before if record in rewards_after]
    if not both:
        return None
    # A record without media depends on no other one, so its place stands for its clip.
    media = {(row.record, row.where): row.media or (row.where,) for row in rows_before}
    clusters = clusters_by({record: media[record] for record in both})
    gains = [rewards_after[record] - rewards_before[record] for record in both]
    interval = clustered_interval(gains, [clusters[record] for record in both])
    low, high = finite([interval.low, interval.high])
    return HeldOutDifference(
        evaluation=evaluation,
        before=before,
        after=after,
        steps=(rows_before[0].step, rows_after[0].step),
        records=len(both),
        difference=interval.mean,
        low=low,
        high=high,
    )


def rewards_by_record(rows: Rows) -> dict[tuple[str, str], float]:
    """The mean total reward of each record that has one, by its id and place."""
    values: dict[tuple[str, str], list[float | None]] = {}
    for row in rows:
        values.setdefault((row.record, row.where), []).append(row.mean)
    means = {record: mean(own) for record, own in values.items()}
    return {record: value for record, value in means.items() if value is not None}
