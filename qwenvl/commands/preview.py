"""``qwenvl preview DATA``: an offline page of what the model will see of a data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qwenvl.config.command_line import tell_otherwise
from qwenvl.config.flags import FlagParser, wants_help
from qwenvl.data.errors import told_to_the_user
from qwenvl.data.options import RUN_SEED, DecodingOptions, FrameOptions, ReadingOptions, SizeOptions
from qwenvl.data.tool_options import ToolOptions
from qwenvl.files import check_new, written_whole
from qwenvl.inspection.flags import NOT_OF_A_LOOK, ProcessorOptions, add_dataset_flags, add_frame_flags, check_flags
from qwenvl.option import Options, option

USUAL = {
    "n": "records to show, spread over the data set",
    "out": "the page to write",
    "model": "a checkpoint: prompts are made with its processor, and their tokens counted",
    "format": "form of the rows, where it is not recognized",
    "columns": "names of columns of others, as prompt=question,solution=answer",
    "allow_outside_media": "records may name media outside of their folder",
    "base_interval": "seconds between the frames of a clip",
    "video_fps": "or frames per second",
    "video_min_frames": "fewest frames of a clip",
    "video_max_frames": "most frames of a clip",
    "video_max_frame_pixels": "most pixels of a frame",
    "max_prompt_length": "longest prompt in tokens (with --model)",
    "fit_frames": "show less where a prompt would be longer",
}
"""The flags of a usual preview, each with its line of help."""


@dataclass
class PreviewOptions(Options):
    """The page."""

    n: int = option(8, "Records to show, at least 1, spread over the data set.", least=1)
    epoch: int = option(0, "Epoch whose frames are drawn where sampling is dynamic.", least=0)
    seed: int = option(RUN_SEED, "Run seed of the draw, as in training.", least=0)
    out: str = option("preview.html", "The page to write.")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print its path. Ends with status 1 when the data are bad, 2 when the command is."""
    argv = sys.argv[1:] if argv is None else argv
    about = "Write an offline HTML page of what the model will see of a data set. DATA is as --dataset_use."
    usage = "qwenvl preview DATA [--model MODEL] [--n 8] [--flag value ...]"
    groups = (
        PreviewOptions,
        ProcessorOptions,
        ReadingOptions,
        FrameOptions,
        DecodingOptions,
        SizeOptions,
        ToolOptions,
    )
    if wants_help(argv, usage, about, groups, USUAL, trains=False, without=NOT_OF_A_LOOK):
        return 0
    own = FlagParser(prog="qwenvl preview", description=about)
    add_dataset_flags(own)
    add_frame_flags(own)
    own.add_options(ToolOptions, without=NOT_OF_A_LOOK)
    own.add_options(PreviewOptions)
    args = own.parse_args(argv)
    with told_to_the_user("qwenvl preview"):
        PreviewOptions.of(args)  # which checks the bounds
        check_flags(args)
        _check_out(args.out)
        if args.model is not None:
            of_training = {name: getattr(ToolOptions, name) for name in NOT_OF_A_LOOK}
            tell_otherwise(args.model, argparse.Namespace(**vars(args), **of_training, on_long_prompt="error"))
        # This loads torch, for which neither --help nor a wrong command line should wait.
        from qwenvl.inspection.preview import page_of

        page = page_of(args)
        with written_whole(args.out) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    size = f"{len(page) / 1e6:.1f} MB" if len(page) >= 1e6 else f"{len(page) / 1e3:.0f} kB"
    print(f"wrote {args.out} ({size}); open it in a browser")
    return 0


GENERATOR = b'<meta name="generator" content="qwenvl">'
"""A mark near the beginning of the pages of this library."""


def _check_out(path: str) -> None:
    """Raise FileExistsError where ``--out`` names a file that is no page of this library: records, say, or a clip."""
    out = Path(path)
    if out.is_file():
        with out.open("rb") as file:
            is_ours = GENERATOR in file.read(1000)
        if is_ours:
            return
    check_new(path, "--out")
