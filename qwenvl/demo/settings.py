"""One demo as a value: its folder, its sizes, and the settings files of its warm-up and of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.demo.clips import ClipSettings
from qwenvl.model.families import FamilyName

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
