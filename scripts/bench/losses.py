"""Run the counting recipe with several losses and seeds, and print how soon each counts nine held-out pictures of ten.

    python scripts/bench/losses.py                    # four losses, dynamic sampling off and on, seeds 0 to 4
    python scripts/bench/losses.py --losses grpo dapo,num_iterations=2 --seeds 3

A loss is a ``--loss_type``, with more settings of the run after commas. Those by default make two steps on the same
completions: on fresh ones the importance ratio is 1, and what a loss does with it has no effect. The runs of a seed
begin with the same model and the same records. Every 25 steps all held-out pictures are counted, greedily, and a run
ends when 0.9 of them are right. CPU seconds are those of GRPO alone, without warm-up and evaluation. A run whose line
stands in ``results.jsonl`` is not made again.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "recipes")]

import count_on_cpu  # noqa: E402 (works without an installed package)
import yaml  # noqa: E402
from transformers import PreTrainedModel, ProcessorMixin, TrainerCallback  # noqa: E402

from qwenvl import GRPOTrainer  # noqa: E402

GOAL = 0.9
LOSSES = [
    f"{loss},num_iterations=2{sampling}"
    for loss in ("grpo", "dapo", "gspo", "cispo")
    for sampling in ("", ",filter_groups=True")
]
EVERY = 25


class Goal(TrainerCallback):
    """Ends a run that has reached the goal. Counts the CPU seconds of its steps."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}
        self.seconds = 0.0
        self._begin = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self._begin = time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds += time.process_time() - self._begin

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.scores[state.global_step] = metrics["eval_count_reward"]
        control.should_training_stop |= self.reached

    @property
    def reached(self) -> bool:
        return max(self.scores.values(), default=0.0) >= GOAL


def settings_of(loss: str) -> dict[str, Any]:
    """``dapo,num_iterations=2`` as settings of a run."""
    loss_type, *more = loss.split(",")
    pairs = (setting.partition("=") for setting in more)
    return {"loss_type": loss_type} | {name: yaml.safe_load(value) for name, _, value in pairs}


def measure(
    loss: str, seed: int, steps: int, folder: Path, model: PreTrainedModel, processor: ProcessorMixin
) -> dict[str, Any]:
    """One run: what the table has of it."""
    changes = {"eval_strategy": "steps", "eval_steps": EVERY, "eval_on_start": True, "overwrite_output_dir": True}
    changes |= {"output_dir": str(folder / loss), "disable_tqdm": True}
    args = count_on_cpu.settings(folder, seed, steps, **changes, **settings_of(loss))
    goal = Goal()
    records = (str(folder / "train.jsonl"), str(folder / "heldout.jsonl"))
    GRPOTrainer(copy.deepcopy(model), args, *records, processor, callbacks=[goal]).train()
    return {
        "loss": loss,
        "seed": seed,
        "limit": steps,
        "steps": max(goal.scores) if goal.reached else None,
        "cpu_seconds": round(goal.seconds, 1),
        "scores": {str(step): round(score, 3) for step, score in goal.scores.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each loss: steps until the goal by seed, their median, and CPU seconds."""
    seeds = sorted({row["seed"] for row in rows})
    lines = ["| loss | " + " | ".join(f"seed {seed}" for seed in seeds) + " | median steps | CPU s, median |"]
    lines.append("|---" * (len(seeds) + 3) + "|")
    for loss in dict.fromkeys(row["loss"] for row in rows):
        own = {row["seed"]: row for row in rows if row["loss"] == loss}
        cells = [_cell(own[seed]) if seed in own else "" for seed in seeds]
        middle = median(row["steps"] or float("inf") for row in own.values())
        shown = "not reached" if middle == float("inf") else f"{middle:g}"
        lines.append(
            f"| {loss} | {' | '.join(cells)} | {shown} | {median(r['cpu_seconds'] for r in own.values()):.0f} |"
        )
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    last = list(row["scores"].values())[-1]
    return f"{row['steps']}" if row["steps"] is not None else f"{last:.2f} at {row['limit']}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", nargs="+", default=LOSSES, metavar="LOSS[,NAME=VALUE]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=240, help="of GRPO, at most [%(default)s]")
    parser.add_argument("--warmup_steps", type=int, default=150, help="at most [%(default)s]")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/losses"))
    options = parser.parse_args(argv)
    results = options.output_dir / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for seed in options.seeds:
        missing = [
            loss
            for loss in options.losses
            if not any((row["loss"], row["seed"], row["limit"]) == (loss, seed, options.steps) for row in rows)
        ]
        if not missing:
            continue
        folder = options.output_dir / f"seed-{seed}"
        model, processor = count_on_cpu.begin(folder, seed, options.warmup_steps)
        for loss in missing:
            rows.append(measure(loss, seed, options.steps, folder, model, processor))
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    asked = [row for row in rows if row["seed"] in options.seeds and row["loss"] in options.losses]
    print(f"\nsteps until {GOAL} of the held-out pictures are counted right, looked at every {EVERY}\n")
    print(table([row for row in asked if row["limit"] == options.steps]))


if __name__ == "__main__":
    main()
