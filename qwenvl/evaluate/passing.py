"""Which reward says that a completion passes."""

from __future__ import annotations

from qwenvl.evaluate.options import PassOptions
from qwenvl.rewards import Rubric
from qwenvl.rewards.options import Aggregation
from qwenvl.rewards.table import BY_FLAG, SHAPING, TABLE
from qwenvl.types import TOTAL


def reward_that_passes(rubric: Rubric, options: PassOptions, aggregation: Aggregation = "sum") -> str:
    """The name of the reward that ``pass_by`` names, or of the first one that tells right from wrong.

    Args:
        aggregation: how the total is made.

    Raises:
        ValueError: no such reward, or one that no completion or every completion passes.
    """
    names = (*rubric.names, TOTAL)
    judges = [name for name in rubric.names if name not in SHAPING and name.rstrip("_0123456789") not in BY_FLAG]
    if options.pass_by is None and not judges:
        raise ValueError(
            f"none of the rewards {', '.join(rubric.names)} tells right from wrong by itself: name one with --pass_by, "
            "or total, and the value with which a completion passes with --pass_at"
        )
    pass_by = options.pass_by or judges[0]
    if pass_by not in names:
        raise ValueError(f"--pass_by {pass_by}: no such reward here; there are {', '.join(names)}")
    if pass_by == TOTAL and aggregation == "normalize_then_sum":
        raise ValueError("--pass_by total has no meaning with --reward_aggregation normalize_then_sum: its mean is 0")
    if pass_by in TABLE and pass_by not in SHAPING:
        low, high = TABLE[pass_by].low, TABLE[pass_by].high
        if not low < options.pass_at <= high:
            raise ValueError(f"--pass_at {options.pass_at:g}: expected above {low:g} and at most {high:g} of {pass_by}")
    return pass_by
