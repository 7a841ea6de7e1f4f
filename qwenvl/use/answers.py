"""The answers of the server: cut at their stop strings, counted, and in the forms of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from qwenvl.types import PromptBatch, RolloutBatch, SamplingParams
from qwenvl.use.chat_request import ApiError, Patience
from qwenvl.use.options import ChatOptions


@dataclass(eq=False)
class Pending:
    """A request whose prompt is made.

    Attributes:
        events: (choice, token) of each token where the request streams, and at the end the completions or an error.
        alone: it is sampled without others, since a server has refused it together with them.
        turn: those with the lowest one are sampled first.
    """

    batch: PromptBatch
    options: ChatOptions
    params: SamplingParams
    patience: Patience
    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    alone: bool = False
    turn: int = 0


class StopWatch:
    """Finds, token by token, where an answer contains a stop string.

    A string lies within as many of the last tokens as it has bytes, and one more where it begins within a token. One
    that special tokens interrupt is missed here, and is found when the answer is cut.
    """

    def __init__(self, stops: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        self._stops = stops
        self._decode = decode
        self._window = 1 + max((len(stop.encode()) for stop in stops), default=0)
        self._last: list[int] = []

    def ends_at(self, token: int) -> bool:
        """Whether the answer contains a stop string with this token, the next one."""
        if not self._stops:
            return False
        self._last = [*self._last[-self._window :], token]
        text = self._decode(self._last)
        return any(stop in text for stop in self._stops)


@dataclass(frozen=True)
class ServedAnswer:
    """One of the answers to a request, up to its own stop strings.

    Attributes:
        ids: its sampled tokens, end tokens included. The last one may complete a stop string.
        logprobs: of these. None: the engine gives none.
    """

    text: str
    finish_reason: str
    ids: list[int]
    logprobs: list[float] | None


def answers_of(pending: Pending, rollout: RolloutBatch, decode: Callable[[list[int]], str]) -> list[ServedAnswer]:
    """The answers to a request."""
    found = []
    for row, (text, reason) in enumerate(zip(rollout.texts, rollout.finish_reasons, strict=True)):
        mask = rollout.completion_mask[row]
        ids = rollout.completion_ids[row][mask].tolist()
        logprobs = None if rollout.logprobs is None else rollout.logprobs[row][mask].tolist()
        ends = [place for place in map(text.find, pending.options.stops) if place >= 0]
        if ends:
            count = _tokens_to_stop(ids, pending.options.stops, decode)
            text = text[: min(ends)]
            reason = "stop"
            ids = ids[:count]
            if logprobs is not None:
                logprobs = logprobs[:count]
        found.append(ServedAnswer(text=text, finish_reason=reason, ids=ids, logprobs=logprobs))
    return found


def _tokens_to_stop(ids: list[int], stops: Sequence[str], decode: Callable[[list[int]], str]) -> int:
    """The smallest number of tokens whose text contains a stop string, or that of all."""
    # Each probe decodes a text, so search by halves: with one more token a text keeps the stop strings that it has.
    low = 1
    high = max(1, len(ids))
    while low < high:
        middle = (low + high) // 2
        text = decode(ids[:middle])
        if any(stop in text for stop in stops):
            high = middle
        else:
            low = middle + 1
    return low


def usage_of(pending: Pending, answers: Iterable[ServedAnswer]) -> dict[str, int]:
    """The tokens of a request and of its answers."""
    prompt = pending.batch.input_ids.shape[1]
    completion = sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def logprobs_of(answer: ServedAnswer, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """The log-probs of an answer in OpenAI's form, and ``token_ids`` as vLLM has them."""
    assert answer.logprobs is not None  # every engine gives them
    content: list[dict[str, Any]] = [
        {"token": decode([token]), "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in zip(answer.ids, answer.logprobs, strict=True)
    ]
    return {"logprobs": {"content": content}, "token_ids": answer.ids}


# Tokens that are kept back while each of them may end within a character. U+FFFD may be meant, too.
MOST_UNSENT = 16


class _Choice:
    """The text of an answer while it is streamed.

    Attributes:
        sent: the text so far.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self.sent = ""
        self._decode = decode
        self._unsent: list[int] = []

    def piece(self, token: int) -> str:
        """The text that a token completes."""
        self._unsent.append(token)
        text = self._decode(self._unsent)
        if not text.endswith("\ufffd"):
            self._unsent = []
        elif len(self._unsent) % MOST_UNSENT:
            return ""  # the last character may be half there
        else:
            text = self._take_whole_characters(text)
        self.sent += text
        return text

    def _take_whole_characters(self, text: str) -> str:
        """The text of the first unsent tokens that end with a character: it does not change with what follows."""
        for count in range(len(self._unsent) - 1, 0, -1):
            whole = self._decode(self._unsent[:count])
            if whole + self._decode(self._unsent[count:]) == text:
                self._unsent = self._unsent[count:]
                return whole
        return ""


async def streamed(
    pending: Pending, events: AsyncGenerator[Any, None], head: Mapping[str, Any], decode: Callable[[list[int]], str]
) -> AsyncGenerator[str, None]:
    """An answer as server-sent events: pieces of text as they come, and at the end the remaining text and the usage."""

    def piece(choice: int, text: str, reason: str | None = None, **more: Any) -> str:
        delta = {"role": "assistant", "content": text}
        chosen = {"index": choice, "delta": delta, "finish_reason": reason}
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [chosen], **more})}\n\n"

    choices = [_Choice(decode) for _ in range(pending.options.n)]
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, tuple):
                    number, token = event
                    # Where stop strings are given, what is sent may turn out to be the beginning of one.
                    if not pending.options.stops:
                        text = choices[number].piece(token)
                        if text:
                            yield piece(number, text)
                    continue
                answers = answers_of(pending, event, decode)
                usage = usage_of(pending, answers)
                for number, answer in enumerate(answers):
                    pending.patience.check()  # a client may read slowly, and holds its place
                    rest = answer.text[len(choices[number].sent) :]
                    yield piece(number, rest, answer.finish_reason, usage=usage)
    except ApiError as error:
        yield f"data: {json.dumps(error.body)}\n\n"
    yield "data: [DONE]\n\n"
