"""The commands that a command prints: they are collected from its output, and run as a user would paste them."""

from __future__ import annotations

import re
import shlex

from qwenvl.cli import main

# A command stands alone on its line, behind a word that says what it is for, or behind the number of a step.
_LINE = re.compile(r"^(?:\[\d+/\d+\] (?:does it look\? )?|\s*(?:next|look|again)\s+|\s+)(\S*qwenvl [a-z].*)$", re.M)


def commands_in(text: str) -> list[str]:
    """The commands among the lines of an output, in their order."""
    return _LINE.findall(text)


def paste(command: str, *more: str) -> None:
    """Run a command as a shell would: comments are left out. What trains is told to end before the first step."""
    words = shlex.split(command, comments=True)[1:]
    dry = ["--dry_run"] if words[0] in ("train", "warmup") else []
    assert len({word for word in words if word.startswith("--")}) == sum(word.startswith("--") for word in words)
    try:
        status = main([*words, *more, *dry])
    except SystemExit as end:
        status = end.code
    assert not status, command
