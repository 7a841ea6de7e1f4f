"""``qwenvl label MODEL CLIPS``: the answers of a model to many clips as a table, and as a page to correct them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from glob import glob
from pathlib import Path

from qwenvl.evaluate.command import MODEL, About, run_command
from qwenvl.evaluate.settings import EVALUATION_GROUPS, record_of, skip_bad_records
from qwenvl.failure import harmless
from qwenvl.files import is_utf8
from qwenvl.types import Record
from qwenvl.use.options import LabelOptions, UseRequest, use_request

ABOUT = About(
    usage="qwenvl label MODEL CLIPS... [--question FILE|TEXT] [--output labels.csv] [--samples 8] [--page]\n"
    "       [--flag of training value ...]",
    own=LabelOptions,
    groups=EVALUATION_GROUPS,
    description="Answer the same question about many clips, or a file of records without solutions: a table with a row "
    "per clip, and with --page a page to skim, correct and save as records for the next training. "
    f"{MODEL}. Settings are those of the run that trained the model, if that is known.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Label, and print a summary. Status 1 where no clip could be labelled, 2 for a bad command line."""
    return run_command("label", argv, label_request, _run, ABOUT)


def label_request(argv: Sequence[str], begins: bool = False) -> UseRequest:
    """The command line. See ``use_request``."""
    request = use_request(argv, LabelOptions, EVALUATION_GROUPS, "MODEL CLIPS...", begins)
    config = request.config
    output = request.options.output
    if Path(output).suffix != ".csv":
        raise ValueError(f"--output {output}: expected a path that ends in .csv")
    if config.engine_has_own_weights and config.world_size > 1:
        raise ValueError(
            f"--rollout_engine {config.rollout_engine} labels in one process: start it without torchrun or accelerate "
            "launch, and give several servers by --vllm_server"
        )
    skip_bad_records(config)
    return request


def _run(request: UseRequest) -> str:
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.run_lock import locked
    from qwenvl.run_log.log import RunLogError
    from qwenvl.use.label import Labels

    with told_to_the_user("qwenvl label", (ValueError, OSError, ImportError, RunLogError)):
        questions = questions_of(request)
        folder = Path(request.options.output).with_suffix("")
        with locked(folder, request.config.process_index, flag="--output"):
            labels = Labels(request, questions, folder)
            labels.ask()
            return harmless(labels.finish())


def questions_of(request: UseRequest) -> list[Record | ValueError]:
    """The records to answer, in the order of the table, or why one cannot be read.

    Raises:
        ValueError, OSError: there is no such clip or file, or the question is missing.
    """
    from qwenvl.data.media.source import VIDEO_SUFFIXES
    from qwenvl.data.records.catalog import resolve_datasets
    from qwenvl.data.records.record_file import RecordFile
    from qwenvl.inspection.clips import find_clips
    from qwenvl.inspection.playable import is_copy

    words = request.words
    options = request.options
    if options.question is None:
        if len(words) > 1 or Path(words[0]).is_dir() or Path(words[0]).suffix.lower() in VIDEO_SUFFIXES:
            raise ValueError(f"{words[0]}: give --question, a text or a file; without it CLIPS is one file of records")
        sources = resolve_datasets(words[0], request.config.dataset_catalog)
        found: list[Record | ValueError] = []
        for source in sources:
            for each in RecordFile(source, seed=request.config.seed, options=request.asking.reading).iterate():
                found.append(replace(each, solution="") if isinstance(each, Record) else each)
        return found
    clips: list[str] = []
    for word in words:
        if Path(word).is_dir():
            clips += [str(Path(word, clip)) for clip in find_clips(Path(word))]
            continue
        matches = [] if Path(word).exists() else sorted(glob(word, recursive=True))
        matches = [match for match in matches if not is_copy(Path(match))]
        clips += matches or [word]  # a word that is no pattern is a clip, which is refused where it is missing
    ask = partial(
        record_of, question=options.question, solution=None, asking=request.asking, options=options.choices or ()
    )
    questions: list[Record | ValueError] = []
    for clip in dict.fromkeys(clips):
        if is_utf8(clip):
            questions.append(replace(ask([clip]), id=clip, where=clip))
        else:  # no record could hold it
            questions.append(ValueError(f"the name of {clip!r} is not UTF-8, which records are in; rename it"))
    return questions
