"""``qwenvl probe MODEL DATA``: what training would have to work with, before its first step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qwenvl.evaluate.settings import USAGE, help_text, settings_of
from qwenvl.files import written_whole
from qwenvl.train.display.console import ends_at_ctrl_c, say

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.evaluate.answers import Answers
    from qwenvl.evaluate.facts import Facts, Group, Question
    from qwenvl.evaluate.options import ProbeOptions
    from qwenvl.rewards import Rubric
    from qwenvl.runlog import RunLog

COMMAND = "qwenvl probe"
FACTS = "probe.json"
SPLIT = "probe"  # of the rows in the folder


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the model, print what was found and what to do. Ends with status 1 for bad data, 2 for a bad command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text())
        return 0
    with ends_at_ctrl_c(COMMAND):
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.train.run.failures import told_in_one_line

        with told_in_one_line(COMMAND, None):
            return start(argv)


def start(argv: Sequence[str]) -> int:
    """Read the settings, probe, and print the table or the numbers."""
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.evaluate.table import table
    from qwenvl.evaluate.verdict import next_command, verdict
    from qwenvl.model.loading import base_of_adapter
    from qwenvl.rewards.options import RewardOptions
    from qwenvl.rollout.options import SamplingOptions
    from qwenvl.train.run.lock import RunFolderError, locked

    try:
        config, options, words = settings_of(argv)
    except ValueError as error:
        print(f"usage: {USAGE}\nerror: {error}", file=sys.stderr)
        return 2
    folder = nullcontext() if options.output_dir is None else locked(options.output_dir)
    with redirect_stdout(sys.stderr), told_to_the_user(COMMAND, (RunFolderError,)), folder:
        facts = probe(config, options)
        findings = verdict(facts, SamplingOptions.of(config), RewardOptions.of(config))
        command = next_command(findings, words, config, base_of_adapter(facts.question.model))
        summary = facts.summary() | {"verdict": [asdict(finding) for finding in findings], "next": command}
        if options.output_dir is not None:
            with written_whole(Path(options.output_dir) / FACTS) as file:
                file.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1, ensure_ascii=False) if options.json else table(facts, findings, command))
    return 0


def probe(config: GRPOConfig, options: ProbeOptions) -> Facts:
    """The numbers of a model on a data set. With an ``output_dir`` every completion is written there as it comes."""
    from qwenvl.data.errors import DATA_ERRORS, RecordError, told_to_the_user
    from qwenvl.evaluate.answers import build_answers
    from qwenvl.evaluate.facts import facts_of
    from qwenvl.rewards import RewardError
    from qwenvl.train.assemble import build_rewards

    with told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):  # names, files, flags, packages
        rubric = build_rewards(config, None, None)
        question = question_of(config, options, rubric)
        if options.output_dir is not None:
            require_folder_of_a_probe(Path(options.output_dir))
        answers = build_answers(config, rubric, samples=question.samples, limit=options.limit)
    log = None if options.output_dir is None else begun(Path(options.output_dir), config)
    with told_to_the_user(COMMAND, (*DATA_ERRORS, RewardError)):
        began = time.perf_counter()
        groups = list(asked(answers, log))
        seconds = {"all": time.perf_counter() - began, **answers.seconds()}
        rubric.close()
        if not groups:
            raise RecordError(f"all {len(answers)} records were left out; the first: {answers.left_out[0].error}")
        return facts_of(question, groups, answers.left_out, seconds)


def question_of(config: GRPOConfig, options: ProbeOptions, rubric: Rubric) -> Question:
    """What is asked, and which reward says what passes.

    Raises:
        ValueError: no reward, or one that no completion or every completion passes.
    """
    from qwenvl.evaluate.facts import Question
    from qwenvl.evaluate.passing import reward_that_passes

    return Question(
        model=str(config.model_name_or_path),
        data=str(config.dataset_use),
        samples=options.samples or max(8, config.grpo_sample_size),
        group_size=config.grpo_sample_size,
        pass_by=reward_that_passes(rubric, options, config.reward_aggregation),
        pass_at=options.pass_at,
        temperature=config.generation_temperature,
    )


def require_folder_of_a_probe(folder: Path) -> None:
    """Refuse a folder that holds files which no probe wrote.

    Raises:
        FileExistsError: naming it.
    """
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


def begun(folder: Path, config: GRPOConfig) -> RunLog:
    """The folder of a probe with its settings in it. What an earlier probe wrote there is replaced."""
    from qwenvl.runlog import RunLog

    (folder / FACTS).unlink(missing_ok=True)
    log = RunLog(folder)
    log.begin()
    log.write_config({**config.to_dict(), "command": COMMAND})
    return log


def asked(answers: Answers, log: RunLog | None) -> Iterator[Group]:
    """The group of each prompt, told of as they come and written to ``log``."""
    from qwenvl.evaluate.facts import groups_of
    from qwenvl.evaluate.progress import told
    from qwenvl.train.log.journal import rollout_rows

    for experience in told(answers, len(answers)):
        if log is not None:
            log.log_rollouts(rollout_rows(0, SPLIT, experience.batch, experience.rollout, experience.rewards))
        yield from groups_of(experience, answers.entropies(experience))
