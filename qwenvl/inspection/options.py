"""The options of the commands that examine data sets."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.data.options import RUN_SEED
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
        None,
        "Write the good records to this file, as qwenvl data convert does, without what --prompt_template and --system "
        "put around their prompts.",
        unset="they are only counted",
    )
    tools: list[str] | None = option(
        None, "Tools that prompts offer, as --tools of training. Needs --model.", unset="no tools"
    )
    seed: int = option(RUN_SEED, "Run seed, which draws the rows of DATA%NN, as in training.", least=0)
    jobs: int = option(2, "Clips that are decoded at the same time, at least 1.", least=1)
    json: bool = option(False, "Print the report as JSON.")
