"""``qwenvl serve --check``: whether a running server shows records to its model as training did."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import TURN_END, chat_messages
from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.framing import unframed
from qwenvl.data.records.record_file import RecordFile
from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of
from qwenvl.failure import counted
from qwenvl.files import require
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.model.positions import first_positions
from qwenvl.rewards import build_rubric
from qwenvl.rollout.turns import GrowingCompletion
from qwenvl.step.parity import HALF_PRECISION
from qwenvl.types import PromptBatch, Record
from qwenvl.use.options import OWNER, UseRequest

CHECKED = 5  # records
_USUAL_TYPES = {"video": "video/mp4", "image": "image/png"}


@dataclass(frozen=True)
class Compared:
    """A record that was sent to a server.

    Attributes:
        line: what is told of it.
        same_length: the prompt has as many tokens there as here.
        same_answer: the greedy answers are the same.
        gaps: between the log-probs of a token there and here. Empty: none are compared.
    """

    line: str
    same_length: bool
    same_answer: bool
    gaps: list[float]


class TrainedModel:
    """The model as trained, with which a server is compared.

    Raises:
        EngineLostError: the servers that the flags name can't be used.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self.device = config.device
        self.collator = collator_of(config)
        self.respondent = build_respondent(config, self.collator, build_rubric())
        self._dataset = dataset_of([], config, self.collator)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return self.collator.processor.tokenizer

    @property
    def most_tokens(self) -> int:
        """Longest answer."""
        return self.respondent.sample.params.max_new_tokens

    def prompt(self, record: Record) -> PromptBatch:
        """The prompt of a record."""
        return self.collator([self._dataset.load(record)])["prompts"]

    def answer(self, batch: PromptBatch) -> str:
        """The greedy answer to a prompt."""
        [own] = self.respondent.complete([batch], 1)
        return own.texts[0]

    @torch.no_grad()
    def logprobs(self, batch: PromptBatch, ids: list[int]) -> list[float] | None:
        """The log-probs of the sampled tokens of an answer, behind which tools append what they give here.

        Returns:
            None where the answer goes on behind a turn that tools do not answer here.
        """
        model = self.respondent.step.policy
        encode = self.respondent.sample.encode
        inputs = encode.inputs(model, batch)
        with encode.autocast():
            completion = self._completion(batch, inputs, ids)
            if completion is None:
                return None
            whole = completion.whole()
            sampled = completion.sampled()[None]
            found = completion_likelihood(
                model,
                inputs,
                whole.input_ids,
                sampled,
                temperature=1.0,
                logit_chunk_tokens=1024,
                whole=whole,
            )
        return found.logprobs[sampled].tolist()

    def _completion(self, batch: PromptBatch, inputs: PromptInputs, ids: list[int]) -> GrowingCompletion | None:
        """The answer with what tools append to its turns. None where a turn that another one follows has no answer."""
        sample = self.respondent.sample
        [start] = first_positions(inputs.position_ids, 1).tolist()
        completion = GrowingCompletion(start)
        turns = [ids]
        if sample.toolbox is not None:
            turns = turns_of(ids, self.tokenizer.convert_tokens_to_ids(TURN_END))
        *answered, last = turns
        if answered:
            conversations = sample.conversations([batch], 1, self.respondent.step.policy)
        for turn in answered:
            completion.add(self._text(turn))
            answers = conversations.answer({0: turn})
            if not answers:
                return None
            completion.add(answers[0])
        completion.add(self._text(last))
        return completion

    def _text(self, ids: list[int]) -> PromptInputs:
        """Sampled tokens as inputs of the model."""
        return PromptInputs.of_text(torch.tensor([ids], device=self.device))


def turns_of(ids: Sequence[int], end: int) -> list[list[int]]:
    """The sampled tokens of an answer, parted behind each end of a turn.

    Example:
        >>> turns_of([5, 6, 1, 7, 1], end=1)
        [[5, 6, 1], [7, 1]]
    """
    turns: list[list[int]] = [[]]
    for token in ids:
        if turns[-1][-1:] == [end]:
            turns.append([])
        turns[-1].append(token)
    return turns


def check(request: UseRequest) -> str:
    """Compares the server ``--check`` with the model as trained: a line for each of five records, and the verdict.

    Its greedy answers are compared with those here, and their log-probs with those of the same tokens here.

    Raises:
        ValueError, OSError: no record can be sent, or the server does not answer.
    """
    openai = require("openai", "judge")
    url = request.options.check
    records = _sendable(request)
    reference = TrainedModel(request.config)
    compared: list[Compared] = []
    try:
        client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none")
        served = _served(client)
        for record in records:
            sent = record
            if served.owned_by == OWNER:  # our own server puts the template and the system turn around prompts
                sent = unframed(record, request.asking.reading)
            answer = client.chat.completions.create(
                model=served.id,
                messages=messages_of(sent),
                max_tokens=reference.most_tokens,
                temperature=0,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            reply = Reply.of(answer, vocabulary=len(reference.tokenizer))
            compared.append(_compared(record, reply, reference))
    except (openai.OpenAIError, json.JSONDecodeError, ReplyError) as error:
        raise ValueError(f"--check {url}: {str(error)[:300]}") from None
    return "\n".join([*(each.line for each in compared), *_verdict(compared)])


def _served(client: Any) -> Any:
    """The first model that a server lists, as the openai client has it."""
    try:
        [served, *_] = client.models.list()
    except (AttributeError, TypeError, ValueError):  # an empty list, none, or a page in HTML
        served = None
    if not hasattr(served, "owned_by"):
        raise ReplyError("expected a list of models at /models, as OpenAI's API has it")
    return served


class ReplyError(ValueError):
    """A server does not answer as OpenAI's API does."""


@dataclass(frozen=True)
class Reply:
    """What a server has answered to a record.

    Attributes:
        prompt_tokens: how many the prompt has there.
        tokens, logprobs: of the answer. Empty where the server gives none.
        ids: of these tokens. None where the server gives none.
    """

    text: str
    prompt_tokens: int
    tokens: list[str]
    logprobs: list[float]
    ids: list[int] | None

    @classmethod
    def of(cls, answer: Any, vocabulary: int) -> Reply:
        """The parts that are compared of an answer of the openai client.

        Raises:
            ReplyError: one of them is missing, or is something else.
        """
        found = answer.model_dump() if hasattr(answer, "model_dump") else answer
        try:
            [choice, *_] = found["choices"]
            given = (choice.get("logprobs") or {}).get("content") or []
            ids = choice.get("token_ids")
            reply = cls(
                text=choice["message"]["content"] or "",
                prompt_tokens=int(found["usage"]["prompt_tokens"]),
                tokens=[str(each["token"]) for each in given],
                logprobs=[float(each["logprob"]) for each in given],
                ids=None if ids is None else [int(each) for each in ids],
            )
        except (KeyError, TypeError, ValueError):
            raise ReplyError(
                "expected an answer with choices, a message, usage and log-probs, as OpenAI's API has it, got "
                f"{kind_of(found)}"
            ) from None
        if reply.ids is not None and not all(0 <= each < vocabulary for each in reply.ids):
            raise ReplyError(f"expected token_ids from 0 to {vocabulary - 1:,}, the vocabulary of MODEL here")
        return reply


def _compared(record: Record, reply: Reply, reference: TrainedModel) -> Compared:
    """A record's answer of a server, compared with the model here."""
    batch = reference.prompt(record)
    theirs = reply.prompt_tokens
    here = batch.input_ids.shape[1]
    same_answer = reply.text.strip() == reference.answer(batch).strip()
    named = "the same answer" if same_answer else "another answer"
    line = f"{record.id}: {named}; {theirs:,} tokens of the prompt, {here:,} here"
    # Without ``token_ids`` there are only texts of tokens. If they encode to others, nothing is compared.
    ids = reply.ids or reference.tokenizer.encode("".join(reply.tokens))
    gaps: list[float] = []
    if reply.logprobs and len(ids) == len(reply.logprobs):
        values = reference.logprobs(batch, ids)
        if values is None:
            line += ", log-probs not compared: tools here give no answer to one of its calls"
        else:
            gaps = [abs(value - given) for value, given in zip(values, reply.logprobs, strict=True)]
            line += f", log-probs within {max(gaps):.2g}"
    return Compared(line, same_length=theirs == here, same_answer=same_answer, gaps=gaps)


def _verdict(found: Sequence[Compared]) -> list[str]:
    """Two lines: the differences, and whether the server shows records as training did."""
    gaps = [gap for each in found for gap in each.gaps]
    same_lengths = all(each.same_length for each in found)
    alike = all(each.same_answer for each in found)
    compared = "no log-probs are compared, only lengths of prompts and answers"
    if gaps:
        largest = max(gaps)
        mean = sum(gaps) / len(gaps)
        most_largest, most_mean = HALF_PRECISION
        alike = largest <= most_largest and mean <= most_mean
        compared = f"log-probs of {len(gaps):,} tokens differ by {largest:.3g} at most and by {mean:.3g} on average"
    causes = "which frames are taken, their times, the template's arguments, and the weights"
    if not same_lengths:
        causes = "the number of frames, their sizes, and the chat template"
    verdict = "as trained, but for rounding" if alike and same_lengths else f"NOT as trained: look at {causes}"
    return [compared, verdict]


def _sendable(request: UseRequest) -> list[Record]:
    """The first records whose media are whole files: a request has no place for frames, spans or ``meta``.

    Raises:
        ValueError: there are none.
    """
    reading = replace(request.asking.reading, allow_outside_media=request.options.allow_outside_media)
    found: list[Record] = []
    refused = 0
    first = ""  # why the first of these is
    for source in resolve_datasets(request.words[0]):
        for row in RecordFile(source, seed=request.config.seed, options=reading).iterate():
            problem = _problem_of(row)
            if isinstance(row, Record) and problem is None:
                found.append(row)
                if len(found) == CHECKED:
                    return found
            elif problem is not None:
                first = first or problem
                refused += 1
    if not found:
        message = f"{request.words[0]}: expected records whose clips and images are files, without `meta`"
        raise ValueError(f"{message}; the first of {counted(refused, 'row')}: {first}" if refused else message)
    return found


def _problem_of(row: Record | RecordError) -> str | None:
    """Why a row cannot be sent. None: it can."""
    if isinstance(row, RecordError):
        return str(row)
    if any(row.clip_meta):
        return f"{row.where}: it has `meta`, which a request has no place for"
    for path in (*row.videos, *row.images):
        if not os.path.isfile(path):
            return f"{row.where}: {path} is no file"
    return None


def messages_of(record: Record) -> list[dict[str, Any]]:
    """The messages of OpenAI's API, with clips and images as data URLs."""
    # The parts of a turn name no files: the media of a record stand in their order.
    paths = {"video": iter(record.videos), "image": iter(record.images)}
    messages = []
    for turn in chat_messages(record):
        parts = []
        for part in turn["content"]:
            kind = part["type"]
            if kind in paths:
                part = {"type": f"{kind}_url", f"{kind}_url": {"url": _data_url(next(paths[kind]), kind)}}
            parts.append(part)
        messages.append({**turn, "content": parts})
    return messages


def _data_url(path: str, kind: str) -> str:
    """A file as a data URL. Media that were bytes in a row are files without an ending."""
    data = base64.b64encode(Path(path).read_bytes()).decode()
    media_type = mimetypes.guess_type(path)[0] or _USUAL_TYPES[kind]
    return f"data:{media_type};base64,{data}"
