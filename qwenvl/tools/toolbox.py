"""Answers the calls of completions: runs tools, and makes of what they give the tokens and patches to append."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from torch import Tensor

from qwenvl.data.chat import TURN_END, render_answer
from qwenvl.data.collator import GRPOCollator, ProcessedSample
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.data.media.resize import resize
from qwenvl.data.options import SampleOptions
from qwenvl.data.prompt_length import MediaSizes
from qwenvl.data.records.forms import text_problem
from qwenvl.data.tool_options import ToolOptions
from qwenvl.model.inputs import PromptInputs
from qwenvl.own_code import named_errors
from qwenvl.rewards.rubric import private_copy
from qwenvl.tools.calls import Call, calls_in
from qwenvl.tools.errors import ClipTimeout, ToolError, quoted, refusal
from qwenvl.tools.functions import Tool, Video, resolve_tools
from qwenvl.tools.parts import Part, as_content, check_pixels, joined_text_problem, parts_of
from qwenvl.types import PromptBatch, Record, Sample, ToolCall, VideoClip

LONGEST_TOKEN = 256  # characters; no token of Qwen's vocabulary has more
MOST_CALLS = 16
"""Calls of a turn that are executed. A turn with more of them has lost its form, and none of them is."""
LOOK_TIMEOUTS = 4
"""All looks at one clip, by completions that are sampled together, may take this many times ``decode_timeout``.

One slow look must not close the clip to a whole group, and all of them must stay far below ``stall_timeout``.
"""


@dataclass(frozen=True)
class ToolAnswer:
    """The answer to a call, and the note of the call for the log."""

    parts: list[Part]
    note: ToolCall


@dataclass(frozen=True)
class Toolbox:
    """The tools of a run.

    Attributes:
        tools: by name.
        options: how much they may show.
        collator: of the run, whose prompts offer the tools.
        dataset: decodes clips as those of prompts.
        alter: changes what is shown, for the controls of an evaluation. None: nothing does.
        looks: at the clip: as the model asks, refused, or at another span of the same length. Tools without the
            argument ``video`` answer as ever.
        is_awaited: says before each call whether anybody still waits for the completions of a record. Where nobody
            does, they end without an answer. None: all are waited for.
        on_answer: called after each call that is answered or refused.
        on_failure: called with a record and the error of a tool that was called for it. The call is then refused. None:
            the error is raised.
    """

    tools: dict[str, Tool]
    options: ToolOptions
    collator: GRPOCollator
    dataset: GRPODataset
    alter: Callable[[Sample], Sample] | None = None
    looks: str = "as asked"
    is_awaited: Callable[[Record], bool] | None = None
    on_answer: Callable[[], None] | None = None
    on_failure: Callable[[Record, Exception], None] | None = None

    @property
    def added_tokens(self) -> list[str]:
        """The tokens that the tokenizer reads in any text, beside its ordinary ones."""
        return list(self.collator.processor.tokenizer.get_added_vocab())

    @classmethod
    def of(
        cls, flags: Any, collator: GRPOCollator, on_answer: Callable[[], None] | None = None
    ) -> Toolbox | None:
        """The toolbox that the flags of a run ask for. None: the run has no tools.

        Args:
            on_answer: see ``Toolbox``.

        Raises:
            ValueError: a tool that does not exist, or a chat template that cannot be continued.
        """
        if not flags.tools:
            return None
        # Raises for a template that cannot be continued, before anything is sampled.
        render_answer(collator.processor, [[{"type": "text", "text": ""}]], collator.ruler.template_arguments)
        dataset = GRPODataset([], SampleOptions.of(flags), training=False, ruler=collator.ruler)
        return cls(resolve_tools(flags.tools), ToolOptions.of(flags), collator, dataset, on_answer=on_answer)

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
        """The parts that a tool gives for a call.

        Args:
            environments: see ``Conversation``.

        Raises:
            ToolError: it cannot answer. ``ClipTimeout`` where the clip was not decoded in time.
        """
        if not tool.is_built_in:  # which may change what it gets, and other completions have the same record
            record = replace(record, fields=private_copy(record.fields))
            arguments = private_copy(dict(arguments))
        if tool.sees_video:
            if not record.videos:
                raise ToolError("there is no video")
            if self.looks == "refused":
                raise ToolError("the video cannot be looked at again")
            video = Video(self.dataset, record, self.options, elsewhere=self.looks == "elsewhere")
            arguments = {**arguments, "video": video}
        try:
            if tool.is_built_in:
                parts = parts_of(tool.function(**arguments))
            else:
                parts = self._run_own(tool, arguments, record, environments)
            return [self._at_shown_size(part) for part in parts]
        except BadMediaError as error:  # the overview of this clip was read
            problem = str(error)
            for path in record.videos[:1]:  # no paths for the model
                problem = problem.removeprefix(path).lstrip(": ")
            refused = ClipTimeout if isinstance(error, MediaTimeout) else ToolError
        raise refused(f"these frames cannot be read: {problem}")

    def _at_shown_size(self, part: Part) -> Part:
        """A part, with the pixels of a picture as the model sees them.

        A prompt would resize it later, to the same pixels. Until then each call would keep those of a large file.
        """
        if not isinstance(part, Tensor):
            return part
        height, width = part.shape[-2:]
        size = self.collator.ruler.image_size((height, width), None)
        return resize(part, size, self.collator.processor.image_processor)

    def _run_own(
        self, tool: Tool, arguments: Mapping[str, Any], record: Record, environments: dict[type, Any]
    ) -> list[Part]:
        """The parts that a tool of the user gives for a call.

        Raises:
            ToolError, BadMediaError: the tool raises them, or the model may have given it a special token in parts.
            OwnCodeError: it raises another error, or gives what cannot be shown.
        """
        kind = tool.environment
        with named_errors(tool.place(record), passing=(ToolError, BadMediaError)):
            if kind is not None and kind not in environments:
                made = kind()
                made.reset(**record.fields)
                environments[kind] = made
            positional = () if kind is None else (environments[kind],)
            parts = parts_of(tool.function(*positional, **arguments))
            check_pixels(parts)
            problem = joined_text_problem(parts)
            if problem is None:
                return parts
            # The model may have written the halves of a special token, in this call or an earlier one of the object.
            if kind is not None or _has_text(arguments):
                raise ToolError(f"{tool.name} gave a text that is no part of a prompt: {problem}")
            raise ValueError(f"it returned a text that is no part of a prompt: {problem}")

    def appended(self, record: Record, answers: Sequence[Sequence[Part]]) -> ProcessedSample:
        """The tokens and patches of the answers to a turn's calls, up to the next turn of the model."""
        sample, text = self._shown(record, answers)
        return self.collator.process(sample, text)

    def tokens(self, record: Record, answers: Sequence[Sequence[Part]]) -> int:
        """The number of tokens of ``appended``, without making its patches."""
        sample, text = self._shown(record, answers)
        ruler = self.collator.ruler
        sizes = ruler.sizes(MediaSizes.of(sample))
        # The sizes of the clips come first, then those of the images.
        clips = [(clip.info.times, size) for clip, size in zip(sample.videos, sizes, strict=False)]
        image_sizes = sizes[len(clips) :]
        return ruler.length_of(text, clips, image_sizes).tokens

    def _shown(self, record: Record, answers: Sequence[Sequence[Part]]) -> tuple[Sample, str]:
        """The answers as a sample, and its text with one token for each image and clip."""
        parts = list(chain.from_iterable(answers))
        clips = tuple(part for part in parts if isinstance(part, VideoClip))
        images = tuple(part for part in parts if isinstance(part, Tensor))
        seen = replace(
            record,
            videos=tuple(clip.info.path for clip in clips),
            clip_meta=(record.clip_meta[:1] or (None,)) * len(clips),  # a tool may have clips of its own
            images=(),
            image_sizes=(),
        )
        written = [[as_content(part) for part in each] for each in answers]
        text = render_answer(self.collator.processor, written, self.collator.ruler.template_arguments)
        sample = Sample(seen, [], clips, images)
        if self.alter is not None:
            sample = self.alter(sample)
        return sample, text


def _has_text(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call hold a text that the model was free to write."""
    values: list[Any] = [value for name, value in arguments.items() if name != "video"]
    while values:
        value = values.pop()
        if isinstance(value, str):
            return True
        if isinstance(value, dict):
            values += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            values += value
    return False


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


@dataclass(frozen=True)
class _Processed:
    """Answers to the calls of a turn, and their tokens and patches."""

    answers: Sequence[Sequence[Part]]
    sample: ProcessedSample


@dataclass
class Conversations:
    """The conversations with N completions that are sampled together.

    The same call on the same clip is executed once, also where it fails. A clip that was not decoded in time is not
    opened again, nor is one that looks have taken long to decode: completions may ask for hundreds of spans, and each
    may cost ``decode_timeout``. Equal answers are made tokens and features once.

    Attributes:
        toolbox, encode: see ``Toolbox.begin``.
        each: the conversation of each completion.
        given: what tools gave, by what they see, their name and their arguments.
        failed: why tools gave nothing, by the same.
        seconds: that looks have taken, by the clip.
        closed: of clips that are not opened again, the refusal of all calls that would see them.
        processed_answers: answers of turns as tokens and patches, by the clip and the parts of the answers.
        encoded: the model inputs of these.
    """

    toolbox: Toolbox
    encode: Callable[[PromptBatch], PromptInputs] | None
    each: list[Conversation]
    given: dict[tuple[object, str, str], list[Part]] = field(default_factory=dict)
    failed: dict[tuple[object, str, str], str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    processed_answers: dict[tuple[object, ...], _Processed] = field(default_factory=dict)
    encoded: dict[ProcessedSample, PromptInputs] = field(default_factory=dict)

    def select(self, rows: Sequence[int]) -> Conversations:
        """The conversations with some of the completions, which share what was made before."""
        return replace(self, each=[self.each[row] for row in rows])

    @property
    def most_tokens(self) -> int:
        """Most tokens that tools append to a completion."""
        return self.toolbox.options.look_tokens

    def answer(self, turns: Mapping[int, list[int]]) -> dict[int, PromptInputs]:
        """The inputs to append to the completions whose newest turn calls tools. The other completions have ended.

        Args:
            turns: the sampled tokens of the newest turn of some completions, by their numbers.

        Returns:
            By their numbers, rows of tokens with media, whose positions count from 0.
        """
        appended = {}
        for row, ids in turns.items():
            answer = self.processed(row, ids)
            if answer is None:
                continue
            if answer not in self.encoded:  # each by itself: its features do not depend on what else is shown
                assert self.encode is not None
                self.encoded[answer] = self.encode(self.toolbox.collator.join([answer]))
            appended[row] = self.encoded[answer]
        return appended

    def processed(self, row: int, ids: list[int]) -> ProcessedSample | None:
        """The answer to the newest turn of a completion. None where that has ended.

        The calls are executed in order, as long as what they give fits into ``look_tokens``. The first that does not
        fit and those behind it are refused together, in one sentence.
        """
        conversation = self.each[row]
        tokenizer = self.toolbox.collator.processor.tokenizer
        if not ids or ids[-1] != tokenizer.convert_tokens_to_ids(TURN_END):
            return None  # cut, or ended for good
        calls = calls_in(tokenizer.decode(ids, skip_special_tokens=True))
        if not calls or len(conversation.calls) + 1 >= self.toolbox.options.max_turns:
            self._end(conversation, calls, "the last turn has to answer")
            return None
        if self._tokens(conversation, [[""]]) > self._left(conversation):
            self._end(conversation, calls, "no tokens are left for what tools give")
            return None
        if len(calls) > MOST_CALLS:
            error = f"this turn has {len(calls)} calls, and a turn may have {MOST_CALLS}"
            return self._answered(conversation, made=[], refused=calls, error=error)
        made, refused, error = self._executed(conversation, calls)
        if not self._is_awaited(conversation):
            self._end(conversation, calls, "nobody waits for this completion any more")
            return None
        return self._answered(conversation, made=made, refused=refused, error=error)

    def _is_awaited(self, conversation: Conversation) -> bool:
        """Whether anybody still waits for a completion."""
        is_awaited = self.toolbox.is_awaited
        return is_awaited is None or is_awaited(conversation.record)

    def _left(self, conversation: Conversation) -> int:
        """Tokens that tools may still append to a completion."""
        return self.most_tokens - conversation.tokens

    def _tokens(self, conversation: Conversation, answers: Sequence[Sequence[Part]]) -> int:
        """Tokens that answers to the newest turn would append."""
        return self.toolbox.tokens(conversation.record, answers)

    def _executed(
        self, conversation: Conversation, calls: Sequence[Call]
    ) -> tuple[list[ToolAnswer], Sequence[Call], str]:
        """The answers that fit, the calls that are refused because they do not, and the reason.

        It stops early where nobody waits for the completion any more.
        """
        made: list[ToolAnswer] = []
        left = self._left(conversation)
        tokens_before = 0
        for place, (name, arguments) in enumerate(calls):
            if not self._is_awaited(conversation):
                break
            answer = self._execute(name, arguments, conversation)
            if self.toolbox.on_answer is not None:
                self.toolbox.on_answer()
            characters = sum(len(part) for part in answer.parts if isinstance(part, str))
            if characters > LONGEST_TOKEN * left:  # finding their tokens would take long
                error = f"this has {characters:,} characters, and {left - tokens_before} tokens are left: answer now"
                return made, calls[place:], error
            tokens = self._tokens(conversation, [each.parts for each in (*made, answer)])
            if tokens > left:
                takes = tokens - tokens_before
                error = f"this would take {takes} tokens, and {left - tokens_before} are left: answer now"
                return made, calls[place:], error
            made.append(answer)
            tokens_before = tokens
        return made, [], ""

    def _answered(
        self, conversation: Conversation, made: Sequence[ToolAnswer], refused: Sequence[Call], error: str
    ) -> ProcessedSample | None:
        """The tokens and patches to append for the calls of a turn. None: they do not fit, so the completion has ended.

        Args:
            made: the answers to the calls that are not refused.
            refused: calls that share one refusal. Answers that leave no room for it are refused too.
            error: why.
        """
        made = list(made)
        refused = list(refused)
        sentence: list[Part] = [refusal(error, self.toolbox.added_tokens)]
        while True:
            answers = [each.parts for each in made]
            if refused:
                answers.append(sentence)
            if self._tokens(conversation, answers) <= self._left(conversation):
                break
            if not made:
                self._end(conversation, refused, error)
                return None
            last = made.pop().note
            refused.insert(0, (last.name, last.arguments))
        appended = self._appended(conversation.record, answers)
        tokens = len(appended.input_ids)
        notes = [each.note for each in made] + _refused_notes(refused, error)
        conversation.tokens += tokens
        # The tokens are the turn's: its calls share them evenly.
        share, remainder = divmod(tokens, len(notes))
        notes = [replace(note, tokens=share + (n < remainder)) for n, note in enumerate(notes)]
        conversation.calls.append(tuple(notes))
        return appended

    def _end(self, conversation: Conversation, calls: Sequence[Call], error: str) -> None:
        """Notes the calls of a turn that nothing is appended to."""
        conversation.calls.append(tuple(_refused_notes(calls, error)))

    def _execute(self, name: str, arguments: dict[str, Any], conversation: Conversation) -> ToolAnswer:
        """The answer to a call, and its note. An error becomes a sentence for the model."""
        started = time.perf_counter()
        tools = self.toolbox.tools
        note = ToolCall(name, arguments)
        try:
            if not name:
                raise ToolError("this call could not be read")
            if name not in tools:
                raise ToolError(f"there is no tool {quoted(name)}, only {', '.join(tools)}")
            note = replace(note, arguments=tools[name].typed(arguments))
            # A tool that repeats its arguments would give them to the tokenizer.
            if text_problem(json.dumps(note.arguments, ensure_ascii=False)):
                raise ToolError(f"the arguments of {name} hold a special token")
            parts = self._parts(tools[name], note.arguments, conversation)
        except ToolError as problem:
            reason = str(problem) or f"{name} cannot answer"  # an own tool may say nothing
            note = replace(note, error=reason, seconds=time.perf_counter() - started)
            return ToolAnswer([refusal(reason, self.toolbox.added_tokens)], note)
        clips = tuple(part.info for part in parts if isinstance(part, VideoClip))
        texts = [part for part in parts if isinstance(part, str)]
        note = replace(
            note,
            clips=clips,
            pictures=len(parts) - len(clips) - len(texts),
            text=" ".join(texts),
            seconds=time.perf_counter() - started,
        )
        return ToolAnswer(parts, note)

    def _parts(self, tool: Tool, arguments: Mapping[str, Any], conversation: Conversation) -> list[Part]:
        """The parts that a tool gives. Equal calls are executed once, unless the tool is a method of an object.

        Raises:
            ToolError: it cannot answer, or could not answer the same call before.
        """
        record = conversation.record
        if tool.environment is not None:
            return self._run(tool, arguments, conversation)
        # A tool of the user may read more of the record than its clip.
        seen = _clip(record) if tool.is_built_in else (record.where, record.id)
        key = (seen, tool.name, json.dumps(arguments, sort_keys=True))
        if key in self.failed:
            raise ToolError(self.failed[key])
        if key not in self.given:
            try:
                self.given[key] = self._run(tool, arguments, conversation)
            except ToolError as problem:
                # One that ended with its request says nothing about the same call of another.
                if self._is_awaited(conversation):
                    self.failed[key] = str(problem)
                raise
        return self.given[key]

    def _run(self, tool: Tool, arguments: Mapping[str, Any], conversation: Conversation) -> list[Part]:
        """The parts that a tool gives, unless it would see a clip that is not opened again.

        Raises:
            ToolError: it cannot answer.
        """
        record = conversation.record
        clip = _clip(record)
        if tool.sees_video and clip in self.closed:
            raise ToolError(self.closed[clip])
        started = time.perf_counter()
        try:
            return self.toolbox.run(tool, arguments, record, conversation.environments)
        except ClipTimeout as problem:
            if self._is_awaited(conversation):
                self.closed[clip] = str(problem)
            raise
        except ToolError:
            raise
        except Exception as error:  # for which a run ends, and a server goes on
            if self.toolbox.on_failure is None:
                raise
            self.toolbox.on_failure(record, error)
            raise ToolError(f"{tool.name} has failed") from None
        finally:
            if tool.is_built_in:  # another tool may take its time for something else
                self._add_seconds(clip, time.perf_counter() - started)

    def _add_seconds(self, clip: str, seconds: float) -> None:
        """Count the seconds of a look at a clip."""
        self.seconds[clip] = self.seconds.get(clip, 0.0) + seconds
        most = LOOK_TIMEOUTS * self.toolbox.dataset.options.decode_timeout  # 0: decoding has no bounds
        if most and self.seconds[clip] > most:
            self.closed.setdefault(clip, f"looks at this video have taken more than {most:g} s: answer now")

    def _appended(self, record: Record, answers: Sequence[Sequence[Part]]) -> ProcessedSample:
        """The answers to a turn as tokens and patches, made once for the same objects and equal texts."""
        # Frames and pictures are compared by identity, which costs nothing. ``_Processed`` keeps them alive, so that no
        # other object gets the id of one.
        of_answers = []
        for parts in answers:
            of_answers.append(tuple(part if isinstance(part, str) else id(part) for part in parts))
        key = (_clip(record), *of_answers)
        if key not in self.processed_answers:
            self.processed_answers[key] = _Processed(answers, self.toolbox.appended(record, answers))
        return self.processed_answers[key].sample


def _refused_notes(calls: Sequence[Call], error: str) -> list[ToolCall]:
    """The notes of calls that were not executed, of ``MOST_CALLS`` at most."""
    return [ToolCall(name, arguments, error=error) for name, arguments in calls[:MOST_CALLS]]


def _clip(record: Record) -> str:
    """The clip that tools see."""
    return str((record.videos[:1], record.clip_meta[:1]))
