"""One prompt with all its completions on standard error, now and then during a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text
from transformers import TrainerCallback

from qwenvl.failure import visible
from qwenvl.runlog import Rollout
from qwenvl.train.display.console import say, shows_bars
from qwenvl.train.journal import Journal, rollout_rows

LINES = 2  # of each text, at most
PLAIN_WIDTH = 120  # characters, where there is no terminal

Group = Sequence[Rollout]


def widest_spread(rollouts: Sequence[Rollout]) -> Group:
    """The group with the widest spread of total rewards, the first of equal ones. Empty without groups.

    Args:
        rollouts: of one step, group after group.
    """
    groups: list[list[Rollout]] = []
    for row in rollouts:
        if row.sample == 0:
            groups.append([])
        groups[-1].append(row)

    def spread(group: Group) -> float:
        totals = [each.total for each in group if each.total is not None]
        return max(totals) - min(totals) if totals else -1.0

    return max(groups, key=spread, default=[])


def print_group(group: Group, console: Console) -> None:
    """Print the prompt, the solution, and each completion with its advantage, rewards and tokens, the best first."""
    first, width = group[0], console.width
    question = next((message["text"] for message in reversed(first.prompt) if message["role"] == "user"), "")
    title = visible(f"step {first.step}: {first.record_id}  {Path(first.where).name}")
    console.print(Rule(Text(title, overflow="ellipsis"), style="dim", align="left"))
    for name, text in (("prompt", question), ("solution", first.solution)):
        line = Text.assemble((f"{name}  ", "dim"), shortened(visible(text), LINES * width - 2 * len(name) - 8))
        console.print(Padding(line, (0, 0, 0, 1), expand=False))
    for row in sorted(group, key=lambda row: -(row.advantage or 0.0)):
        advantage = row.advantage or 0.0
        colour = "green" if advantage > 0 else "red" if advantage < 0 else "dim"
        components = ", ".join(f"{name} {_number(value)}" for name, value in row.rewards.items())
        tokens = f"{row.tokens} {'token' if row.tokens == 1 else 'tokens'}"
        cut = ", cut off" if row.finish_reason == "length" else ""
        head = ((f"{advantage:+.2f}", f"bold {colour}"), f"  reward {_number(row.total)}")
        line = Text.assemble(*head, (f"  {components}  {tokens}{cut}", "dim"))
        console.print(Padding(line, (0, 0, 0, 1), expand=False))
        text = shortened(visible(row.completion), LINES * (width - 3) - 12)
        console.print(Padding(Text(text or "(nothing)", overflow="fold"), (0, 0, 0, 3), expand=False))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def shortened(text: str, cells: int) -> str:
    """A text of at most so many columns. Of a longer one the middle is left out: its end has the answer.

    Example:
        >>> shortened("<think>a long thought</think><answer>2</answer>", 25)
        '<think>a lo ... 2</answer>'
    """
    cells = max(cells, 12)
    if cell_len(text) <= cells:
        return text
    half = (cells - 5) // 2
    head = set_cell_size(text, half).rstrip()
    tail = text[-half:]
    while cell_len(tail) > half:
        tail = tail[1:]
    return f"{head} ... {tail.lstrip()}"


class ShownCompletions(TrainerCallback):
    """Prints the group of a step with the widest spread of rewards, in the first step of this process and each n-th.

    Args:
        journal: has the experiences of the step.
        every: n.
    """

    def __init__(self, journal: Journal, every: int):
        self._journal, self._every = journal, every
        self._first = True

    def on_train_begin(self, args, state, control, **kwargs):
        """The first step is yet to come."""
        self._first = True

    def on_step_end(self, args, state, control, **kwargs):
        """One group of the first process, if it is time."""
        if state.is_world_process_zero and (self._first or state.global_step % self._every == 0):
            rows: list[Rollout] = []
            for each in (trained.experience for trained in self._journal.trained_on):
                if each is not None and len(each.batch):
                    own = (each.batch, each.rollout, each.rewards, each.advantages.tolist())
                    rows += rollout_rows(state.global_step, "train", *own)
            if group := widest_spread(rows):
                width = None if shows_bars() else PLAIN_WIDTH
                console = Console(stderr=True, width=width, markup=False, highlight=False, emoji=False)
                with console.capture() as shown:  # a console does not print above the board of another
                    print_group(group, console)
                say(shown.get().rstrip())
        self._first = False
