"""LoRA adapters merged into the weights of their model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qwenvl.model.loading import unwrap


@torch.no_grad()
def merged_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The weights of the model under LoRA adapters, by the names they have without them: W + scale x B A each.

    The policy stays as it is. Where an engine splits it, call this within ``whole_weights``.

    Args:
        policy: as ``get_peft_model`` makes it of a ``LoraConfig`` for linear layers and experts.
    """
    bare = unwrap(policy)
    weights = {plain_name(name): value.detach() for name, value in bare.state_dict().items() if ".lora_" not in name}
    return weights | {name: with_adapters(weights[name], layers) for name, layers in adapters_of(bare).items()}


def adapters_of(bare: nn.Module) -> dict[str, list[nn.Module]]:
    """The LoRA layers that change a weight, by the name that the weight has without them."""
    from peft.tuners.lora import LoraLayer

    found: dict[str, list[nn.Module]] = {}
    for name, layer in bare.named_modules():
        if isinstance(layer, LoraLayer):
            # Experts are parameters with names of their own. Adapters on several of a module are nested wrappers.
            adapted = plain_name(f"{name}.{getattr(layer, 'parameter_name', 'weight')}")
            found.setdefault(adapted, []).append(layer)
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


@torch.no_grad()
def merged(policy: nn.Module) -> nn.Module:
    """The bare model with an adapter of any kind that PEFT can merge, merged. The policy can't be used afterwards.

    Modules that were trained as a whole beside the adapter (``modules_to_save``) replace the original ones. Sums are in
    float32 and rounded once to the dtype of each weight. Tied embeddings and head become two tensors where the adapter
    changes one of them.

    Args:
        policy: a ``PeftModel``.

    Raises:
        ValueError: the merged weights are not finite, or the adapter is of a kind that can't be merged.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    bare = unwrap(policy)
    types = {plain_name(name): value.dtype for name, value in bare.state_dict().items()}
    adapted = [module for module in bare.modules() if isinstance(module, BaseTunerLayer)]
    _untie_where_one_changes(bare)
    for module in adapted:
        module.float()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")  # they were untied above
        try:
            whole = policy.merge_and_unload(safe_merge=True)
        except (NotImplementedError, AttributeError) as error:
            raise ValueError(f"the adapter can't be merged into weights: {error}") from None
    for name, weight in whole.state_dict(keep_vars=True).items():
        weight.data = weight.data.to(types.get(name, weight.dtype))
    _note_whether_tied(whole)
    return whole


def _untie_where_one_changes(bare: nn.Module) -> None:
    """Give the head a tensor of its own where it shares that of the embeddings and an adapter changes either."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = bare.get_input_embeddings(), bare.get_output_embeddings()
    if any(isinstance(end, BaseTunerLayer) for end in ends):
        embeddings, head = (end.get_base_layer() if isinstance(end, BaseTunerLayer) else end for end in ends)
        if getattr(head, "weight", None) is getattr(embeddings, "weight", None):
            head.weight = nn.Parameter(head.weight.detach().clone())


def _note_whether_tied(whole: nn.Module) -> None:
    """Say in the configuration that embeddings and head are two tensors, so that loading does not make them one."""
    embeddings, head = whole.get_input_embeddings(), whole.get_output_embeddings()
    if head.weight is not embeddings.weight:
        for config in {id(each): each for each in (whole.config, whole.config.get_text_config())}.values():
            config.tie_word_embeddings = False
