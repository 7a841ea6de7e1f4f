"""Completions of several turns: between two of them tools append tokens and pictures that were not sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.positions import first_positions
from qwenvl.types import FinishReason, RolloutBatch, SamplingParams, ToolCall, Turn


class Answerer(Protocol):
    """What answers the calls of N completions."""

    @property
    def most_tokens(self) -> int:
        """That are appended to a completion."""
        ...

    def select(self, rows: Sequence[int]) -> Answerer:
        """What answers those of some of the completions."""
        ...

    def calls(self) -> list[list[tuple[ToolCall, ...]]]:
        """Those of each turn of each completion so far."""
        ...

    def answer(self, turns: Mapping[int, list[int]]) -> tuple[list[int], PromptInputs] | None:
        """What is appended to the completions whose newest turn calls tools.

        Args:
            turns: the sampled tokens of the newest turn of some completions, by their numbers.

        Returns:
            Their numbers, and rows of tokens with media whose positions count from 0. None where all have ended.
        """
        ...


@dataclass
class GrowingCompletion:
    """A completion as it grows.

    Attributes:
        inputs: its tokens, 1 x t, with their positions behind the prompt, and the media among them.
        sampled: t bool, the tokens that were sampled.
        logprobs, entropies: t, 0 where a token was appended. None where the engine has none.
        reason: why its newest turn has ended.
    """

    inputs: PromptInputs
    sampled: Tensor
    logprobs: Tensor | None
    entropies: Tensor | None
    reason: FinishReason

    def add(self, other: GrowingCompletion) -> None:
        """Puts tokens behind it that have their positions already."""
        self.inputs = self.inputs.followed_by(other.inputs)
        self.sampled = torch.cat([self.sampled, other.sampled])
        self.logprobs, self.entropies = (
            None if own is None or more is None else torch.cat([own, more])
            for own, more in ((self.logprobs, other.logprobs), (self.entropies, other.entropies))
        )
        self.reason = other.reason


class Completions:
    """N completions as they grow, turn by turn.

    Attributes:
        prompts: P.
        rows: N.
    """

    def __init__(self, prompts: PromptInputs, first: RolloutBatch):
        self.prompts = prompts
        size = len(first.texts) // len(prompts)
        starts = first_positions(prompts.position_ids, size).tolist()
        self.rows = [_sampled_row(first, n, start) for n, start in enumerate(starts)]

    def append(self, rows: Sequence[int], appended: PromptInputs) -> PromptInputs:
        """Puts what tools gave behind some of them, and returns it with the positions that it has there."""
        pieces = []
        for n, row in enumerate(rows):
            own = self.rows[row]
            piece = appended.select([n]).moved(own.inputs.next_position)
            zeros = torch.zeros(piece.input_ids.shape[1], device=own.sampled.device)
            own.add(GrowingCompletion(piece, zeros.bool(), zeros, zeros, "length"))
            pieces.append(piece)
        return PromptInputs.join(pieces)

    def take(self, rows: Sequence[int], turn: RolloutBatch, most: Sequence[int]) -> None:
        """Puts the tokens of their newest turns behind some of them, of each at most so many."""
        for n, row in enumerate(rows):
            own = self.rows[row]
            own.add(_sampled_row(turn, n, own.inputs.next_position, most[n]))

    def newest(self, rows: Sequence[int], turn: RolloutBatch) -> dict[int, list[int]]:
        """The tokens of the newest turn of those that ended it by themselves."""
        return {
            row: turn.completion_ids[n][turn.completion_mask[n]].tolist()
            for n, row in enumerate(rows)
            if self.rows[row].reason == "stop"
        }

    def last_tokens(self, rows: Sequence[int]) -> Tensor:
        """The newest sampled token of each of some of them."""
        return torch.stack([own.inputs.input_ids[0, own.sampled][-1] for own in (self.rows[row] for row in rows)])

    def behind_prompts(self, rows: Sequence[int]) -> PromptInputs:
        """The prompts of some of them with all of their tokens behind, padded on the left."""
        size = len(self.rows) // len(self.prompts)
        return PromptInputs.join([self.prompts.select([n // size]).followed_by(self.rows[n].inputs) for n in rows])

    def rollout(self, tokenizer: Any, calls: list[list[tuple[ToolCall, ...]]]) -> RolloutBatch:
        """All of them, as they have ended.

        Args:
            calls: of each turn of each of them, as far as it had some.
        """
        whole = PromptInputs.join([row.inputs for row in self.rows], left=False)
        there = whole.attention_mask.bool()
        columns = [[getattr(row, name) for row in self.rows] for name in ("sampled", "logprobs", "entropies")]
        mask, logprobs, entropies = (
            None if column[0] is None else pad_sequence(column, batch_first=True) for column in columns
        )
        assert mask is not None  # every row has one
        turns = []
        for row, own in zip(self.rows, calls, strict=True):
            tokens = zip(row.inputs.input_ids[0].tolist(), row.sampled.tolist(), strict=True)
            runs = [[token for token, _ in run] for sampled, run in groupby(tokens, itemgetter(1)) if sampled]
            texts = tokenizer.batch_decode(runs, skip_special_tokens=True)
            own = own + [()] * (len(texts) - len(own))  # a turn that was cut has not been answered
            turns.append(tuple(map(Turn, texts, own)))
        return RolloutBatch(
            completion_ids=whole.input_ids.masked_fill(~there, tokenizer.pad_token_id),
            completion_mask=mask,
            texts=["".join(turn.text for turn in each) for each in turns],
            finish_reasons=[row.reason for row in self.rows],
            logprobs=logprobs,
            entropies=entropies,
            whole=whole,
            turns=turns,
        )


def _sampled_row(turn: RolloutBatch, n: int, start: int, most: int | None = None) -> GrowingCompletion:
    """A completion of a turn, of which at most so many tokens are taken."""
    mask = turn.completion_mask[n]
    ids = turn.completion_ids[n][mask]
    reason = "length" if most is not None and len(ids) > most else turn.finish_reasons[n]
    inputs = PromptInputs.of_text(ids[None, :most]).moved(start)
    logprobs, entropies = (None if each is None else each[n][mask][:most] for each in (turn.logprobs, turn.entropies))
    return GrowingCompletion(inputs, mask[mask][:most], logprobs, entropies, reason)


def laid_out(
    prompts: PromptInputs, ids: Tensor, pieces: Sequence[Sequence[int]], appended: PromptInputs | None
) -> PromptInputs:
    """Given completions as a model takes them, behind their prompts, padded on the right.

    Args:
        ids: N x T.
        pieces: for each of the N the lengths of what is said and what is appended, in turn.
        appended: all that is appended, in order, one row each, with positions that count from 0. None for nothing.
    """
    starts = first_positions(prompts.position_ids, len(ids) // len(prompts)).tolist()
    rows, number = [], 0
    for n, (lengths, start) in enumerate(zip(pieces, starts, strict=True)):
        row, place = None, 0
        for k, length in enumerate(lengths):
            piece = PromptInputs.of_text(ids[n : n + 1, place : place + length])
            if k % 2 and appended is not None:
                piece, number = appended.select([number]), number + 1
            row = piece.moved(start) if row is None else row.followed_by(piece.moved(row.next_position))
            place += length
        assert row is not None  # each has a piece, which may be empty
        rows.append(row)
    return PromptInputs.join(rows, left=False)


Resume = Callable[[Completions, list[int], PromptInputs, int], RolloutBatch]
"""Samples a turn more of some completions, behind what was appended to them, of at most so many tokens."""


def sample_turns(
    first: RolloutBatch,
    prompts: PromptInputs,
    params: SamplingParams,
    conversations: Answerer,
    resume: Resume,
    tokenizer: Any,
) -> RolloutBatch:
    """Completions of as many turns as their calls of tools ask for.

    All completions that have called are answered together, and their next turns are sampled together.

    Args:
        first: the first turn of N completions of P prompts.
        params: ``max_new_tokens`` bounds the sampled tokens of all turns of a completion.
    """
    completions = Completions(prompts, first)
    newest = completions.newest(range(len(completions.rows)), first)
    while newest and (answered := conversations.answer(newest)) is not None:
        rows, appended = answered
        room = [params.max_new_tokens - int(completions.rows[row].sampled.sum()) for row in rows]
        placed = completions.append(rows, appended)
        kept = [n for n, most in enumerate(room) if most > 0]
        if not kept:
            break
        rows, room = [rows[n] for n in kept], [room[n] for n in kept]
        turn = resume(completions, rows, placed.select(kept), max(room))
        completions.take(rows, turn, room)
        newest = completions.newest(rows, turn)
    return completions.rollout(tokenizer, conversations.calls())
