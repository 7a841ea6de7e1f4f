"""One flag: a dataclass field with the text that ``--help`` and ``docs/flags.md`` show."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def flag(default: Any, help: str, unset: str | None = None, **parser_options: Any) -> Any:
    """A dataclass field with help text; ``unset`` says what a default of None comes to mean."""
    text = help if unset is None else f"{help} Unset: {unset}."
    return field(default=default, metadata={"help": text.replace("%", "%%"), **parser_options})  # argparse expands %
