"""``qwenvl evaluate MODEL [MODEL2 ...] DATA``: what models are worth on held-out records, and whether they look."""

from __future__ import annotations

from collections.abc import Sequence

from qwenvl.evaluate.command import run_command
from qwenvl.evaluate.settings import EvaluationRequest, evaluation_request
from qwenvl.train.display.console import say

COMMAND = "qwenvl evaluate"


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, and print the table. Status 1 for bad data, 2 for a bad command line."""
    return run_command("evaluate", argv, evaluation_request, _run)


def _run(request: EvaluationRequest) -> str:
    """Evaluate alone in the folder. "" in all processes but the first."""
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.evaluate.evaluation import evaluate
    from qwenvl.train.card import update_cards
    from qwenvl.train.run.lock import locked

    process = request.config.process_index
    with locked(request.output_dir, process):
        shown = evaluate(COMMAND, request)
        if process == 0 and request.options.update_card:
            with told_to_the_user(COMMAND):
                written, without = update_cards(request.output_dir)
            for card in written:
                say(f"wrote the numbers into {card}")
            for model in without:
                say(f"{model} has no model card to write into")
    return shown
