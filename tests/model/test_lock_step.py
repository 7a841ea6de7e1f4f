"""A model runs with the weights of one layer at a time, and which layer is next is what the first process waits for."""

from contextlib import contextmanager

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model import lock_step
from qwenvl.model.lock_step import LockStep
from qwenvl.model.vision_tower import encode_vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine
from tests.model.test_sharding import mesh  # noqa: F401

PARAMS = SamplingParams(5, temperature=0.0)


class OneProcess:
    """Plays the engine that splits a model. Weights that are not gathered are gone."""

    def __init__(self, model):
        self.whole = {id(each): each.data for each in model.parameters()}
        self.most = 0
        self.turns: list[int] = []

    @contextmanager
    def gathered(self, module):
        for each in module.parameters():
            each.data = self.whole[id(each)]
        self.most = max(self.most, sum(each.numel() for each in module.parameters()))
        yield
        self.release(module)

    def release(self, module):
        for each in module.parameters():
            each.data = torch.empty(0, dtype=each.dtype)

    def all_reduce(self, number, op):
        self.turns.append(int(number))


@pytest.fixture
def split(monkeypatch):
    """``split(model)`` -> an engine that has taken its weights away."""

    def make(model):
        played = OneProcess(model)
        monkeypatch.setattr(lock_step, "_gathered", played.gathered)
        monkeypatch.setattr(lock_step, "all_reduce", played.all_reduce)
        played.release(model)
        return played

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_no_forward_of_any_family_needs_more_than_one_layer(family, random_prompts, split):
    """The tower by itself, the plain and the fast engine: each finds the weights of what it runs, and no others."""
    processor = make_processor(family)
    model = make_model(family, processor, initializer_range=0.25).requires_grad_(False)
    prompts = random_prompts(model, ["tvi", "t"])
    engines = [SharedPrefixEngine(processor.tokenizer, model), LocalEngine(processor.tokenizer, model)]
    expected = [engine.draw(model, prompts, 2, PARAMS, seed=0) for engine in engines]
    features = encode_vision(model, prompts).pixel_values_videos
    split_model = split(model)
    with LockStep("cpu")(model):
        assert torch.equal(encode_vision(model, prompts).pixel_values_videos, features)
        for engine, whole in zip(engines, expected, strict=True):
            again = engine.draw(model, prompts, 2, PARAMS, seed=0)
            assert torch.equal(again.completion_ids, whole.completion_ids)
            assert torch.equal(again.logprobs, whole.logprobs)
    assert split_model.most < sum(each.numel() for each in split_model.whole.values()) / 2
    assert not any(each.numel() or each.is_inference() for each in model.parameters())


def test_the_first_layer_that_any_process_waits_for_is_next(random_prompts, split, monkeypatch):
    """Another process runs the first three blocks of its tower while this one is in the midst of its own forward."""
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl")).requires_grad_(False)
    prompts = random_prompts(model, ["t"])
    split(model)
    layers = [module for module, _ in lock_step._layers(model)]
    other, turns = iter([len(layers), len(layers), 0, 1, 2]), []

    def all_reduce(number, op):
        assert op == torch.distributed.ReduceOp.MIN
        number.clamp_(max=next(other, len(layers)))
        turns.append(int(number))

    monkeypatch.setattr(lock_step, "all_reduce", all_reduce)
    with LockStep("cpu")(model), torch.inference_mode():
        model(input_ids=prompts.input_ids, position_ids=prompts.position_ids, use_cache=False)
    text = model.model.language_model
    embeddings, first, *rest = [layers.index(each) for each in (text.embed_tokens, *text.layers, text.norm)]
    head = layers.index(model.lm_head)
    assert turns == [embeddings, first, 0, 1, 2, *rest, head, len(layers)]


def test_a_layer_of_fsdp_is_gathered_while_it_runs(mesh):  # noqa: F811
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    x = torch.randn(3, 4)
    expected = model(x)
    for part in (model[0], model):
        fully_shard(part, mesh=mesh)
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(isinstance(model[0].weight, DTensor)))
    steps = LockStep("cpu")
    with steps(model), torch.no_grad():
        torch.testing.assert_close(model(x), expected)
        steps.meet()
        assert seen == [True] and isinstance(model[0].weight, DTensor)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), steps(model), torch.no_grad():
        model(torch.randn(3, 5))
    assert all(isinstance(each, DTensor) for each in model.parameters())
    steps.meet()  # outside nobody waits
    model(x).sum().backward()
    torch.testing.assert_close(model[1].bias.grad.full_tensor(), torch.full((4,), 3.0))
