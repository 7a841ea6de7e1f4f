"""What every test may ask for: tiny checkpoints, made once per session; and the rules of a run (threads, seeds)."""

from __future__ import annotations

import os

# Before any Hugging Face import: a test that reaches for the network fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_configure(config):
    # Tiny tensors gain nothing from threads, and one thread makes sums repeatable.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    has_gpu, run_slow = torch.cuda.is_available(), config.getoption("--slow")
    for item in items:
        if "gpu" in item.keywords and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if "slow" in item.keywords and not run_slow:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))


@pytest.fixture(autouse=True)
def _same_seeds_for_every_test():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Callable[..., Path]:
    """``tiny_checkpoint(family="qwen2_5_vl", **options)`` -> folder; options as in `qwenvl.demo.tiny.save_tiny`.

    The same arguments give the same folder for the whole session: read it, never write to it.
    """
    from qwenvl.demo.tiny import save_tiny

    made: dict[str, Path] = {}

    def get(family: str = "qwen2_5_vl", **options) -> Path:
        key = repr((family, sorted(options.items())))
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(family) / "checkpoint", family, **options)
        return made[key]

    return get


@pytest.fixture(scope="session")
def tiny_pair(tiny_checkpoint):
    """``tiny_pair(family="qwen2_5_vl", **options)`` -> (model, processor), freshly loaded: the test may change both."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    def load(family: str = "qwen2_5_vl", **options):
        folder = tiny_checkpoint(family, **options)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        return model, AutoProcessor.from_pretrained(folder)

    return load
