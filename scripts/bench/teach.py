"""Learning from the frozen start with more frames against learning from rewards alone, in the world of the demo.

    python scripts/bench/teach.py                      # seeds 0 to 4, three runs each: some ten minutes a seed

A model that was trained with 16 frames has to do with 4. Each seed has its own clips and its own warm-up, which shows
16 frames of each; all runs start from there. Held-out clips are evaluated with 4. A run that is there already is not
made again. It prints the held-out reward by step, and at which step a run first has what GRPO ends with.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from qwenvl.demo.clips import make_clips
from qwenvl.demo.run import Demo, _write_start
from qwenvl.run_log.log import read_metrics

RUNS: dict[str, dict[str, Any]] = {
    "GRPO": {},
    "GRPO and 16 frames": {"teacher": "reference", "teacher_sees": "frames(16)", "distill_weight": 1.0},
    "16 frames alone": {"teacher": "reference", "teacher_sees": "frames(16)"},
}
EVERY = 20  # optimizer steps between evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/teach"))
    args = parser.parse_args()
    lines = []
    for seed in args.seeds:
        demo = Demo.of((args.output_dir / f"seed-{seed}").resolve(), seed=seed, steps=args.steps)
        rewards = {name: rewards_of(demo, name) for name in RUNS}
        goal = list(rewards["GRPO"].values())[-1]
        for name, by_step in rewards.items():
            reached = next((str(step) for step, reward in by_step.items() if reward >= goal), "not")
            shown = " ".join(f"{by_step[step]:.2f}" for step in by_step)
            lines.append(f"| {seed} | {name} | {shown} | {reached} |")
    head = f"| seed | run | held-out reward, every {EVERY} steps | GRPO's last reward at step |"
    print("\n".join(["", head, "|---|---|---|---|", *lines]))


def rewards_of(demo: Demo, name: str) -> dict[int, float]:
    """The held-out reward by step of a run of ``RUNS``, which is made where it is not there."""
    from qwenvl.commands import train, warmup

    folder = demo.folder / name.replace(" ", "-")
    if not (demo.model / "model.safetensors").is_file():
        demo.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(demo.data, ignore_errors=True)
        whole = replace(demo.clip_settings, dropped=0, unthinking=0, warmup_pairs=15)  # right answers: what is missing
        make_clips(demo.data, whole)  # in a demo is the answer's second step, here it is frames
        show_more(demo.data / "warmup.jsonl")
        _write_start(demo)
        run(warmup.main, demo.folder / "warmup.json", demo.warmup_settings() | {"stop_below_loss": 0.02})
    if not (folder / "model.safetensors").is_file():
        settings = {**demo.training_settings(), **RUNS[name], "output_dir": str(folder), "overwrite_output_dir": True}
        settings |= {"eval_strategy": "steps", "eval_steps": EVERY}
        run(train.main, demo.folder / f"{folder.name}.json", settings)
    rows = [row for row in read_metrics(folder) if "eval_total_reward" in row]
    return {int(row["step"]): row["eval_total_reward"] for row in rows}


def show_more(warmup: Path) -> None:
    """Have the warm-up show 16 frames."""
    rows = [json.loads(line) for line in warmup.read_text().splitlines()]
    for row in rows:
        row["meta"] = {"min_frames": 16, "max_frames": 16}  # evenly, as the teacher's
    warmup.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(command: Any, file: Path, settings: dict[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=1))
    command(["--config", str(file)])


if __name__ == "__main__":
    main()
