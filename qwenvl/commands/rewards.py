"""``qwenvl rewards``: lists the reward functions, and scores one completion by hand."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from qwenvl.rewards.function import RewardError
from qwenvl.rewards.resolve import build_rubric
from qwenvl.rewards.table import BY_FLAG, TABLE
from qwenvl.types import Turn


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qwenvl rewards list`` or ``qwenvl rewards try NAME ...`` and return the exit status."""
    parser = argparse.ArgumentParser(prog="qwenvl rewards", description="The reward functions.")
    add_arguments(parser)
    options = parser.parse_args(argv)
    try:
        print(listing() if options.command == "list" else _try(options))
    except (ValueError, ImportError) as error:
        print(f"qwenvl rewards: {error}", file=sys.stderr)
        return 1
    return 0


def listing() -> str:
    """Name, range and summary of each function, and its arguments with default, meaning, unit and bounds."""
    fill = partial(textwrap.fill, width=min(shutil.get_terminal_size().columns, 100), break_on_hyphens=False)
    lines = []
    by_flag = {f"--{name}": entry for name, entry in BY_FLAG.items()}
    for name, entry in (TABLE | by_flag).items():
        span = "any number" if math.isinf(entry.high) else f"{entry.low:g} to {entry.high:g}"
        lines.append(f"{name:<21}{span}")
        lines.append(fill(entry.summary.replace("``", "`"), initial_indent="  ", subsequent_indent="  "))
        for each, default, text in entry.arguments():
            lines.append(fill(f"{each}={default}: {text}", initial_indent=" " * 4, subsequent_indent=" " * 6))
    return "\n".join(lines)


def _try(options: argparse.Namespace) -> str:
    rubric = build_rubric([options.name], external_plugins=options.external_plugins)
    record = dict(options.field)
    problem = rubric.check_solution(options.solution, record)
    if problem:
        raise RewardError(f"a record with this solution would be refused: {problem}")
    columns: dict[str, list[Any]] = {name: [value] for name, value in record.items()}
    prompt = [{"role": "user", "content": options.prompt}]
    columns["prompts"] = [prompt]
    columns["solution"] = [options.solution]
    columns["completion_ids"] = [[0] * options.tokens]
    columns["finish_reasons"] = ["stop"]
    columns["turns"] = [(Turn(options.completion),)]
    batch = rubric.score([options.completion], columns)
    rubric.close()
    value = batch.components[0][0]
    lines = [f"{rubric.names[0]}: {'no value' if value is None else format(value, 'g')}"]
    lines += [f"{name}: {number:g}" for name, [number] in batch.metrics.items()]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``list`` and ``try`` with its flags."""
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="show every function of the table: range, rule, arguments")
    usage = "qwenvl rewards try NAME --completion TEXT [--solution TEXT] [--prompt TEXT] [--field NAME=JSON ...]"
    trial = commands.add_parser("try", help="score one completion by hand", usage=usage)
    trial.add_argument(
        "name", help='name of the table or of a plugin, module:name or file.py:name, such as "cosine(max_len=512)"'
    )
    trial.add_argument("--completion", required=True, help="what the model wrote")
    trial.add_argument("--solution", default="", help="the record's solution")
    trial.add_argument("--prompt", default="", help="the question")
    trial.add_argument("--tokens", type=int, default=0, help="length of the completion, for those that look at it")
    trial.add_argument(
        "--field",
        type=_field,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a field of the record, such as nums=[3,7]; repeat it for more",
    )
    trial.add_argument("--external_plugins", nargs="*", default=[], help='files whose functions carry @reward("name")')


def _field(text: str) -> tuple[str, Any]:
    """Split ``name=json`` into the name and the value. Text that is no JSON stands for itself."""
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"expected NAME=JSON, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
