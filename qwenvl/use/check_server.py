"""``qwenvl serve --check``: whether a running server shows records to its model as training did."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from qwenvl.data.chat import chat_messages
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.framing import unframed
from qwenvl.data.records.record_file import RecordFile
from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of
from qwenvl.files import require
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rewards import build_rubric
from qwenvl.step.parity import HALF_PRECISION
from qwenvl.types import Record
from qwenvl.use.options import OWNER, UseRequest

CHECKED = 5  # records


def check(request: UseRequest) -> str:
    """Compares the server ``--check`` with the model as trained: a line for each of five records, and the verdict.

    Its greedy answers are compared with those here, and their log-probs with those of the same tokens here.

    Raises:
        ValueError, OSError: no record can be sent, or the server does not answer.
    """
    openai = require("openai", "judge")
    config = request.config
    url = request.options.check
    records = list(islice(_sendable(request), CHECKED))
    if not records:
        raise ValueError(f"{request.words[0]}: expected records whose clips and images are files, without `meta`")
    collator = collator_of(config)
    dataset = dataset_of([], config, collator)
    tokenizer = collator.processor.tokenizer
    respondent = build_respondent(config, collator, build_rubric())
    model = respondent.step.policy
    encode = respondent.sample.encode
    likelihood = partial(completion_likelihood, temperature=1.0, logit_chunk_tokens=1024)
    lines: list[str] = []
    gaps: list[float] = []  # between the log-probs of a token there and here
    same_lengths = True
    same_answers = True
    try:
        client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none")
        [served, *_] = client.models.list()
        for record in records:
            batch = collator([dataset.load(record)])["prompts"]
            [own] = respondent.complete([batch], 1)
            inputs = encode.inputs(model, batch)
            sent = record
            if served.owned_by == OWNER:  # our own server puts the template and the system turn around prompts
                sent = unframed(record, request.asking.reading)
            reply = client.chat.completions.create(
                model=served.id,
                messages=messages_of(sent),
                max_tokens=respondent.sample.params.max_new_tokens,
                temperature=0,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            choice = reply.choices[0]
            theirs = reply.usage.prompt_tokens
            here = batch.input_ids.shape[1]
            same = (choice.message.content or "").strip() == own.texts[0].strip()
            same_lengths = same_lengths and theirs == here
            same_answers = same_answers and same
            named = "the same answer" if same else "another answer"
            lines.append(f"{record.id}: {named}; {theirs:,} tokens of the prompt, {here:,} here")
            given = (choice.logprobs and choice.logprobs.content) or []
            # Without ``token_ids`` there are only texts of tokens. If they encode to others, nothing is compared.
            ids = getattr(choice, "token_ids", None) or tokenizer.encode("".join(each.token for each in given))
            if given and len(ids) == len(given):
                tokens = torch.tensor([ids], device=config.device)
                with torch.no_grad(), encode.autocast():
                    [values] = likelihood(model, inputs, tokens, tokens >= 0).logprobs.tolist()
                gap = [abs(value - each.logprob) for value, each in zip(values, given, strict=True)]
                lines[-1] += f", log-probs within {max(gap):.2g}"
                gaps += gap
    except openai.OpenAIError as error:
        raise ValueError(f"--check {url}: {str(error)[:300]}") from None
    return "\n".join([*lines, *_verdict(gaps, same_lengths=same_lengths, same_answers=same_answers)])


def _verdict(gaps: Sequence[float], same_lengths: bool, same_answers: bool) -> list[str]:
    """Two lines: the differences, and whether the server shows records as training did.

    Args:
        gaps: between the log-probs of a token there and here. Empty: the server gives none.
    """
    alike = same_answers
    compared = "the server gives no log-probs: only lengths of prompts and answers are compared"
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


def _sendable(request: UseRequest) -> Iterator[Record]:
    """The records of a request whose media are whole files: a request has no place for frames, spans or ``meta``."""
    for source in resolve_datasets(request.words[0]):
        for row in RecordFile(source, seed=0, options=request.asking.reading).iterate():
            if not isinstance(row, Record) or any(row.clip_meta):
                continue
            if all(os.path.isfile(path) for path in (*row.videos, *row.images)):
                yield row


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
                part = {"type": f"{kind}_url", f"{kind}_url": {"url": _data_url(next(paths[kind]))}}
            parts.append(part)
        messages.append({**turn, "content": parts})
    return messages


def _data_url(path: str) -> str:
    data = base64.b64encode(Path(path).read_bytes()).decode()
    return f"data:{mimetypes.guess_type(path)[0]};base64,{data}"
