"""FSDP settings that would train wrongly or leave no model are refused; the others keep log-probs exact."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.train.sharding import settle_sharding

MODEL = torch.nn.Linear(2, 2)


def accelerator(precision: str | None = None, **settings):
    """What Accelerate makes of such settings on GPUs."""
    plugin = FullyShardedDataParallelPlugin(
        **{"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": False} | settings
    )
    if precision:
        plugin.set_mixed_precision(precision)
    return SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))


@pytest.fixture
def args(tmp_path):
    return GRPOConfig(str(tmp_path), use_cpu=True)


def test_only_weights_are_rounded(args):
    half = accelerator("bf16")
    assert half.state.fsdp_plugin.mixed_precision_policy.output_dtype == torch.bfloat16  # log-probs, that is
    assert settle_sharding(args, half, MODEL) == torch.bfloat16
    policy = half.state.fsdp_plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)
    assert not policy.cast_forward_inputs
    assert settle_sharding(args, accelerator(), MODEL) is None
    assert settle_sharding(args, SimpleNamespace(state=SimpleNamespace()), MODEL) is None  # no FSDP


def test_what_cannot_work_is_refused(args, tmp_path):
    with pytest.raises(ValueError, match=rf"SHARDED_STATE_DICT .* without a model in {tmp_path}"):
        settle_sharding(args, accelerator(state_dict_type="SHARDED_STATE_DICT"), MODEL)
    with pytest.raises(ValueError, match="weights that the reference is copied from"):
        settle_sharding(args, accelerator(cpu_ram_efficient_loading=True), MODEL)
    free = GRPOConfig(str(tmp_path), use_cpu=True, grpo_beta=0)
    assert settle_sharding(free, accelerator(cpu_ram_efficient_loading=True), MODEL) is None


def test_fsdp_that_accelerate_left_out_is_refused(args, monkeypatch):
    args.fsdp = True
    with pytest.raises(ValueError, match=r"FSDP was asked for and is off: .*1 process"):
        settle_sharding(args, SimpleNamespace(state=SimpleNamespace()), MODEL)
    args.fsdp = None
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # from accelerate launch
    with pytest.raises(ValueError, match="FSDP was asked for and is off"):
        settle_sharding(args, SimpleNamespace(state=SimpleNamespace()), MODEL)


def test_a_model_that_is_sharded_already_is_refused(args):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="already sharded: hand over the whole one"):
            settle_sharding(args, accelerator(), model)
    finally:
        dist.destroy_process_group()
