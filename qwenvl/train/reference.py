"""The reference of a run: made from the flags, and moved towards the policy where they ask for it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import TrainerCallback

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.model.loading import load_model, load_processor, unwrap
from qwenvl.model.reference import Reference, matched
from qwenvl.train.assemble import Parts, rounds_products
from qwenvl.train.display.console import say


def build_reference(args: GRPOConfig, parts: Parts, dtype: torch.dtype | None) -> Reference:
    """The reference that the flags ask for, on the device of the run. Call it before the first update of the policy.

    Args:
        dtype: what the policy rounds its weights to in its forwards. None: to nothing.

    Raises:
        ValueError: another checkpoint that does not fit the policy, or a flag without effect.
        OSError: there is no such checkpoint.
    """
    policy, path = parts.policy, args.ref_model_name_or_path
    if args.sync_ref_model and unwrap(policy) is not policy:
        raise ValueError("--sync_ref_model has no effect with LoRA: the weights that the reference has do not learn")
    other = None
    if path is not None:
        if (Path(path) / "adapter_config.json").is_file():
            raise ValueError(f"--ref_model_name_or_path {path}: holds LoRA adapters; merge them into their model first")
        say(f"loading the reference {path}")
        if load_processor(path).tokenizer.get_vocab() != parts.processor.tokenizer.get_vocab():
            raise ValueError(f"--ref_model_name_or_path {path}: its tokenizer has another vocabulary than the policy's")
        bare = unwrap(policy)
        other = load_model(path, attn_implementation=bare.config._attn_implementation, dtype=bare.dtype)
        other = matched(other, policy, one_tower=parts.paths.encode is not None)
    rounded = rounds_products(args) and not args.sync_ref_model  # which moves by less than bfloat16 resolves
    return Reference(policy, other=other, dtype=dtype, rounded=rounded).to(args.device)


class ReferenceSync(TrainerCallback):
    """``sync_ref_model``: every so many steps the reference moves towards the policy (TR-DPO, arXiv:2404.09656)."""

    def __init__(self, reference: Reference):
        self._reference = reference

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Before a checkpoint is saved, which holds the reference as it then is."""
        if state.global_step % args.ref_model_sync_steps == 0:
            self._reference.mix(unwrap(model), args.ref_model_mixup_alpha)
