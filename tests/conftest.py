"""Fixtures of all tests: tiny checkpoints, random prompts, and the rules of a run (threads, seeds)."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.environment  # noqa: F401 (before numpy and torch, which read the number of threads)

# Without torch: the process that hands out tests to workers needs none, and would take seconds for it.
pytest_plugins = ["tests.made_clips", "tests.watcher", "tests.forked"]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--vllm", action="store_true", help="run those marked vllm; scripts/test.sh --vllm, not by hand")


def pytest_configure(config):
    if device := os.environ.get("QWENVL_TEST_DEVICE"):  # models and tensors of the tests are made there
        import torch

        torch.set_default_device(device)
    if other := int(os.environ.get("QWENVL_TEST_SEED", "0")):  # other weights and samples in every test
        import torch

        plain = torch.manual_seed
        torch.manual_seed = torch.random.manual_seed = lambda seed: plain((seed + 1_000_003 * other) % 2**63)


def pytest_collection_modifyitems(config, items):
    torch, run_slow = sys.modules.get("torch"), config.getoption("--slow")
    has_gpu = torch is not None and torch.cuda.is_available()
    no_vllm = pytest.mark.skip(reason="needs vLLM in an environment of its own; run with bash scripts/test.sh --vllm")
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("vllm") and not config.getoption("--vllm"):
            item.add_marker(no_vllm)
        if item.get_closest_marker("slow") and not run_slow:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))
    if seed := os.environ.get("QWENVL_TEST_ORDER"):  # files in random order, and the tests in each
        random.Random(seed).shuffle(items)
        files = {}
        items.sort(key=lambda item: files.setdefault(item.path, len(files)))


def pytest_collection_finish():
    # Each training collects garbage, and would look through all modules and tests for it: a third of a second.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_seeds_for_every_test():
    """Seeds random, NumPy and PyTorch, and shortens the wait of a data loader for its workers."""
    import numpy as np

    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    if loading := sys.modules.get("torch.utils.data._utils"):  # seconds that a loader waits for its workers at the end,
        loading.MP_STATUS_CHECK_INTERVAL = 0.2  # twice, and not 5: ours take no SIGTERM


@pytest.fixture(scope="session", autouse=True)
def _a_cache_of_its_own(tmp_path_factory):
    """A cache folder for this session in the place of the user's."""
    os.environ["QWENVL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def never_at_full_size(monkeypatch):
    """No process that asks for a clip gets it whole: the frames that it is handed are resized a few at a time."""

    def refused(clip, indices):
        raise AssertionError(f"{clip.path}: {len(indices)} frames at full size")

    monkeypatch.setattr("qwenvl.data.media.open.GuardedClip.read", refused)


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
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    def load(family: str = "qwen2_5_vl", **options):
        folder = tiny_checkpoint(family, **options)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        return model, AutoProcessor.from_pretrained(folder)

    return load


@pytest.fixture
def random_prompts() -> Callable:
    """``random_prompts(model, ["tv", "tit"])`` -> PromptInputs: one per word, t text, i image, v video."""
    return _random_prompts


def _random_prompts(model, words: list[str], seed: int = 0):
    import torch

    from qwenvl.model.families import family_of
    from qwenvl.model.inputs import PromptInputs
    from qwenvl.model.positions import position_rule, prompt_positions

    generator = torch.Generator().manual_seed(seed)
    config, rows, grids = model.config, [], {"i": [], "v": []}

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    def part(kind: str) -> list[int]:
        if kind == "t":
            return [draw(0, 250) for _ in range(draw(2, 9))]
        grid = [draw(1, 4) if kind == "v" else 1, 2 * draw(1, 5), 2 * draw(1, 5)]
        grids[kind].append(grid)
        pad = config.image_token_id if kind == "i" else config.video_token_id
        pictures = grid[0] if family_of(config).time == "timestamp" else 1
        picture = [pad] * (grid[0] * grid[1] * grid[2] // 4 // pictures)
        return [config.vision_start_token_id, *picture, config.vision_end_token_id] * pictures

    def patches(of: list[list[int]]):
        vision = config.vision_config
        width = 3 * vision.temporal_patch_size * vision.patch_size**2
        count = sum(t * h * w for t, h, w in of)
        return torch.randn(count, width, generator=generator).to(model.dtype) if of else None

    rows = [[token for kind in word for token in part(kind)] + [7, 8] for word in words]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    images, videos = (torch.tensor(grids[kind]) if grids[kind] else None for kind in "iv")
    seconds = torch.full((len(grids["v"]),), 0.75)
    return PromptInputs(
        input_ids=ids,
        attention_mask=mask,
        position_ids=prompt_positions(position_rule(config), ids, mask, images, videos, seconds),
        pixel_values=patches(grids["i"]),
        image_grid_thw=images,
        pixel_values_videos=patches(grids["v"]),
        video_grid_thw=videos,
        images_per_prompt=[word.count("i") for word in words],
        videos_per_prompt=[word.count("v") for word in words],
    )


@pytest.fixture
def fake(tiny_pair, monkeypatch):
    """``fake(family, **options)``: a server whose starting weights are not those of ``tiny_pair``."""
    from tests.fake_server import serving

    yield from serving(tiny_pair, monkeypatch)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A page of a headless Chromium, for all tests."""
    from tests.chromium import Page, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine; apt install chromium, or name one in $CHROMIUM")
    page = Page(program, tmp_path_factory.mktemp("chromium"))
    yield page
    page.close()
