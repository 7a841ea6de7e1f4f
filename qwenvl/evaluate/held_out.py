"""``qwenvl evaluate MODEL [MODEL2 ...] DATA``: what models are worth on held-out records, and whether they look."""

from __future__ import annotations

from collections.abc import Sequence

from qwenvl.evaluate.command import run_command
from qwenvl.evaluate.settings import EvaluationRequest, evaluation_request

COMMAND = "qwenvl evaluate"


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, and print the table. Status 1 for bad data, 2 for a bad command line."""
    return run_command("evaluate", argv, evaluation_request, _run)


def _run(request: EvaluationRequest) -> str:
    """Evaluate alone in the folder. "" in all processes but the first."""
    from qwenvl.evaluate.evaluation import evaluate
    from qwenvl.train.run.lock import locked

    with locked(request.output_dir, request.config.process_index):
        return evaluate(COMMAND, request)
