"""Prints hints before a run begins: unused keys, sizes that do not fit."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.settings import prompts_per_step
from qwenvl.console import say
from qwenvl.data.records.parse import media_hints, record_hints, unread_keys_of, unread_text
from qwenvl.data.records.record_file import all_or_spot_checked, spot_checked, without_bad_rows
from qwenvl.data.timeline_hints import record_timeline, unread_times
from qwenvl.failure import counted, printable
from qwenvl.types import Hint, Record


def first_look(dataset: Any, columns: Collection[str] | None, rewards: Collection[str] = ()) -> None:
    """Print the hints of ``qwenvl data check`` about records and their keys, as far as no media are decoded.

    All records that are in memory are looked at, and a few of a larger file.

    Args:
        columns: the fields of records that the rewards read. None: a warm-up, after which rewards read others.
        rewards: their names. Empty: a warm-up.
    """
    records: Sequence[Record] = getattr(dataset, "records", ())
    if not records or os.environ.get("RANK", "0") != "0":
        return
    found: dict[Hint, list[str]] = defaultdict(list)
    every = list(records if isinstance(records, list) else spot_checked(records))
    bad = [record for record in every if record.problem]
    if bad:
        say(f"left out: {len(bad):,} of {len(every):,} rows can't be read, the first is {bad[0].problem}")
    good = list(without_bad_rows(every))
    text_alone = sum(not record.videos and not record.images for record in good)
    for hint in media_hints(len(good), text_alone):
        say(f"worth a look: {hint.message}")
    unread = unread_keys_of(good, columns) if columns is not None else {}
    if unread:
        say(f"worth a look: {unread_text(unread, len(good))}")
    looked = list(without_bad_rows(spot_checked(records)))
    if rewards:
        for hint in unread_times(sum(bool(record_timeline(record)) for record in looked), len(looked), rewards):
            say(f"worth a look: {hint.message}")
    for record in looked:
        for hint in record_hints(record):
            found[hint].append(record.where)
    for hint, places in found.items():
        where = f"{len(places)} of {len(looked)} records looked at, the first is {places[0]}"
        say(printable(f"worth a look: {hint.message} ({where})"))  # a message may name all keys of a row


def size_warnings(args: GRPOConfig, train: Any, evaluation: Any) -> Iterator[str]:
    """Warnings about settings that would waste a run: numbers that do not fit the data, evaluations without a meaning.

    Args:
        train, evaluation: data sets, several by name to evaluate on, or None.

    Raises:
        ValueError: the run would have no step.
    """
    if train is not None:
        yield from _of_training(args, len(train))
    for name, each in (evaluation if isinstance(evaluation, dict) else {"eval": evaluation}).items():
        if each is None:
            continue
        if len(each) == 1:
            yield f"the evaluation {name!r} is of 1 record: a score without an interval tells little; give more"
        questions = _questions(each)
        shared = len(questions & _questions(train))
        if shared:
            yield (
                f"{shared} of {len(questions)} questions of the evaluation {name!r} are trained on too: its scores do "
                "not say what the model makes of others; give records of their own (--eval_dataset_use)"
            )


def _of_training(args: GRPOConfig, records: int) -> Iterator[str]:
    """Warnings about a number of records that does not fit the steps."""
    batch = args.per_device_train_batch_size
    processes = args.world_size
    if args.dataloader_drop_last and records < batch * processes:
        raise ValueError(
            f"--dataloader_drop_last leaves nothing to train on: {records} records are less than a batch of {batch} in "
            f"each of {processes} processes; leave it out, or lower --per_device_train_batch_size"
        )
    step = prompts_per_step(args)
    if records < step:
        yield (
            f"{records} records are less than a step of {step} prompts (--per_device_train_batch_size {batch}, "
            f"--gradient_accumulation_steps {args.gradient_accumulation_steps}, {processes} processes): each epoch is "
            f"{counted(args.num_iterations, 'step')}; lower one of them"
        )
    steps = args.max_steps
    if steps <= 0:
        steps = math.ceil(args.num_train_epochs * math.ceil(records / step) * args.num_iterations)
    if args.warmup_steps >= max(2, steps):
        yield (
            f"--warmup_steps {args.warmup_steps:g}: the run has {steps} steps and ends at "
            f"{steps / args.warmup_steps:.0%} of its learning rate; lower it, below 1 for a share of all steps"
        )


def _questions(dataset: Any) -> set[int]:
    """Hashes of the questions and media of a data set's records."""
    records: Sequence[Record] = getattr(dataset, "records", ())
    return {record.question_hash for record in all_or_spot_checked(records)}
