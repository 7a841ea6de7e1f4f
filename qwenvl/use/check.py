"""``qwenvl serve MODEL DATA --check URL``: whether a server shows records to a model as its training did."""

from __future__ import annotations

import base64
import mimetypes
import os
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from qwenvl.data.chat import chat_messages
from qwenvl.data.records.catalog import resolve_datasets
from qwenvl.data.records.record_file import RecordFile
from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of
from qwenvl.files import require
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.rewards import build_rubric
from qwenvl.train.parity import HALF_PRECISION
from qwenvl.types import Record
from qwenvl.use.label import unframed
from qwenvl.use.options import UseRequest

RECORDS = 5
OTHERWISE = "NOT as trained: look at which frames are taken, their times, the template's arguments, and the weights"


def check(request: UseRequest) -> str:
    """A line for each of five records, and the verdict.

    The greedy answer of the server is compared with the one here, and the log-probs of its tokens with those that the
    model here gives to the same tokens.

    Raises:
        ValueError, OSError: no record can be sent, or the server does not answer.
    """
    openai, config, url = require("openai", "judge"), request.config, request.options.check
    files = (RecordFile(each, seed=0, options=request.reading) for each in resolve_datasets(request.words[0]))
    rows = (row for file in files for row in file.iterate() if isinstance(row, Record) and not any(row.clip_meta))
    records = [*islice((row for row in rows if all(map(os.path.isfile, (*row.videos, *row.images)))), RECORDS)]
    if not records:
        raise ValueError(f"{request.words[0]}: expected records whose clips and images are files, without `meta`")
    collator = collator_of(config)
    dataset, tokenizer = dataset_of([], config, collator), collator.processor.tokenizer
    model, collector = build_respondent(config, collator, build_rubric())
    lines, lengths, answers, gaps = list[str](), list[bool](), list[bool](), list[float]()
    try:
        client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "none")
        [served, *_] = client.models.list()
        for record in records:
            batch = collator([dataset.load(record)])["prompts"]
            [own], [inputs] = collector.complete(model, [batch], 1), collector.encoded(model, [batch])
            reply = client.chat.completions.create(
                model=served.id,
                # Our own server puts the template and the system turn around prompts.
                messages=messages_of(unframed(record, request.reading) if served.owned_by == "qwenvl" else record),
                max_tokens=collector.params.max_new_tokens,
                temperature=0,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            choice, theirs, here = reply.choices[0], reply.usage.prompt_tokens, batch.input_ids.shape[1]
            lengths.append(theirs == here)
            answers.append((choice.message.content or "").strip() == own.texts[0].strip())
            same = "the same" if answers[-1] else "another"
            lines.append(f"{record.id}: {same} answer; {theirs:,} tokens of the prompt, {here:,} here")
            given = (choice.logprobs and choice.logprobs.content) or []
            ids = getattr(choice, "token_ids", None) or tokenizer.encode("".join(each.token for each in given))
            if given and len(ids) == len(given):
                tokens = torch.tensor([ids], device=config.device)
                with torch.no_grad(), collector.autocast():
                    [logprobs] = completion_likelihood(
                        *(model, inputs, tokens, tokens >= 0), temperature=1.0, logit_chunk_tokens=1024
                    ).logprobs.tolist()
                gaps += [abs(own - each.logprob) for own, each in zip(logprobs, given, strict=True)]
    except openai.OpenAIError as error:
        raise ValueError(f"--check {url}: {error}") from None
    if gaps:
        largest, mean = max(gaps), sum(gaps) / len(gaps)
        alike = largest <= HALF_PRECISION[0] and mean <= HALF_PRECISION[1]
        lines.append(f"log-probs of {len(gaps):,} tokens differ by {largest:.3g} at most and by {mean:.3g} on average")
    else:
        alike = all(answers)
        lines.append("the server gives no log-probs: only the lengths of prompts and the answers are compared")
    if not all(lengths):
        return "\n".join([*lines, "NOT as trained: look at the number of frames, their sizes, and the chat template"])
    return "\n".join([*lines, "as trained, but for rounding" if alike else OTHERWISE])


def messages_of(record: Record) -> list[dict[str, Any]]:
    """The messages of OpenAI's API, with clips and images as data URLs."""
    paths, messages = {"video": iter(record.videos), "image": iter(record.images)}, []
    for turn in chat_messages(record):
        parts: list[dict[str, Any]] = []
        for part in turn["content"]:
            if (kind := part["type"]) in paths:
                path = next(paths[kind])
                data = base64.b64encode(Path(path).read_bytes()).decode()
                url = f"data:{mimetypes.guess_type(path)[0] or f'{kind}/*'};base64,{data}"
                part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
            parts.append(part)
        messages.append({"role": turn["role"], "content": parts})
    return messages
