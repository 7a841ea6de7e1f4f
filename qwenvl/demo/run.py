"""``qwenvl demo``: a tiny Qwen-VL model learns by GRPO to name the steps of assembly videos.

Clips and a warmed-up model are made on the spot. Then ``qwenvl train --config train.yaml`` runs as it would on a real
checkpoint with a user's records. Nothing about that run is special but its size.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from qwenvl.demo.clips import (
    OVERVIEW,
    ClipSettings,
    LongClipSettings,
    best_fixed_answer,
    look_texts,
    make_clips,
    make_long_clips,
    tokenizer_texts,
)
from qwenvl.demo.scene import STEPS
from qwenvl.demo.timelines import TimelineSettings, best_fixed_timeline, make_timeline_clips, timeline_texts
from qwenvl.model.families import FAMILIES, FamilyName
from qwenvl.run_log.log import Rollout, read_evaluation, read_rollouts
from qwenvl.timeline import written_timeline

MARK = "demo.json"  # the folder is the demo's. At the end it has the minutes that the demo took
MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "num_layers": 2,
    "vision_hidden_size": 64,
    "vision_depth": 1,
    "initializer_range": 0.08,  # with the usual 0.02 random weights take far longer to begin to learn
}
LINEAR_ATTENTION: dict[str, Any] = {"stop_below_loss": 0.115, "lr_scheduler_type": "linear", "max_grad_norm": 0.3}
"""Warm-up settings of Qwen3.5 that differ from those of the other families.

It learns the words of the answers sooner than the steps in them, and at a loss of 0.13 still mistakes many. From there
to 0.115 single large gradients throw it back, unless they are clipped and the learning rate decays.
"""


@dataclass(frozen=True)
class Defaults:
    """The size of a demo, where the command line names no other."""

    steps: int
    linear_steps: int  # steps of Qwen3.5
    clips: int
    family: FamilyName


def is_linear(family: FamilyName) -> bool:
    """Whether most layers of a family have linear attention."""
    return family.startswith("qwen3_5")


@dataclass
class Demo:
    """One demo: its folder, and everything that its result depends on.

    Attributes:
        steps: optimizer steps of GRPO, 8 prompts x 8 completions each.
        clips: to train on.
        family: of the model.
    """

    folder: Path
    seed: int
    steps: int
    clips: int
    family: FamilyName

    folder_name: ClassVar[str] = "demo"  # below runs/
    task: ClassVar[str] = "name the steps of videos"
    controls: ClassVar[tuple[str, ...]] = ("blank", "other_clip")
    # After 200 steps of Qwen3.5 one of five seeds still mistook one step of the procedure for another, which cost 0.14
    # of the reward.
    defaults: ClassVar[Defaults] = Defaults(steps=200, linear_steps=300, clips=600, family="qwen2_5_vl")
    minutes: ClassVar[str] = "about 4"  # by default, on two cores
    make_data: ClassVar[Any] = staticmethod(make_clips)
    texts: ClassVar[Any] = staticmethod(tokenizer_texts)  # that the tokenizer is trained on
    measure: ClassVar[str] = "accuracy"  # the reward that is 1 where an answer is right

    @classmethod
    def of(
        cls,
        folder: Path,
        *,
        seed: int = 0,
        steps: int | None = None,
        clips: int | None = None,
        family: FamilyName | None = None,
    ) -> Self:
        """The demo with the defaults of its class for what is None."""
        usual = cls.defaults
        family = family or usual.family
        if steps is None:
            steps = usual.linear_steps if is_linear(family) else usual.steps
        return cls(folder=folder, seed=seed, steps=steps, clips=clips or usual.clips, family=family)

    @property
    def data(self) -> Path:
        """The folder of the clips and records."""
        return self.folder / "data"

    @property
    def start(self) -> Path:
        """The checkpoint of random weights."""
        return self.folder / "start"

    @property
    def model(self) -> Path:
        """The checkpoint after the warm-up."""
        return self.folder / "model"

    @property
    def run(self) -> Path:
        """The folder of the training run."""
        return self.folder / "run"

    @property
    def evaluation(self) -> Path:
        """The folder of the evaluation."""
        return self.folder / "evaluation"

    @property
    def clip_settings(self) -> Any:
        """A quarter as many clips are held out."""
        return ClipSettings(seed=self.seed, train=self.clips, heldout=self.clips // 4, warmup=8 * self.clips)

    def settings(self) -> dict[str, Any]:
        """The settings that all commands share."""
        # A frame as the model sees it: two merged patches wide and high.
        pixels = (2 * (28 if self.family.startswith("qwen2") else 32)) ** 2
        return {
            "dataset_catalog": str(self.data / "datasets.yaml"),
            "seed": self.seed,
            "use_cpu": True,
            "tune_mm_vision": True,  # random weights: the tower has as much to learn as the rest
            "adam_beta2": 0.99,
            "video_min_frame_pixels": pixels,
            "video_max_frame_pixels": pixels,
            "dataloader_num_workers": 1,
            "save_strategy": "no",
            "overwrite_output_dir": True,  # so that each command works once more, as it is printed
        }

    def warmup_settings(self) -> dict[str, Any]:
        """The configuration of `qwenvl warmup`."""
        return {
            "model_name_or_path": str(self.start),
            "dataset_use": "demo_warmup",
            "output_dir": str(self.model),
            **self.settings(),
            "train_sampling_strategy": "sequential",
            "per_device_train_batch_size": 32,
            "dataloader_drop_last": True,
            # Random weights begin to look at the pictures sooner or later, by chance and by family: after up to three
            # times 150 steps. This lets GRPO begin from about the same place.
            "num_train_epochs": 3,
            "stop_below_loss": 0.13,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10,
        } | (LINEAR_ATTENTION if is_linear(self.family) else {})

    def commands(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Commands in their order: the name of the settings file, the command and its settings."""
        return [("warmup", "warmup", self.warmup_settings()), ("train", "train", self.training_settings())]

    def evaluation_words(self) -> list[str]:
        """The arguments of `qwenvl evaluate`."""
        flags = ["--use_cpu", "--controls", ",".join(self.controls), "--output_dir", str(self.evaluation)]
        return [str(self.model), str(self.run), "demo_heldout", *flags]

    def training_settings(self) -> dict[str, Any]:
        """The configuration of `qwenvl train`."""
        return {
            "model_name_or_path": str(self.model),
            "dataset_use": "demo_train",
            "eval_dataset_use": "demo_heldout",
            "output_dir": str(self.run),
            **self.settings(),
            "max_steps": self.steps,
            "per_device_train_batch_size": 8,
            "grpo_sample_size": 8,
            "grpo_beta": 0.04,
            "generation_temperature": 1.0,
            "generation_top_p": 1.0,
            "generation_max_length": 40,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.05,
            "max_grad_norm": 0.5,
            "eval_on_start": True,
            "per_device_eval_batch_size": 50,
        }

    @property
    def best_without_looking(self) -> tuple[float, float, str]:
        """Accuracy and total reward of the best answer that does not depend on the clip, and this answer."""
        accuracy, steps = best_fixed_answer()
        return accuracy, 0.3 + 0.7 * accuracy, f"by naming the steps {', '.join(map(str, steps))} of every clip"


class LookDemo(Demo):
    """A minute of video of which the model is shown four frames. What it is asked about takes a second: it has to look.

    The warm-up has two parts. A model that has seen its answers in short clips learns from ``evidence`` to write calls,
    and more often to answer at once. That only a look leads to the right answer is left to GRPO to find out.
    """

    folder_name: ClassVar[str] = "demo_look"
    task: ClassVar[str] = "look for a second within a minute"
    controls: ClassVar[tuple[str, ...]] = ("no_look", "other_span", "evidence")
    defaults: ClassVar[Defaults] = Defaults(steps=100, linear_steps=100, clips=100, family="qwen3_vl")
    minutes: ClassVar[str] = "about 8"
    make_data: ClassVar[Any] = staticmethod(make_long_clips)
    texts: ClassVar[Any] = staticmethod(look_texts)

    @property
    def clip_settings(self) -> LongClipSettings:
        """A fifth as many clips are held out."""
        return LongClipSettings(seed=self.seed, train=self.clips, heldout=max(1, self.clips // 5), sight=6 * self.clips)

    def looking(self) -> dict[str, Any]:
        """The tool, and an overview in which no step is seen."""
        frames = {"video_min_frames": OVERVIEW, "video_max_frames": OVERVIEW}
        return {"tools": ["look"], "look_frames": 2, "look_tokens": 100, **frames}

    def commands(self) -> list[tuple[str, str, dict[str, Any]]]:
        sight = super().warmup_settings() | {
            "dataset_use": "demo_sight",
            "output_dir": str(self.folder / "sight"),
            "train_sampling_strategy": "random",
            "num_train_epochs": 16,
            "stop_below_loss": 0.03,
            "video_min_frames": 2,
            "video_max_frames": 2,
        }
        calls = super().warmup_settings() | {
            "model_name_or_path": str(self.folder / "sight"),
            "dataset_use": "demo_calls",
            "per_device_train_batch_size": 16,
            "num_train_epochs": 1,
            "learning_rate": 1e-3,
            **self.looking(),
        }
        del calls["stop_below_loss"]
        train = self.training_settings() | {"max_turns": 2, "generation_max_length": 60, "learning_rate": 3e-4}
        train |= self.looking()
        return [("sight", "warmup", sight), ("calls", "warmup", calls), ("train", "train", train)]

    @property
    def best_without_looking(self) -> tuple[float, float, str]:
        accuracy = 1 / len(STEPS)
        return accuracy, 0.3 * 0.3 + 0.7 * accuracy, "by any of the six steps"  # 0.3: an answer without thinking


class TimelineDemo(Demo):
    """Clips of 12 seconds with three steps: which one, from when to when?

    The warm-up teaches the form, and answers that lack a span or have edges a second off. Which are right is left to
    GRPO to find out.
    """

    folder_name: ClassVar[str] = "demo_timeline"
    task: ClassVar[str] = "say which step a clip shows from when to when"
    defaults: ClassVar[Defaults] = Defaults(steps=150, linear_steps=150, clips=600, family="qwen3_vl")
    minutes: ClassVar[str] = "about 10"
    make_data: ClassVar[Any] = staticmethod(make_timeline_clips)
    texts: ClassVar[Any] = staticmethod(timeline_texts)
    measure: ClassVar[str] = "timeline_iou"

    @property
    def clip_settings(self) -> TimelineSettings:
        """A fifth as many clips are held out, and at least two: one is shown in place of the other."""
        heldout = max(2, self.clips // 5)
        return TimelineSettings(seed=self.seed, train=self.clips, heldout=heldout, warmup=8 * self.clips)

    def warmup_settings(self) -> dict[str, Any]:
        return super().warmup_settings() | {"stop_below_loss": 0.2, "num_train_epochs": 6}

    def training_settings(self) -> dict[str, Any]:
        rewards = {"reward_funcs": ["format", self.measure], "reward_weights": [0.3, 0.7]}
        return super().training_settings() | rewards | {"generation_max_length": 100}

    @property
    def best_without_looking(self) -> tuple[float, float, str]:
        value, spans = best_fixed_timeline()
        text = written_timeline(spans).replace("\n", "; ")
        return value, 0.3 + 0.7 * value, f"by the same spans for every clip: {text}"


def run_demo(demo: Demo) -> None:
    """Make clips and model, train and evaluate, in the place of an earlier demo in this folder.

    Raises:
        FileExistsError: the folder contains files that the demo did not make.
    """
    from qwenvl.console import settle_output
    from qwenvl.evaluate.held_out import evaluate_held_out
    from qwenvl.inspection.run_report import add_pictures, make_report
    from qwenvl.train.run.start import start_training, start_warmup

    settle_output()
    take_one_thread()
    started = time.time()
    announce = partial(print, flush=True)  # in order with standard error, in a file too
    _clear(demo)
    default = f"by default {demo.minutes} minutes on two cores"
    announce(f"A tiny {FAMILIES[demo.family].name} learns to {demo.task}, in {demo.folder} ({default})")
    commands = demo.commands()
    evaluation = demo.evaluation_words()
    last = len(commands) + 2
    announce(f"[1/{last}] clips: {demo.clips} to train on, {demo.clip_settings.heldout} held out")
    demo.make_data(demo.data, demo.clip_settings)
    _write_start(demo)
    # The commands of a real run, with their settings in files.
    for number, (name, command, settings) in enumerate(commands, 2):
        config = demo.folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings, sort_keys=False))
        announce(f"[{number}/{last}] {_command(command, '--config', config)}")
        if command == "warmup":
            start_warmup(["--config", str(config)], says_next=False)  # it comes now, with better records
        else:
            start_training(["--config", str(config)])
    announce(f"[{last}/{last}] does it look? {_command('evaluate', *evaluation)}")
    with redirect_stdout(io.StringIO()):  # its table is shown at the end
        evaluate_held_out(evaluation)
    add_pictures(make_report([demo.run], demo.run / "report"))
    minutes = round((time.time() - started) / 60, 2)
    (demo.folder / MARK).write_text(json.dumps({"minutes": minutes}) + "\n")
    announce(f"\nDone in {minutes:.1f} minutes.\n")


def take_one_thread() -> None:
    """Compute with one thread in this process, unless ``OMP_NUM_THREADS`` says how many.

    The matrices of the demo's model are too small to be divided: a second thread mostly waits, and takes a core from
    whatever else the machine does.
    """
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)


def _clear(demo: Demo) -> None:
    """Delete an earlier demo, or refuse a folder of something else."""
    made = [demo.folder / name for name in ("data", "start", "sight", "model", "run", "evaluation")]
    if not (demo.folder / MARK).is_file() and any(folder.exists() for folder in made):
        raise FileExistsError(f"{demo.folder}: not made by the demo (no {MARK}); choose another --output_dir")
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)
    demo.folder.mkdir(parents=True, exist_ok=True)
    (demo.folder / MARK).write_text("{}\n")


def _write_start(demo: Demo) -> None:
    """The random weights that the warm-up begins with.

    The warm-up's model keeps the form of an answer and half guesses what it says, as a real checkpoint can talk and see
    before GRPO begins. A policy that never scores has nothing to learn from. Most targets name one of the two steps
    only, and some pairs of steps never occur (see ``qwenvl.demo.clips``): to name both, whatever they are, is left to
    GRPO to find out.
    """
    from qwenvl.demo.tiny import save_tiny

    save_tiny(demo.start, demo.family, demo.seed, texts=demo.texts(), **MODEL)


def show_result(demo: Demo) -> None:
    """Print the table of the evaluation, a clip that was learned, and where everything is."""
    from qwenvl.evaluate.results_table import table

    print(table(read_evaluation(demo.evaluation), demo.evaluation))
    accuracy, total, how = demo.best_without_looking
    print(f"\nBest without looking: {demo.measure} {accuracy:.3f}, total {total:.3f}, {how}.")
    found = example(demo.run, demo.steps, demo.measure)
    if found is not None:
        before, after = found
        print(f"\n{os.path.relpath(after.clips[0].path)} shows {after.solution}")
        print(f"  before: {before.completion}\n  after:  {after.completion}")
    here = os.path.relpath
    print(
        f"\nmetrics   {here(demo.run / 'metrics.jsonl')}"
        f"\nrollouts  {here(demo.run / 'rollouts')}: every completion with its rewards"
        f"\nreport    {here(demo.run / 'report' / 'index.html')}: curves, frames and groups; open it in a browser"
        f"\nmodel     {here(demo.run)}: loads with transformers"
        f"\nagain     {_command('train', '--config', demo.folder / 'train.yaml')}"
    )


def example(run: str | Path, last_step: int, measure: str = "accuracy") -> tuple[Rollout, Rollout] | None:
    """The answers to a held-out clip before and after training: the first one that was wrong and then right.

    Args:
        measure: the reward that is 1 where an answer is right.
    """
    before = {each.record_id: each for each in read_rollouts(run, step=0, split="eval")}
    for after in read_rollouts(run, step=last_step, split="eval"):
        if after.rewards[measure] == 1 and before[after.record_id].rewards[measure] != 1:
            return before[after.record_id], after
    return None


def _command(name: str, *words: str | Path) -> str:
    """A command as it can be typed here, with relative paths."""
    program = "qwenvl" if shutil.which("qwenvl") else os.path.relpath(Path(sys.executable).with_name("qwenvl"))
    here = [os.path.relpath(word) if str(word).startswith("/") else str(word) for word in words]
    return f"{program} {name} {shlex.join(here)}"
