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
        logprobs, entropies: of the tokens of each sampled turn, None where the engine has none.
        reason: why its newest turn has ended.
        ended_by: the token that ended that turn, empty where none did.
    """

    def __init__(self, start: int):
        """``start`` is the position of its first token."""
        self.pieces: list[PromptInputs] = []
        self.logprobs: list[Tensor | None] = []
        self.entropies: list[Tensor | None] = []
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
        self.logprobs.append(None if turn.logprobs is None else turn.logprobs[n][sampled][:most])
        self.entropies.append(None if turn.entropies is None else turn.entropies[n][sampled][:most])
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
        """All tokens, sampled and appended, in their order."""
        return reduce(PromptInputs.followed_by, self.pieces)

    def sampled(self) -> Tensor:
        """t bool, False for tokens that were appended."""
        of_pieces = []
        for k, piece in enumerate(self.pieces):
            was_sampled = k % 2 == 0
            of_pieces.append(torch.full_like(piece.input_ids[0], was_sampled, dtype=torch.bool))
        return torch.cat(of_pieces)


Resume = Callable[[list[int], list[GrowingCompletion], list[int]], RolloutBatch]
"""Samples one more turn of the completions with these numbers, each of which has room for so many tokens.

Tokens beyond the room of a completion are left out here: an engine may give all of them the most room of one.
"""


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
    rows = list(range(len(completions)))
    turn = first
    boots = first.boots
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
        rows = [row for row in answers if room[row] > 0]
        if rows:
            turn = resume(rows, [completions[row] for row in rows], [room[row] for row in rows])
            boots |= turn.boots
    whole = PromptInputs.join([each.whole() for each in completions], left=False)
    mask = pad_sequence([each.sampled() for each in completions], batch_first=True)
    texts = []
    turns = []
    for completion, conversation in zip(completions, conversations.each, strict=True):
        of_turns = tokenizer.batch_decode(completion.turns, skip_special_tokens=True)
        texts.append("".join(of_turns))
        calls = chain(conversation.calls, repeat(()))  # a turn that was cut has none
        turns.append(tuple(Turn(text, made) for text, made in zip(of_turns, calls, strict=False)))
    return RolloutBatch(
        completion_ids=whole.input_ids.masked_fill(~whole.attention_mask.bool(), tokenizer.pad_token_id),
        completion_mask=mask,
        texts=texts,
        finish_reasons=[each.reason for each in completions],
        ended_by=[each.ended_by for each in completions],
        logprobs=_in_rows([each.logprobs for each in completions], mask),
        entropies=_in_rows([each.entropies for each in completions], mask),
        boots=boots,
        whole=whole,
        turns=turns,
    )


def _in_rows(of_completions: Sequence[Sequence[Tensor | None]], mask: Tensor) -> Tensor | None:
    """The values of the sampled tokens of each turn of N completions, N x T. None: the engine has none.

    Args:
        mask: N x T bool, the tokens that were sampled.
    """
    values: list[Tensor] = []
    for of_turns in of_completions:
        for of_turn in of_turns:
            if of_turn is None:
                return None
            values.append(of_turn)
    return spread_out(torch.cat(values), mask)


def behind_prompts(
    prompts: PromptInputs, size: int, rows: Sequence[int], completions: Sequence[GrowingCompletion]
) -> PromptInputs:
    """Completions with these numbers behind their prompts, each of which has ``size`` of them. Padded on the left."""
    pairs = zip(rows, completions, strict=True)
    return PromptInputs.join([prompts.select([row // size]).followed_by(own.whole()) for row, own in pairs])
