"""``qwenvl data check | convert | from-folder``: examine, convert and create data sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qwenvl.config.flags import FlagParser, wants_help
from qwenvl.data.errors import told_to_the_user
from qwenvl.data.options import DecodingOptions, FrameOptions, ReadingOptions, SizeOptions
from qwenvl.inspection import check, convert, from_folder
from qwenvl.inspection.flags import ProcessorOptions
from qwenvl.inspection.options import CheckOptions

COMMANDS = {
    "check": (check, "decode every record, say what is wrong; exit code 1 if anything is"),
    "convert": (convert, "write the records of any format as JSON or JSON lines"),
    "from-folder": (from_folder, "write the records of a folder of clips"),
}
"""Each command: its module, with ``add_arguments(parser)`` and ``run(args)``, and its help."""


USUAL_OF_CHECK = {
    "model": "a checkpoint: prompts are made with its processor, and their tokens counted",
    "reward_funcs": "rewards that must be able to score the solutions",
    "format": "form of the rows, where it is not recognized",
    "columns": "names of columns of others, as prompt=question,solution=answer",
    "allow_outside_media": "records may name media outside of their folder",
    "base_interval": "seconds between the frames of a clip",
    "video_fps": "or frames per second",
    "video_max_frames": "most frames of a clip",
    "max_prompt_length": "longest prompt in tokens (with --model)",
    "write_clean": "a file for the good records",
    "jobs": "clips that are decoded at the same time",
    "json": "print the report as JSON",
}
"""The flags of a usual check, each with its line of help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` begins with. Return 1 when the data are bad, 2 when the command is."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == "check":
        usage = "qwenvl data check DATA [--model MODEL] [--reward_funcs NAME ...] [--flag value ...]"
        about = "Decode every record and say what is wrong. DATA is as --dataset_use. Exit code 1 if a record is bad."
        groups = (CheckOptions, ProcessorOptions, ReadingOptions, FrameOptions, DecodingOptions, SizeOptions)
        if wants_help(argv[1:], usage, about, groups, USUAL_OF_CHECK, trains=False):
            return 0
    args = parser().parse_args(argv)
    with told_to_the_user(f"qwenvl data {args.command}"):
        return COMMANDS[args.command][0].run(args)


def parser() -> FlagParser:
    """The parser of all commands."""
    whole = FlagParser(prog="qwenvl data", description="Examine, convert and create data sets.")
    commands = whole.add_subparsers(dest="command", required=True)
    for name, (module, purpose) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=purpose))
    return whole
