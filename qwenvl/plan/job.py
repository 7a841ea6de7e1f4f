"""What one process does in an optimizer step, in the numbers that memory and time follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Engine = Literal["none", "ddp", "zero2", "zero3", "fsdp"]
ReferenceKind = Literal["none", "adapter", "copy", "other"]
"""``adapter``: the policy with its adapter off. ``copy``: of what is trained. ``other``: a second model."""


@dataclass(frozen=True)
class Precision:
    """The types of numbers, in bytes.

    Attributes:
        stream: of the residual stream, which has the type of the weights.
        products: of matrix products. 2 where weights are rounded for them (autocast), or are in half precision.
    """

    stream: int = 4
    products: int = 4

    @property
    def rounds(self) -> bool:
        """Whether weights are copied to another type for each product."""
        return self.products < self.stream


@dataclass(frozen=True)
class Job:
    """One optimizer step of one process.

    Attributes:
        tokens: of a prompt, L.
        patches: of its images and frames.
        prompts: of a micro-batch, P.
        micro_batches: of a step.
        group: completions of a prompt, G.
        length: tokens of a completion, T.
        token_budget: tokens that are sampled together.
        state_tokens: what a completion's states of linear attention count in that budget.
        logit_bytes: for logits of the training passes.
        shared: each prompt is computed once for all its completions.
        encoded: the vision tower runs once for a prompt, and its features are kept.
        checkpointing: layers are computed again in the backward pass.
        activation_offload: what the backward pass needs is kept in the memory of the host.
        precision: of the weights' stream and of products.
        rank: of adapters. 0 without them.
        four_bit: the frozen layers of the language model are kept in 4 bits.
        tower_learns, mergers_learn: which parts of vision learn.
        reference: what the policy is held near.
        reference_offload: it is in the memory of the host but for its passes.
        optimizer: by the Trainer's name.
        narrows: whether sampling sorts the vocabulary (top-p below 1).
        engine, processes: what splits the model, among how many.
        gathers: whether weights that are split are gathered to sample.
        samples: completions are sampled here, and not by servers.
        taught: a warm-up. Completions are targets, and the vision tower runs on a micro-batch when it is its turn.
        on_host: the device is the CPU, whose memory holds the drawn prompts too.
        in_files: media are so large that they wait in files until their turn comes.
    """

    tokens: int
    patches: int
    prompts: int = 1
    micro_batches: int = 1
    group: int = 4
    length: int = 256
    token_budget: int = 65536
    state_tokens: int = 0
    logit_bytes: int = 10**9
    shared: bool = True
    encoded: bool = True
    checkpointing: bool = False
    activation_offload: bool = False
    precision: Precision = Precision()
    rank: int = 0
    four_bit: bool = False
    tower_learns: bool = False
    mergers_learn: bool = True
    reference: ReferenceKind = "copy"
    reference_offload: bool = False
    optimizer: str = "adamw_torch_fused"
    narrows: bool = True
    engine: Engine = "none"
    processes: int = 1
    gathers: bool = True
    samples: bool = True
    taught: bool = False
    on_host: bool = False
    in_files: bool = False

    @property
    def completions(self) -> int:
        """Of a micro-batch, N = P G."""
        return self.prompts * self.group

    @property
    def row_tokens(self) -> int:
        """Tokens of one training forward: P L + N (T - 1) where prompts are shared, else N (L + T)."""
        if self.shared:
            return self.prompts * self.tokens + self.completions * (self.length - 1)
        return self.completions * (self.tokens + self.length)

    @property
    def forward_patches(self) -> int:
        """Patches that meet the mergers in one training forward."""
        return self.patches * (self.prompts if self.shared else self.completions)

    @property
    def drawn_together(self) -> int:
        """Prompts that are sampled together, as ``--rollout_token_budget`` allows."""
        return max(1, min(self.prompts * self.micro_batches, self.token_budget // self.budgeted))

    @property
    def budgeted(self) -> int:
        """What a prompt with its completions counts in the budget, see ``rollout_token_budget``."""
        each = self.length + self.state_tokens
        return self.tokens + self.group * each if self.shared else self.group * (self.tokens + each)
