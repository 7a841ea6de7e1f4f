"""Linear attention in which all completions of a prompt start from that prompt's state.

A layer of linear attention (Gated DeltaNet, arXiv:2412.06464) keeps a *state* of the tokens behind it, whatever their
number: a matrix for each head, and the last inputs of a short convolution. So a prompt is computed once, and each of
its completions goes on from the state after it. Gradients into that state sum over the completions by themselves.

The layer is not among those that transformers looks up by name, so its forward is wrapped. It gets the keyword
``shared_prefix`` like attention does (see ``shared_prefix``), and runs as it is: first on the prompts, then on the
completions, with a ``State`` in the place of transformers' cache, which is written in place and has no gradient. It
runs twice whatever there is to compute, because under ZeRO-3 the processes wait for each other's modules.

Sequences of different lengths are padded to a batch, on a GPU too. The kernels of ``fla`` could take them end to end
(``cu_seqlens``), but the convolution before them keeps either the sequences of a row apart or takes a state to begin
with (``seq_idx`` or ``initial_states`` of ``causal_conv1d``), not both, so that a stock layer can't.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from qwenvl.model.sharing.varlen import Spans


class State:
    """The recurrent state of each row, with the methods that stock layers call of a cache of transformers.

    In sampling the rows are P x G, for the completions of the P prompts.

    Attributes:
        inputs: of the convolution, the last K of them, rows x channels x K. None before the first token.
        matrices: rows x value heads x key width x value width. None before the first token.
    """

    def __init__(self, inputs: Tensor | None = None, matrices: Tensor | None = None):
        self.inputs = inputs
        self.matrices = matrices

    @classmethod
    def stack(cls, states: Sequence[State]) -> State:
        """The states of single rows, which lack the dimension of rows, as one state."""
        inputs = torch.stack([each.known()[0] for each in states])
        matrices = torch.stack([each.known()[1] for each in states])
        return cls(inputs, matrices)

    def known(self) -> tuple[Tensor, Tensor]:
        """``inputs`` and ``matrices``.

        Raises:
            ValueError: before the first token.
        """
        if self.inputs is None or self.matrices is None:
            raise ValueError("there is no state before the first token")
        return self.inputs, self.matrices

    def expand(self, group_size: int) -> State:
        """The state as rows x G, each row G times without a copy."""
        inputs, matrices = self.known()
        return State(
            inputs[:, None].expand(-1, group_size, *inputs.shape[1:]),
            matrices[:, None].expand(-1, group_size, *matrices.shape[1:]),
        )

    def flatten(self) -> State:
        """The state with P G rows, of one with P x G. Views, where there can be."""
        inputs, matrices = self.known()
        return State(inputs.flatten(0, 1), matrices.flatten(0, 1))

    def contiguous(self) -> State:
        """The same with contiguous tensors."""
        inputs, matrices = self.known()
        return State(inputs.contiguous(), matrices.contiguous())

    def at(self, rows: Any) -> State:
        """The state of some rows, by any index that tensors take."""
        inputs, matrices = self.known()
        return State(inputs[rows], matrices[rows])

    def clone(self) -> State:
        """A copy."""
        inputs, matrices = self.known()
        return State(inputs.clone(), matrices.clone())

    def recur(self, layer: int, forward: Layer, hidden: Tensor) -> Tensor:
        """Goes on by a token for each slot, P G x 1 x width. Written in operations that a compiler fuses.

        Args:
            layer: not used. One compiled layer serves all of them.
        """
        state = self.flatten()
        out = forward(hidden, state)
        for kept, after in zip(self.known(), state.known(), strict=True):
            kept.copy_(after.view(kept.shape))
        return out

    def get_conv_state(self, layer_idx: int, **which: int) -> Tensor | None:
        """The inputs of the convolution, under the name that transformers has for them."""
        return self.inputs

    def get_recurrent_state(self, layer_idx: int, **which: int) -> Tensor | None:
        """The recurrent matrices, under the name that transformers has for them."""
        return self.matrices

    def is_recording_past(self, layer_idx: int) -> bool:
        """True keeps a stock layer from writing a single token's input into ``inputs`` in place."""
        return True

    def update_conv_state(self, new: Tensor, layer_idx: int, conv_kernel_size: int, **which: int) -> Tensor:
        """Goes on by the inputs ``new`` (rows x channels x S), and returns them behind those that were there."""
        known = new if self.inputs is None else torch.cat([self.inputs, new], dim=-1)
        self.inputs = nn.functional.pad(known, (max(0, conv_kernel_size - known.shape[-1]), 0))[..., -conv_kernel_size:]
        return known

    def update_recurrent_state(self, matrices: Tensor, layer_idx: int, **which: int) -> None:
        """Goes on by the matrices after the newest token."""
        self.matrices = matrices


Layer = Callable[..., Tensor]
"""The stock forward of a layer: ``layer(hidden, state)``, rows x S x width -> rows x S x width.

The state goes by its place: its name differs between versions of transformers.
"""


def obstacle() -> str | None:
    """None where linear attention can share a prompt, else the reason why not."""
    from transformers.cache_utils import Cache

    methods = ("update_conv_state", "update_recurrent_state", "get_conv_state", "get_recurrent_state")
    if all(hasattr(Cache, name) for name in methods):
        return None
    return "in this version of transformers linear attention keeps its state another way"


def state_tokens(model: nn.Module) -> int:
    """The number of tokens whose keys and values take the memory of a sequence's states. 0 without linear attention.

    Example:
        >>> state_tokens(qwen3_5_9b)  # 24 layers x 2.06 MiB of states, 8 layers x 4 KiB of keys and values a token
        1584
    """
    config = model.config.get_text_config()
    layer_types = list(getattr(config, "layer_types", None) or ())
    if "linear_attention" not in layer_types:
        return 0
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    inputs = (2 * keys + values) * config.linear_conv_kernel_dim * model.dtype.itemsize
    matrices = values * config.linear_key_head_dim * torch.float32.itemsize
    token = 2 * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    states = layer_types.count("linear_attention") * (inputs + matrices)
    return math.ceil(states / (layer_types.count("full_attention") * token))


def install(model: nn.Module) -> None:
    """Has the linear-attention layers of a bare model accept the keyword ``shared_prefix``. Idempotent."""
    for layer in model.model.language_model.layers:
        mixer = getattr(layer, "linear_attn", None)
        if mixer is not None and not hasattr(mixer, "forward_alone"):
            # Bound methods, not closures: a deep copy of the model then runs its own layers.
            mixer.forward_alone = mixer.forward
            mixer.forward = MethodType(_forward, mixer)


def _forward(self: nn.Module, hidden_states: Tensor, *args, shared_prefix=None, **kwargs) -> Tensor:
    if shared_prefix is None:
        return self.forward_alone(hidden_states, *args, **kwargs)
    return shared_prefix.recur(self.layer_idx, self.forward_alone, hidden_states)


@dataclass(frozen=True)
class Padding:
    """The places of concatenated sequences in a padded batch, one sequence in each row.

    Attributes:
        rows, length: of the batch.
        places: of the S tokens in the batch, row after row.
    """

    rows: int
    length: int
    places: Tensor

    @classmethod
    def of(cls, spans: Spans, left: bool = False, least: int = 1) -> Padding:
        """The padding of some spans to rows of one length.

        Prompts have it on the left, where it leaves no trace: inputs are 0, and matrices stay 0 before the first token.
        Completions, whose last state is not needed, have it on the right, and so have keys and values.

        Args:
            least: of ``length``. A single token would go by the kernel for sampling, which on a GPU has no gradient.
        """
        length, device = max(least, spans.longest), spans.offsets.device
        bounds = spans.bounds[1:] if left else spans.bounds[:-1]
        shifts = [(row + left) * length - bound for row, bound in enumerate(bounds)]
        each = torch.tensor(shifts, device=device).repeat_interleave(spans.offsets.diff(), output_size=spans.total)
        return cls(len(shifts), length, torch.arange(spans.total, device=device) + each)

    def run(self, layer: Layer, row: Tensor, state: State) -> Tensor:
        """Runs the sequences, each on from its row of ``state``: S x width -> S x width."""
        return layer(self.pad(row), state).flatten(0, 1)[self.places]

    def pad(self, row: Tensor) -> Tensor:
        """S x .. -> rows x length x .., zeros where there is no token."""
        batch = row.new_zeros(self.rows * self.length, *row.shape[1:]).index_copy(0, self.places, row)
        return batch.unflatten(0, (self.rows, self.length))
