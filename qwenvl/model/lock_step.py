"""Sharded weights, gathered one layer at a time while each process runs the model a different number of times.

The all-gathers of ZeRO-3 and FSDP are collective, and processes that sample run different numbers of layers: they have
other prompts, other images and completions of other lengths. So before each all-gather they agree on the layer: the
first one, in the order of the model, that any process waits for. Processes that wait for a later layer, or for none,
join the all-gather without using it, then repeat. So they wait for processes that are behind them in their forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed import ReduceOp, all_reduce

from qwenvl.model.loading import unwrap
from qwenvl.model.sharding import sharded_modules, unsharded, without_hooks

Gathered = Callable[[], AbstractContextManager[None]]
"""Context manager with one gathered layer. Entering is collective, leaving is not."""


class LockStep:
    """Runs a sharded model with the weights of one layer in memory at a time.

    A layer is one of the language model, a block of the vision tower, or one of the modules beside them: embeddings,
    mergers, the head. Under FSDP these are gathered together, once.

    Example:
        >>> with lock_step(model, engine):  # all processes
        ...     for prompts in mine:  # as many as a process has
        ...         sample(model, prompts)
        ...     lock_step.meet()  # before other calls that processes make together
    """

    def __init__(self, device: torch.device | str):
        """
        Args:
            device: where models run.
        """
        self._device = device
        self._layers: list[Gathered] = []
        self._running = ExitStack()

    @contextmanager
    def __call__(self, model: nn.Module, engine: nn.Module | None = None) -> Iterator[None]:
        """Context manager in which ``model`` can run, without gradient. Entering and leaving are collective.

        Args:
            engine: see ``whole_weights``.
        """
        with without_hooks(model, engine), ExitStack() as hooks:
            for root in sharded_modules(model)[:1]:  # the weights that FSDP gathers beside layers
                hooks.enter_context(unsharded(root))
            for number, (module, gathered) in enumerate(_layers(model)):
                self._layers.append(gathered)
                hooks.callback(module.register_forward_pre_hook(partial(self._before, number), prepend=True).remove)
                hooks.callback(module.register_forward_hook(self._after).remove)
            try:
                yield
                self.meet()
            finally:
                self._running.close()
                self._layers.clear()

    def meet(self) -> None:
        """Joins all-gathers until no process waits for a layer. Call it before any other collective."""
        if self._layers:
            with _weights_of_training():
                self._take_part(len(self._layers))

    def _take_part(self, wanted: int) -> None:
        """Joins all-gathers until the one of layer ``wanted``."""
        while (number := self._agreed(wanted)) != wanted:
            with self._layers[number]():
                pass

    def _agreed(self, wanted: int) -> int:
        """The first layer that a process waits for."""
        number = torch.tensor(wanted, device=self._device)
        all_reduce(number, op=ReduceOp.MIN)
        return int(number)

    def _before(self, number: int, module: nn.Module, args: object) -> None:
        with _weights_of_training():
            self._take_part(number)
            self._running.enter_context(self._layers[number]())

    def _after(self, module: nn.Module, args: object, output: object) -> None:
        with _weights_of_training():
            self._running.close()


@contextmanager
def _weights_of_training() -> Iterator[None]:
    """Gathered tensors may be part of a backward pass later, though the forward around them is in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, Gathered]]:
    """The modules whose weights are gathered together, in the order of the model. None is part of another."""
    if sharded := sharded_modules(model):
        for module in sharded[1:]:
            yield module, partial(unsharded, module)
        return
    bare = unwrap(model)
    for module in _parts(bare, {bare.model, bare.model.visual, bare.model.language_model}):
        yield module, partial(_gathered, module)


def _parts(module: nn.Module, opened: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The modules with weights below ``module``. Lists of layers and modules in ``opened`` yield their children."""
    for child in module.children():
        if isinstance(child, nn.ModuleList) or child in opened:
            yield from _parts(child, opened)
        elif next(child.parameters(), None) is not None:
            yield child


def _gathered(module: nn.Module) -> AbstractContextManager[None]:
    """All but the small weights, which DeepSpeed keeps whole."""
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters, ZeroParamStatus

    here = ZeroParamStatus.AVAILABLE
    return GatheredParameters([each for each in module.parameters() if getattr(each, "ds_status", here) != here])
