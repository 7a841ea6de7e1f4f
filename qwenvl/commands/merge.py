"""``qwenvl merge ADAPTER --out DIR``: a LoRA adapter folded into its model, as a whole checkpoint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

COMMAND = "qwenvl merge"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the checkpoint and say what it is. Ends with status 2 where it can't be made."""
    args = make_parser().parse_args(argv)
    from qwenvl.console import ends_at_ctrl_c, settle_output
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.model.weight_files import require_adapter

    with redirect_stdout(sys.stderr), ends_at_ctrl_c(COMMAND), told_to_the_user(COMMAND):
        require_adapter(args.adapter)  # before torch, which takes seconds
        from qwenvl.train.merge import merge

        settle_output()
        base = merge(args.adapter, args.out, base=args.base)
    print(f"wrote {args.out}: {base} with {args.adapter} folded in; it loads with plain transformers")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("adapter", help="the folder of an adapter: a run with --lora_enable, or one of its checkpoints")
    parser.add_argument("--out", required=True, help="the folder to write; one that holds something is refused")
    parser.add_argument("--base", help="the model that the adapter was trained on, if it is not where the adapter says")
    return parser
