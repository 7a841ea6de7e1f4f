"""``qwenvl evaluate MODEL [MODEL2 ...] DATA``: what models are worth, and whether they look."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from qwenvl.evaluate.held_out.settings import USAGE, help_text, settings_of
from qwenvl.failure import tell, tells_errors_once
from qwenvl.train.display.console import ends_at_ctrl_c, say

COMMAND = "qwenvl evaluate"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the models, print the table. Ends with status 1 for bad data, 2 for a bad command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text())
        return 0
    with tells_errors_once(), ends_at_ctrl_c(COMMAND):
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.train.run.failures import told_in_one_line

        with told_in_one_line(COMMAND, None):
            return start(argv)


def start(argv: Sequence[str]) -> int:
    """Read the settings, evaluate alone in the folder, and print the table or the numbers."""
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.evaluate.held_out.evaluation import evaluate
    from qwenvl.train.run.lock import RunFolderError, locked

    try:
        asked = settings_of(argv)
    except (ValueError, FileNotFoundError) as error:
        tell(f"usage: {USAGE}\nerror: {error}")
        return 2
    process = asked.config.process_index
    with redirect_stdout(sys.stderr), told_to_the_user(COMMAND, (RunFolderError,)), locked(asked.output_dir, process):
        shown = evaluate(COMMAND, asked)
        if process == 0 and asked.options.update_card:
            told_of_cards(asked.output_dir)
    if process == 0:
        print(shown)
    return 0


def told_of_cards(folder: Path) -> None:
    """Write the numbers into the cards of the models, and say which."""
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.train.card.evaluated import update_cards
    from qwenvl.train.display.console import say

    with told_to_the_user(COMMAND):
        written, without = update_cards(folder)
    for card in written:
        say(f"wrote the numbers into {card}")
    for model in without:
        say(f"{model} has no model card to write into")
