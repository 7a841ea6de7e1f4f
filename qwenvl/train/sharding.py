"""FSDP as Accelerate sets it up: what is refused before the first step, and what log-probs need otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import FSDPModule

from qwenvl.config.grpo_config import GRPOConfig


def settle_sharding(args: GRPOConfig, accelerator: Accelerator, policy: nn.Module) -> torch.dtype | None:
    """Makes FSDP keep the numbers that leave a module as they are, and sum gradients in float32.

    Accelerate would round them, and with them the log-probs, to the type of the matrix products.

    Returns:
        The type that all weights of the policy are rounded to in its forwards; None where they are not.

    Raises:
        ValueError: if FSDP was asked for and is off, or its settings would train wrongly or leave no model behind.
    """
    if problems := list(_problems(args, accelerator, policy)):
        raise ValueError("\n".join(problems))
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.mixed_precision_policy is None:
        return None
    plugin.mixed_precision_policy = replace(
        plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None, cast_forward_inputs=False
    )
    return plugin.mixed_precision_policy.param_dtype


def _problems(args: GRPOConfig, accelerator: Accelerator, policy: nn.Module) -> Iterator[str]:
    if any(isinstance(module, FSDPModule) for module in policy.modules()):
        yield "the model is already sharded: hand over the whole one and ask for --fsdp, which shards it"
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        if args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            yield (
                "FSDP was asked for and is off: it needs several processes with a GPU each. Elsewhere it is left out, "
                f"and each of the {args.world_size} process(es) on {args.device} would hold the whole model: start one "
                "process for each GPU, or leave --fsdp out"
            )
        return
    if plugin.fsdp_version != 2:
        yield f"FSDP version {plugin.fsdp_version} is not supported: set fsdp_version to 2"
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        yield (
            f"with fsdp_state_dict_type {plugin.state_dict_type.name} the run would end without a model in "
            f"{args.output_dir}: set it to FULL_STATE_DICT"
        )
    copies = args.grpo_beta > 0 and not hasattr(policy, "disable_adapter")
    if plugin.cpu_ram_efficient_loading and copies:
        yield (
            "with fsdp_cpu_ram_efficient_loading only the first process has the weights that the reference is copied "
            "from: set it to false; or train an adapter, or set --grpo_beta 0"
        )
