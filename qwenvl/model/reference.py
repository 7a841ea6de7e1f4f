"""The reference model of the KL penalty."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from qwenvl.model.loading import evaluating, linear_weights, part_of, unwrap, without_wrappers
from qwenvl.model.sharding import is_partitioned, whole_weights
from qwenvl.model.vision_tower import accept_features
from qwenvl.model.weight_files import REFERENCE

_FLAG = "--ref_model_name_or_path"


class Reference:
    """A frozen model: the policy before training, or another checkpoint.

    With LoRA the policy before training is the policy with its adapter off, and costs no memory. Otherwise it is a
    copy, which shares with the policy every tensor that is frozen (by default the vision tower).
    """

    def __init__(
        self,
        policy: nn.Module,
        *,
        other: nn.Module | None = None,
        dtype: torch.dtype | None = None,
        rounded: bool = False,
    ):
        """Copies the trained weights of ``policy``: call this before the first update, on the unwrapped model.

        Args:
            other: the model of another checkpoint, in place of a copy of the policy. See ``matched``.
            dtype: of the copy, where the policy rounds its own weights to it in each forward. The copy shares nothing
                then. None: the dtype of the weights.
            rounded: keep the weights of linear layers that are not shared in bfloat16, which autocast rounds them to.
        """
        self._adapter = policy if other is None and hasattr(policy, "disable_adapter") else None
        self._copy: nn.Module | None = None
        self._owned: dict[str, nn.Parameter] = {}  # the tensors of the copy that it does not share, by name
        if self._adapter is not None:
            return
        if other is None:  # a copy of split weights shares none: it runs outside of the engine
            shares = dtype is None and not is_partitioned(policy)
            other = _copied(policy, [each for each in policy.parameters() if shares and not each.requires_grad])
        self._copy = other
        self._copy.requires_grad_(False).eval()
        if dtype is not None:
            for parameter in self._copy.parameters():  # buffers, of rotary angles, stay as they are
                parameter.data = parameter.data.to(dtype)
        of_policy = {id(parameter) for parameter in policy.parameters()}
        if rounded:
            for parameter in linear_weights(self._copy):
                if id(parameter) not in of_policy:
                    parameter.data = parameter.data.to(torch.bfloat16)
        self._owned = {name: each for name, each in self._copy.named_parameters() if id(each) not in of_policy}

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """Context manager with the reference, in eval mode and without gradients."""
        with torch.no_grad():
            if self._adapter is not None:
                with evaluating(self._adapter), self._adapter.disable_adapter():
                    yield self._adapter
            else:
                yield self._copy

    def to(self, device: torch.device) -> Reference:
        """Moves the tensors that are not shared to the device on which the reference runs."""
        if self._copy is not None:
            self._copy.to(device)
        return self

    @torch.no_grad()
    def mix(self, policy: nn.Module, alpha: float) -> None:
        """Each weight becomes alpha x the policy's + (1 - alpha) x its own (TR-DPO, arXiv:2404.09656).

        All processes must call this together: weights that are split among them are gathered for it.

        Args:
            policy: the trained model, without the wrapper of DeepSpeed or FSDP.
        """
        with whole_weights(policy):
            learned = dict(policy.named_parameters())
            for name, own in self._owned.items():
                own.lerp_(learned[name].detach().to(own.device, own.dtype), alpha)

    def save(self, folder: str | Path) -> None:
        """Writes the tensors that are not shared into a file of a checkpoint."""
        tensors = {name: each.detach().cpu().contiguous() for name, each in self._owned.items()}
        save_file(tensors, Path(folder) / REFERENCE)

    @torch.no_grad()
    def load(self, folder: str | Path) -> None:
        """Loads the tensors that ``save`` wrote.

        Raises:
            FileNotFoundError: the checkpoint has no such file.
            ValueError: it has other tensors than this reference.
        """
        path = Path(folder) / REFERENCE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file, and the reference that moved with the policy is in it")
        with safe_open(path, framework="pt") as saved:
            other = set(saved.keys()) ^ set(self._owned)
            if other:
                raise ValueError(f"{path}: other tensors than the reference's, among them {min(other)}")
            for name, own in self._owned.items():
                own.copy_(saved.get_tensor(name))


def matched(other: nn.Module, policy: nn.Module, *, one_tower: bool) -> nn.Module:
    """The model of another checkpoint, checked and prepared as the reference of ``policy``. Collective.

    Args:
        one_tower: the vision tower of the policy runs for both.

    Raises:
        ValueError: it is of another family, has other shapes, or has another vision tower where one runs for both.
    """
    bare = unwrap(policy)
    ours = bare.config.model_type
    theirs = other.config.model_type
    if ours != theirs:
        raise ValueError(f"{_FLAG}: expected a model of the policy's family, {ours}, got {theirs}")
    with whole_weights(bare), whole_weights(other):
        expected = {without_wrappers(name): each for name, each in bare.named_parameters() if ".lora_" not in name}
        found = dict(other.named_parameters())
        for name in sorted(expected.keys() | found.keys()):
            in_policy = _shape_in(expected, name)
            in_other = _shape_in(found, name)
            if in_policy != in_other:
                raise ValueError(
                    f"{_FLAG}: expected the policy's shapes, but {name} is {in_policy} in it and {in_other} here"
                )
        for name, tensor in found.items():
            # One may be rounded to the type of the other, if that is narrower.
            if one_tower and part_of(name) == "vision" and not torch.equal(tensor.to(expected[name]), expected[name]):
                raise ValueError(
                    f"{_FLAG}: its vision tower is not the policy's ({name} differs), which runs once for both; set "
                    "--shared_prefix off, so that each runs its own"
                )
    accept_features(other)
    return outside_engine(other)


def _shape_in(parameters: Mapping[str, nn.Parameter], name: str) -> tuple[int, ...] | str:
    """The shape of a parameter, or that it is not there, for a message."""
    return tuple(parameters[name].shape) if name in parameters else "not there"


def outside_engine(model: nn.Module) -> nn.Module:
    """A model that runs without an engine: itself, or a copy with whole weights where ZeRO-3 has split it."""
    return _copied(model) if is_partitioned(model) else model


def _copied(model: nn.Module, shared: Iterable[nn.Parameter] = ()) -> nn.Module:
    """A deep copy in which some tensors are those of ``model``. Weights split among processes are copied whole."""
    with whole_weights(model):
        return copy.deepcopy(model, memo={id(parameter): parameter for parameter in shared})
