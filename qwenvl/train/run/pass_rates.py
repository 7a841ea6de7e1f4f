"""The pass rate of each record: the same on all processes, in the checkpoints and in the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.difficulty import Difficulty
from qwenvl.files import written_whole
from qwenvl.option import row_of
from qwenvl.rewards import Rubric
from qwenvl.train.collect.scored import Scored
from qwenvl.train.run.resume import SettingsError
from qwenvl.train.step import Experience
from qwenvl.types import TOTAL, PromptBatch, RewardBatch

FILE = "difficulty.jsonl"


class PassRates(TrainerCallback, ExportableState):
    """Keeps ``Difficulty`` the same on all processes, in each checkpoint, and for the user in ``difficulty.jsonl``.

    Args:
        difficulty: gets the rewards of the groups of each step.
        by: the reward that the pass rate is the mean of, ``total`` or the name of a function.
        measure: takes the name and the value of a metric.

    Raises:
        SettingsError: when training begins, if it resumes from a checkpoint without pass rates.
    """

    nothing: ClassVar[dict[str, Any]] = {"args": {}, "attributes": {"records": "{}"}}

    def __init__(self, difficulty: Difficulty, by: str, measure: Callable[[str, float], None]):
        self.difficulty = difficulty
        self._by = by
        self._measure = measure
        self._epoch = 0
        self._seen: list[tuple[int, str, list[float]]] = []

    def saw(self, experience: Experience) -> None:
        """Note the groups that this process sampled for a micro-batch, dropped ones included."""
        groups: list[Experience | Scored] = [experience, *experience.dropped]
        for each in groups:
            self._saw(each.batch, each.rewards)

    def _saw(self, batch: PromptBatch, rewards: RewardBatch) -> None:
        values = rewards.totals() if self._by == TOTAL else rewards.components[rewards.names.index(self._by)]
        size = len(values) // max(1, len(batch))
        for p, record in enumerate(batch.records):
            known = [value for value in values[p * size : (p + 1) * size] if value is not None]
            self._seen.append((record.index, record.where, known))
            self._measure("difficulty/outside_frac", float(self.difficulty.outside(record.index, self._epoch)))

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint."""
        return {"args": {}, "attributes": {"records": self.difficulty.state()}}

    def on_train_begin(self, args, state, control, **kwargs):
        """A resumed run has the pass rates of its checkpoint, a new one has none."""
        kept = state.stateful_callbacks.get(type(self).__name__) if state.global_step else self.nothing
        if kept is None:
            raise SettingsError(
                "--difficulty_band: the checkpoint has no pass rates, and the steps that are done were drawn without: "
                "leave the flag out, or begin a new run with the checkpoint's weights: --start_from_weights"
            )
        self.difficulty.load(kept["attributes"]["records"])
        self._seen = []
        state.stateful_callbacks[type(self).__name__] = self.state()  # an earlier checkpoint may have none
        self._write(args, state)

    def on_step_begin(self, args, state, control, **kwargs):
        """Note the epoch of the step. When the step ends it may be the next one."""
        self._epoch = int(state.epoch or 0)

    def on_step_end(self, args, state, control, **kwargs):
        """Add the groups of all processes to the pass rates, in the same order everywhere."""
        for seen in gather_object([self._seen]):
            for index, where, rewards in seen:
                self.difficulty.add(self._epoch, index, rewards, where)
        self._seen = []

    def on_epoch_end(self, args, state, control, **kwargs):
        """Write the pass rates that the next epoch is drawn by."""
        self._write(args, state)

    def on_save(self, args, state, control, **kwargs):
        """Write the pass rates of the checkpoint."""
        self._write(args, state)

    def _write(self, args: Any, state: Any) -> None:
        if state.is_world_process_zero:
            with written_whole(Path(args.output_dir) / FILE) as partial:
                lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in self.difficulty.rows())
                partial.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def build_pass_rates(
    args: GRPOConfig, dataset: Dataset | None, rubric: Rubric, measure: Callable[[str, float], None]
) -> PassRates | None:
    """The pass rates with ``--difficulty_band``, else None.

    Args:
        dataset: of training. None without training.

    Raises:
        ValueError: there is no such reward, or the data set can't be drawn from by number.
    """
    band = row_of(args, "difficulty_band")
    if band is None or dataset is None:
        return None
    if not isinstance(dataset, GRPODataset):
        raise ValueError("--difficulty_band needs a GRPODataset, as load_dataset makes it")
    by = band.name or ("accuracy" if "accuracy" in rubric.names else TOTAL)
    require_reward("difficulty_band", by, rubric.names)
    return PassRates(Difficulty(band.arguments), by, measure)


def require_reward(flag: str, name: str, functions: tuple[str, ...]) -> None:
    """Raise ValueError where ``name`` is neither ``total`` nor one of the reward functions."""
    if name not in (TOTAL, *functions):
        raise ValueError(f"--{flag} {name}: no such reward in this run; give one of {', '.join((TOTAL, *functions))}")
