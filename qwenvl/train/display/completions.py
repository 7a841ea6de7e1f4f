"""One prompt with all its completions on standard error, now and then during a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import TrainerCallback

from qwenvl.failure import visible
from qwenvl.runlog import Rollout
from qwenvl.train.display.console import say
from qwenvl.train.journal import Journal, rollout_rows

LONGEST = 240  # characters of a text


def group_lines(group: Sequence[Rollout]) -> Iterator[str]:
    """The prompt, the solution, and each completion with its advantage, rewards and tokens, the best first."""
    first = group[0]
    question = next((message["text"] for message in reversed(first.prompt) if message["role"] == "user"), "")
    yield f"step {first.step}: {first.record_id}  {first.where}"
    yield from (f"  {name}: {_shortened(text)}" for name, text in (("prompt", question), ("solution", first.solution)))
    for row in sorted(group, key=lambda row: -(row.advantage or 0.0)):
        rewards = {"reward": row.total, **row.rewards}
        numbers = ", ".join(f"{name} {'none' if each is None else f'{each:.3g}'}" for name, each in rewards.items())
        cut = ", cut off" if row.finish_reason == "length" else ""
        yield f"  {row.advantage or 0.0:+.2f}  {numbers}, {row.tokens} tokens{cut}: {_shortened(row.completion)}"


def _shortened(text: str) -> str:
    """A text in one line. Of a longer one the middle is left out: its end has the answer."""
    text = visible(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


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
            groups = [rows[n : n + args.grpo_sample_size] for n in range(0, len(rows), args.grpo_sample_size)]
            if groups:
                say("\n".join(group_lines(max(groups, key=_spread))))
        self._first = False


def _spread(group: Sequence[Rollout]) -> float:
    totals = [each.total for each in group if each.total is not None]
    return max(totals) - min(totals) if totals else -1.0
