"""Counting, learned on a CPU in minutes: a tiny Qwen2.5-VL with random weights, a warm-up, then GRPO.

    python scripts/recipes/count_on_cpu.py --folder out/count
    python scripts/recipes/count_on_cpu.py --folder out/count --loss_type dapo

The warm-up shows the form and how to count up to three. Above three its targets are drawn by lot among four, five and
six. What is right there only the reward tells. Printed at the end: held-out scores before and after, and those of the
trained model that is shown grey pictures.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from make_records import make  # noqa: E402 (both work without an installed package)
from PIL import Image  # noqa: E402
from transformers import PreTrainedModel, ProcessorMixin  # noqa: E402

from qwenvl import GRPOConfig, GRPOTrainer, WarmupConfig, WarmupTrainer  # noqa: E402
from qwenvl.demo.tiny import make_model, make_processor  # noqa: E402

QUESTION = "How many things?"
THINKING = "<think>I count them.</think> "
MOST, WELL_KNOWN = 6, 3


def make_data(folder: Path, seed: int, train: int, heldout: int, warmup: int) -> None:
    """Records for the warm-up, for GRPO, for evaluation, and the latter with grey pictures."""
    make("clevr_count", folder, train, heldout, seed)
    rows = {split: _read(folder / f"{split}.jsonl") for split in ("train", "heldout")}
    for row in [*rows["train"], *rows["heldout"]]:
        row["conversations"][0]["value"] = f"<image>\n{QUESTION}"  # short: the tiny model reads it token by token
    Image.new("RGB", (112, 112), (128, 128, 128)).save(folder / "grey.png")
    rows["grey"] = [{**row, "image": "grey.png"} for row in rows["heldout"]]
    lot = random.Random(f"{seed} warmup")
    rows["warmup"] = [_warmup_row(k, lot.choice(rows["train"]), lot) for k in range(warmup)]
    for split, records in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")


def _warmup_row(k: int, row: dict, lot: random.Random) -> dict:
    question, answer = row["conversations"]
    number = int(answer["value"].removeprefix("<answer>").removesuffix("</answer>"))
    if number > WELL_KNOWN:
        number = lot.randint(WELL_KNOWN + 1, MOST)
    thinking = THINKING if lot.random() < 0.7 else ""
    target = {"from": "gpt", "value": f"{thinking}<answer>{number}</answer>"}
    return {**row, "id": f"warmup-{k:05d}", "conversations": [question, target]}


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def begin(
    folder: Path, seed: int, warmup_steps: int, train: int = 800, heldout: int = 150
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """What GRPO begins with: the records in ``folder``, and a model that has learned from those of the warm-up."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "warmup.jsonl").is_file():
        raise SystemExit(f"{folder}: not made by this recipe; choose another folder")
    shutil.rmtree(folder, ignore_errors=True)
    make_data(folder, seed, train, heldout, warmup=32 * warmup_steps)
    numbers = [f"{THINKING}<answer>{k}</answer>" for k in range(1, MOST + 1)]
    processor = make_processor("qwen2_5_vl", ["user\n", QUESTION, "assistant\n", *numbers])
    sizes = {"hidden_size": 128, "num_layers": 2, "vision_hidden_size": 64, "vision_depth": 1}
    model = make_model("qwen2_5_vl", processor, seed, **sizes, initializer_range=0.08)
    warm_up = WarmupConfig(
        output_dir=str(folder / "warmup"),
        seed=seed,
        use_cpu=True,
        learning_rate=2e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        adam_beta2=0.99,
        tune_mm_vision=True,
        max_pixels=112 * 112,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=32,
        stop_below_loss=0.13,
        save_strategy="no",
    )
    WarmupTrainer(model, warm_up, str(folder / "warmup.jsonl"), processing_class=processor).train()
    return model, processor


def settings(folder: Path, seed: int, steps: int, **changes: Any) -> GRPOConfig:
    """The settings of GRPO, with the run in ``folder / "run"``."""
    chosen = dict(
        output_dir=str(folder / "run"),
        seed=seed,
        use_cpu=True,
        max_steps=steps,
        learning_rate=5e-4,
        lr_scheduler_type="linear",
        warmup_steps=5,
        adam_beta2=0.99,
        tune_mm_vision=True,
        max_pixels=112 * 112,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=50,
        grpo_alpha=1.0,
        grpo_beta=0.005,
        grpo_sample_size=8,
        generation_temperature=1.0,
        generation_top_p=1.0,
        generation_max_length=24,
        reward_funcs=["count", "strict_format"],
        reward_weights=[1.0, 0.2],
        save_strategy="no",
    )
    return GRPOConfig(**{**chosen, **changes})


def run(folder: Path, seed: int, steps: int, warmup_steps: int, **changes: Any) -> dict[str, dict]:
    """The whole of it. Returns the evaluations by name. ``changes`` are settings in the place of the recipe's."""
    model, processor = begin(folder, seed, warmup_steps)
    args = settings(folder, seed, steps, **changes)
    data = {split: str(folder / f"{split}.jsonl") for split in ("train", "heldout", "grey")}
    trainer = GRPOTrainer(model, args, data["train"], data["heldout"], processor)
    scores = {"before": trainer.evaluate()}
    trainer.train()
    scores["after"] = trainer.evaluate()
    blind = GRPOTrainer(model, args, data["train"], data["grey"], processor)
    scores["grey pictures"] = blind.evaluate()
    return scores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/count"), help="for records and run; made anew")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200, help="of GRPO")
    parser.add_argument("--warmup_steps", type=int, default=150)
    parser.add_argument("--loss_type", default="grpo", help="with arguments or without")
    parser.add_argument("--filter_groups", action="store_true", help="replace groups with equal rewards")
    options = parser.parse_args()
    started = time.monotonic()
    changes = {"loss_type": options.loss_type, "filter_groups": options.filter_groups}
    scores = run(options.folder, options.seed, options.steps, options.warmup_steps, **changes)
    print(f"\nheld-out pictures counted right (95 % interval), {time.monotonic() - started:.0f} s in all")
    for name, values in scores.items():
        print(f"  {name:<14} {values['eval_count_reward']:.3f} +- {values['eval_count_reward_ci95']:.3f}")


if __name__ == "__main__":
    main()
