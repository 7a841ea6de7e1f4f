"""The best completions of a run, as targets (rejection sampling, arXiv:2308.01825)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from qwenvl.data.dataset import GRPODataset
from qwenvl.runlog import Rollout, read_rollouts
from qwenvl.train.display.console import say
from qwenvl.types import Record


class Asked(NamedTuple):
    """By what a record is known again in the rollouts of a run: it may lie in another folder by now."""

    record_id: str
    prompt: tuple[tuple[str, str], ...]
    solution: str

    @classmethod
    def by(cls, record: Record) -> Asked:
        """Of a record."""
        return cls(record.id, tuple((message.role, message.text) for message in record.messages), record.solution)

    @classmethod
    def of(cls, rollout: Rollout) -> Asked:
        """Of a completion."""
        return cls(rollout.record_id, tuple((turn["role"], turn["text"]) for turn in rollout.prompt), rollout.solution)


class RolloutTargets:
    """The best completions of a run for each record, training's and its evaluations'.

    A completion that was cut at the length limit is none of them: it has no end that could be taught.

    Args:
        folder: of the run.
        min_reward: least total reward.
        most: completions for each prompt.

    Raises:
        ValueError: the folder has no completion that is good enough. The message says what it has.
    """

    def __init__(self, folder: str, min_reward: float, most: int) -> None:
        self.folder = folder
        rollouts = list(read_rollouts(folder, split=None))
        self._best = best_completions(rollouts, min_reward, most)
        if not self._best:
            raise ValueError(f"--from_rollouts {folder}: {_nothing(rollouts, min_reward)}")
        taken = sum(map(len, self._best.values()))
        say(f"{folder}: {taken} different completions at or above reward {min_reward:g}, for {len(self._best)} prompts")

    def check_record(self, record: Record) -> None:
        """Any record will do. Those without a completion are left out by ``narrow``."""

    def of(self, record: Record, opened_think: bool) -> list[str]:
        """The completions of a record. They go on from its prompt already."""
        return self._best.get(Asked.by(record), [])

    def narrow(self, dataset: Any, flag: str) -> GRPODataset:
        """The data set without the records that have no completion here.

        Args:
            flag: that names the data set, for errors.

        Raises:
            TypeError: a data set of another library.
            ValueError: no record is left.
        """
        if not isinstance(dataset, GRPODataset):
            raise TypeError(f"--from_rollouts needs a GRPODataset, as load_dataset makes it, got {type(dataset)}")
        narrowed = dataset.narrowed(lambda record: Asked.by(record) in self._best)
        if not len(narrowed):
            asked = next(iter(self._best))
            raise ValueError(
                f"{flag}: none of its {len(dataset):,} records is one that {self.folder} has a good enough completion "
                f"of, such as id {asked.record_id}. Records are known by id, prompt and solution: give the run's data "
                "and its flags --columns, --system and --prompt_template"
            )
        say(f"{flag}: {len(narrowed):,} of {len(dataset):,} records have such a completion, the others are left out")
        return narrowed


def best_completions(rollouts: Iterable[Rollout], min_reward: float, most: int) -> dict[Asked, list[str]]:
    """For each prompt the texts with the highest rewards, the latest first where rewards are equal.

    Args:
        min_reward: least total reward.
        most: texts of a prompt. Equal texts count once.
    """
    groups: dict[Asked, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.total is not None and rollout.total >= min_reward and rollout.finish_reason == "stop":
            groups.setdefault(Asked.of(rollout), []).append(rollout)
    best = {}
    for asked, group in groups.items():
        ranked = sorted(group, key=lambda rollout: (-rollout.total, -rollout.step, rollout.sample))
        best[asked] = list(dict.fromkeys(rollout.completion for rollout in ranked))[:most]
    return best


def _nothing(rollouts: list[Rollout], min_reward: float) -> str:
    """Why none of these completions can be learned from."""
    totals = [rollout.total for rollout in rollouts if rollout.total is not None]
    if not rollouts:
        return "no completions lie there; is it the --output_dir of a run?"
    if not totals:
        return f"none of its {len(rollouts):,} completions has a reward"
    if max(totals) < min_reward:
        return (
            f"none of its {len(rollouts):,} completions has a reward at or above --min_reward {min_reward:g}: the best "
            f"was {max(totals):g}"
        )
    cut = sum(total >= min_reward for total in totals)
    return f"all {cut:,} completions at or above --min_reward {min_reward:g} were cut at the length limit"
