"""What passes hold while they run, against what PyTorch's allocator gives out."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.families import FAMILIES
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning
from qwenvl.model.options import TuneOptions
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision.tower import encode_vision
from qwenvl.plan.estimate import estimate
from qwenvl.plan.job import Job
from qwenvl.plan.shapes import Shapes
from qwenvl.plan.weights import Weights
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.prefill import sample_shared

NOTHING = Weights(held=0, trained=0, trained_held=0, layer=0, head=0, tied=False, rounded=0)
UNITS = (300, 900)
"""Merged patches of a prompt. What is looked at is how much more the larger one takes."""
GROUP, LENGTH = 2, 3


def held(run) -> tuple[int, int]:
    """Bytes that are allocated within ``run``: the most at a time, and at its end, its result still there."""
    gc.collect()  # else what is released is counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = run()
    events = record.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    sums = np.cumsum([size for _, size in changes])
    del result
    return int(sums.max()), int(sums[-1])


def prompt(model: torch.nn.Module, units: int) -> PromptInputs:
    """A video of ``units`` frames between ten tokens of text, with features in the place of pixels."""
    visual = model.model.visual
    side, embed = visual.spatial_merge_size, visual.patch_embed
    pixels = torch.rand(units * side**2, 3 * embed.temporal_patch_size * embed.patch_size**2)
    ids = torch.tensor([[7] * 5 + [model.config.video_token_id] * units + [7] * 5])
    video = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([[units, side, side]])}
    return encode_vision(model, replace(PromptInputs.of_text(ids), **video, videos_per_prompt=[1]))


def model_of(family: str, checkpointing: bool = False) -> torch.nn.Module:
    """Wide enough for activations to be more than what is not counted."""
    model = make_model(family, make_processor(family), hidden_size=128, num_layers=4)
    apply_tuning(model, TuneOptions())
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def counted(model: torch.nn.Module, prompts: PromptInputs, phase: str, *parts: str, **job: object) -> int:
    """Bytes of some parts of a phase."""
    of_prompt = Job(prompts.input_ids.shape[1], len(prompts.pixel_values_videos), group=GROUP, length=LENGTH, **job)
    phases = {each.name: each.parts for each in estimate(Shapes.of(model.config), NOTHING, of_prompt).phases}
    return sum(phases[phase][part] for part in parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_holds_what_is_counted(family):
    model = model_of(family).eval()
    params = SamplingParams(max_new_tokens=1)
    sizes = [prompt(model, units) for units in UNITS]
    most = [
        held(lambda prompts=prompts: sample_shared(model, prompts, GROUP, params, suppress=[], end_ids=[], pad_id=0))[0]
        for prompts in sizes
    ]
    planned = [counted(model, prompts, "prefill", "activations", "cache") for prompts in sizes]
    assert planned[1] - planned[0] == pytest.approx(most[1] - most[0], rel=0.2)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_forward_keeps_what_is_counted(family, checkpointing):
    model = model_of(family, checkpointing).train()
    ids = torch.randint(0, 250, (GROUP, LENGTH))
    sizes = [prompt(model, units) for units in UNITS]
    kept = [
        held(
            lambda prompts=prompts: shared_prefix.completion_logprobs(
                model, prompts, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0, logit_chunk_tokens=512
            )
        )[1]
        for prompts in sizes
    ]
    planned = [counted(model, prompts, "backward", "activations", checkpointing=checkpointing) for prompts in sizes]
    assert planned[1] - planned[0] == pytest.approx(kept[1] - kept[0], rel=0.12)
