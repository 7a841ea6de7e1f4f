"""The input of a memory estimate: the sizes of a model, and the settings of a step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

Engine = Literal["none", "ddp", "zero2", "zero3", "fsdp"]
ReferenceKind = Literal["none", "adapter", "copy", "other"]
"""``adapter``: the policy with its adapter off. ``copy``: of the trainable weights. ``other``: a second model."""


@dataclass(frozen=True)
class Job:
    """One optimizer step of one process."""

    tokens: int  # of a prompt, L
    patches: int  # of the images and frames of a prompt
    prompts: int = 1  # of a micro-batch, P
    micro_batches: int = 1  # of a step
    group: int = 4  # completions of a prompt, G
    length: int = 256  # tokens of a completion, T
    token_budget: int = 65536  # tokens that are sampled together
    state_tokens: int = 0  # what the linear-attention states of a completion count in that budget
    logit_bytes: int = 10**9  # for logits of the training passes
    shared: bool = True  # each prompt is computed once for all its completions
    encoded: bool = True  # the vision tower runs once for a prompt, and its features are cached
    checkpointing: bool = False  # layers are recomputed in the backward pass
    activation_offload: bool = False  # checkpointed activations wait in CPU memory
    stream: int = 4  # bytes of a number of the residual stream, which has the type of the weights
    products: int = 4  # of matrix products: 2 in half precision, and under autocast
    rank: int = 0  # of LoRA adapters, 0 without them
    tower_learns: bool = False
    mergers_learn: bool = True
    reference: ReferenceKind = "copy"
    reference_rounded: bool = False  # its own linear layers are in the type of products
    teacher: tuple[Shapes, int] | None = None  # another model, and the bytes of its weights
    teacher_leaves: bool = False  # the teacher is in CPU memory between its passes
    optimizer: str = "adamw_torch_fused"  # by the Trainer's name
    further_moments: int = 0  # float32 numbers for each weight that its arguments add: momentum, centered
    narrows: bool = True  # sampling sorts the vocabulary (top-p below 1)
    engine: Engine = "none"  # what splits the model among the processes
    processes: int = 1
    samples: bool = True  # completions are sampled in this process, not by servers
    waits_on_host: bool = False  # large media wait in the memory of the CPU until their micro-batch

    @property
    def completions(self) -> int:
        """Completions of a micro-batch, N = P G."""
        return self.prompts * self.group

    @property
    def row_tokens(self) -> int:
        """Tokens of one training forward: P L + N (T - 1) where prompts are shared, else N (L + T)."""
        if self.shared:
            return self.prompts * self.tokens + self.completions * (self.length - 1)
        return self.completions * (self.tokens + self.length)

    @property
    def forward_patches(self) -> int:
        """Patches that enter the mergers in one training forward."""
        return self.patches * (self.prompts if self.shared else self.completions)

    @property
    def sampled_together(self) -> int:
        """Prompts that are sampled together, as ``--rollout_token_budget`` allows."""
        return max(1, min(self.prompts * self.micro_batches, self.token_budget // self.budgeted))

    @property
    def budgeted(self) -> int:
        """The tokens that a prompt with its completions counts in ``--rollout_token_budget``."""
        each = self.length + self.state_tokens
        return self.tokens + self.group * each if self.shared else self.group * (self.tokens + each)


@dataclass(frozen=True)
class LinearAttention:
    """A layer of linear attention (Gated DeltaNet)."""

    heads: int  # value heads
    key_width: int  # of one head
    value_width: int  # of one head
    channels: int  # of the short convolution over keys, queries and values
    kernel: int  # inputs of the convolution

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
        """Numbers of the state of one sequence."""
        return self.heads * self.key_width * self.value_width


@dataclass(frozen=True)
class Text:
    """The language model."""

    layers: tuple[str, ...]  # the kind of each, by the names of transformers
    hidden: int  # width of the residual stream
    heads: int
    key_value_heads: int
    head: int  # width of a head
    intermediate: int  # width of the gated product of a layer without experts
    vocabulary: int
    normed_heads: bool  # queries and keys are normalised
    gated: bool  # the output of attention is multiplied by a gate of its size
    experts: int = 0  # of the mixture of a layer, 0 without one
    chosen: int = 0  # experts of one token
    expert: int = 0  # width of an expert
    shared_expert: int = 0  # width of the expert for all tokens, 0 without one
    linear: LinearAttention | None = None

    @property
    def queries(self) -> int:
        """Width of the queries of a token."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Width of the keys of a token, and of its values."""
        return self.key_value_heads * self.head

    @property
    def full_layers(self) -> int:
        """Number of layers that cache keys and values."""
        return sum(kind != "linear_attention" for kind in self.layers)


@dataclass(frozen=True)
class Vision:
    """The vision tower and its mergers."""

    blocks: int
    hidden: int
    intermediate: int
    saved_products: int  # tensors of the intermediate width that a block saves for its backward pass
    root_mean_square: bool  # RMS norms, else layer norms
    patch_values: int  # numbers of a patch of pixels
    merged: int  # patches of one token
    mergers: int  # projections into the language model, those for deeper layers included


@dataclass(frozen=True)
class Shapes:
    """A whole model."""

    text: Text
    vision: Vision

    @classmethod
    def of(cls, config: Any) -> Shapes:
        """The sizes in a configuration of transformers, of any family of ``qwenvl.model.families``."""
        family = config.model_type
        text = config.get_text_config()
        kinds = tuple(getattr(text, "layer_types", None) or ())
        experts = getattr(text, "num_experts", 0) or 0
        shared = getattr(text, "shared_expert_intermediate_size", 0) if family.startswith("qwen3_5") else 0
        linear = None
        if "linear_attention" in kinds:
            queries_and_keys = 2 * text.linear_num_key_heads * text.linear_key_head_dim
            values = text.linear_num_value_heads * text.linear_value_head_dim
            linear = LinearAttention(
                heads=text.linear_num_value_heads,
                key_width=text.linear_key_head_dim,
                value_width=text.linear_value_head_dim,
                channels=queries_and_keys + values,
                kernel=text.linear_conv_kernel_dim,
            )
        language = Text(
            layers=kinds or ("full_attention",) * text.num_hidden_layers,
            hidden=text.hidden_size,
            heads=text.num_attention_heads,
            key_value_heads=text.num_key_value_heads,
            head=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            intermediate=getattr(text, "intermediate_size", 0) or 0,
            vocabulary=text.vocab_size,
            normed_heads=family.startswith("qwen3"),
            gated=family.startswith("qwen3_5"),
            experts=experts,
            chosen=text.num_experts_per_tok if experts else 0,
            expert=text.moe_intermediate_size if experts else 0,
            shared_expert=shared or 0,
            linear=linear,
        )
        return cls(language, _vision(config.vision_config, family))


def _vision(config: Any, family: str) -> Vision:
    if family == "qwen2_vl":  # its embed_dim is the width of the tower, its hidden_size that of the output
        hidden = config.embed_dim
        intermediate = int(hidden * config.mlp_ratio)
    else:
        hidden = config.hidden_size
        intermediate = config.intermediate_size
    return Vision(
        blocks=config.depth,
        hidden=hidden,
        intermediate=intermediate,
        saved_products={"qwen2_vl": 3, "qwen2_5_vl": 4}.get(family, 2),
        root_mean_square=family == "qwen2_5_vl",
        patch_values=getattr(config, "in_channels", 3) * config.temporal_patch_size * config.patch_size**2,
        merged=config.spatial_merge_size**2,
        mergers=1 + len(getattr(config, "deepstack_visual_indexes", None) or ()),
    )


@dataclass(frozen=True)
class ModelWeights:
    """The parameters of a model. ``trained`` ones are numbers, ``held`` ones bytes."""

    held: int  # all of them
    trained: int
    trained_held: int
    layer: int  # trainable numbers of one layer of the language model
    head: int  # trainable numbers of the language-model head
    rounded: int  # entries of trainable float32 matrices, which autocast copies

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, tuple[int, ...], float, bool]], layers: int) -> ModelWeights:
        """The sums over the parameters of a model.

        Args:
            parameters: name, shape, bytes of an element and ``requires_grad`` of each, a tied one once.
            layers: of the language model.
        """
        held = 0.0
        trained = 0
        trained_held = 0.0
        in_layers = 0
        head = 0
        rounded = 0
        for name, shape, width, learns in parameters:
            size = prod(shape)
            held += size * width
            if not learns:
                continue
            trained += size
            trained_held += size * width
            if "language_model.layers." in name:
                in_layers += size
            if re.search("embed_tokens|lm_head.weight$", name):
                head = max(head, size)  # where they are not tied there are two, of one size
            if len(shape) > 1 and width == 4:
                rounded += size
        return cls(
            held=round(held),
            trained=trained,
            trained_held=round(trained_held),
            layer=in_layers // max(1, layers),
            head=head,
            rounded=rounded,
        )
