"""Targets of a warm-up: texts from solutions, or from the best completions of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError, kind_of, place_of
from qwenvl.data.options import PromptOptions
from qwenvl.rewards.functions.text import first_block
from qwenvl.runlog import Rollout, read_rollouts
from qwenvl.train.display.console import say
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
        RecordError, BadMediaError: as in training.
    """
    tokenizer = collator.processor.tokenizer
    for index in range(min(most, len(dataset))):
        inputs = collator([dataset[index]])
        batch, ids, mask = inputs["prompts"], inputs["target_ids"], inputs["target_mask"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record in batch.records:
            for row, kept in zip(ids, mask, strict=True):
                yield f"{place_of(record)}: {int(kept.sum())} tokens: {tokenizer.decode(row[kept])!r}"


class Asked(NamedTuple):
    """By what a record is known again in the rollouts of a run: it may lie in another folder by now."""

    record_id: str
    prompt: tuple[tuple[str, str], ...]
    solution: str

    @classmethod
    def by(cls, record: Record) -> Asked:
        """Of a record."""
        return cls(record.id, tuple((message.role, message.text) for message in record.messages), record.solution)

    @classmethod
    def of(cls, rollout: Rollout) -> Asked:
        """Of a completion."""
        return cls(rollout.record_id, tuple((turn["role"], turn["text"]) for turn in rollout.prompt), rollout.solution)


class RolloutTargets:
    """The best completions of a run for each record, training's and its evaluations'.

    A completion that was cut at the length limit is none of them: it has no end that could be taught.

    Args:
        folder: of the run.
        min_reward: least total reward.
        most: completions for each prompt.

    Raises:
        ValueError: the folder has no completion that is good enough. The message says what it has.
    """

    def __init__(self, folder: str, min_reward: float, most: int) -> None:
        self.folder = folder
        rollouts = list(read_rollouts(folder, split=None))
        self._best = best_completions(rollouts, min_reward, most)
        if not self._best:
            raise ValueError(f"--from_rollouts {folder}: {_nothing(rollouts, min_reward)}")
        taken = sum(map(len, self._best.values()))
        say(f"{folder}: {taken} different completions at or above reward {min_reward:g}, for {len(self._best)} prompts")

    def check_record(self, record: Record) -> None:
        """Any record will do. Those without a completion are left out by ``narrow``."""

    def of(self, record: Record, opened_think: bool) -> list[str]:
        """The completions of a record. They go on from its prompt already."""
        return self._best.get(Asked.by(record), [])

    def narrow(self, dataset: Any, flag: str) -> GRPODataset:
        """The data set without the records that have no completion here.

        Args:
            flag: that names the data set, for errors.

        Raises:
            TypeError: a data set of another library.
            ValueError: no record is left.
        """
        if not isinstance(dataset, GRPODataset):
            raise TypeError(f"--from_rollouts needs a GRPODataset, as load_dataset makes it, got {type(dataset)}")
        narrowed = dataset.narrowed(lambda record: Asked.by(record) in self._best)
        if not len(narrowed):
            asked = next(iter(self._best))
            raise ValueError(
                f"{flag}: none of its {len(dataset):,} records is one that {self.folder} has a good enough completion "
                f"of, such as id {asked.record_id}. Records are known by id, prompt and solution: give the run's data "
                "and its flags --columns, --system and --prompt_template"
            )
        say(f"{flag}: {len(narrowed):,} of {len(dataset):,} records have such a completion, the others are left out")
        return narrowed


def best_completions(rollouts: Iterable[Rollout], min_reward: float, most: int) -> dict[Asked, list[str]]:
    """For each prompt the texts with the highest rewards, the latest first where rewards are equal.

    Args:
        min_reward: least total reward.
        most: texts of a prompt. Equal texts count once.
    """
    groups: dict[Asked, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.total is not None and rollout.total >= min_reward and rollout.finish_reason == "stop":
            groups.setdefault(Asked.of(rollout), []).append(rollout)
    best = {}
    for asked, group in groups.items():
        ranked = sorted(group, key=lambda rollout: (-rollout.total, -rollout.step, rollout.sample))
        best[asked] = list(dict.fromkeys(rollout.completion for rollout in ranked))[:most]
    return best


def _nothing(rollouts: list[Rollout], min_reward: float) -> str:
    """Why none of these completions can be learned from."""
    totals = [rollout.total for rollout in rollouts if rollout.total is not None]
    if not rollouts:
        return "no completions lie there; is it the --output_dir of a run?"
    if not totals:
        return f"none of its {len(rollouts):,} completions has a reward"
    if max(totals) < min_reward:
        return (
            f"none of its {len(rollouts):,} completions has a reward at or above --min_reward {min_reward:g}: the best "
            f"was {max(totals):g}"
        )
    cut = sum(total >= min_reward for total in totals)
    return f"all {cut:,} completions at or above --min_reward {min_reward:g} were cut at the length limit"
