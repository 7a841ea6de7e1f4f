"""Shows what the policy writes while a run goes on: now and then one prompt with all its completions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from tqdm.auto import tqdm
from transformers import TrainerCallback

from qwenvl.train.display.completions import PLAIN_WIDTH, group_text, widest_spread
from qwenvl.train.display.console import say, shows_bars
from qwenvl.train.log.journal import Journal, rollout_rows
from qwenvl.train.step import TrainedOn


class ShownCompletions(TrainerCallback):
    """Writes the group of a step whose rewards differ most, of the first step that this run makes and of each n-th.

    Args:
        journal: knows what the step was trained on.
        every: n.
        write: puts lines on the screen.
    """

    def __init__(self, journal: Journal, every: int, write: Callable[[str], None] = say):
        self._journal, self._every, self._write = journal, every, write
        self._first = True

    def on_train_begin(self, args, state, control, **kwargs):
        """The first step is yet to come."""
        self._first = True

    def on_step_end(self, args, state, control, **kwargs):
        """One group of the first process, if it is time."""
        if state.is_world_process_zero and (self._first or state.global_step % self._every == 0):
            experiences = [each.experience for each in self._journal.trained_on if isinstance(each, TrainedOn)]
            rows = [
                row
                for each in experiences
                if len(each.batch)
                for row in rollout_rows(
                    state.global_step, "train", each.batch, each.rollout, each.rewards, each.advantages.tolist()
                )
            ]
            if group := widest_spread(rows):
                colours = shows_bars()
                width = shutil.get_terminal_size().columns if colours else PLAIN_WIDTH
                self._write(group_text(group, width, colours))
        self._first = False


def say_beside_bars(text: str) -> None:
    """Write lines on standard error while bars are cleared, which are drawn again below."""
    tqdm.write(text, file=sys.stderr)
