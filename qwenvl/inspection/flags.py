"""The flags that ``qwenvl data`` and ``qwenvl preview`` share with training, and the objects built from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qwenvl.config.flags import FlagParser
from qwenvl.console import say
from qwenvl.data.options import (
    RUN_SEED,
    DecodingOptions,
    FrameOptions,
    PromptOptions,
    ReadingOptions,
    SizeOptions,
)
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.parse import ReadOptions, record_hints
from qwenvl.data.records.presets import how_counted, how_read
from qwenvl.data.records.record_file import RecordFile
from qwenvl.model.hub import require_model
from qwenvl.option import Options, option
from qwenvl.types import Hint, Record

if TYPE_CHECKING:
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.data.prompt_length import MediaSizes


def add_dataset_flags(parser: FlagParser) -> None:
    """Add the flags that name the data set and say how its rows are read."""
    parser.add_argument("dataset", help="as --dataset_use of training: names of the catalog or paths, %%NN, :weight")
    parser.add_options(ReadingOptions)


NOT_OF_A_LOOK = ("max_turns", "look_tokens")
"""Options of tools that the commands here do not have: records are looked at, and not trained on."""


@dataclass
class ProcessorOptions(Options):
    """The model whose prompts are made."""

    model: str | None = option(
        None, "A checkpoint: make the prompts with its processor and count their tokens.", unset="no prompt is made"
    )


def add_frame_flags(parser: FlagParser) -> None:
    """Add the flags of frames and prompts, with the names and defaults of training."""
    parser.add_options(ProcessorOptions)
    for group in (FrameOptions, DecodingOptions, SizeOptions):
        parser.add_options(group)


def check_flags(args: argparse.Namespace) -> None:
    """Check that data set and model are there, and that no flag lacks its ``--model``, before torch is loaded.

    Raises:
        ValueError, OSError: the message says what is missing and what to do.
    """
    resolve_datasets(args.dataset, args.dataset_catalog)
    if args.model is not None:
        require_model(args.model)
        return
    if getattr(args, "tools", None):
        raise ValueError("--tools: give --model, whose chat template writes them into the prompt")
    if args.max_prompt_length is not None:
        raise ValueError("--max_prompt_length counts tokens: give --model, whose processor makes them")
    if args.fit_frames:
        raise ValueError("--fit_frames has no effect without --model and --max_prompt_length")


def make_collator(args: argparse.Namespace, tools: Sequence[dict[str, Any]] = ()) -> GRPOCollator | None:
    """A collator that turns a prompt that is too long into a bad sample. None without ``--model``.

    Args:
        tools: the schemas of tools that prompts offer.
    """
    check_flags(args)
    if args.model is None:
        return None
    from qwenvl.data.collator import GRPOCollator
    from qwenvl.model.loading import load_processor

    on_long_prompt = "error" if args.max_prompt_length is None else "skip"
    options = PromptOptions.of(args, on_long_prompt=on_long_prompt)
    return GRPOCollator(load_processor(args.model), options, tools=tools)


def hints_by(args: argparse.Namespace, collator: GRPOCollator | None) -> Callable[[Record, MediaSizes], list[Hint]]:
    """A function that returns the hints about a record, given the sizes of its media."""
    from qwenvl.data.hints import setting_hints, size_hints

    processor = collator and collator.processor
    options = PromptOptions.of(args, on_long_prompt="error")

    def hints_of(record: Record, media: MediaSizes) -> list[Hint]:
        return [
            *record_hints(record),
            *size_hints(media, options, processor),
            *setting_hints(media, processor),
        ]

    return hints_of


def record_files(args: argparse.Namespace) -> list[RecordFile]:
    """The record files of the data sets. Formats that were guessed are printed on standard error."""
    options = ReadOptions.of(args)
    sources = resolve_datasets(args.dataset, args.dataset_catalog)
    seed = getattr(args, "seed", RUN_SEED)
    files = [RecordFile(source, seed=seed, options=options) for source in sources]
    for file in files:
        if file.read_as is not None:
            say(how_read(file.source.name, file.read_as))
        if file.first_number is not None:
            say(how_counted(file.source.name, file.first_number))
    return files
