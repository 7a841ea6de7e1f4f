"""``qwenvl probe MODEL DATA``: what training would have to work with, before its first step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from qwenvl.evaluate.command import MODEL, PASSES, About, run_command
from qwenvl.evaluate.options import ProbeOptions
from qwenvl.evaluate.requests import ProbeRequest, probe_request
from qwenvl.evaluate.settings import PROBE_GROUPS
from qwenvl.failure import harmless
from qwenvl.files import written_whole

ABOUT = About(
    usage="qwenvl probe MODEL DATA [--samples 8] [--limit 200] [--flag of training value ...]\n"
    "       qwenvl probe run.yaml",
    own=ProbeOptions,
    groups=PROBE_GROUPS,
    description="Sample completions for the prompts of a training run before its first step: are some right, do they "
    "differ, are they whole? A group whose completions are all right or all wrong teaches nothing. "
    f"{MODEL}. DATA is what --dataset_use takes. {PASSES}",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, and print the numbers with their verdict. Status 1 for bad data, 2 for a bad command line."""
    return run_command("probe", argv, probe_request, _run, ABOUT)


def _run(request: ProbeRequest) -> str:
    from qwenvl.evaluate.probe_verdict import judged
    from qwenvl.evaluate.probing import NUMBERS, probe
    from qwenvl.run_lock import locked

    folder = request.options.output_dir
    with nullcontext() if folder is None else locked(folder):
        found = judged(probe(request), request)
        written = json.dumps(found.as_json(), indent=1, ensure_ascii=False)
        if folder is not None:
            with written_whole(Path(folder) / NUMBERS) as file:
                file.write_text(written + "\n", encoding="utf-8")
    return written if request.options.json else harmless(found.table())
