"""Targets: the texts that a warm-up teaches, as the model would have to write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.options import PromptOptions
from qwenvl.rewards.functions.text import first_block
from qwenvl.types import BadSample, PromptBatch, Record, Sample


class Targets(Protocol):
    """Knows what is to be said to the prompt of a record."""

    def check_record(self, record: Record) -> str | None:
        """Why there can be no target for a record, or None if there can."""

    def of(self, record: Record, opened_think: bool) -> Sequence[str]:
        """The targets of a record, without the end token.

        Args:
            opened_think: the prompt ends inside a think block, which the target goes on with.

        Raises:
            RecordError: the target can't go on with such a prompt.
        """


@dataclass(frozen=True)
class SolutionTargets:
    """One target for each record: its solution, in the form that rewards read.

    Attributes:
        template: see ``--target_template``. None for the form of the solution itself.

    Example:
        >>> record = Record("a", (), "7", (), (), (), {"thinking": "3 + 4"}, "data.json[0]")
        >>> SolutionTargets().of(record, opened_think=False)
        ['<think>3 + 4</think><answer>7</answer>']
    """

    template: str | None = None

    def check_record(self, record: Record) -> str | None:
        """Why a record has no target, or None if it has one."""
        thinking = record.fields.get("thinking")
        if thinking is not None and not isinstance(thinking, str):
            return f"`thinking`: expected text, got {kind_of(thinking)}"
        if self.template is not None and "{thinking}" in self.template and not _thinking(record):
            return (
                "--target_template names {thinking}, and the record has neither a `thinking` nor a think block in its "
                "solution; give it one, or leave {thinking} out"
            )
        return None

    def of(self, record: Record, opened_think: bool) -> list[str]:
        """The target of a record."""
        if problem := self.check_record(record):
            raise RecordError(f"{record.where}: {problem}")
        text = self._text(record)
        return [_inside_think(text, record) if opened_think else text]

    def _text(self, record: Record) -> str:
        solution, thinking = record.solution, _thinking(record)
        answer, own = first_block(solution, "answer"), first_block(solution, "think")
        without_thinking = solution[: own.start] + solution[own.end :] if own else solution
        if self.template is not None:
            values = {"thinking": thinking, "solution": answer.inner if answer else without_thinking.strip()}
            return re.sub(r"\{(thinking|solution)\}", lambda name: values[name[1]], self.template)
        if answer and (own or not thinking):
            return solution
        bare = solution if answer else f"<answer>{without_thinking.strip()}</answer>"
        return f"<think>{thinking}</think>{bare}" if thinking else bare


def _thinking(record: Record) -> str:
    """What stands in the think block of a record's solution, else in its field ``thinking``. Empty without both."""
    own = first_block(record.solution, "think")
    thinking = own.inner if own else record.fields.get("thinking") or ""
    return thinking if thinking.strip() else ""


def _inside_think(text: str, record: Record) -> str:
    """A target as the rest of a think block that the prompt has opened."""
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>")
    if "</think>" in text:
        return text
    raise RecordError(
        f"{record.where}: the prompt ends inside a think block, and the target has no thinking to go on with: "
        f"{text[:80]!r}; give the record a `thinking`, close the block at once by --target_template "
        "'</think><answer>{solution}</answer>', or, where the chat template reads it, pass --chat_template_kwargs "
        "'{\"enable_thinking\": false}'"
    )


class TargetCollator(GRPOCollator):
    """Turns samples into prompts, as training does, and adds their targets.

    A batch holds, besides ``prompts``, ``target_ids`` and ``target_mask`` (bool), both N x T and padded on the right.
    G is the most targets that one of the P prompts has, N = P * G, and row n belongs to prompt n // G. A prompt with
    fewer targets has rows without tokens. Each target ends with the end token.

    Args:
        processor, options: as for ``GRPOCollator``.
        targets: what is to be said to each prompt.
    """

    def __init__(self, processor: ProcessorMixin, options: PromptOptions, targets: Targets) -> None:
        super().__init__(processor, options)
        self.targets = targets

    def __call__(self, samples: list[Sample | BadSample | None]) -> dict[str, Any]:
        inputs: dict[str, Any] = super().__call__(samples)
        texts = self.texts(inputs["prompts"])
        size = max(map(len, texts), default=0)
        rows = [row for own in texts for row in [*map(self._ids, own), *[[]] * (size - len(own))]]
        inputs["target_ids"], inputs["target_mask"] = _padded(rows, self.processor.tokenizer.pad_token_id)
        return inputs

    def texts(self, batch: PromptBatch) -> list[list[str]]:
        """The targets of each of P prompts."""
        pairs = zip(batch.records, batch.opened_think, strict=True)
        return [list(self.targets.of(record, opened)) for record, opened in pairs]

    def _ids(self, text: str) -> list[int]:
        tokenizer = self.processor.tokenizer
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def _padded(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, rows x T. Without rows they are 0 x 0."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, 0, dtype=torch.bool)
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def shown_targets(dataset: Any, collator: TargetCollator, most: int) -> Iterator[str]:
    """A line for each target of the first ``most`` records, as the model reads it, and one for each record left out.

    Raises:
        RecordError, BadMediaError, FramePlanError: as in training.
    """
    tokenizer = collator.processor.tokenizer
    for index in range(min(most, len(dataset))):
        inputs = collator([dataset[index]])
        batch, ids, mask = inputs["prompts"], inputs["target_ids"], inputs["target_mask"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record in batch.records:
            for row, kept in zip(ids, mask, strict=True):
                yield f"{record.where} (id {record.id}): {int(kept.sum())} tokens: {tokenizer.decode(row[kept])!r}"
