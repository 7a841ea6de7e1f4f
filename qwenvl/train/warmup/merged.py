"""Low-rank adapters folded into the weights that they stand on: a whole model, as ``--model_name_or_path`` takes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qwenvl.model.loading import unwrap


@torch.no_grad()
def merged_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The weights of the model under LoRA adapters, by the names they have without them: W + scale x B A each.

    The policy stays as it is. Where an engine splits it, call this within ``whole_weights``.

    Args:
        policy: as ``get_peft_model`` makes it of a ``LoraConfig`` for linear layers.
    """
    from peft.tuners.lora import LoraLayer

    bare = unwrap(policy)
    weights = {
        name.replace(".base_layer.", "."): value.detach()
        for name, value in bare.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in bare.named_modules():
        if isinstance(layer, LoraLayer):
            weight = weights[f"{name}.weight"]
            change = sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
            weights[f"{name}.weight"] = (weight.float() + change).to(weight.dtype)
    return weights
