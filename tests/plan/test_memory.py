"""Bytes redone by hand on a small model, and against what autograd saves and PyTorch's allocator gives out."""

import gc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from peft import get_peft_model
from torch.profiler import ProfilerActivity, profile

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model import logprobs, vision_tower
from qwenvl.model.families import FAMILIES
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, lora_config, unwrap
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import encode_vision
from qwenvl.plan import memory
from qwenvl.plan.memory import (
    cache_bytes,
    estimate,
    features_bytes,
    fullest,
    layer_bytes,
    merger_bytes,
    optimizer_bytes,
    reference_bytes,
    remedies,
)
from qwenvl.plan.sizes import Job, LinearAttention, ModelWeights, Shapes, Text, Vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import SharedSampler

TEXT = Text(
    layers=("full_attention",) * 2,
    hidden=8,
    heads=2,
    key_value_heads=1,
    head=4,
    intermediate=16,
    vocabulary=100,
    normed_heads=False,
    gated=False,
)
VISION = Vision(
    blocks=2, hidden=4, intermediate=8, saved_products=4, root_mean_square=True, patch_values=12, merged=4, mergers=1
)  # fmt: skip
SHAPES = Shapes(TEXT, VISION)
JOB = Job(tokens=10, patches=16, group=3, length=5)
PARAMETERS = [
    ("model.language_model.embed_tokens.weight", (100, 8), 4, True),
    ("model.language_model.layers.0.mlp.up_proj.weight", (16, 8), 4, True),
    ("model.language_model.layers.1.mlp.up_proj.weight", (16, 8), 4, True),
    ("model.language_model.layers.1.norm.weight", (8,), 4, True),
    ("model.visual.blocks.0.weight", (4, 4), 4, False),
]
WEIGHTS = ModelWeights.of(PARAMETERS, layers=2)


def test_weights_gradients_and_one_time_buffers_are_counted():
    assert WEIGHTS.trained == 800 + 128 + 128 + 8
    assert WEIGHTS.held == 4 * (WEIGHTS.trained + 16)
    assert (WEIGHTS.layer, WEIGHTS.head) == ((128 + 128 + 8) // 2, 800)
    assert WEIGHTS.rounded == 800 + 128 + 128  # no norms
    whole, half = (estimate(SHAPES, WEIGHTS, replace(JOB, products=b)) for b in (4, 2))
    assert whole[-1].parts["gradients"] == half[-1].parts["gradients"] == 4 * WEIGHTS.trained
    assert (whole[1].parts["one-time buffers"], half[1].parts["one-time buffers"]) == (0, 2 * WEIGHTS.rounded)


def test_a_copied_reference_shares_frozen_tensors_unless_it_is_sharded():
    for reference, engine, expected in (
        *(("none", "none", 0), ("adapter", "none", 0), ("copy", "none", 4 * 1064)),
        *(("other", "none", 4 * 1080), ("copy", "zero3", 4 * 1080)),
    ):
        assert reference_bytes(WEIGHTS, Job(tokens=1, patches=0, reference=reference, engine=engine)) == expected
    rounded = Job(tokens=1, patches=0, reference="copy", reference_rounded=True, products=2)
    assert reference_bytes(WEIGHTS, rounded) == 4 * 1064 - 2 * (128 + 128)  # neither the embedding nor norms


def test_a_prompt_is_computed_once_for_all_its_completions():
    assert JOB.row_tokens == 10 + 3 * 4  # a completion's last token predicts nothing
    assert Job(tokens=10, patches=16, group=3, length=5, shared=False).row_tokens == 3 * 15
    assert Job(tokens=10, patches=16, prompts=4, group=3, length=5, token_budget=60).sampled_together == 2
    assert Job(tokens=10, patches=16, prompts=4, group=3, length=5, token_budget=1).sampled_together == 1


def test_sampling_keeps_keys_and_values_or_a_state():
    assert cache_bytes(TEXT, JOB) == 2 * (4 + 4) * (10 + 3 * 5) * 4
    decoding = {phase.name: phase for phase in estimate(SHAPES, WEIGHTS, JOB)}["decoding"]
    assert decoding.parts["activations"] == 3 * 2 * 15 * 3 * 4
    linear = LinearAttention(heads=2, key_width=3, value_width=5, channels=22, kernel=4)
    mixed = Text(("linear_attention", "full_attention"), 8, 2, 1, 4, 16, 100, True, True, linear=linear)
    assert cache_bytes(mixed, JOB) == (4 + 4) * 25 * 4 + 3 * (22 * 4 * 4 + 2 * 3 * 5 * 4)


def test_features_of_all_micro_batches_are_counted_or_the_pixels_in_their_place():
    job = Job(tokens=10, patches=16, prompts=2, micro_batches=3)
    assert features_bytes(VISION, job, 2) == features_bytes(VISION, job, 9) == 6 * 16 * 4 * 4
    assert features_bytes(VISION, Job(tokens=10, patches=16, encoded=False), 1) == 16 * 12 * 4
    waiting = replace(job, waits_on_host=True)
    assert features_bytes(VISION, waiting, 2) == 2 * 16 * 4 * 4
    assert features_bytes(VISION, waiting, 9) == 6 * 16 * 4 * 4
    assert merger_bytes(VISION, JOB) == (16 * 4 * 4 * 4, 0)
    assert merger_bytes(VISION, Job(tokens=10, patches=16, mergers_learn=False)) == (0, 0)


def test_each_optimizer_keeps_its_bytes_per_weight():
    kept = {"adamw_torch_fused": 8.0, "adamw_8bit": 2 * (1 + 4 / 256), "paged_lion_32bit": 4.0, "sgd": 0.0, "new": 8}
    for name, expected in kept.items():
        assert optimizer_bytes(WEIGHTS, Job(tokens=1, patches=0, optimizer=name)) == round(expected * 1064)
    with_momentum = Job(tokens=1, patches=0, optimizer="sgd", further_moments=1)
    assert optimizer_bytes(WEIGHTS, with_momentum) == 4 * 1064


def kept_by_layers(model: torch.nn.Module, rounded: bool) -> list[int]:
    """Bytes of the tensors that autograd keeps in each layer of a forward, parameters and their copies left out."""
    bare = unwrap(model)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    numbers = {each.numel() for each in bare.model.language_model.layers.parameters()}
    known, kept, now = {}, {}, [-1]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        copied = rounded and tensor.dtype == torch.bfloat16 and tensor.numel() in numbers
        if storage.data_ptr() not in weights | known.keys() and not copied:
            known[storage.data_ptr()] = storage  # alive, so that no other takes its place
            kept[now[0]] = kept.get(now[0], 0) + storage.nbytes()
        return tensor

    for number, layer in enumerate(bare.model.language_model.layers):
        layer.register_forward_pre_hook(lambda module, args, number=number: now.__setitem__(0, number))
        layer.register_forward_hook(lambda module, args, out: now.__setitem__(0, -1))
    prompts = PromptInputs.of_text(torch.randint(0, 250, (1, 200)))
    ids = torch.randint(0, 250, (3, 20))
    cast = torch.autocast("cpu", torch.bfloat16, enabled=rounded)
    with cast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        shared_prefix.completion_logprobs(
            model.train(), prompts, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0, logit_chunk_tokens=512
        )
    return [kept[number] for number in range(len(bare.model.language_model.layers))]


@pytest.mark.parametrize(
    ("family", "how"),
    [
        *((family, "full") for family in FAMILIES),
        *(("qwen2_5_vl", how) for how in ("lora", "bfloat16", "lora in bfloat16")),
        ("qwen3_5", "lora"),
    ],
)
def test_the_planned_activations_of_a_layer_equal_the_measured_ones(family, how):
    rounded, adapted = "bfloat16" in how, "lora" in how
    model = make_model(family, make_processor(family), hidden_size=128, num_layers=4)
    apply_tuning(model, TuneOptions())
    if adapted:
        model = model.to(torch.bfloat16) if rounded else model
        model = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 4, 8)))
    shapes = Shapes.of(unwrap(model).config)
    half = {"stream": 2 if adapted else 4, "products": 2} if rounded else {}
    job = Job(tokens=200, patches=0, group=3, length=20, rank=4 if adapted else 0, **half)
    kept = kept_by_layers(model, rounded)
    for number in range(1, len(kept)):  # the first one's input is no activation where nothing before it learns
        counted = layer_bytes(shapes.text, shapes.text.layers[number], job)
        assert counted == pytest.approx(kept[number], rel=0.06), (number, shapes.text.layers[number])


NOTHING = ModelWeights(held=0, trained=0, trained_held=0, layer=0, head=0, rounded=0)
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
    phases = {each.name: each.parts for each in estimate(Shapes.of(model.config), NOTHING, of_prompt)}
    return sum(phases[phase][part] for part in parts)


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_5"])
def test_the_planned_growth_of_a_prefill_equals_the_measured_growth(family):
    model = model_of(family).eval()
    params = SamplingParams(max_new_tokens=1)
    sizes = [prompt(model, units) for units in UNITS]
    sampled = lambda prompts: SharedSampler(model, prompts, GROUP, params, suppress=[], end_ids=[], pad_id=0).first()
    most = [held(partial(sampled, prompts))[0] for prompts in sizes]
    planned = [counted(model, prompts, "prefill", "activations", "cache") for prompts in sizes]
    assert planned[1] - planned[0] == pytest.approx(most[1] - most[0], rel=0.2)


@pytest.mark.parametrize(
    ("family", "checkpointing"), [("qwen2_5_vl", False), ("qwen3_vl", True), ("qwen3_5", False)]
)
def test_the_planned_growth_of_a_forward_equals_the_measured_growth(family, checkpointing):
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


def test_remedies_lower_the_peak_one_after_the_other():
    case = SHAPES, WEIGHTS, Job(tokens=1000, patches=4000, prompts=2, group=4, length=50)
    found = list(remedies(*case))
    peaks = [fullest(estimate(*case)).total, *(peak for *_, peak in found)]
    assert peaks == sorted(set(peaks), reverse=True)
    assert found[0][0] == "--per_device_train_batch_size 1 --gradient_accumulation_steps 2"
    assert [flags.split()[0] for flags, *_ in found[1:]] == ["--gradient_checkpointing", "--max_prompt_length"]


def test_the_numbers_of_the_plan_are_those_of_the_model():
    """The room ``plan`` does without torch, so it has them a second time."""
    assert (memory.PIECE, memory.LOGIT_BYTES) == (vision_tower.PIECE, logprobs.BYTES_PER_LOGIT)
