"""Completions in a file: tokens, log-probs and texts, as safetensors with a JSON head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qwenvl.types import RolloutBatch

_TENSORS = ("completion_ids", "completion_mask", "logprobs", "entropies")


class Kept(NamedTuple):
    """The completions of one step.

    Attributes:
        version: of the weights that sampled them.
        seeds: of the requests.
        answers: of each request, a batch of completions for each micro-batch.
    """

    version: int
    seeds: tuple[int, ...]
    answers: tuple[list[RolloutBatch], ...]


def write_kept(path: Path, steps: Sequence[Kept]) -> None:
    """Write the steps to a file, in order."""
    tensors, head = {}, []
    for s, step in enumerate(steps):
        requests = []
        for r, rollouts in enumerate(step.answers):
            requests.append([_head(each) for each in rollouts])
            for b, each in enumerate(rollouts):
                for name in _TENSORS:
                    if (value := getattr(each, name)) is not None:
                        tensors[f"{s}.{r}.{b}.{name}"] = value.detach().cpu().contiguous()
        head.append({"version": step.version, "seeds": list(step.seeds), "requests": requests})
    save_file(tensors, path, metadata={"steps": json.dumps(head)})


def read_kept(path: Path) -> list[Kept]:
    """The steps that ``write_kept`` wrote.

    Raises:
        ValueError: the file is not whole, or another one.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            head = json.loads(opened.metadata()["steps"])
        steps = []
        for s, step in enumerate(head):
            answers = []
            for r, rollouts in enumerate(step["requests"]):
                named = [{n: tensors.get(f"{s}.{r}.{b}.{n}") for n in _TENSORS} for b in range(len(rollouts))]
                answers.append([_rollout(*parts) for parts in zip(named, rollouts, strict=True)])
            steps.append(Kept(step["version"], tuple(step["seeds"]), tuple(answers)))
        return steps
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected completions that were sampled ahead, got something else: {error}") from None


def _head(rollout: RolloutBatch) -> dict[str, list[str]]:
    return {"texts": rollout.texts, "finish_reasons": [*rollout.finish_reasons], "boots": sorted(rollout.boots)}


def _rollout(tensors: dict[str, Any], head: dict[str, Any]) -> RolloutBatch:
    return RolloutBatch(**tensors, **{**head, "boots": frozenset(head["boots"])})
