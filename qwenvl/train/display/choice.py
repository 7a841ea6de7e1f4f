"""Which display a run has: the board, a bar, plain lines or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from transformers import Trainer
from transformers.trainer_callback import ProgressCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.rollout.options import LIVE_COMPLETIONS_EVERY
from qwenvl.train.display.completions import ShownCompletions, say_beside_bars
from qwenvl.train.display.console import say, shows_bars
from qwenvl.train.display.live import LiveBoard
from qwenvl.train.display.progress import ProgressBar, ProgressLines
from qwenvl.train.log.doing import WithinStep
from qwenvl.train.log.journal import Journal

Display = Literal["bar", "rich", "plain", "none"]

CALLBACKS = {"bar": ProgressBar, "rich": LiveBoard, "plain": ProgressLines}


def display_of(args: GRPOConfig) -> Display:
    """What the flags and the terminal come to. Where there is no terminal, or one that only prints, lines are plain."""
    if args.display == "none" or (args.display is None and args.disable_tqdm):
        return "none"
    if not shows_bars():
        return "plain"
    wanted = args.display or "rich"
    return "plain" if wanted == "rich" and os.environ.get("TERM") in ("dumb", "unknown") else wanted


def install_display(trainer: Trainer, journal: Journal) -> None:
    """Puts the display in the place of the library's own bar."""
    display = display_of(trainer.args)
    trainer.remove_callback(ProgressCallback)
    if display == "none":
        return
    every = trainer.args.log_completions_every
    if every is None:
        every = LIVE_COMPLETIONS_EVERY if display == "rich" else 0
    if every:
        trainer.add_callback(ShownCompletions(journal, every, say_beside_bars if display == "bar" else say))
    shown = CALLBACKS[display]()
    trainer.add_callback(WithinStep(shown, trainer.doing))  # before it: its step ends first
    trainer.add_callback(shown)


@contextmanager
def display_closed(trainer: Trainer) -> Iterator[None]:
    """End what is drawn when an error leaves the block, so that its message has lines of its own."""
    try:
        yield
    except BaseException:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, LiveBoard | ProgressBar | WithinStep):
                callback.close()
        raise
