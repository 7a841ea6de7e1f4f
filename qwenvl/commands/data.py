"""``qwenvl data check | convert | from-folder``: examine, convert and create data sets."""

from __future__ import annotations

from collections.abc import Sequence

from qwenvl.config.flags import FlagParser
from qwenvl.data.errors import told_to_the_user
from qwenvl.inspection import check, convert, from_folder

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
