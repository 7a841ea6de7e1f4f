"""``qwenvl rewards``: lists the reward functions, and scores one completion by hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qwenvl.rewards.function import RewardError
from qwenvl.rewards.named import build_rubric
from qwenvl.rewards.options import RewardSettings
from qwenvl.rewards.table import BY_FLAG, TABLE


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qwenvl rewards list`` or ``qwenvl rewards try NAME ...`` and return the exit status."""
    options = _parser().parse_args(argv)
    try:
        print(listing() if options.command == "list" else _try(options))
    except (ValueError, ImportError) as error:
        print(f"qwenvl rewards: {error}", file=sys.stderr)
        return 1
    return 0


def listing() -> str:
    """Return a line for each function of the table, and for each with a flag of its own: name, range, summary."""
    entries = TABLE | {f"--{flag}": entry for flag, entry in BY_FLAG.items()}
    rows = [(name, f"{entry.low:g} to {entry.high:g}", entry.summary) for name, entry in entries.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{name:<{widths[0]}}  {span:<{widths[1]}}  {summary}" for name, span, summary in rows)


def _try(options: argparse.Namespace) -> str:
    given = {name: value for name in _setting_names() if (value := getattr(options, name)) is not None}
    rubric = build_rubric(
        [options.name], external_plugins=options.external_plugins, settings=RewardSettings(**given), on_error="error"
    )
    record = dict(options.field)
    if problem := rubric.check_solution(options.solution, record):
        raise RewardError(f"a record with this solution would be refused: {problem}")
    columns: dict[str, list[Any]] = {name: [value] for name, value in record.items()}
    columns |= {"solution": [options.solution], "prompts": [[{"role": "user", "content": options.prompt}]]}
    columns |= {"completion_ids": [[0] * options.tokens], "finish_reasons": ["stop"]}
    batch = rubric.score([options.completion], columns)
    rubric.close()
    value = batch.components[0][0]
    return "\n".join([f"{rubric.names[0]}: {value:g}", *(f"{name}: {x:g}" for name, x in batch.metrics.items())])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qwenvl rewards", description="The reward functions.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="show every function of the table: name, range, rule")
    usage = "qwenvl rewards try NAME --completion TEXT [--solution TEXT] [--prompt TEXT] [--setting of a reward ...]"
    trial = commands.add_parser("try", help="score one completion by hand", usage=usage)
    trial.add_argument("name", help="name of the table or of a plugin, module:name or file.py:name")
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
    hints = get_type_hints(RewardSettings)
    for setting in fields(RewardSettings):
        kinds = [kind for kind in get_args(hints[setting.name]) or (hints[setting.name],) if kind is not type(None)]
        is_choice = get_origin(hints[setting.name]) is Literal
        trial.add_argument(
            f"--{setting.name}",
            type=str if is_choice else _truth if kinds[0] is bool else kinds[0],
            choices=kinds if is_choice else None,
            help=f"{setting.metadata['help']} Default: {setting.default}.",
        )
    return parser


def _setting_names() -> list[str]:
    return [setting.name for setting in fields(RewardSettings)]


def _field(text: str) -> tuple[str, Any]:
    """Split ``name=json`` into the name and the value. Text that is no JSON stands for itself."""
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"expected NAME=JSON, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected True or False, got {text!r}")
    return text.lower() == "true"
