"""Models that DeepSpeed ZeRO-3 or FSDP shards: whole weights, one layer after the other, settings of FSDP."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed import ReduceOp, all_reduce
from torch.distributed.fsdp import FSDPModule

from qwenvl.model.loading import unwrap


def is_partitioned(model: nn.Module) -> bool:
    """True for a model of which DeepSpeed ZeRO-3 keeps a part of each weight in each process."""
    return any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules whose weights FSDP gathers together, the model itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def shares_weights(model: nn.Module) -> bool:
    """Whether processes share the weights of a model, so that none has all of them."""
    return is_partitioned(model) or bool(sharded_modules(model))


@contextmanager
def whole_weights(model: nn.Module, wrapped: nn.Module | None = None) -> Iterator[None]:
    """Context manager in which every process has all weights of ``model``, to be read and not changed. Collective.

    ZeRO-3 and FSDP otherwise gather the weights of each layer in each forward, and each forward waits for all
    processes: a process that samples longer completions than another would wait for ever.

    Args:
        wrapped: the model as DeepSpeed has wrapped it. Before that, the model itself or None.
    """
    partitioned = is_partitioned(model)
    with ExitStack() as stack:
        for module in sharded_modules(model):
            stack.enter_context(unsharded(module))
        if partitioned:
            from deepspeed.runtime.zero.partition_parameters import GatheredParameters

            stack.enter_context(GatheredParameters(model.parameters()))
        if shares_weights(model):
            stack.enter_context(without_hooks(model, wrapped))
        yield


@contextmanager
def unsharded(module: FSDPModule) -> Iterator[None]:
    """Context manager in which the weights of one module of FSDP are gathered. Entering is collective."""
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


@contextmanager
def without_hooks(model: nn.Module, wrapped: nn.Module | None = None) -> Iterator[None]:
    """Context manager in which no forward of ``model`` gathers or frees weights.

    Args:
        wrapped: see ``whole_weights``.
    """
    with _without_fsdp_hooks(sharded_modules(model)), _without_zero_hooks(getattr(wrapped, "optimizer", None)):
        yield


@contextmanager
def _without_fsdp_hooks(modules: list[FSDPModule]) -> Iterator[None]:
    """Removes the hooks of FSDP, and puts them back at the end.

    With them FSDP would take the first module to run, one of the vision tower, for the root of the model.
    """
    removed = [
        (hooks, dict(hooks)) for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)
    ]
    for hooks, before in removed:
        for key, hook in before.items():
            if hook.__module__.startswith("torch.distributed.fsdp"):
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in removed:
            hooks.clear()
            hooks.update(before)


@contextmanager
def _without_zero_hooks(optimizer: Any) -> Iterator[None]:
    """Removes the hooks of ZeRO-3's ``optimizer`` (None before DeepSpeed has one) and registers them again at the end.

    The one at the start of the model's forward is among them: it compares the order of modules with other processes,
    and would wait for one that has nothing to sample.
    """
    if optimizer is None:
        yield
        return
    offload = getattr(optimizer, "parameter_offload", optimizer)
    at_start = offload.module._forward_pre_hooks[offload.fwd_pre_hook.id]
    for hook in [offload.fwd_pre_hook, *offload.forward_hooks, *offload.backward_hooks]:
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []
    try:
        yield
    finally:
        offload.fwd_pre_hook = offload.module.register_forward_pre_hook(at_start)
        offload._register_deepspeed_module(offload.module)


class LockStep:
    """Runs a sharded model with the weights of one layer in memory at a time, a different number of times per process.

    The all-gathers of ZeRO-3 and FSDP are collective, and processes that sample run different numbers of layers: they
    have other prompts, other images and completions of other lengths. So before each all-gather they agree on the
    layer: the first one, in the order of the model, that any process waits for. Processes that wait for a later layer,
    or for none, join the all-gather without using it, then repeat.

    A layer is one of the language model, a block of the vision tower, or one of the modules beside them: embeddings,
    mergers, the head. Under FSDP these are gathered together, once.

    Example:
        >>> with lock_step(model, wrapped):  # all processes
        ...     for prompts in mine:  # as many as a process has
        ...         sample(model, prompts)
        ...     lock_step.meet()  # before other calls that processes make together
    """

    def __init__(self, device: torch.device | str):
        """``device`` is where models run."""
        self._device = device
        # Of each layer, its gathered weights. Entering is collective, leaving is not.
        self._layers: list[Callable[[], AbstractContextManager[None]]] = []
        self._running = ExitStack()

    @contextmanager
    def __call__(self, model: nn.Module, wrapped: nn.Module | None = None) -> Iterator[None]:
        """Context manager in which ``model`` can run, without gradient. Entering and leaving are collective.

        Args:
            wrapped: see ``whole_weights``.
        """
        with without_hooks(model, wrapped), ExitStack() as hooks:
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
        while True:
            number = torch.tensor(wanted, device=self._device)
            all_reduce(number, op=ReduceOp.MIN)
            if number == wanted:
                return
            with self._layers[int(number)]():
                pass

    def _before(self, number: int, module: nn.Module, args: object) -> None:
        with _weights_of_training():
            self._take_part(number)
            self._running.enter_context(self._layers[number]())

    def _after(self, module: nn.Module, args: object, output: object) -> None:
        with _weights_of_training():
            self._running.close()


@contextmanager
def _weights_of_training() -> Iterator[None]:
    """Leaves inference mode while weights are gathered.

    Gathered tensors may be part of a backward pass later, though the forward around them is in inference mode.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, Callable[[], AbstractContextManager[None]]]]:
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
    """Context manager with the weights of a module gathered: all but the small ones, which DeepSpeed keeps whole."""
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters, ZeroParamStatus

    here = ZeroParamStatus.AVAILABLE
    return GatheredParameters([each for each in module.parameters() if getattr(each, "ds_status", here) != here])


def settle_fsdp(
    accelerator: Accelerator, policy: nn.Module, *, asked: bool, copies_policy: bool, output_dir: str
) -> torch.dtype | None:
    """Makes FSDP keep the numbers that leave a module as they are, and sum gradients in float32.

    Accelerate would round them, and with them the log-probs, to the type of the matrix products.

    Args:
        asked: whether the run asks for FSDP.
        copies_policy: whether a reference is copied from the policy.
        output_dir: where the run leaves its model.

    Returns:
        The type that all weights of the policy are rounded to in its forwards, or None where they are not.

    Raises:
        ValueError: if FSDP was asked for and is off, or its settings would train wrongly or leave no model behind.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if sharded_modules(policy):
        raise ValueError("the model is already sharded: hand over the whole one and ask for --fsdp, which shards it")
    if plugin is None:
        if asked or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            raise ValueError(
                "FSDP was asked for and is off: it needs several processes with a GPU each. Elsewhere it is left out, "
                "and each process would hold the whole model: start one process for each GPU, or leave --fsdp out"
            )
        return None
    if plugin.fsdp_version != 2:
        raise ValueError(f"FSDP version {plugin.fsdp_version} is not supported: set fsdp_version to 2")
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        raise ValueError(
            f"with fsdp_state_dict_type {plugin.state_dict_type.name} the run would end without a model in "
            f"{output_dir}: set it to FULL_STATE_DICT"
        )
    if plugin.cpu_ram_efficient_loading and copies_policy:
        raise ValueError(
            "with fsdp_cpu_ram_efficient_loading only the first process has the weights that the reference is copied "
            "from: set it to false; or train an adapter, or set --grpo_beta 0"
        )
    if plugin.mixed_precision_policy is None:
        return None
    plugin.mixed_precision_policy = replace(
        plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None, cast_forward_inputs=False
    )
    return plugin.mixed_precision_policy.param_dtype
