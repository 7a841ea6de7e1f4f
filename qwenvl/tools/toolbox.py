"""Answers the calls of completions: runs tools, and makes of what they give the tokens and patches to append."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, TypeAlias

from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from qwenvl.data.chat import TURN_END, render_answer
from qwenvl.data.collator import GRPOCollator, ProcessedSample
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.options import SampleOptions
from qwenvl.model.inputs import PromptInputs
from qwenvl.tools.functions import Still, Tool, ToolError, Video, resolve_tools
from qwenvl.tools.options import ToolOptions
from qwenvl.types import PromptBatch, Record, Sample, ToolCall, VideoClip

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\s*(.*?)\s*</parameter>", re.DOTALL)

Part: TypeAlias = str | VideoClip | Tensor
"""Of what a tool gives: text, frames, or a picture (3 x H x W, uint8)."""


def calls_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The names and arguments of the calls in a text, in order. A call that cannot be read has no name.

    Qwen3-VL writes JSON, Qwen3.5 XML. Both are read from every model.

    Example:
        >>> calls_in('<tool_call>{"name": "look", "arguments": {"start": 1, "end": 2}}</tool_call>')
        [('look', {'start': 1, 'end': 2})]
    """
    calls: list[tuple[str, dict[str, Any]]] = []
    for body in _CALL.findall(text):
        if written := _FUNCTION.search(body):
            calls.append((written[1], dict(_PARAMETER.findall(written[2]))))
            continue
        try:
            read = json.loads(body)
            calls.append((str(read["name"]), dict(read.get("arguments") or {})))
        except (ValueError, KeyError, TypeError):
            calls.append(("", {}))
    return calls


@dataclass(frozen=True)
class Toolbox:
    """The tools of a run.

    Attributes:
        tools: by name.
        options: how much they may show.
        collator: of the run, whose prompts offer the tools.
        dataset: decodes clips as those of prompts.
        alter: changes what is shown, for the controls of an evaluation. None: nothing does.
        looks: as the model asks, refused, or at another span of the same length.
    """

    tools: dict[str, Tool]
    options: ToolOptions
    collator: GRPOCollator
    dataset: GRPODataset
    alter: Callable[[Sample], Sample] | None = None
    looks: str = "as asked"

    @classmethod
    def of(cls, flags: Any, collator: GRPOCollator) -> Toolbox | None:
        """From the flags of a run. None without tools.

        Raises:
            ValueError: a tool that does not exist, or a chat template that cannot be continued.
        """
        if not flags.tools:
            return None
        render_answer(collator.processor, [[{"type": "text", "text": ""}]], collator.ruler.template_arguments)
        dataset = GRPODataset([], SampleOptions.of(flags), training=False, ruler=collator.ruler)
        return cls(resolve_tools(flags.tools), ToolOptions.of(flags), collator, dataset)

    def begin(
        self, records: Sequence[Record], encode: Callable[[PromptBatch], PromptInputs] | None = None
    ) -> Conversations:
        """The conversations with the completions of N records, one each.

        Args:
            encode: makes a batch the model's inputs, for ``Conversations.answer``.
        """
        return Conversations(self, encode, [Conversation(record) for record in records])

    def run(
        self, tool: Tool, arguments: Mapping[str, Any], record: Record, environments: dict[type, Any]
    ) -> list[Part]:
        """What a tool gives.

        Args:
            environments: see ``Conversation``.

        Raises:
            ToolError: it cannot answer.
        """
        if "video" in signature(tool.function).parameters:
            if not record.videos:
                raise ToolError("there is no video")
            if self.looks == "refused":
                raise ToolError("the video cannot be looked at again")
            video = Video(self.dataset, record, self.options, elsewhere=self.looks == "elsewhere")
            arguments = {**arguments, "video": video}
        if (kind := tool.environment) is not None and kind not in environments:
            environments[kind] = kind()
            environments[kind].reset(**record.fields)
        own = () if kind is None else (environments[kind],)
        try:
            return parts_of(tool.function(*own, **arguments))
        except BadMediaError as error:  # the overview of this clip was read
            problem = str(error).removeprefix(record.videos[0]).lstrip(": ")  # no paths for the model
        raise ToolError(f"these frames cannot be read: {problem}")

    def appended(self, record: Record, answers: Sequence[Sequence[Part]]) -> ProcessedSample:
        """The tokens and patches of the answers to a turn's calls, up to the next turn of the model."""
        clips = tuple(part for each in answers for part in each if isinstance(part, VideoClip))
        images = tuple(part for each in answers for part in each if isinstance(part, Tensor))
        seen = replace(
            record,
            videos=tuple(clip.info.path for clip in clips),
            clip_meta=record.clip_meta[:1] * len(clips),
            images=(),
            image_sizes=(),
        )
        written = [[_written(part) for part in each] for each in answers]
        text = render_answer(self.collator.processor, written, self.collator.ruler.template_arguments)
        sample = Sample(seen, [], clips, images)
        return self.collator.process(sample if self.alter is None else self.alter(sample), text)


def _written(part: Part) -> dict[str, str]:
    """A part as chat templates take it."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "video" if isinstance(part, VideoClip) else "image"}


def parts_of(value: Any) -> list[Part]:
    """What a tool returned, as parts of its turn.

    Raises:
        TypeError: it is no frames, picture, text or list of these.
    """
    if isinstance(value, list | tuple):
        return [part for each in value for part in parts_of(each)]
    if isinstance(value, VideoClip):
        return [value]
    if isinstance(value, Still):
        return [value.pixels]
    if isinstance(value, Image):
        return [pil_to_tensor(value.convert("RGB"))]
    if isinstance(value, str | int | float):
        return [str(value)]
    raise TypeError(f"a tool returned {type(value).__name__}; expected frames, a picture, text or a list of these")


@dataclass
class Conversation:
    """A completion and its calls so far.

    Attributes:
        record: of its prompt.
        tokens: that tools have appended to it.
        calls: of each of its turns.
        environments: its objects of the classes whose methods are tools.
    """

    record: Record
    tokens: int = 0
    calls: list[tuple[ToolCall, ...]] = field(default_factory=list)
    environments: dict[type, Any] = field(default_factory=dict)


@dataclass
class Conversations:
    """The conversations with N completions that are sampled together.

    The same call on the same clip is executed once, and equal answers are made tokens and features once.

    Attributes:
        toolbox, encode: see ``Toolbox.begin``.
        each: N.
        known: what was made before.
    """

    toolbox: Toolbox
    encode: Callable[[PromptBatch], PromptInputs] | None
    each: list[Conversation]
    known: dict[Any, Any] = field(default_factory=dict)

    def select(self, rows: Sequence[int]) -> Conversations:
        """Those with some of the completions."""
        return replace(self, each=[self.each[row] for row in rows])

    @property
    def most_tokens(self) -> int:
        """That tools append to a completion."""
        return self.toolbox.options.look_tokens

    def answer(self, turns: Mapping[int, list[int]]) -> dict[int, PromptInputs]:
        """What is appended to the completions whose newest turn calls tools. The others have ended.

        Args:
            turns: the sampled tokens of the newest turn of some completions, by their numbers.

        Returns:
            By their numbers, rows of tokens with media, whose positions count from 0.
        """
        answers = {row: answer for row, ids in turns.items() if (answer := self.processed(row, ids))}
        for answer in answers.values():
            if answer not in self.known:  # each by itself: its features do not depend on what else is shown
                assert self.encode is not None
                self.known[answer] = self.encode(self.toolbox.collator.join([answer]))
        return {row: self.known[answer] for row, answer in answers.items()}

    def processed(self, row: int, ids: list[int]) -> ProcessedSample | None:
        """The answer to the newest turn of a completion. None where that has ended."""
        conversation = self.each[row]
        tokenizer = self.toolbox.collator.processor.tokenizer
        if not ids or ids[-1] != tokenizer.convert_tokens_to_ids(TURN_END):
            return None  # cut, or ended for good
        calls = calls_in(tokenizer.decode(ids, skip_special_tokens=True))
        if not calls or len(conversation.calls) + 1 >= self.toolbox.options.max_turns:
            error = "the last turn has to answer"
            conversation.calls.append(tuple(ToolCall(*call, error=error) for call in calls))
            return None
        made = [self._execute(name, arguments, conversation) for name, arguments in calls]
        answer, left = self._appended(conversation.record, made), self.most_tokens - conversation.tokens
        if (tokens := len(answer.input_ids)) > left:
            error = f"this would take {tokens} tokens, and {max(left, 0)} are left: answer now"
            made = [refused(replace(call, clips=(), pictures=0, text=""), error) for _, call in made]
            answer = self._appended(conversation.record, made)
        conversation.tokens += len(answer.input_ids)
        conversation.calls.append(tuple(replace(call, tokens=len(answer.input_ids) // len(made)) for _, call in made))
        return answer

    def _execute(self, name: str, arguments: dict[str, Any], conversation: Conversation) -> tuple[list[Part], ToolCall]:
        """What a call gives, and its note. An error becomes a sentence for the model."""
        started, call, tools = time.perf_counter(), ToolCall(name, arguments), self.toolbox.tools
        try:
            if name not in tools:
                unknown = f"there is no tool {name[:40]!r}, only {', '.join(tools)}"
                raise ToolError(unknown if name else "this call could not be read")
            call = replace(call, arguments=tools[name].typed(arguments))
            parts = self._parts(tools[name], call.arguments, conversation)
        except ToolError as problem:
            return refused(replace(call, seconds=time.perf_counter() - started), str(problem))
        clips = tuple(part.info for part in parts if isinstance(part, VideoClip))
        texts = [part for part in parts if isinstance(part, str)]
        pictures, seconds = len(parts) - len(clips) - len(texts), time.perf_counter() - started
        return parts, replace(call, clips=clips, pictures=pictures, text=" ".join(texts), seconds=seconds)

    def _parts(self, tool: Tool, arguments: Mapping[str, Any], conversation: Conversation) -> list[Part]:
        record = conversation.record
        if tool.environment is not None:
            return self.toolbox.run(tool, arguments, record, conversation.environments)
        key = (_clip(record), tool.name, json.dumps(arguments, sort_keys=True))
        if key not in self.known:
            self.known[key] = self.toolbox.run(tool, arguments, record, {})
        return self.known[key]

    def _appended(self, record: Record, made: Sequence[tuple[list[Part], ToolCall]]) -> ProcessedSample:
        answers = [parts for parts, _ in made]
        key = (_clip(record), *(tuple(x if isinstance(x, str) else id(x) for x in parts) for parts in answers))
        if key not in self.known:  # which keeps the objects, so that no others get their ids
            self.known[key] = answers, self.toolbox.appended(record, answers)
        return self.known[key][1]


def _clip(record: Record) -> str:
    """The clip that tools see."""
    return str((record.videos[:1], record.clip_meta[:1]))


def refused(call: ToolCall, error: str) -> tuple[list[Part], ToolCall]:
    """The words in the place of an answer, and the note of the call."""
    return [f"Error: {error}."], replace(call, error=error)
