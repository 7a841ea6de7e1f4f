"""Log-probabilities of completions, each prompt computed once: the fast path of ``logprobs.completion_likelihood``.

P prompts and their N completions lie end to end in one row without any padding, P L + N T tokens where the plain path
has N (L + T). Everything but attention treats tokens one by one, so stock model classes take the row as it is.
A layer's *kind* knows how it shares the prompts: ``prefix_attention`` for full attention, ``linear_attention`` for that
which keeps a state. A completion's last token predicts nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import (
    Comparison,
    EntropyUse,
    Likelihood,
    likelihood_of,
    logprobs_by,
    sampled_alone,
    selected_logprobs,
    spread_out,
)
from qwenvl.model.sharing import linear_attention, prefix_attention
from qwenvl.model.sharing.prefix_attention import PrefixLayout


@dataclass(frozen=True)
class LayerKind:
    """How layers of one kind share a prompt.

    Attributes:
        obstacle: of a text configuration, None where they can, else the reason why not.
        install: has the layers of a bare model accept the keyword ``shared_prefix``. Idempotent.
    """

    obstacle: Callable[[object], str | None]
    install: Callable[[torch.nn.Module], None]


KINDS = {
    "full_attention": LayerKind(prefix_attention.obstacle, prefix_attention.install),
    "linear_attention": LayerKind(linear_attention.obstacle, linear_attention.install),
}
"""Kinds by the name that transformers has for them in ``layer_types``."""


@dataclass(frozen=True)
class PackedRow:
    """Prompts and completions end to end.

    Attributes:
        input_ids: 1 x S.
        position_ids: 3 x 1 x S.
        predictors: K places in the row whose hidden states predict the completion tokens, in the order of the tokens.
            A prompt's last place is named once for each of its completions.
        targets: 1 x K completion tokens.
        layout: where prompts and completions lie.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictors: Tensor
    targets: Tensor
    layout: PrefixLayout


def completion_likelihood(
    model: torch.nn.Module,
    prompts: PromptInputs,
    completion_ids: Tensor,
    completion_mask: Tensor,
    *,
    temperature: float,
    logit_chunk_tokens: int,
    entropy: EntropyUse = "none",
    whole: PromptInputs | None = None,
    comparison: Comparison | None = None,
) -> Likelihood:
    """Log-probs and entropies of all completion tokens, of softmax(logits / temperature).

    The same numbers and gradients as ``logprobs.completion_likelihood``, which describes arguments and result. The
    model's forward is called once. Ask ``supports_shared_prefix`` first.
    """
    install_sharing(model)
    mask = completion_mask.bool()
    row = pack(prompts, completion_ids, mask, whole)
    everywhere = torch.ones_like(row.targets, dtype=torch.bool)
    settings = (temperature, logit_chunk_tokens, entropy, comparison)
    with selected_logprobs(model, row.targets, everywhere, *settings):
        output = model(
            input_ids=row.input_ids,
            position_ids=row.position_ids,
            logits_to_keep=row.predictors,
            use_cache=False,
            shared_prefix=row.layout,
            **prompts.vision_with(whole),
        )
    return likelihood_of(spread_out(output.logits[0], mask), entropy, comparison)


completion_logprobs = logprobs_by(completion_likelihood)
"""The log-probs of ``completion_likelihood``, N x T. Its arguments but for ``entropy``."""


def supports_shared_prefix(model: torch.nn.Module) -> str | None:
    """None where ``completion_likelihood`` works for ``model``, else the reason why not, for a log line."""
    config = unwrap(model).config
    try:
        family_of(config)
    except ValueError as error:
        return str(error)
    names = _layer_types(model)
    if others := names - KINDS.keys():
        return f"layers of type {', '.join(sorted(others))} cannot share a prompt"
    reasons = (KINDS[name].obstacle(config.get_text_config()) for name in sorted(names))
    return next((reason for reason in reasons if reason is not None), None)


def install_sharing(model: torch.nn.Module) -> None:
    """Has all layers of ``model`` accept the keyword ``shared_prefix``. Idempotent."""
    for name in _layer_types(model):
        KINDS[name].install(unwrap(model))


def _layer_types(model: torch.nn.Module) -> set[str]:
    return set(getattr(unwrap(model).config.get_text_config(), "layer_types", None) or ("full_attention",))


def pack(
    prompts: PromptInputs, completion_ids: Tensor, completion_mask: Tensor, whole: PromptInputs | None = None
) -> PackedRow:
    """Lays P prompts (padding anywhere) and their completions (N x T, padded on the right) end to end.

    Args:
        completion_mask: the tokens that are predicted.
        whole: the completions with what tools have appended to them. None: all of their tokens are predicted.

    Raises:
        ValueError: if a completion has tokens after a masked one, or N is no multiple of P.
    """
    rows = len(completion_mask)
    if not len(prompts) or rows % len(prompts):
        raise ValueError(f"expected the completions of {len(prompts)} prompts to be a multiple of it, got {rows}")
    if whole is None:
        whole = sampled_alone(prompts, completion_ids, completion_mask)
    there = whole.attention_mask.bool()
    if (there[:, 1:] & ~there[:, :-1]).any():
        raise ValueError("a completion has tokens after a masked one: completions must be padded on the right")
    keep = prompts.attention_mask.bool()
    inner = there[:, 1:]  # the tokens that another follows
    positions = whole.position_ids[:, :, :-1][:, inner]
    layout = PrefixLayout(tuple(keep.sum(1).tolist()), tuple(inner.sum(1).tolist()), keep.device)
    return PackedRow(
        input_ids=torch.cat([prompts.input_ids[keep], completion_ids[:, :-1][inner]])[None],
        position_ids=torch.cat([prompts.position_ids[:, keep], positions], dim=1)[:, None],
        predictors=_predictors(layout, completion_mask),
        targets=completion_ids[completion_mask][None],
        layout=layout,
    )


def _predictors(layout: PrefixLayout, mask: Tensor) -> Tensor:
    """K places in the row: a prompt's last for the first token of a completion, the token before for every other."""
    group_size = len(mask) // len(layout.prompt_lengths)
    ends = layout.prompts.offsets[1:].long().repeat_interleave(group_size)
    starts = layout.completions.offsets[:-1].long() + layout.prompts.total
    places = starts[:, None] + torch.arange(-1, mask.shape[1] - 1, device=mask.device)
    places[:, 0] = ends - 1
    return places[mask]
