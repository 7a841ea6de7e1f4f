"""The table of the presets, and which of them a row is read by."""

from __future__ import annotations

import difflib
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.presets.asking import with_form
from qwenvl.data.records.presets.benchmarks import BENCHMARKS
from qwenvl.data.records.presets.chats import CHATS
from qwenvl.data.records.presets.grounding import GROUNDING
from qwenvl.data.records.presets.label_studio import LABEL_STUDIO
from qwenvl.data.records.presets.preset import Preset, Row
from qwenvl.data.records.presets.questions import QUESTIONS
from qwenvl.data.records.schemas import draft_of

OURS = "qwenvl"
"""The name that stands for our own forms, with which nothing is guessed."""

PRESETS: dict[str, Preset] = CHATS | QUESTIONS | BENCHMARKS | GROUNDING | LABEL_STUDIO


def check_name(name: str) -> None:
    """Check that a preset is one of the table, or ``OURS``.

    Raises:
        ValueError: it is not. The message lists what there is.
    """
    if name not in PRESETS and name != OURS:
        near = difflib.get_close_matches(name.lower(), PRESETS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"--format: no format {name!r}; {meant}known: {OURS}, {', '.join(PRESETS)}")


def how_read(name: str, read_as: str) -> str:
    """The line that says by which preset a data set is read, where it was guessed."""
    fitting = " or ".join(PRESETS[read_as].rewards)
    return (
        f"{name}: read as {read_as} ({PRESETS[read_as].summary}); rewards that fit: {fitting}; --format says otherwise"
    )


def guessed(row: Any, where: str) -> str | None:
    """The name of the preset that a row is written by. None for one of our own rows, and for one that none fits.

    Raises:
        RecordError: several fit.
    """
    if not isinstance(row, dict):
        return None
    try:
        draft_of(row, where)
    except RecordError:
        fitting = [name for name, preset in PRESETS.items() if preset.fits(row)]
    else:
        return None
    special = [name for name in fitting if not PRESETS[name].generic] or fitting
    if len(special) > 1:
        raise RecordError(
            f"{where}: the row may be read as {' or as '.join(special)}; say which by --format {special[0]} or "
            f"--format {special[1]}"
        )
    return special[0] if special else None


def our_row(preset: Preset, name: str, row: Row, where: str, form: bool = True) -> Row:
    """One of our rows, made by a preset.

    Args:
        form: a prompt that is made of a question also says in which form to answer.

    Raises:
        RecordError: the row is not of this form.
    """
    try:
        made = preset.row(row)
    except ValueError as error:
        raise RecordError(f"{where}: read as {name}: {error}") from None
    if form and isinstance(made.get("prompt"), str):
        made["prompt"] = with_form(made["prompt"], made["problem_type"])
    return made
