"""Reward functions that end a process of a run in the midst of a step, for ``run/test_launch.py``."""

import os
import signal


def lives(completions, **columns):
    """Nothing ends here."""
    return [0.0] * len(completions)


def killed(completions, **columns):
    """Process 1 dies without a word."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return [0.0] * len(completions)


def killed_once(completions, trainer_state, **columns):
    """Process 1 dies in the second step, unless it has died so before."""
    if os.environ["RANK"] == "1" and trainer_state.global_step == 1 and "DIED" in os.environ:
        try:
            os.mkdir(os.environ["DIED"])
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return [len(set(text)) / 10 for text in completions]


def ctrl_c(completions, **columns):
    """Both processes are interrupted, as torchrun does it at Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    return [0.0] * len(completions)
