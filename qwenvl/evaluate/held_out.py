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
    """Evaluate, with the folder locked, and return the text to print: "" in all processes but the first."""
    from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
    from qwenvl.evaluate.evaluation import Evaluation
    from qwenvl.evaluate.results import table
    from qwenvl.rewards import RewardError
    from qwenvl.runlog import NUMBERS, RunLogError
    from qwenvl.train.assemble import build_rewards
    from qwenvl.train.display.console import settle_output
    from qwenvl.train.run.lock import locked

    settle_output()
    process = request.config.process_index
    with locked(request.output_dir, process):
        with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
            evaluation = Evaluation(request, build_rewards(request.config, None, None))
            evaluation.resume()
        with told_to_the_user(COMMAND, (*DATA_ERRORS, RewardError, RunLogError)):
            evaluation.run()
    if process != 0:
        return ""
    if request.options.json:
        return (request.output_dir / NUMBERS).read_text(encoding="utf-8").rstrip()
    return table(evaluation.found, request.output_dir)
