"""``qwenvl probe MODEL DATA``: what training would have to work with, before its first step."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from qwenvl.evaluate.command import run_command
from qwenvl.evaluate.settings import ProbeRequest, probe_request
from qwenvl.files import written_whole

COMMAND = "qwenvl probe"
NUMBERS = "probe.json"
SPLIT = "probe"  # of the rows in the folder


def main(argv: Sequence[str] | None = None) -> int:
    """Sample, and print the numbers with their verdict. Status 1 for bad data, 2 for a bad command line."""
    return run_command("probe", argv, probe_request, _run)


def _run(request: ProbeRequest) -> str:
    from qwenvl.evaluate.probe_results import next_command, table, verdict
    from qwenvl.model.loading import base_of_adapter
    from qwenvl.rewards.options import RewardOptions
    from qwenvl.rollout.options import SamplingOptions
    from qwenvl.train.run.lock import locked

    config, options = request.config, request.options
    with nullcontext() if options.output_dir is None else locked(options.output_dir):
        numbers = probe(request)
        findings = verdict(numbers, SamplingOptions.of(config), RewardOptions.of(config))
        command = next_command(findings, request, base_of_adapter(str(config.model_name_or_path)))
        shown = [{"name": each.code, "words": each.message, "flags": each.flags} for each in findings]
        numbers |= {"verdict": shown, "next": command}
        written = json.dumps(numbers, indent=1, ensure_ascii=False)
        if options.output_dir is not None:
            with written_whole(Path(options.output_dir) / NUMBERS) as file:
                file.write_text(written + "\n", encoding="utf-8")
    return written if options.json else table(numbers)


def probe(request: ProbeRequest) -> dict[str, Any]:
    """The numbers of a model on a data set. With ``--output_dir`` every completion is written there as it comes."""
    from qwenvl.data.errors import DATA_ERRORS, RecordError, told_to_the_user
    from qwenvl.evaluate.probe_results import groups_of, numbers_of
    from qwenvl.evaluate.respondent import ProbeAnswers, pass_reward, with_progress
    from qwenvl.rewards import RewardError
    from qwenvl.runlog import RunLog
    from qwenvl.train.assemble import build_rewards
    from qwenvl.train.journal import rollout_rows

    config, options = request.config, request.options
    log = None if options.output_dir is None else RunLog(options.output_dir)
    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        samples = options.samples or max(8, config.grpo_sample_size)
        question = {
            "model": str(config.model_name_or_path),
            "data": str(config.dataset_use),
            "samples": samples,
            "group_size": config.grpo_sample_size,
            "pass_by": pass_reward(rubric, options),
            "pass_at": options.pass_at,
            "temperature": config.generation_temperature,
        }
        if log is not None:
            _refuse_foreign(log.folder)
        answers = ProbeAnswers(config, rubric, samples=samples, limit=options.limit)
    if log is not None:  # what an earlier probe wrote is replaced
        (log.folder / NUMBERS).unlink(missing_ok=True)
        log.begin()
        log.write_config({**config.to_dict(), "command": COMMAND})
    with told_to_the_user(COMMAND, (*DATA_ERRORS, RewardError)):
        began, groups = time.perf_counter(), []
        for experience in with_progress(answers, len(answers)):
            if log is not None:
                log.log_rollouts(rollout_rows(0, SPLIT, experience.batch, experience.rollout, experience.rewards))
            groups += groups_of(experience, answers.entropies(experience))
        seconds = {"all": time.perf_counter() - began, **answers.seconds()}
        rubric.close()
        if not groups:
            raise RecordError(f"all {len(answers)} records were left out; the first: {answers.left_out[0].error}")
        return numbers_of(question, groups, answers.left_out, seconds)


def _refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds files which no probe wrote."""
    from qwenvl.runlog import RunLogError, read_config
    from qwenvl.train.run.lock import NAME

    if folder.is_dir() and {each.name for each in folder.iterdir()} - {NAME}:
        try:
            by_probe = read_config(folder)["config"].get("command") == COMMAND
        except (RunLogError, KeyError):
            by_probe = False
        if not by_probe:
            raise FileExistsError(
                f"--output_dir {folder}: holds files that no probe wrote; give a new folder or that of an earlier probe"
            )
