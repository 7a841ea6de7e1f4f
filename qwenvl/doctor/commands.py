"""``qwenvl data check | convert | from-folder``: examine, convert and create data sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qwenvl.config.flags import FlagParser
from qwenvl.data.errors import told_to_the_user
from qwenvl.doctor import check, convert, from_folder

COMMANDS = {
    "check": (check, "decode every record, say what is wrong; exit code 1 if anything is"),
    "convert": (convert, "write the records of any format as JSON or JSON lines"),
    "from-folder": (from_folder, "write the records of a folder of clips"),
}
"""Each command: its module, with ``add_arguments(parser)`` and ``run(args)``, and its help."""

REMOVED = {
    "repair": "mend a clip with `ffmpeg -i in.mp4 -c copy -movflags +faststart out.mp4`, or encode it again "
    "(docs/data.md, Checking)",
    "stats": "`qwenvl data check` counts records, media, lengths and solutions",
    "--all_frames": "`ffmpeg -v error -xerror -i CLIP -f null -` decodes all frames of a clip",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` begins with. Return 1 when the data are bad, 2 when the command is."""
    words = sys.argv[1:] if argv is None else list(argv)
    if removed := next((word for word in words if word in REMOVED), None):
        print(f"qwenvl data: there is no {removed} any more; {REMOVED[removed]}", file=sys.stderr)
        return 2
    args = parser().parse_args(words)
    with told_to_the_user(f"qwenvl data {args.command}"):
        return COMMANDS[args.command][0].run(args)


def parser() -> FlagParser:
    """The parser of all commands."""
    whole = FlagParser(prog="qwenvl data", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    for name, (module, purpose) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=purpose))
    return whole
