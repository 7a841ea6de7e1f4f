"""``qwenvl preview``: its flags, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qwenvl.config.flags import FlagParser
from qwenvl.data.errors import told_to_the_user
from qwenvl.doctor.flags import add_dataset_flags, add_frame_flags
from qwenvl.tools.options import ToolOptions


def add_arguments(parser: FlagParser) -> None:
    """Add the flags of the command."""
    add_dataset_flags(parser)
    add_frame_flags(parser)
    parser.add_options(ToolOptions, without={"max_turns", "look_tokens"})
    parser.add_argument("--n", type=int, default=8, help="records to show, spread over the data set (8)")
    parser.add_argument("--epoch", type=int, default=0, help="whose frames to draw where sampling is dynamic (0)")
    parser.add_argument("--seed", type=int, default=42, help="run seed of the draw (42, as in training)")
    parser.add_argument("--out", default="preview.html", help="the page to write (preview.html)")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print its path. Ends with status 1 when the data are bad, 2 when the command is."""
    about = "Write an offline HTML page of what the model will see of a data set."
    parser = FlagParser(prog="qwenvl preview", description=about)
    add_arguments(parser)
    args = parser.parse_args(argv)
    from qwenvl.doctor.preview import preview  # takes seconds, which --help does not wait for

    with told_to_the_user("qwenvl preview"):
        page = preview(args)
        Path(args.out).write_text(page, encoding="utf-8")
    print(f"wrote {args.out} ({len(page) / 1e6:.1f} MB); open it in a browser")
    return 0
