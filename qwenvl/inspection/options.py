"""The options of the commands that examine data sets."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.option import Options, option

DEFAULT_REWARDS = ["accuracy"]


@dataclass
class CheckOptions(Options):
    """The check."""

    reward_funcs: list[str] | None = option(
        None,
        "Rewards that must be able to score the solutions, as --reward_funcs of training names them.",
        unset="accuracy",
        nargs="*",
    )
    write_clean: str | None = option(
        None, "Write the good records to this file, as qwenvl data convert does.", unset="they are only counted"
    )
    jobs: int = option(2, "Clips that are decoded at the same time, at least 1.", least=1)
    json: bool = option(False, "Print the report as JSON.")
