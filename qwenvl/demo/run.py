"""``qwenvl demo``: a tiny Qwen-VL model learns by GRPO to name the steps of assembly videos.

Clips and a warmed-up model are made on the spot. Then ``qwenvl train --config run.yaml`` runs as it would on a real
checkpoint with a user's records. Nothing about that run is special but its size.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from qwenvl.demo.clips import ClipSettings, make_clips, make_labelled_folder, tokenizer_texts
from qwenvl.demo.results import Score, example, in_words, read_scores, table
from qwenvl.model.families import FAMILIES, FamilyName
from qwenvl.runlog import AS_IT_IS

WARMUP = "warmup.yaml"
STEPS, CLIPS = 200, 600
LINEAR_ATTENTION_STEPS = 300
"""Steps of Qwen3.5: after 200 one of five seeds still mistook one step for another, which cost 0.14 of the reward."""
CHECKS = {"blank": "after, shown a blank video", "other_clip": "after, shown another clip"}
"""Controls of the trained model, and their labels in the table."""
MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "num_layers": 2,
    "vision_hidden_size": 64,
    "vision_depth": 1,
    "initializer_range": 0.08,  # with the usual 0.02 random weights take far longer to begin to learn
}
FAMILY: FamilyName = "qwen2_5_vl"
LINEAR_ATTENTION: dict[str, Any] = {"stop_below_loss": 0.115, "lr_scheduler_type": "linear", "max_grad_norm": 0.3}
"""Warm-up settings of Qwen3.5 that differ from those of the other families.

It learns the words of the answers sooner than the steps in them, and at a loss of 0.13 still mistakes many. From there
to 0.115 single large gradients throw it back, unless they are clipped and the learning rate decays.
"""


def usual_steps(family: FamilyName) -> int:
    """Default number of optimizer steps of GRPO."""
    return LINEAR_ATTENTION_STEPS if family.startswith("qwen3_5") else STEPS


@dataclass(frozen=True)
class Demo:
    """One demo: its folder, and everything that its result depends on."""

    folder: Path
    seed: int = 0
    steps: int = STEPS  # optimizer steps of GRPO, 8 prompts x 8 completions each
    clips: int = CLIPS  # to train on. A quarter as many are held out
    family: FamilyName = FAMILY

    data = property(lambda demo: demo.folder / "data")
    start = property(lambda demo: demo.folder / "start")
    model = property(lambda demo: demo.folder / "model")
    run = property(lambda demo: demo.folder / "run")
    evaluation = property(lambda demo: demo.folder / "evaluation")

    @property
    def clip_settings(self) -> ClipSettings:
        return ClipSettings(seed=self.seed, train=self.clips, heldout=self.clips // 4, warmup=8 * self.clips)

    @property
    def frame_pixels(self) -> int:
        """Pixels of a frame as the model sees it: two merged patches wide and high."""
        side = 2 * 28 if self.family.startswith("qwen2") else 2 * 32
        return side * side

    def warmup_settings(self) -> dict[str, Any]:
        """The configuration of `qwenvl warmup`."""
        return {
            "model_name_or_path": str(self.start),
            "dataset_use": "demo_warmup",
            "dataset_catalog": str(self.data / "datasets.yaml"),
            "output_dir": str(self.model),
            "seed": self.seed,
            "use_cpu": True,
            "train_sampling_strategy": "sequential",
            "per_device_train_batch_size": 32,
            "dataloader_drop_last": True,
            # Random weights begin to look at the pictures sooner or later, by chance and by family: after up to three
            # times 150 steps. This lets GRPO begin from about the same place.
            "num_train_epochs": 3,
            "stop_below_loss": 0.13,
            "tune_mm_vision": True,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10,
            "adam_beta2": 0.99,
            "video_min_frame_pixels": self.frame_pixels,
            "video_max_frame_pixels": self.frame_pixels,
            "dataloader_num_workers": 1,
            "save_strategy": "no",
        } | (LINEAR_ATTENTION if self.family.startswith("qwen3_5") else {})

    def evaluation_words(self) -> list[str]:
        """The arguments of `qwenvl evaluate`."""
        flags = ["--use_cpu", "--controls", ",".join(CHECKS), "--output_dir", str(self.evaluation)]
        return [str(self.model), str(self.run), "demo_heldout", *flags]

    def training_settings(self) -> dict[str, Any]:
        """The configuration of `qwenvl train`."""
        return {
            "model_name_or_path": str(self.model),
            "dataset_use": "demo_train",
            "eval_dataset_use": "demo_heldout",
            "dataset_catalog": str(self.data / "datasets.yaml"),
            "output_dir": str(self.run),
            "seed": self.seed,
            "use_cpu": True,
            "max_steps": self.steps,
            "per_device_train_batch_size": 8,
            "grpo_sample_size": 8,
            "grpo_beta": 0.04,
            "generation_temperature": 1.0,
            "generation_top_p": 1.0,
            "generation_max_length": 40,
            "tune_mm_vision": True,  # random weights: the tower has as much to learn as the rest
            "learning_rate": 5e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.05,
            "adam_beta2": 0.99,
            "max_grad_norm": 0.5,
            "video_min_frame_pixels": self.frame_pixels,
            "video_max_frame_pixels": self.frame_pixels,
            "eval_on_start": True,
            "per_device_eval_batch_size": 50,
            "dataloader_num_workers": 1,
            "save_strategy": "no",
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, or show its earlier result, and return the exit status."""
    parser = argparse.ArgumentParser(prog="qwenvl demo", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs/demo"), help="where everything goes [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of clips, weights and sampling [%(default)s]")
    usual = f"{STEPS}, of Qwen3.5 {LINEAR_ATTENTION_STEPS}"
    parser.add_argument("--steps", type=_positive, help=f"optimizer steps of GRPO [{usual}]")
    parser.add_argument(
        "--clips",
        type=_positive,
        default=CLIPS,
        help="training clips, at least 8; a quarter more are held out [%(default)s]",
    )
    parser.add_argument("--family", choices=tuple(FAMILIES), default=FAMILY, help="of the model [%(default)s]")
    parser.add_argument("--fresh", action="store_true", help="make and train everything anew, whatever is there")
    only = "write ten clips, steps.txt and labels.csv, as a user has them, and train nothing"
    parser.add_argument("--only-data", action="store_true", help=only)
    args = parser.parse_args(argv)
    if args.only_data:
        make_labelled_folder(args.output_dir, seed=args.seed)
        print(f"{args.output_dir}: clips/ with ten clips, steps.txt, labels.csv")
        return 0
    if args.clips < 8:
        parser.error("--clips: at least 8, a batch")
    steps = args.steps or usual_steps(args.family)
    demo = Demo(args.output_dir.resolve(), args.seed, steps, args.clips, args.family)
    done = finished(demo)
    if done and not args.fresh:
        print(f"This demo was run before, until {done['finished']}; nothing is trained now (--fresh does it anew).\n")
    else:
        done = run_demo(demo, fresh=args.fresh)
    _show(demo, {name: Score(**score) for name, score in done["scores"].items()}, done["in_words"])
    return 0


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("expected a whole number of at least 1")
    return number


def run_demo(demo: Demo, *, fresh: bool = False) -> dict[str, Any]:
    """Make missing clips and model, or with ``fresh`` both, train, evaluate, and write ``result.json``.

    Raises:
        FileExistsError: the folder contains files that the demo did not make.
    """
    from transformers.utils import logging as transformers_logging

    from qwenvl.doctor.report import add_pictures, make_report
    from qwenvl.train.display.console import settle_output

    settle_output()
    started = time.time()
    transformers_logging.disable_progress_bar()  # of reading and writing one small file, again and again
    demo.folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        _remove(demo.data, demo.data / "settings.json")
        _remove(demo.model, demo.folder / WARMUP)
    measured = (demo.steps, demo.clips, demo.family) == (STEPS, CLIPS, FAMILY)
    usual = " (3 to 4 minutes on two cores)" if measured else ""
    print(f"A tiny {FAMILIES[demo.family].name} learns to name the steps of videos, in {demo.folder}{usual}")
    if make_clips(demo.data, demo.clip_settings, title="[1/4] clips"):
        print("[1/4] clips: done")
    else:
        print("[1/4] clips: already there")
    _make_model(demo)
    _train(demo)
    scores = _evaluate(demo)
    add_pictures(make_report([demo.run], demo.run / "report"))
    minutes = (time.time() - started) / 60
    result = {
        "finished": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "minutes": round(minutes, 2),
        "settings": _settings(demo),
        "scores": {name: asdict(score) for name, score in scores.items()},
        "in_words": in_words(demo.evaluation),
    }
    (demo.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nDone in {minutes:.1f} minutes.\n")
    return result


def _make_model(demo: Demo) -> None:
    """A checkpoint that keeps the form of an answer and half guesses what it says, by a warm-up of random weights.

    A real checkpoint can talk and see before GRPO begins. A policy that never scores has nothing to learn from. Most
    targets name one of the two steps only, and some pairs of steps never occur (see ``qwenvl.demo.clips``): to name
    both, whatever they are, is left to GRPO to find out.
    """
    from qwenvl.demo.tiny import make_model, make_processor
    from qwenvl.train.warmup import command

    settings = demo.warmup_settings()
    anywhere = {name: value for name, value in settings.items() if not str(value).startswith(str(demo.folder))}
    # The clips' own settings say by which code they were drawn.
    wanted = {"family": demo.family, "model": MODEL, "warmup": anywhere, "clips": _read(demo.data / "settings.json")}
    if _read(demo.model / "demo.json") == wanted:
        print("[2/4] warm-up: already done")
        return
    config = demo.folder / WARMUP
    for folder in (demo.start, demo.model):
        _remove(folder, config)
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    processor = make_processor(demo.family, tokenizer_texts())
    make_model(demo.family, processor, demo.seed, **MODEL).save_pretrained(demo.start)
    processor.save_pretrained(demo.start)
    print(f"[2/4] warm-up: {_command('warmup', '--config', config)}")
    command.main(["--config", str(config)])
    (demo.model / "demo.json").write_text(json.dumps(wanted, indent=1) + "\n")


def _train(demo: Demo) -> None:
    """The command of a real run, with its settings in a file. It evaluates before and after."""
    from qwenvl.train import train_grpo

    config = demo.folder / "run.yaml"
    _remove(demo.run, config)  # an earlier run, finished or not
    (demo.folder / "result.json").unlink(missing_ok=True)
    config.write_text(yaml.safe_dump(demo.training_settings(), sort_keys=False))
    print(f"[3/4] GRPO: {_command('train', '--config', config)}")
    train_grpo.main(["--config", str(config)])


def _evaluate(demo: Demo) -> dict[str, Score]:
    """The command that compares the two models on held-out clips, with their own video and without."""
    from qwenvl.evaluate import held_out

    print(f"[4/4] does it look? {_command('evaluate', *demo.evaluation_words())}")
    with redirect_stdout(io.StringIO()):  # of its table the demo's own has the rows that matter here
        held_out.main([*demo.evaluation_words(), "--fresh"])
    before, after = demo.model.name, demo.run.name
    labels = {(before, AS_IT_IS): "before GRPO", (after, AS_IT_IS): f"after {demo.steps} steps of GRPO"}
    return read_scores(demo.evaluation, labels | {(after, control): label for control, label in CHECKS.items()})


def _show(demo: Demo, scores: dict[str, Score], in_words: str) -> None:
    print(table(scores, format_weight=0.3, accuracy_weight=0.7))
    print(f"\n{in_words}")
    if found := example(demo.run, demo.steps):
        before, after = found
        print(f"\n{os.path.relpath(after.clips[0].path)} shows {after.solution}")
        print(f"  before: {before.completion}\n  after:  {after.completion}")
    here = os.path.relpath
    print(
        f"\nclips     {here(demo.data / 'clips')}"
        f"\nmetrics   {here(demo.run / 'metrics.jsonl')}"
        f"\nrollouts  {here(demo.run / 'rollouts')}: every completion with its rewards"
        f"\nreport    {here(demo.run / 'report' / 'index.html')}: curves, frames and groups; open it in a browser"
        f"\nmodel     {here(demo.run)}: loads with transformers"
        f"\nworth     {_command('evaluate', *demo.evaluation_words())}: made the table above"
        f"\nagain     {_command('train', '--config', demo.folder / 'run.yaml')}"
    )


def _command(name: str, *words: str | Path) -> str:
    """A command as it can be typed here, with relative paths."""
    program = "qwenvl" if shutil.which("qwenvl") else os.path.relpath(Path(sys.executable).with_name("qwenvl"))
    here = [os.path.relpath(word) if str(word).startswith("/") else str(word) for word in words]
    return f"{program} {name} {shlex.join(here)}"


def finished(demo: Demo) -> dict[str, Any] | None:
    """The result of an earlier demo with the same settings."""
    result = _read(demo.folder / "result.json")
    return result if result and result["settings"] == _settings(demo) else None


def _settings(demo: Demo) -> dict[str, Any]:
    return {
        "clips": asdict(demo.clip_settings),
        "family": demo.family,
        "model": MODEL,
        "training": demo.training_settings(),
    }


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


def _remove(folder: Path, mark: Path) -> None:
    """Delete a folder of an earlier demo. The file ``mark`` says that it is one."""
    if folder.exists():
        if not mark.is_file():
            raise FileExistsError(f"{folder}: not made by the demo (no {mark.name}); choose another --output_dir")
        shutil.rmtree(folder)
