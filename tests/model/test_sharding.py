"""Split weights: whole within a block, or one layer at a time; FSDP settings that would train wrongly are refused."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor
from qwenvl.model import sharding
from qwenvl.model.sharding import LockStep, settle_fsdp, whole_weights
from qwenvl.model.vision_tower import encode_vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine


@pytest.fixture
def mesh():
    """A group of one process: nothing is sent, all else is as with several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def sharded(mesh):
    """A model of two linear layers that FSDP shards, the first one by itself."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def test_weights_are_whole_within_the_block_and_split_afterwards(sharded):
    x = torch.randn(3, 4)
    before = [parameter.full_tensor().clone() for parameter in sharded.parameters()]
    expected = torch.tanh(x @ before[0].T + before[1]) @ before[2].T + before[3]
    with whole_weights(sharded), torch.no_grad():
        assert not any(isinstance(parameter, DTensor) for parameter in sharded.parameters())
        sharded[0](x)  # a part before the whole, as the vision tower: FSDP would take it for the root
        for _ in range(2):
            torch.testing.assert_close(sharded(x), expected)
            assert not isinstance(sharded[0].weight, DTensor), "freed after a forward"
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    torch.testing.assert_close(sharded(x), expected)  # by FSDP's own hooks, with the root where it belongs
    sharded(x).sum().backward()
    torch.testing.assert_close(sharded[2].bias.grad.full_tensor(), torch.full((4,), 3.0))


def test_hooks_run_within_whole_weights_and_errors_leave_the_model_split(sharded):
    calls = []
    sharded[0].register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    with pytest.raises(RuntimeError, match="stop"), whole_weights(sharded):
        sharded(torch.randn(2, 4))
        raise RuntimeError("stop")
    sharded(torch.randn(5, 4))
    assert calls == [2, 5]
    assert isinstance(sharded, FSDPModule) and isinstance(sharded[0].weight, DTensor)


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
        monkeypatch.setattr(sharding, "_gathered", played.gathered)
        monkeypatch.setattr(sharding, "all_reduce", played.all_reduce)
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
    layers = [module for module, _ in sharding._layers(model)]
    other, turns = iter([len(layers), len(layers), 0, 1, 2]), []

    def all_reduce(number, op):
        assert op == torch.distributed.ReduceOp.MIN
        number.clamp_(max=next(other, len(layers)))
        turns.append(int(number))

    monkeypatch.setattr(sharding, "all_reduce", all_reduce)
    with LockStep("cpu")(model), torch.inference_mode():
        model(input_ids=prompts.input_ids, position_ids=prompts.position_ids, use_cache=False)
    text = model.model.language_model
    embeddings, first, *rest = [layers.index(each) for each in (text.embed_tokens, *text.layers, text.norm)]
    head = layers.index(model.lm_head)
    assert turns == [embeddings, first, 0, 1, 2, *rest, head, len(layers)]


def test_a_layer_of_fsdp_is_gathered_while_it_runs(mesh):
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


MODEL = torch.nn.Linear(2, 2)


def accelerator(precision: str | None = None, **settings):
    """The accelerator that Accelerate makes of such settings on GPUs."""
    plugin = FullyShardedDataParallelPlugin(
        **{"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": False} | settings
    )
    if precision:
        plugin.set_mixed_precision(precision)
    return SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))


ARGS = {"asked": False, "copies_policy": True, "output_dir": "runs/sop"}


def test_fsdp_rounds_weights_and_neither_inputs_nor_outputs():
    half = accelerator("bf16")
    assert half.state.fsdp_plugin.mixed_precision_policy.output_dtype == torch.bfloat16  # log-probs, that is
    assert settle_fsdp(half, MODEL, **ARGS) == torch.bfloat16
    policy = half.state.fsdp_plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)
    assert not policy.cast_forward_inputs
    assert settle_fsdp(accelerator(), MODEL, **ARGS) is None
    assert settle_fsdp(SimpleNamespace(state=SimpleNamespace()), MODEL, **ARGS) is None  # no FSDP
    copies_none = ARGS | {"copies_policy": False}
    assert settle_fsdp(accelerator(cpu_ram_efficient_loading=True), MODEL, **copies_none) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "SHARDED_STATE_DICT .*runs/sop"),
        ({"cpu_ram_efficient_loading": True}, "weights that the reference is copied from"),
    ],
)
def test_fsdp_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        settle_fsdp(accelerator(**settings), MODEL, **ARGS)


def test_fsdp_that_accelerate_left_out_and_a_model_that_is_sharded_already_are_refused(sharded, monkeypatch):
    without = SimpleNamespace(state=SimpleNamespace())
    with pytest.raises(ValueError, match="FSDP was asked for and is off"):
        settle_fsdp(without, MODEL, **ARGS | {"asked": True})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # from accelerate launch
    with pytest.raises(ValueError, match="FSDP was asked for and is off"):
        settle_fsdp(without, MODEL, **ARGS)
    with pytest.raises(ValueError, match="already sharded"):
        settle_fsdp(accelerator(), sharded, **ARGS)
