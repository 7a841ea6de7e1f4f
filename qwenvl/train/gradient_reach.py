"""Checks that gradients reach every part that should learn, and opens the way into the vision tower.

A part without a gradient would go unnoticed: the norm that a run logs is that of the other parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.failure import NoGradientError
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import part_of, unwrap
from qwenvl.model.logprobs import Likelihood

_PART = re.compile(r"(?:visual\.blocks|language_model\.layers)\.\d+|(?:visual|language_model)\.\w+|lm_head")


def learning_part(name: str) -> str:
    """The part that a parameter is judged with: a block of the tower, a layer of the language model, a merger, a head.

    Parts are no smaller, because single parameters may rightly have no gradient: the first matrix of a LoRA adapter has
    none in the first step, and an expert that no token reached has none either. The deepstack mergers are one part: the
    one of the last layer of a short model changes no log-prob, as nothing behind that layer reads the places of media.

    Example:
        >>> learning_part("base_model.model.model.visual.blocks.3.attn.qkv.lora_B.default.weight")
        'visual.blocks.3'
        >>> learning_part("model.visual.merger.norm.weight"), learning_part("lm_head.weight")
        ('visual.merger', 'lm_head')
    """
    found = _PART.search(name)
    return name if found is None else found[0]


def reached_parts(gradients: Iterable[tuple[str, Tensor | None]]) -> dict[str, bool]:
    """For each part that should learn, whether one of its gradients is there and not all zero.

    Args:
        gradients: by the names of the parameters that should learn. None: the parameter has none.
    """
    parts: list[str] = []
    reached: list[Tensor] = []
    for name, gradient in gradients:
        parts.append(learning_part(name))
        reached.append(torch.zeros((), dtype=torch.bool) if gradient is None else gradient.detach().any())
    found = dict.fromkeys(parts, False)
    # One transfer for all of them: each `.item()` would wait for the GPU.
    device = next((each.device for each in reached if each.device.type != "cpu"), torch.device("cpu"))
    values = torch.stack([each.to(device) for each in reached]).tolist() if reached else []
    for part, value in zip(parts, values, strict=True):
        found[part] |= value
    return found


def let_gradients_into_the_tower(model: nn.Module, args: GRPOConfig) -> None:
    """Make the first activations of the vision tower require a gradient, where its blocks would get none otherwise.

    Re-entrant checkpointing records nothing of a block whose inputs need no gradient. The inputs of the tower's blocks
    come from its patch embedding, which is frozen under adapters. (The Trainer does the same for the embeddings of the
    language model.)
    """
    given = getattr(args, "activation_checkpointing_kwargs", None) or args.gradient_checkpointing_kwargs or {}
    settings = json.loads(given) if isinstance(given, str) else dict(given)
    settings.pop("offload", None)
    # Without any settings transformers takes the kind that is not re-entrant. With settings that leave the kind open,
    # torch's default counts, which is the re-entrant one.
    reentrant = args.gradient_checkpointing and settings.get("use_reentrant", bool(settings))
    visual = unwrap(model).model.visual
    embedding_learns = any(each.requires_grad for each in visual.patch_embed.parameters())
    blocks_learn = any(each.requires_grad for each in visual.blocks.parameters())
    if reentrant and blocks_learn and not embedding_learns:
        visual.patch_embed.register_forward_hook(_require_gradient)


def _require_gradient(module: nn.Module, args: Any, output: Tensor) -> None:
    """A forward hook: the output needs a gradient wherever gradients are recorded."""
    if torch.is_grad_enabled():
        output.requires_grad_(True)


class GradientReach:
    """Checks once that a gradient reaches each part that should learn. All processes call its methods together.

    The check waits for a step that proves something: one in which the loss has a gradient for completions that differ.
    (The gradients of a group whose completions are all the same may cancel out.) A step of text alone proves nothing
    about tower and mergers, which are then judged at the first step whose prompts with media have such a gradient.

    Args:
        model: the policy, whose parameters that learn have ``requires_grad``.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self._model = model
        self._accelerator = accelerator
        # The parts to judge, and whether only a step with media can prove something about them.
        self._pending = {learning_part(name): part_of(name) != "llm" for name, _ in _learning(model)}
        layers = {learning_part(name) for name, _ in unwrap(model).named_parameters() if ".layers." in name}
        if len(layers) < 2:
            # They add to outputs of the first layers at the places of media, which nothing reads behind the last one.
            self._pending.pop("visual.deepstack_merger_list", None)
        # Whether this step proves something about the language model, and about tower and mergers.
        self._text_proves = False
        self._media_proves = False
        self._hooks: list[Any] = []
        self._reached: dict[str, Tensor] = {}
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            # When a backward pass returns, DeepSpeed has updated the weights and dropped their gradients already.
            for name, parameter in _learning(model):
                self._hooks.append(parameter.register_hook(_Recorder(self._reached, learning_part(name))))

    def observe(self, likelihood: Likelihood, prompts: PromptInputs, completion_ids: Tensor) -> None:
        """Note in the backward pass whether the loss has a gradient for these completions.

        Args:
            likelihood: of the completions, with gradient.
            completion_ids: N x T, row n of prompt n // (N / P).
        """
        if not self._pending:
            return
        groups = completion_ids.view(len(prompts), -1, completion_ids.shape[1])  # P x G x T
        if groups.shape[1] > 1:
            differ = (groups != groups[:, :1]).flatten(1).any(1)  # P
        else:
            differ = groups.new_ones(len(groups), dtype=torch.bool)  # a single completion has none to cancel out with
        counts = zip(prompts.images_per_prompt, prompts.videos_per_prompt, strict=True)
        has_media = torch.tensor([images + videos > 0 for images, videos in counts], device=completion_ids.device)

        def note(gradient: Tensor | None) -> None:
            if gradient is None:  # the loss does not read these values
                return
            proves = gradient.reshape(len(differ), -1).any(1) & differ
            self._text_proves |= bool(proves.any())
            self._media_proves |= bool((proves & has_media).any())

        for values in (likelihood.logprobs, likelihood.divergences, likelihood.entropies):
            if values is not None and values.requires_grad:
                values.register_hook(note)

    def check(self, step: int) -> None:
        """Judge the parts. Call it behind the last backward pass of a step, before anything changes its gradients.

        Args:
            step: its number, from 1.

        Raises:
            NoGradientError: a part that should learn has no gradient, in a step that would have given it one.
        """
        if not self._pending:
            return
        found = self._found()
        # A part that no parameter belongs to any more, as a wrapper has renamed it, cannot be judged.
        reached_here = [found.get(part, True) for part in self._pending]
        own = torch.tensor([self._text_proves, self._media_proves, *reached_here])
        self._text_proves = False
        self._media_proves = False
        # Summed over processes, as one of them may have no media, or the shard of another parameter.
        everywhere = self._accelerator.reduce(own.int().to(self._accelerator.device), "sum") > 0
        text_proves, media_proves, *reached = everywhere.tolist()
        missing: list[str] = []
        left: dict[str, bool] = {}
        for (part, needs_media), is_reached in zip(self._pending.items(), reached, strict=True):
            if not (media_proves if needs_media else text_proves):
                left[part] = needs_media  # for a later step
            elif not is_reached:
                missing.append(part)
        if missing:
            raise NoGradientError(_sentence(missing, step))
        self._pending = left
        if not self._pending:
            for hook in self._hooks:
                hook.remove()

    def _found(self) -> dict[str, bool]:
        """For each part that is not judged yet, whether this process has a gradient for it."""
        if self._hooks:
            found = {part: bool(self._reached.get(part, False)) for part in self._pending}
            self._reached.clear()
            return found
        pending = [(name, each) for name, each in _learning(self._model) if learning_part(name) in self._pending]
        return reached_parts((name, _local(each.grad)) for name, each in pending)


def _learning(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that should learn, by their names without wrappers."""
    return [(name, each) for name, each in unwrap(model).named_parameters() if each.requires_grad]


class _Recorder:
    """Notes that the gradient of a parameter of a part is not all zero."""

    def __init__(self, reached: dict[str, Tensor], part: str) -> None:
        self._reached = reached
        self._part = part

    def __call__(self, gradient: Tensor) -> None:
        own = gradient.detach().any()
        self._reached[self._part] = own | self._reached.get(self._part, torch.zeros_like(own))


def _local(gradient: Tensor | None) -> Tensor | None:
    """This process's shard of a gradient that FSDP has split, and any other gradient as it is."""
    if gradient is not None and hasattr(gradient, "to_local"):
        return gradient.to_local()
    return gradient


def _sentence(missing: list[str], step: int) -> str:
    """The message about parts without a gradient."""
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"step {step}: {', '.join(missing[:3])}{more} should learn and got no gradient, although the loss has one. "
        "Something cuts the way from the loss to these weights: detached activations, a kernel without a backward "
        "pass, or re-entrant checkpointing (--activation_checkpointing_kwargs '{\"use_reentrant\": true}'). Remove it, "
        "or leave the part frozen (--tune_mm_llm, --tune_mm_mlp, --tune_mm_vision, --lora_targets)"
    )
