"""A terminal in memory: what a program wrote, as the lines that a person sees."""

import io
import re

from transformers import TrainerState

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|.", re.DOTALL)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_screen(written: str) -> list[str]:
    """The lines that a terminal shows, which goes back to the beginning of a line, and a line up, where it is told."""
    lines, row, column = [""], 0, 0
    for token in CODES.findall(written):
        if token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif token == "\r":
            column = 0
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            lines[row] = ""
        elif not token.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def state_of(step: int = 0, steps: int = 4) -> TrainerState:
    """The state of a run at a step, of the first process."""
    return TrainerState(is_world_process_zero=True, max_steps=steps, global_step=step)
