"""The sizes of a model that its memory and its arithmetic follow from, read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of a layer.

    Attributes:
        number: of experts.
        chosen: how many a token is sent to.
        width: of an expert.
        shared: width of the expert for all tokens. 0 without one.
    """

    number: int
    chosen: int
    width: int
    shared: int


@dataclass(frozen=True)
class Linear:
    """A layer of linear attention (Gated DeltaNet).

    Attributes:
        heads: value heads.
        key_width, value_width: of one head.
        channels: of the short convolution, which keys, queries and values go through.
        kernel: how many inputs the convolution sees.
    """

    heads: int
    key_width: int
    value_width: int
    channels: int
    kernel: int

    @property
    def keys(self) -> int:
        """Width of the keys of all value heads."""
        return self.heads * self.key_width

    @property
    def values(self) -> int:
        """Width of the values of all heads."""
        return self.heads * self.value_width

    @property
    def state(self) -> int:
        """Numbers in the matrices that a layer keeps of a sequence."""
        return self.heads * self.key_width * self.value_width


@dataclass(frozen=True)
class Text:
    """The language model.

    Attributes:
        layers: the kind of each, by the names of transformers.
        hidden: width of the residual stream.
        heads, key_value_heads, head: numbers of heads and their width.
        intermediate: width of the gated product of a layer without experts.
        vocabulary: tokens that logits are for.
        normed_heads: whether queries and keys are normalised.
        gated: whether the output of attention is multiplied by a gate of its size.
        experts, linear: None where no layer has them.
    """

    layers: tuple[str, ...]
    hidden: int
    heads: int
    key_value_heads: int
    head: int
    intermediate: int
    vocabulary: int
    normed_heads: bool
    gated: bool
    experts: Experts | None = None
    linear: Linear | None = None

    @property
    def queries(self) -> int:
        """Width of the queries of a token."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Width of the keys of a token. That of its values is the same."""
        return self.key_value_heads * self.head

    @property
    def full_layers(self) -> int:
        """How many layers keep keys and values."""
        return sum(kind != "linear_attention" for kind in self.layers)


@dataclass(frozen=True)
class Vision:
    """The vision tower and its mergers.

    Attributes:
        blocks: how many.
        hidden, intermediate: their widths.
        saved_products: how many tensors of the intermediate width a block keeps for its backward pass.
        matrices: of the intermediate width in a block: 3 where it is gated, else 2.
        root_mean_square: whether the norms are of that kind, else they subtract the mean.
        patch_values: numbers of a patch of pixels.
        merged: patches that become one token.
        mergers: projections into the language model, those for deeper layers included.
        heads: of attention.
        window: patches that a block sees, where not all blocks see a whole frame.
        full_blocks: blocks that see a whole frame.
    """

    blocks: int
    hidden: int
    intermediate: int
    saved_products: int
    matrices: int
    root_mean_square: bool
    patch_values: int
    merged: int
    mergers: int
    heads: int
    window: int
    full_blocks: int


@dataclass(frozen=True)
class Shapes:
    """Both halves of a model."""

    text: Text
    vision: Vision

    @classmethod
    def of(cls, config: Any) -> Shapes:
        """From a configuration of transformers, of any family of ``qwenvl.model.families``."""
        family = config.model_type
        text = config.get_text_config()
        return cls(_text(text, family), _vision(config.vision_config, family))


def _text(config: Any, family: str) -> Text:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    experts = linear = None
    if getattr(config, "num_experts", 0):
        shared = getattr(config, "shared_expert_intermediate_size", 0) or 0
        experts = Experts(
            config.num_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            shared if family.startswith("qwen3_5") else 0,
        )
    if "linear_attention" in (kinds := tuple(getattr(config, "layer_types", None) or ())):
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        values = config.linear_num_value_heads * config.linear_value_head_dim
        linear = Linear(
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
            2 * keys + values,
            config.linear_conv_kernel_dim,
        )
    return Text(
        layers=kinds or ("full_attention",) * config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head=head,
        intermediate=getattr(config, "intermediate_size", 0) or 0,
        vocabulary=config.vocab_size,
        normed_heads=family.startswith("qwen3"),
        gated=family.startswith("qwen3_5"),
        experts=experts,
        linear=linear,
    )


def _vision(config: Any, family: str) -> Vision:
    first = family == "qwen2_vl"  # it calls the width of the tower embed_dim, and hidden_size what comes out
    hidden = config.embed_dim if first else config.hidden_size
    deeper = getattr(config, "deepstack_visual_indexes", None) or ()
    windowed = getattr(config, "fullatt_block_indexes", None)
    full = config.depth if windowed is None else len(windowed)
    return Vision(
        blocks=config.depth,
        hidden=hidden,
        intermediate=int(hidden * config.mlp_ratio) if first else config.intermediate_size,
        saved_products={"qwen2_vl": 3, "qwen2_5_vl": 4}.get(family, 2),
        matrices=3 if family == "qwen2_5_vl" else 2,
        root_mean_square=family == "qwen2_5_vl",
        patch_values=getattr(config, "in_channels", 3) * config.temporal_patch_size * config.patch_size**2,
        merged=config.spatial_merge_size**2,
        mergers=1 + len(deeper),
        heads=config.num_heads,
        window=0 if windowed is None else (config.window_size // config.patch_size) ** 2,
        full_blocks=full,
    )
