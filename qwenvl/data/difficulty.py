"""How often each record was solved in earlier epochs, and how often it is therefore drawn in the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from qwenvl.data.options import DifficultyArguments
from qwenvl.data.seeds import stable_random

_FINE = 2**32


@dataclass
class _Epoch:
    """What came of a record in one epoch: times that it was drawn, and the sum of its completions' rewards."""

    number: int
    times: int = 0
    total: float = 0.0
    completions: int = 0


@dataclass
class _History:
    """The last epochs in which a record was drawn, and how often it was drawn in those before."""

    where: str = ""
    before: int = 0
    epochs: list[_Epoch] = field(default_factory=list)


class Difficulty:
    """Pass rates of records, and which records lie outside of the band in which there is something to learn.

    The pass rate of a record is the mean reward of its completions over the last ``window`` epochs in which it was
    drawn. All numbers for an epoch depend on earlier epochs alone: a run that is resumed in the midst of an
    epoch draws the rest of it as the run before would have.

    Args:
        arguments: the band, the window and the weight.

    Example:
        >>> difficulty = Difficulty(DifficultyArguments(low=0.1, high=0.9))
        >>> difficulty.add(epoch=0, index=7, rewards=[1.0, 1.0])
        >>> difficulty.outside(7, epoch=0), difficulty.outside(7, epoch=1)
        (False, True)
    """

    def __init__(self, arguments: DifficultyArguments):
        self.low, self.high = arguments.low, arguments.high
        self.window, self.weight = arguments.window, arguments.weight
        self._records: dict[int, _History] = {}

    def add(self, epoch: int, index: int, rewards: Sequence[float], where: str = "") -> None:
        """A record was drawn in an epoch, and its completions had these rewards (those that have one).

        Args:
            where: the file and place of the record, for the user.
        """
        history = self._records.setdefault(index, _History(where))
        if not history.epochs or history.epochs[-1].number != epoch:
            history.epochs.append(_Epoch(epoch))
        latest = history.epochs[-1]
        latest.times += 1
        latest.total += sum(rewards)
        latest.completions += len(rewards)
        if len(history.epochs) > self.window + 1:  # the current one, and the window before it
            history.before += history.epochs.pop(0).times

    def pass_rate(self, index: int, epoch: int) -> float | None:
        """The mean reward of a record's completions in the window before an epoch. None where it has none."""
        earlier = [each for each in self._earlier(index, epoch) if each.completions][-self.window :]
        completions = sum(each.completions for each in earlier)
        return sum(each.total for each in earlier) / completions if completions else None

    def outside(self, index: int, epoch: int) -> bool:
        """Whether a record is drawn less in an epoch. One without a pass rate is not."""
        rate = self.pass_rate(index, epoch)
        return rate is not None and not self.low <= rate <= self.high

    def times(self, index: int, epoch: int) -> int:
        """How often a record was drawn before an epoch."""
        history = self._records.get(index)
        return 0 if history is None else history.before + sum(each.times for each in self._earlier(index, epoch))

    def draws(self, seed: int, epoch: int, start: int, size: int, count: int) -> dict[int, int]:
        """How often each record of ``range(start, start + size)`` is drawn where an epoch has ``count`` draws of them.

        A record outside of the band has ``weight`` times the draws of one inside. What is left of whole numbers falls
        to records by (seed, epoch), so that none is left out for good. Where all are outside, nothing changes.
        """
        records = range(start, start + size)
        outside = [index for index in records if self.outside(index, epoch)]
        inside = [index for index in records if not self.outside(index, epoch)]
        draw = stable_random(seed, "difficulty", epoch, start)
        share = count * self.weight * len(outside) / (len(inside) + self.weight * len(outside))
        rounded = int(share) + (draw.randrange(_FINE) < (share - int(share)) * _FINE)
        times = {}
        for indices, number in ((inside, count - rounded), (outside, rounded)):
            each, more = divmod(number, max(1, len(indices)))
            once_more = set(draw.sample(indices, more))
            times.update({index: each + (index in once_more) for index in indices})
        return times

    def state(self) -> str:
        """All of it as text."""
        records = {
            index: [history.where, history.before, [astuple(each) for each in history.epochs]]
            for index, history in self._records.items()
        }
        return json.dumps(records, separators=(",", ":"))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One record each, as the user is shown it: its pass rate by now, and whether it is drawn less."""
        for index, history in sorted(self._records.items()):
            now = history.epochs[-1].number + 1
            yield {
                "where": history.where,
                "pass_rate": self.pass_rate(index, now),
                "outside": self.outside(index, now),
                "drawn": self.times(index, now),
                "epochs": {e.number: e.total / e.completions if e.completions else None for e in history.epochs},
            }

    def load(self, state: str) -> None:
        """Takes over what ``state`` gave."""
        self._records = {
            int(index): _History(where, before, [_Epoch(*each) for each in epochs])
            for index, (where, before, epochs) in json.loads(state).items()
        }

    def _earlier(self, index: int, epoch: int) -> list[_Epoch]:
        history = self._records.get(index)
        return [] if history is None else [each for each in history.epochs if each.number < epoch]
