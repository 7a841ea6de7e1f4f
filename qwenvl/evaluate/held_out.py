"""An evaluation on held-out records, from the command line to the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qwenvl.evaluate.command import MODEL, PASSES, About, run_command
from qwenvl.evaluate.options import EvaluateOptions
from qwenvl.evaluate.requests import EvaluationRequest, evaluation_request
from qwenvl.evaluate.settings import EVALUATION_GROUPS
from qwenvl.failure import harmless

ABOUT = About(
    usage="qwenvl evaluate MODEL [MODEL2 ...] DATA [--controls all] [--samples 8] [--flag of training value ...]",
    own=EvaluateOptions,
    groups=EVALUATION_GROUPS,
    description="Evaluate models on held-out records, with the frames, prompts, parsers and rewards of training. "
    f"{MODEL}. DATA is what --dataset_use takes, without weights. Further models are compared with the first record by "
    "record. Settings are those of the run that the last MODEL comes from, or of --config FILE; flags override both. "
    f"{PASSES}",
)


def evaluate_held_out(argv: Sequence[str] | None = None) -> int:
    """Evaluate, and print the table. Status 1 for bad data, 2 for a bad command line."""
    return run_command("evaluate", argv, evaluation_request, _run, ABOUT)


def _run(request: EvaluationRequest) -> str:
    """Evaluate, with the folder locked, and return the text to print: "" in all processes but the first."""
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.evaluate.evaluation import Evaluation
    from qwenvl.evaluate.results_table import table
    from qwenvl.run_lock import locked
    from qwenvl.run_log.log import NUMBERS
    from qwenvl.step.assemble import build_rewards

    process = request.config.process_index
    with locked(request.folder, process):
        with told_to_the_user("qwenvl evaluate", (ValueError, OSError, ImportError)):  # names, files, flags, packages
            evaluation = Evaluation(request, build_rewards(request.config, None, None))
            evaluation.resume()
        evaluation.run()
    if process != 0:
        return ""
    if request.options.json:
        return Path(request.folder, NUMBERS).read_text(encoding="utf-8").rstrip()
    return harmless(table(evaluation.found, request.folder))
