"""Completions of several turns: between two of them tools append tokens and pictures that were not sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import spread_out
from qwenvl.model.positions import first_positions
from qwenvl.tools.toolbox import Conversations
from qwenvl.types import FinishReason, RolloutBatch, SamplingParams, Turn


class GrowingCompletion:
    """A completion as it grows: turns that were sampled, and between them what tools have appended.

    Attributes:
        pieces: its tokens, 1 x t each, with their positions and media. Every second piece was appended.
        likelihoods: log-probs and entropies of each sampled turn, None where the engine has none.
        reason: why its newest turn has ended.
        ended_by: the token that ended that turn, empty where none did.
    """

    def __init__(self, start: int):
        """``start`` is the position of its first token."""
        self.pieces: list[PromptInputs] = []
        self.likelihoods: list[list[Tensor | None]] = []
        self.reason: FinishReason = "length"
        self.ended_by = ""
        self._next = start

    def add(self, piece: PromptInputs) -> None:
        """Adds tokens whose positions count from 0."""
        self.pieces.append(piece.moved(self._next))
        if piece.input_ids.shape[1]:
            self._next += int(piece.position_ids.max()) + 1

    def take(self, turn: RolloutBatch, n: int, most: int) -> None:
        """Adds the completion ``n`` of a turn, at most so many tokens of it."""
        sampled = turn.completion_mask[n]
        ids = turn.completion_ids[n][sampled]
        self.reason = "length" if len(ids) > most else turn.finish_reasons[n]
        self.ended_by = turn.ended_by[n] if turn.ended_by is not None and self.reason == "stop" else ""
        self.likelihoods.append([x if x is None else x[n][sampled][:most] for x in (turn.logprobs, turn.entropies)])
        self.add(PromptInputs.of_text(ids[None, :most]))

    @property
    def turns(self) -> list[Tensor]:
        """The sampled tokens of each turn."""
        return [piece.input_ids[0] for piece in self.pieces[::2]]

    @property
    def unseen(self) -> PromptInputs:
        """The tokens that the model has not computed: the last sampled one, and what was appended behind it."""
        *_, turn, appended = self.pieces
        last = PromptInputs.of_text(turn.input_ids[:, -1:]).moved(int(turn.position_ids.max()))
        return last.followed_by(appended)

    def whole(self) -> PromptInputs:
        """All tokens."""
        return reduce(PromptInputs.followed_by, self.pieces)

    def sampled(self) -> Tensor:
        """t bool, False for tokens that were appended."""
        return torch.cat([torch.full_like(x.input_ids[0], 1 - k % 2) for k, x in enumerate(self.pieces)]).bool()


Resume = Callable[[list[int], list[GrowingCompletion], int], RolloutBatch]
"""Samples one more turn, of at most so many tokens, of the completions with these numbers."""


def sample_turns(
    first: RolloutBatch,
    prompts: PromptInputs,
    params: SamplingParams,
    conversations: Conversations,
    resume: Resume,
    tokenizer: Any,
) -> RolloutBatch:
    """Completions of as many turns as their calls of tools ask for.

    All completions that have called are answered together, and their next turns are sampled together.

    Args:
        first: the first turn of N completions of P prompts.
        params: ``max_new_tokens`` bounds the sampled tokens of all turns of a completion.
        conversations: with these completions.
    """
    size = len(first.texts) // len(prompts)
    completions = [GrowingCompletion(start) for start in first_positions(prompts.position_ids, size).tolist()]
    room = [params.max_new_tokens] * len(completions)
    rows, turn, boots = [*range(len(completions))], first, first.boots
    while rows:
        for n, row in enumerate(rows):
            completions[row].take(turn, n, room[row])
            room[row] -= len(completions[row].turns[-1])
        ended = {row: completions[row].turns[-1].tolist() for row in rows if completions[row].reason == "stop"}
        answers = conversations.answer(ended)
        for row, answer in answers.items():
            completions[row].add(answer)
            completions[row].reason = "length"  # unless another turn ends
            completions[row].ended_by = ""
        if rows := [row for row in answers if room[row] > 0]:
            turn = resume(rows, [completions[row] for row in rows], max(room[row] for row in rows))
            boots |= turn.boots
    whole = PromptInputs.join([each.whole() for each in completions], left=False)
    mask = pad_sequence([each.sampled() for each in completions], batch_first=True)
    logprobs, entropies = (
        None if column[0] is None else spread_out(torch.cat(column), mask)
        for column in zip(*(turn for each in completions for turn in each.likelihoods), strict=True)
    )
    texts = [tokenizer.batch_decode(each.turns, skip_special_tokens=True) for each in completions]
    calls = [conversation.calls for conversation in conversations.each]  # a turn that was cut has none
    return RolloutBatch(
        completion_ids=whole.input_ids.masked_fill(~whole.attention_mask.bool(), tokenizer.pad_token_id),
        completion_mask=mask,
        texts=["".join(each) for each in texts],
        finish_reasons=[each.reason for each in completions],
        ended_by=[each.ended_by for each in completions],
        logprobs=logprobs,
        entropies=entropies,
        boots=boots,
        whole=whole,
        turns=[
            tuple(Turn(*turn) for turn in zip(own, chain(made, repeat(())), strict=False))
            for own, made in zip(texts, calls, strict=True)
        ],
    )


def behind_prompts(
    prompts: PromptInputs, size: int, rows: Sequence[int], completions: Sequence[GrowingCompletion]
) -> PromptInputs:
    """Completions with these numbers behind their prompts, each of which has ``size`` of them. Padded on the left."""
    pairs = zip(rows, completions, strict=True)
    return PromptInputs.join([prompts.select([row // size]).followed_by(own.whole()) for row, own in pairs])
