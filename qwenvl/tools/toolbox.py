"""Answers the calls of completions: runs tools, and makes of what they give the tokens and patches to append."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, NamedTuple

from PIL.Image import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from qwenvl.data.chat import TURN_END, render_answer
from qwenvl.data.collator import GRPOCollator, ProcessedSample
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.options import SampleOptions
from qwenvl.model.inputs import PromptInputs
from qwenvl.tools.calls import WrittenCall, calls_in, checked
from qwenvl.tools.functions import Tool, resolve_tools
from qwenvl.tools.options import ToolOptions
from qwenvl.tools.video import Still, ToolError, Video
from qwenvl.types import PromptBatch, Record, Sample, ToolCall, VideoClip


class Given(NamedTuple):
    """What a tool gave: the parts of its turn, with text written out, and the media in their order."""

    parts: tuple[dict[str, Any], ...]
    clips: tuple[VideoClip, ...] = ()
    images: tuple[Tensor, ...] = ()

    @property
    def text(self) -> str:
        """Its words."""
        return " ".join(part["text"] for part in self.parts if part["type"] == "text")


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

    def begin(self, records: Sequence[Record], encode: Callable[[PromptBatch], PromptInputs]) -> Conversations:
        """The conversations with the completions of N records, one each.

        Args:
            encode: makes a batch the model's inputs.
        """
        return Conversations(self, encode, [Conversation(record) for record in records])

    def run(self, tool: Tool, arguments: Mapping[str, Any], record: Record, environments: dict[type, Any]) -> Given:
        """What a tool gives.

        Raises:
            ToolError: it cannot answer.
        """
        if "video" in signature(tool.function).parameters:
            if not record.videos:
                raise ToolError("there is no video")
            if self.looks == "refused":
                raise ToolError("the video cannot be looked at again")
            arguments = {**arguments, "video": self.video(record)}
        if (made := tool.environment) is not None and made not in environments:
            environments[made] = made()
            environments[made].reset(**record.fields)
        own = () if made is None else (environments[made],)
        try:
            return given_of(tool.function(*own, **arguments))
        except BadMediaError as error:  # the overview of this clip was read
            problem = str(error).removeprefix(record.videos[0]).lstrip(": ")  # no paths for the model
        raise ToolError(f"these frames cannot be read: {problem}")

    def video(self, record: Record) -> Video:
        """The first clip of a record, as tools see it."""
        most, fps = self.options.look_frames, self.options.look_fps
        return Video(self.dataset, record, most, fps, elsewhere=self.looks == "elsewhere")

    def appended(self, record: Record, given: Sequence[Given]) -> ProcessedSample:
        """The tokens and patches of the answers to a turn's calls, up to the next turn of the model."""
        clips = tuple(clip for each in given for clip in each.clips)
        images = tuple(image for each in given for image in each.images)
        seen = replace(
            record,
            videos=tuple(clip.info.path for clip in clips),
            clip_meta=record.clip_meta[:1] * len(clips),
            images=(),
        )
        arguments = self.collator.ruler.template_arguments
        text = render_answer(self.collator.processor, [list(each.parts) for each in given], arguments)
        sample = Sample(seen, [], clips, images)
        return self.collator.process(sample if self.alter is None else self.alter(sample), text)


def given_of(value: Any) -> Given:
    """What a tool returned, as parts of a turn.

    Raises:
        TypeError: it is no frames, picture, text or list of these.
    """
    if isinstance(value, list | tuple) and value:
        each = [given_of(item) for item in value]
        return Given(*(tuple(item for own in column for item in own) for column in zip(*each, strict=True)))
    if isinstance(value, VideoClip):
        return Given(({"type": "video"},), clips=(value,))
    if isinstance(value, Still):
        return Given(({"type": "image"},), images=(value.pixels,))
    if isinstance(value, Image):
        return Given(({"type": "image"},), images=(pil_to_tensor(value.convert("RGB")),))
    if isinstance(value, str | int | float):
        return Given(({"type": "text", "text": str(value)},))
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

    The same call on the same clip is executed once, and its frames are encoded once.
    """

    toolbox: Toolbox
    encode: Callable[[PromptBatch], PromptInputs]
    each: list[Conversation]
    known: dict[tuple[str, ...], Given | ToolError] = field(default_factory=dict)

    def select(self, rows: Sequence[int]) -> Conversations:
        """Those with some of the completions."""
        return replace(self, each=[self.each[row] for row in rows])

    @property
    def most_tokens(self) -> int:
        """That tools append to a completion."""
        return self.toolbox.options.look_tokens

    def calls(self) -> list[list[tuple[ToolCall, ...]]]:
        """Those of each turn of each completion so far."""
        return [conversation.calls for conversation in self.each]

    def answer(self, turns: Mapping[int, list[int]]) -> tuple[list[int], PromptInputs] | None:
        """What is appended to the completions whose newest turn calls tools.

        Args:
            turns: the sampled tokens of the newest turn of some completions, by their numbers.

        Returns:
            Their numbers, and rows of tokens with media whose positions count from 0. None where all have ended.
        """
        answers: dict[int, ProcessedSample] = {}
        for row, ids in turns.items():
            if (answer := self._answer(self.each[row], ids)) is not None:
                answers[row] = answer
        if not answers:
            return None
        kinds = {self._same(answer): answer for answer in answers.values()}
        places = {key: place for place, key in enumerate(kinds)}
        inputs = self.encode(self.toolbox.collator.join([*kinds.values()]))
        return list(answers), inputs.select([places[self._same(answer)] for answer in answers.values()])

    def _answer(self, conversation: Conversation, ids: list[int]) -> ProcessedSample | None:
        tokenizer = self.toolbox.collator.processor.tokenizer
        if not ids or ids[-1] != tokenizer.convert_tokens_to_ids(TURN_END):
            return None  # cut, or ended for good
        calls = calls_in(tokenizer.decode(ids, skip_special_tokens=True))
        if not calls or len(conversation.calls) + 1 >= self.toolbox.options.max_turns:
            error = "the last turn has to answer"
            conversation.calls.append(tuple(ToolCall(*call, error=error) for call in calls))
            return None
        made = [self._execute(call, conversation) for call in calls]
        answer, left = self._appended(conversation, made), self.most_tokens - conversation.tokens
        if len(answer.input_ids) > left:
            error = f"this would take {len(answer.input_ids)} tokens, and {max(left, 0)} are left: answer now"
            made = [(refused(ToolError(error)), replace(call, clips=(), pictures=0, error=error)) for _, call in made]
            answer = self._appended(conversation, made)
        conversation.tokens += len(answer.input_ids)
        conversation.calls.append(tuple(replace(call, tokens=len(answer.input_ids) // len(made)) for _, call in made))
        return answer

    def _appended(self, conversation: Conversation, made: Sequence[tuple[Given, ToolCall]]) -> ProcessedSample:
        return self.toolbox.appended(conversation.record, [given for given, _ in made])

    def _execute(self, call: WrittenCall, conversation: Conversation) -> tuple[Given, ToolCall]:
        """What a call gives, and its note. What goes wrong is said in words."""
        started, error, arguments = time.perf_counter(), None, call.arguments
        try:
            tool, arguments = checked(call, self.toolbox.tools)
            given = self._given(tool, arguments, conversation)
        except ToolError as problem:
            given, error = refused(problem), str(problem)
        note = ToolCall(
            call.name,
            arguments,
            clips=tuple(clip.info for clip in given.clips),
            pictures=len(given.images),
            text="" if error else given.text,
            error=error,
            seconds=time.perf_counter() - started,
        )
        return given, note

    def _given(self, tool: Tool, arguments: Mapping[str, Any], conversation: Conversation) -> Given:
        """What a tool gives. What a plain one gives, or refuses, is kept for the same call on the same clip."""
        record = conversation.record
        if tool.environment is not None:
            return self.toolbox.run(tool, arguments, record, conversation.environments)
        key = (*record.videos[:1], str(record.clip_meta[:1]), tool.name, json.dumps(arguments, sort_keys=True))
        if key not in self.known:
            try:
                self.known[key] = self.toolbox.run(tool, arguments, record, {})
            except ToolError as problem:
                self.known[key] = problem
        if isinstance(found := self.known[key], ToolError):
            raise found
        return found

    @staticmethod
    def _same(answer: ProcessedSample) -> tuple[Any, ...]:
        """What two answers share if their tokens and patches are equal."""
        clips = tuple((clip.info.path, clip.info.indices) for clip in answer.sample.videos)
        return (*clips, *(image.data_ptr() for image in answer.sample.images), *answer.input_ids.tolist())


def refused(problem: ToolError) -> Given:
    """The words in the place of an answer."""
    return Given(({"type": "text", "text": f"Error: {problem}."},))
