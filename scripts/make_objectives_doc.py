"""Writes the tables of docs/objectives.md from ``qwenvl.grpo``: ``python scripts/make_objectives_doc.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qwenvl.grpo.advantages import ESTIMATORS  # noqa: E402 (works without an installed package)
from qwenvl.grpo.kl import KL_ESTIMATORS  # noqa: E402
from qwenvl.grpo.loss import (  # noqa: E402
    AVERAGES,
    LOSSES,
    Objective,
)
from qwenvl.grpo.options import ObjectiveOptions  # noqa: E402
from qwenvl.grpo.surrogates import LIMITS, RATIOS  # noqa: E402
from qwenvl.grpo.weighting import CORRECTIONS, entropy_floor, off_policy  # noqa: E402
from qwenvl.option import own_options  # noqa: E402

PAGE = ROOT / "docs" / "objectives.md"
TERMS = (
    "mask_truncated_completions",
    "top_entropy_quantile",
    "entropy_coef",
    "entropy_target",
    "importance_correction",
)
START, END = "<!-- tables: made by scripts/make_objectives_doc.py -->", "<!-- end of the tables -->"


def tables() -> str:
    """Everything between the two marks of the page."""
    parts = ["", "| `loss_type` | ratio | limit | average | settings | what is special |", "|---|---|---|---|---|---|"]
    for name, row in LOSSES.items():
        cells = [f"`{name}`", row.ratio, row.limit, row.average.replace("_", " "), settings(row), row.about]
        parts.append(f"| {' | '.join(cells)} |")
    limits = "Limits, what is maximised for a token"
    tables = {"Ratios": RATIOS, limits: LIMITS, "Averages": AVERAGES, "KL": KL_ESTIMATORS, "Advantages": ESTIMATORS}
    for title, table in tables.items():
        parts += ["", f"### {title}", "", "| name | formula |", "|---|---|"]
        for name, function in table.items():
            shown = f"`{name}`" if table is ESTIMATORS else name.replace("_", " ")
            parts.append(f"| {shown} | {formula(function)} |")
    return "\n".join([*parts, *terms(), ""])


def terms() -> list[str]:
    """The tables of what any objective can have besides: its flags, and the formulas behind them."""
    parts = ["", "### Terms of any objective", "", "| flag | default | what it does |", "|---|---|---|"]
    options = {each.name: each for each in own_options(ObjectiveOptions)}
    for each in map(options.__getitem__, TERMS):
        default = "unset" if each.default is None else each.default
        parts.append(f"| `{each.name}` | {default} | {each.metadata['help']} |")
    parts += ["", "| flag | choice | formula of the weight |", "|---|---|---|"]
    parts += [f"| `importance_correction` | `{name}` | {formula(each)} |" for name, each in CORRECTIONS.items()]
    parts += [f"| `loss_type` | `grpo(off_policy_mask=0.5)` | {formula(off_policy)} |"]
    return [*parts, f"| `top_entropy_quantile` | | 1 from this entropy on, else 0. {formula(entropy_floor)} |"]


def formula(function: Callable) -> str:
    """The first sentence of a docstring, for a cell of a table."""
    return " ".join(function.__doc__.split("\n\n")[0].split()).replace("|", "\\|")


def settings(row: Objective) -> str:
    """The bounds that the limit of an objective reads."""
    bounds = row.bounds
    if row.limit == "clip":
        high = bounds.epsilon if bounds.epsilon_high is None else bounds.epsilon_high
        return f"epsilon {bounds.epsilon:g}, epsilon_high {high:g}"
    if row.limit == "cispo":
        return f"bound {bounds.cispo:g}"
    if row.limit == "sapo":
        return "t {:g} where A > 0, else {:g}".format(*bounds.sapo)
    if row.limit == "vespo":
        return "k, lam {:g}, {:g} where A >= 0, else {:g}, {:g}".format(*bounds.vespo[0], *bounds.vespo[1])
    return ""


def page() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    return before + START + "\n" + tables() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
