"""The flags that ``qwenvl data`` and ``qwenvl preview`` share with training, and what they stand for."""

from __future__ import annotations

import argparse
from typing import Any

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.records.catalog import DatasetSource, resolve_datasets

_FRAME_FLAGS: dict[str, dict[str, Any]] = {
    "base_interval": {"type": float, "default": 2.0, "help": "seconds between frames (2.0)"},
    "video_fps": {"type": float, "default": None, "help": "frames per second, in place of --base_interval"},
    "video_min_frames": {"type": int, "default": 4, "help": "least frames of a clip (4)"},
    "video_max_frames": {"type": int, "default": 8, "help": "most frames of a clip (8)"},
    "video_backend": {"default": "auto", "help": "auto, torchcodec, pyav or decord (auto)"},
    "decode_timeout": {"type": float, "default": 60.0, "help": "seconds before a clip's decoder is killed (60)"},
}
_PROMPT_FLAGS: dict[str, dict[str, Any]] = {
    "video_min_frame_pixels": {"type": int, "default": 4 * 28 * 28, "help": "least pixels of a frame (3136)"},
    "video_max_frame_pixels": {"type": int, "default": 32 * 28 * 28, "help": "most pixels of a frame (25088)"},
    "min_pixels": {"type": int, "default": 16 * 28 * 28, "help": "least pixels of an image (12544)"},
    "max_pixels": {"type": int, "default": 576 * 28 * 28, "help": "most pixels of an image (451584)"},
    "max_prompt_length": {"type": int, "default": None, "help": "tokens above which a prompt is bad"},
    "fit_frames": {"action": "store_true", "help": "lower frames, then pixels, of prompts above --max_prompt_length"},
}


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """The data set and how its rows are read."""
    parser.add_argument("dataset", help="as --dataset_use of training: names of the catalog or paths, %%NN, :weight")
    parser.add_argument("--dataset_catalog", help="another catalog than data/datasets.yaml")
    parser.add_argument("--columns", default="", help="names in the file to names known here: question=prompt,...")
    parser.add_argument("--prompt_template", help="file with {prompt} in it, which each last user turn replaces")
    parser.add_argument("--system", help="system turn of every prompt: a text, or a file that holds it")
    parser.add_argument("--allow_outside_media", action="store_true", help="let media leave the media root")
    parser.add_argument("--allow_remote_media", action="store_true", help="let media be http(s) addresses")


def add_frame_flags(parser: argparse.ArgumentParser) -> None:
    """What is shown of media, with the names and defaults of training."""
    parser.add_argument("--model", help="a checkpoint: make the prompts with its processor and count their tokens")
    for name, options in (_FRAME_FLAGS | _PROMPT_FLAGS).items():
        parser.add_argument(f"--{name}", **options)


def frame_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of ``GRPODataset``."""
    return {name: getattr(args, name) for name in _FRAME_FLAGS}


def make_collator(args: argparse.Namespace) -> GRPOCollator | None:
    """A collator that gives prompts that are too long as bad samples; None without ``--model``."""
    if args.model is None:
        if args.max_prompt_length is not None:
            raise ValueError("--max_prompt_length counts tokens: give --model, whose processor makes them")
        if args.fit_frames:
            raise ValueError("--fit_frames has no effect without --model and --max_prompt_length")
        return None
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(args.model)
    policy = {} if args.max_prompt_length is None else {"on_long_prompt": "skip"}
    return GRPOCollator(processor, **policy, **{name: getattr(args, name) for name in _PROMPT_FLAGS})


def sources_of(args: argparse.Namespace) -> list[DatasetSource]:
    """The data sets named."""
    return resolve_datasets(args.dataset, args.dataset_catalog)
