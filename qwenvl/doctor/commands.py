"""``qwenvl data check | convert | from-folder``, and ``qwenvl preview``: examine, convert and create data sets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.command_line import tell_otherwise
from qwenvl.config.flags import FlagParser
from qwenvl.data.errors import told_to_the_user
from qwenvl.doctor import check, convert, from_folder
from qwenvl.doctor.flags import add_dataset_flags, add_frame_flags, check_flags
from qwenvl.tools.options import ToolOptions

COMMANDS = {
    "check": (check, "decode every record, say what is wrong; exit code 1 if anything is"),
    "convert": (convert, "write the records of any format as JSON or JSON lines"),
    "from-folder": (from_folder, "write the records of a folder of clips"),
}
"""Each command: its module, with ``add_arguments(parser)`` and ``run(args)``, and its help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` begins with. Return 1 when the data are bad, 2 when the command is."""
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


def preview(argv: Sequence[str] | None = None) -> int:
    """Write the page and print its path. Ends with status 1 when the data are bad, 2 when the command is."""
    about = "Write an offline HTML page of what the model will see of a data set."
    own = FlagParser(prog="qwenvl preview", description=about)
    add_dataset_flags(own)
    add_frame_flags(own)
    own.add_options(ToolOptions, without={"max_turns", "look_tokens"})
    own.add_argument("--n", type=int, default=8, help="records to show, spread over the data set (8)")
    own.add_argument("--epoch", type=int, default=0, help="whose frames to draw where sampling is dynamic (0)")
    own.add_argument("--seed", type=int, default=42, help="run seed of the draw (42, as in training)")
    own.add_argument("--out", default="preview.html", help="the page to write (preview.html)")
    args = own.parse_args(argv)
    with told_to_the_user("qwenvl preview"):
        check_flags(args)
        if args.model is not None:
            tell_otherwise(args.model, argparse.Namespace(**vars(args), on_long_prompt="error"))
        # With torch, which neither --help nor a wrong command line waits for.
        from qwenvl.doctor.preview import page_of

        page = page_of(args)
        Path(args.out).write_text(page, encoding="utf-8")
    print(f"wrote {args.out} ({len(page) / 1e6:.1f} MB); open it in a browser")
    return 0
