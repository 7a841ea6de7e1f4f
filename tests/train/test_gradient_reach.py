"""Gradients reach every part that should learn, or the run ends with a sentence that names the part."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from peft import get_peft_model
from torch import nn

from qwenvl.demo.tiny import FAMILIES
from qwenvl.failure import NoGradientError
from qwenvl.model.loading import lora_config
from qwenvl.model.logprobs import Likelihood, completion_likelihood
from qwenvl.model.options import LoraOptions, TuneOptions
from qwenvl.train.gradient_reach import (
    GradientReach,
    learning_part,
    let_gradients_into_the_tower,
    reached_parts,
)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("base_model.model.model.visual.blocks.3.attn.qkv.lora_B.default.weight", "visual.blocks.3"),
        ("model.visual.patch_embed.proj.weight", "visual.patch_embed"),
        ("model.visual.merger.linear_fc1.weight", "visual.merger"),
        ("model.visual.deepstack_merger_list.1.norm.weight", "visual.deepstack_merger_list"),
        ("module.model.language_model.layers.11.mlp.experts.gate_up_proj", "language_model.layers.11"),
        ("model.language_model.embed_tokens.weight", "language_model.embed_tokens"),
        ("model.language_model.norm.weight", "language_model.norm"),
        ("lm_head.weight", "lm_head"),
        ("own_head.weight", "own_head.weight"),
    ],
)
def test_a_parameter_is_judged_with_its_block_or_module(name, part):
    assert learning_part(name) == part


def test_a_part_is_reached_if_one_of_its_parameters_is():
    some, none = torch.tensor([0.0, 1e-30]), torch.zeros(2)
    gradients = [
        ("model.visual.blocks.0.lora_A", none),
        ("model.visual.blocks.0.lora_B", some),
        ("model.visual.blocks.1.lora_A", none),
        ("model.visual.blocks.1.lora_B", None),
        ("lm_head.weight", torch.tensor([float("nan")])),
    ]
    assert reached_parts(gradients) == {"visual.blocks.0": True, "visual.blocks.1": False, "lm_head": True}
    assert reached_parts([]) == {}


class Prompts:
    """So many prompts, each with so many images."""

    def __init__(self, *images: int):
        self.images_per_prompt, self.videos_per_prompt = list(images), [0] * len(images)

    def __len__(self):
        return len(self.images_per_prompt)


class Model(nn.Module):
    """A weight of the tower and one of the language model. Names are those of the families."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.visual, self.model.language_model = nn.Module(), nn.Module()
        self.model.visual.blocks = nn.ModuleList([nn.Linear(1, 1, bias=False)])
        self.model.language_model.layers = nn.ModuleList([nn.Linear(1, 1, bias=False)])

    def step(self, reach, prompts, ids, advantages, tower=True):
        """Log-probs that depend on the tower where a prompt has images, and a backward pass."""
        self.zero_grad()
        ids = torch.tensor(ids)
        size = len(ids) // len(prompts)
        images = torch.tensor(prompts.images_per_prompt).repeat_interleave(size).float()[:, None]
        seen = self.model.visual.blocks[0].weight * images
        logprobs = ids * self.model.language_model.layers[0].weight + (ids * seen if tower else 0)
        reach.observe(Likelihood(logprobs), prompts, ids)
        (logprobs * torch.tensor(advantages)[:, None]).sum().backward()


DIFFERENT, SAME = [[1, 2], [1, 3]], [[1, 2], [1, 2]]


@pytest.fixture
def made():
    """A model of named parts and the check of its gradients."""
    model = Model()
    return model, GradientReach(model, Accelerator(cpu=True))


def test_a_part_without_gradient_ends_the_run_and_is_named(made):
    model, reach = made
    model.step(reach, Prompts(1), DIFFERENT, [1.0, -1.0], tower=False)
    with pytest.raises(NoGradientError, match=r"step 7: visual\.blocks\.0 should learn .*--tune_mm_vision"):
        reach.check(7)


def test_steps_that_prove_nothing_are_passed_over(made):
    model, reach = made
    for prompts, ids, advantages in (
        (Prompts(1), DIFFERENT, [0.0, 0.0]),  # equal rewards
        (Prompts(1), SAME, [1.0, -1.0]),  # the same completions, whose gradients cancel out
        (Prompts(0), DIFFERENT, [1.0, -1.0]),  # a text
        (Prompts(0, 1), DIFFERENT + DIFFERENT, [1.0, -1.0, 0.0, 0.0]),  # a text, and an image with equal rewards
    ):
        model.step(reach, prompts, ids, advantages, tower=False)
        reach.check(1)
    model.step(reach, Prompts(0, 1), DIFFERENT + DIFFERENT, [0.0, 0.0, 1.0, -1.0], tower=False)
    with pytest.raises(NoGradientError, match=r"visual\.blocks\.0"):
        reach.check(2)


def test_the_check_runs_until_every_part_was_reached_and_then_no_more(made):
    model, reach = made
    model.step(reach, Prompts(0), DIFFERENT, [1.0, -1.0])
    reach.check(1)
    model.step(reach, Prompts(1), DIFFERENT, [1.0, -1.0])
    reach.check(2)
    model.step(reach, Prompts(1), DIFFERENT, [1.0, -1.0], tower=False)
    reach.check(3)


def test_all_parts_without_gradient_are_a_fault_too(made):
    model, reach = made
    model.step(reach, Prompts(1), DIFFERENT, [1.0, -1.0])
    model.zero_grad()
    with pytest.raises(NoGradientError, match=r"visual\.blocks\.0, language_model\.layers\.0 should learn"):
        reach.check(1)


def test_gradients_that_deepspeed_drops_are_seen_as_they_come():
    model, accelerator = Model(), Accelerator(cpu=True)
    like_deepspeed = SimpleNamespace(distributed_type="DEEPSPEED", device=accelerator.device, reduce=accelerator.reduce)
    reach = GradientReach(model, like_deepspeed)
    model.step(reach, Prompts(0), DIFFERENT, [1.0, -1.0])
    model.zero_grad()
    reach.check(1)
    model.step(reach, Prompts(1), DIFFERENT, [1.0, -1.0], tower=False)
    model.zero_grad()
    with pytest.raises(NoGradientError, match=r"step 2: visual\.blocks\.0 should learn"):
        reach.check(2)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_lora_and_reentrant_checkpointing_every_block_of_the_tower_learns(family, tiny_pair, random_prompts):
    model, _ = tiny_pair(family)
    prompts = random_prompts(model, ["tv", "ti"])
    tune = TuneOptions(tune_mm_llm=True, tune_mm_vision=True, tune_mm_mlp=True)
    model = get_peft_model(model, lora_config(model, tune, LoraOptions(lora_enable=True, lora_r=2)))
    reentrant = {"use_reentrant": True}
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable(reentrant)
    model.enable_input_require_grads()
    model.train()
    args = SimpleNamespace(gradient_checkpointing=True, gradient_checkpointing_kwargs=reentrant)
    let_gradients_into_the_tower(model, args)
    reach = GradientReach(model, Accelerator(cpu=True))
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    likelihood = completion_likelihood(model, prompts, ids, ids > 0, temperature=1.0, logit_chunk_tokens=8)
    reach.observe(likelihood, prompts, ids)
    likelihood.logprobs.sum().backward()
    reach.check(1)
    block_adapters = [each for name, each in model.named_parameters() if "visual.blocks" in name and ".lora_B." in name]
    assert block_adapters and all(each.grad.any() for each in block_adapters)
