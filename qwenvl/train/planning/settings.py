"""The command line of ``qwenvl plan``: flags of training for a machine that need not be this one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qwenvl.config.command_line import config_from, file_tokens, help_text, raising, split_file
from qwenvl.config.flags import add_options
from qwenvl.option import problems_of
from qwenvl.train.planning.options import PlanOptions

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig

USAGE = (
    "qwenvl plan --model MODEL --dataset_use DATA [--gpus 1 --gpu_memory 24] [--flag of training value ...]\n"
    "       qwenvl plan run.yaml [--gpu_memory 24]\n"
    "       qwenvl plan --warmup --model MODEL --dataset_use DATA [--flag of a warm-up value ...]"
)
PURPOSE = (
    "Say before a run what memory and time a step takes, whether it fits, and which flag changes that. It reads the "
    "model's config.json and the headers of media. It needs neither weights nor a GPU."
)
_OF_THE_MACHINE = {
    "optim": None,
    "bf16": "True",
    "fp16": "True",
    "use_cpu": "True",
    "deepspeed": None,
    "fsdp": "True",
    "ds3_gather_for_generation": None,
}
"""Flags that training checks against its machine, which is not this one, with the value of a flag alone."""


@dataclass(frozen=True)
class Asked:
    """What is planned.

    Attributes:
        config: the settings of the run, as if it were on a CPU, but for the precision.
        options: of the plan itself.
        optimizer: by the Trainer's name. None for its default.
        on_host: the run is one on a CPU.
    """

    config: GRPOConfig
    options: PlanOptions
    optimizer: str | None
    on_host: bool


def asked_of(argv: Sequence[str]) -> Asked:
    """What a command line asks for.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.train.warmup.config import WarmupConfig, read_by_warmup

    argv = [
        "--model_name_or_path" + word[len("--model") :] if word.split("=")[0] == "--model" else word for word in argv
    ]
    own, rest = _parser(PlanOptions).parse_known_args(argv)
    options = PlanOptions(**vars(own))
    file, rest = split_file(rest)
    kind, read = (WarmupConfig, read_by_warmup()) if options.warmup else (GRPOConfig, None)
    known = {each.name: each.default for each in fields(kind)}
    machine = _machine_parser()
    of_file, tokens = machine.parse_known_args(file_tokens(file, known, read))
    of_line, rest = machine.parse_known_args(_with_values(rest), of_file)
    for name in ("deepspeed", "fsdp"):
        if getattr(of_line, name) not in (None, "False", "false"):
            raise ValueError(f"--{name}: a plan takes --engine zero2, zero3 or fsdp with --gpus in its place")
    gathers = _true(of_line.ds3_gather_for_generation or "True")
    if not gathers and options.splits not in ("zero3", "fsdp"):
        raise ValueError(
            "--ds3_gather_for_generation False has no effect without --engine zero3 or fsdp: give one, or leave it out"
        )
    on_host, half = _true(of_line.use_cpu), of_line.bf16 if of_line.bf16 is not None else of_line.fp16
    config = config_from(None, [*tokens, *rest, "--use_cpu=True", f"--output_dir={config_folder()}"], kind)
    for name, word in (("model_name_or_path", "--model"), ("dataset_use", "--dataset_use")):
        if getattr(config, name) is None:
            raise ValueError(f"{word} is missing")
    config.ds3_gather_for_generation = gathers
    if problems := [each for each in problems_of(config) if "--ds3_gather_for_generation" in each]:
        raise ValueError("\n".join(problems))
    config.bf16 = not on_host if half is None else _true(half)
    return Asked(config, options, of_line.optim, on_host)


def config_folder() -> str:
    """The folder that stands for that of the run, into which nothing is written."""
    return "plan"


def help_of_plan() -> str:
    """What ``qwenvl plan --help`` prints."""
    parser = argparse.ArgumentParser(usage=USAGE, add_help=False, description=PURPOSE)
    add_options(parser.add_argument_group("a plan"), PlanOptions)
    return parser.format_help() + "\n" + help_text("and any flag of training:", "").split("\n", 1)[1]


def _parser(kind: type[PlanOptions]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser, kind)
    parser.error = raising("")  # type: ignore[method-assign]
    return parser


def _with_values(argv: Sequence[str]) -> list[str]:
    """The flags of the machine that stand alone get their value: argparse would take a next flag that has a space for
    it."""
    alone = {f"--{name}": value for name, value in _OF_THE_MACHINE.items() if value is not None}
    pairs = pairwise([*argv, "--"])
    return [f"{word}={alone[word]}" if word in alone and after.startswith("--") else word for word, after in pairs]


def _machine_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, alone in _OF_THE_MACHINE.items():
        how: dict[str, Any] = {} if alone is None else {"nargs": "?", "const": alone}
        parser.add_argument(f"--{name}", default=None, **how)
    parser.error = raising("")  # type: ignore[method-assign]
    return parser


def _true(value: str | None) -> bool:
    return str(value).lower() in ("true", "1", "yes")
