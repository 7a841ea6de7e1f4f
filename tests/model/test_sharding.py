"""Weights that FSDP has split are whole within, and FSDP settings that would train wrongly are refused."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from qwenvl.model.sharding import settle_fsdp, whole_weights


@pytest.fixture
def mesh():
    """A group of one process: nothing is sent, all else is as with several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def sharded(mesh):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def test_whole_within_and_split_afterwards(sharded):
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


def test_other_hooks_go_on_and_errors_leave_the_model_split(sharded):
    calls = []
    sharded[0].register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    with pytest.raises(RuntimeError, match="stop"), whole_weights(sharded):
        sharded(torch.randn(2, 4))
        raise RuntimeError("stop")
    sharded(torch.randn(5, 4))
    assert calls == [2, 5]
    assert isinstance(sharded, FSDPModule) and isinstance(sharded[0].weight, DTensor)


def test_a_model_of_one_process_is_left_alone():
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    with whole_weights(model):
        assert model.weight is weight


MODEL = torch.nn.Linear(2, 2)


def accelerator(precision: str | None = None, **settings):
    """What Accelerate makes of such settings on GPUs."""
    plugin = FullyShardedDataParallelPlugin(
        **{"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": False} | settings
    )
    if precision:
        plugin.set_mixed_precision(precision)
    return SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))


ARGS = {"asked": False, "copies_policy": True, "output_dir": "runs/sop"}


def test_only_weights_are_rounded():
    half = accelerator("bf16")
    assert half.state.fsdp_plugin.mixed_precision_policy.output_dtype == torch.bfloat16  # log-probs, that is
    assert settle_fsdp(half, MODEL, **ARGS) == torch.bfloat16
    policy = half.state.fsdp_plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)
    assert not policy.cast_forward_inputs
    assert settle_fsdp(accelerator(), MODEL, **ARGS) is None
    assert settle_fsdp(SimpleNamespace(state=SimpleNamespace()), MODEL, **ARGS) is None  # no FSDP


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match=r"SHARDED_STATE_DICT .* without a model in runs/sop"):
        settle_fsdp(accelerator(state_dict_type="SHARDED_STATE_DICT"), MODEL, **ARGS)
    with pytest.raises(ValueError, match="weights that the reference is copied from"):
        settle_fsdp(accelerator(cpu_ram_efficient_loading=True), MODEL, **ARGS)
    free = ARGS | {"copies_policy": False}
    assert settle_fsdp(accelerator(cpu_ram_efficient_loading=True), MODEL, **free) is None


def test_fsdp_that_accelerate_left_out_is_refused(monkeypatch):
    without = SimpleNamespace(state=SimpleNamespace())
    with pytest.raises(ValueError, match="FSDP was asked for and is off"):
        settle_fsdp(without, MODEL, **ARGS | {"asked": True})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # from accelerate launch
    with pytest.raises(ValueError, match="FSDP was asked for and is off"):
        settle_fsdp(without, MODEL, **ARGS)


def test_a_model_that_is_sharded_already_is_refused(sharded):
    with pytest.raises(ValueError, match="already sharded: hand over the whole one"):
        settle_fsdp(accelerator(), sharded, **ARGS)
