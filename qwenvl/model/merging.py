"""LoRA adapters merged into the weights of their model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qwenvl.model.loading import unwrap

_OTHER_KINDS = ("modules_to_save", "lora_magnitude", "lora_embedding", "lm_head.lora_", "lora_bias")


@torch.no_grad()
def merged_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The weights of the model under LoRA adapters, by the names they have without them: W + scale x B A each.

    The policy stays as it is. Where an engine splits it, call this within ``whole_weights``.

    Args:
        policy: as ``get_peft_model`` makes it of a ``LoraConfig`` for linear layers and experts.

    Raises:
        ValueError: an adapter is of another kind, or its weights are not finite.
    """
    bare = unwrap(policy)
    weights = {plain_name(name): value.detach() for name, value in bare.state_dict().items() if ".lora_" not in name}
    changed = {name: with_adapters(weights[name], layers) for name, layers in adapters_of(bare).items()}
    if bad := next((name for name, value in changed.items() if not value.isfinite().all()), None):
        raise ValueError(f"{bad}: NaN or infinite with the adapter merged")
    return weights | changed


def adapters_of(bare: nn.Module) -> dict[str, list[nn.Module]]:
    """The LoRA layers that change a weight, by the name that the weight has without them.

    Raises:
        ValueError: an adapter of another kind.
    """
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    found: dict[str, list[nn.Module]] = {}
    others = [name for name, _ in bare.named_parameters() if any(kind in name for kind in _OTHER_KINDS)]
    for name, layer in bare.named_modules():
        if isinstance(layer, LoraLayer):
            # Experts are parameters with names of their own. Adapters on several of a module are nested wrappers.
            adapted = plain_name(f"{name}.{getattr(layer, 'parameter_name', 'weight')}")
            found.setdefault(adapted, []).append(layer)
        elif isinstance(layer, BaseTunerLayer):
            others.append(name)
    if others:
        raise ValueError(
            f"{others[0]}: only LoRA adapters of linear layers and experts are merged, no DoRA, no modules_to_save and "
            "none of embeddings or head; merge_and_unload of peft merges others"
        )
    return found


@torch.no_grad()
def with_adapters(weight: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """A weight with LoRA layers merged: W + scale x B A, summed in float32, in the dtype of the weight.

    Weight and adapters stay as they are. Where an engine splits them, call this within ``whole_weights``.
    """
    changes = [layer.get_delta_weight(adapter) for layer in layers for adapter in layer.active_adapters]
    return sum(changes, weight.float()).to(weight.dtype) if changes else weight


def plain_name(name: str) -> str:
    """The name of a weight without PEFT's wrappers in it."""
    return name.replace(".base_layer", "")
