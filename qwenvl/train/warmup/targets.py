"""Makes the targets of a warm-up: texts from solutions, or the best completions of a run, and their tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from qwenvl.config.grpo_config import WarmupConfig
from qwenvl.console import say
from qwenvl.data.chat import render_calls, turn_end_id
from qwenvl.data.collator import GRPOCollator, ProcessedSample
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError, kind_of, place_of
from qwenvl.data.options import PromptOptions
from qwenvl.data.records.forms import text_problem
from qwenvl.data.tool_options import ToolOptions
from qwenvl.failure import counted
from qwenvl.rewards.functions.looking import check_evidence, evidence_of
from qwenvl.rewards.functions.text import first_block, tag_problem
from qwenvl.rewards.rubric import NO_SOLUTION
from qwenvl.run_log.log import Rollout, read_rollouts
from qwenvl.tools.functions import schemas_of
from qwenvl.tools.toolbox import Conversations, Toolbox
from qwenvl.types import BadSample, Record, Sample

_Turns = tuple[str, ...]  # the texts of a completion's turns
_Pieces = list[list[int]]  # the tokens of each turn of a row, and between two turns those that a tool appends
_Asked = tuple[str, tuple[tuple[str, str], ...], str]
"""Id, prompt and solution of a record. Its file and number do not count: the record may be in another file by now."""


@dataclass(frozen=True)
class SolutionTargets:
    """One target for each record: its solution, in the form that rewards read.

    Attributes:
        template: see ``--target_template``. None for the form of the solution itself.

    Example:
        >>> record = Record("a", (), "7", (), (), (), {"thinking": "3 + 4"}, "data.json[0]")
        >>> SolutionTargets().of(record, opened_think=False)
        [('<think>3 + 4</think><answer>7</answer>',)]
    """

    template: str | None = None
    # None, so that no field counts as unread: the rewards of the run after the warm-up read more fields.
    columns: ClassVar[None] = None

    def check_record(self, record: Record) -> str | None:
        """The reason why a record has no target, or None if it has one."""
        if not record.solution.strip():
            return f"{NO_SOLUTION}: a warm-up teaches it"
        problem = check_evidence(record.solution, record.fields)
        if problem:
            return problem
        thinking = record.fields.get("thinking")
        if thinking is not None and not isinstance(thinking, str):
            return f"`thinking`: expected text, got {kind_of(thinking)}"
        problem = text_problem(_thinking(record))
        if problem:
            return f"`thinking`: {problem}"
        problem = tag_problem(record.solution, "think", may_be_opened=True)
        if problem:
            return f"the solution {problem}"
        inside = next((tag for tag in _TAGS if tag in _thinking(record)), None)
        if inside:
            return f"`thinking` has a {inside} in it, which rewards would take for that of the target; leave it out"
        if not _answer(record):
            return "the solution has an empty answer block, or nothing but thinking: a warm-up would teach no answer"
        if self.template is not None and "{thinking}" in self.template and not _thinking(record):
            return (
                "--target_template names {thinking}, and the record has neither a `thinking` nor a think block in its "
                "solution; give it one, or leave {thinking} out"
            )
        return None

    def check_records(self, records: Collection[Record]) -> None:
        """Take them: each has its target by itself."""

    def of(self, record: Record, opened_think: bool) -> list[tuple[str, ...]]:
        """The targets of a record without their end tokens: here a single one, of one turn.

        Args:
            opened_think: the prompt ends inside a think block, which the target continues.

        Raises:
            RecordError: there is no target, or it can't continue such a prompt.
        """
        problem = self.check_record(record)
        if problem:
            raise RecordError(f"{record.where}: {problem}")
        text = self._text(record)
        if opened_think:
            text = _inside_think(text, record)
        return [(text,)]

    def _text(self, record: Record) -> str:
        """The whole target, think block included."""
        solution = _solution(record)
        thinking = _thinking(record)
        if self.template is not None:
            values = {"thinking": thinking, "solution": _answer(record)}
            # Not `str.format`: the template may have other braces, as LaTeX and JSON do.
            return re.sub(r"\{(thinking|solution)\}", lambda name: values[name[1]], self.template)
        has_answer_block = first_block(solution, "answer") is not None
        has_think_block = first_block(solution, "think") is not None
        if has_answer_block and (has_think_block or not thinking):
            return solution  # it has the form that rewards read
        in_tags = solution if has_answer_block else f"<answer>{_answer(record)}</answer>"
        return f"<think>{thinking}</think>{in_tags}" if thinking else in_tags


_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def _solution(record: Record) -> str:
    """The solution of a record. A think block that its prompt has opened begins with the tag."""
    text = record.solution
    is_opened_before = "</think>" in text and "<think>" not in text
    return f"<think>{text}" if is_opened_before else text


def _answer(record: Record) -> str:
    """The content of the answer block of a record's solution, or what it has beside its thinking. "" without both."""
    solution = _solution(record)
    block = first_block(solution, "answer")
    if block is not None:
        return block.inner if block.inner.strip() else ""
    thinking = first_block(solution, "think")
    if thinking is not None:
        solution = solution[: thinking.start] + solution[thinking.end :]
    return solution.strip()


def _thinking(record: Record) -> str:
    """The content of the think block of a record's solution, else of its field ``thinking``. Empty without both."""
    own = first_block(_solution(record), "think")
    if own is not None:
        thinking = own.inner
    else:
        # Files of others have it with its tags or without.
        written = record.fields.get("thinking") or ""
        thinking = re.sub(r"\A\s*<think>(.*)</think>\s*\Z", r"\1", written, flags=re.DOTALL)
    return thinking if thinking.strip() else ""


def _inside_think(text: str, record: Record) -> str:
    """The second part of a target whose think block the prompt has opened."""
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>")
    if "</think>" in text:
        return text
    raise RecordError(
        f"{record.where}: the prompt ends inside a think block, and the target has no thinking to continue it: "
        f"{text[:80]!r}; give the record a `thinking`, close the block at once by --target_template "
        "'</think><answer>{solution}</answer>', or, where the chat template reads it, pass --chat_template_kwargs "
        "'{\"enable_thinking\": false}'"
    )


class RolloutTargets:
    """The best completions of a run for each record, of training and evaluations, as they were written.

    Completions that were cut at the length limit are left out: they have no end that could be taught. So are those that
    spell control tokens, which the tokenizer would read as such.

    Args:
        folder: the folder of the run.
        min_reward: the lowest total reward of a target.
        most: the most completions of a prompt, the latest first where rewards are equal. Equal texts count once.
        tools: the warm-up has tools, which can answer the calls of the completions again.

    Raises:
        ValueError: the folder has no such completion.
    """

    columns = None

    def __init__(self, folder: str, min_reward: float, most: int, tools: bool = False) -> None:
        self.folder = folder
        rollouts = list(read_rollouts(folder, split=None))
        if not tools and any(len(row.turns) > 1 for row in rollouts):
            raise ValueError(f"--from_rollouts {folder}: its completions call tools: give the --tools of that run")
        ended = [(row.total, row) for row in rollouts if row.total is not None and row.finish_reason == "stop"]
        whole = [(total, row) for total, row in ended if not any(map(text_problem, _turns_of(row)))]
        if len(whole) < len(ended):
            left_out = counted(len(ended) - len(whole), "completion")
            say(f"{folder}: {left_out} with special tokens as text, left out")
        whole.sort(key=lambda scored: (-scored[0], -scored[1].step, scored[1].sample))
        best: dict[_Asked, list[_Turns]] = {}
        for total, row in whole:
            if total < min_reward:
                break  # the rewards of all that follow are lower still
            texts = best.setdefault(_asked_in(row), [])
            turns = _turns_of(row)
            if turns not in texts and len(texts) < most:
                texts.append(turns)
        if not best:
            raise ValueError(
                f"--from_rollouts {folder}: of its {len(rollouts):,} completions none that ended before the length "
                f"limit has a total reward at or above --min_reward {min_reward:g}{_hint(rollouts, whole)}"
            )
        self._best = best
        taken = sum(len(texts) for texts in best.values())
        say(f"{folder}: {taken} different completions at or above reward {min_reward:g}, for {len(best)} prompts")

    def check_record(self, record: Record) -> None:
        """Take any record: ``narrowed`` leaves out those without a completion."""

    def check_records(self, records: Collection[Record]) -> None:
        """Take them: each has its target by itself."""

    def of(self, record: Record, opened_think: bool) -> list[tuple[str, ...]]:
        """The turns of each completion of a record. They continue its prompt already."""
        messages = tuple((message.role, message.text) for message in record.messages)
        return self._best.get((record.id, messages, record.solution), [])


def _turns_of(row: Rollout) -> _Turns:
    """The texts of the turns of a completion."""
    return tuple(turn.text for turn in row.turns) or (row.completion,)


def _asked_in(row: Rollout) -> _Asked:
    """Id, prompt and solution of the record that a completion belongs to."""
    messages = tuple((turn["role"], turn["text"]) for turn in row.prompt)
    return (row.record_id, messages, row.solution)


def _hint(rollouts: list[Rollout], whole: list[tuple[float, Rollout]]) -> str:
    """The end of the message about a run without a completion that is good enough."""
    if not rollouts:
        return "; is it the --output_dir of a run?"
    return f": the highest has {whole[0][0]:g}" if whole else ""


def targets_of(args: WarmupConfig) -> SolutionTargets | RolloutTargets:
    """The targets that the flags name.

    Raises:
        ValueError: ``--from_rollouts`` names a run without a completion to learn from.
    """
    if args.from_rollouts is None or args.min_reward is None:
        return SolutionTargets(args.target_template)
    return RolloutTargets(args.from_rollouts, args.min_reward, args.max_per_prompt, tools=bool(args.tools))


def narrowed(dataset: Any, targets: SolutionTargets | RolloutTargets, flag: str) -> Any:
    """A data set, or several by name, without the records that have no target.

    Args:
        flag: the flag that names the data set, for errors.

    Raises:
        TypeError: a data set of another library.
        ValueError: no record is left.
    """
    if dataset is None or isinstance(targets, SolutionTargets):
        return dataset
    if isinstance(dataset, dict):
        return {name: narrowed(each, targets, f"{flag} {name}") for name, each in dataset.items()}
    if not isinstance(dataset, GRPODataset):
        raise TypeError(f"--from_rollouts needs a GRPODataset, as load_dataset makes it, got {type(dataset)}")
    kept = dataset.narrowed(lambda record: bool(targets.of(record, False)))
    if not len(kept):
        raise ValueError(
            f"{flag}: {targets.folder} has no good enough completion of any of its {len(dataset):,} records. Records "
            "are known by id, prompt and solution: give the run's data and its flags --columns, --system and "
            "--prompt_template"
        )
    say(f"{flag}: {len(kept):,} of {len(dataset):,} records have such a completion, the others are left out")
    return kept


class TargetCollator(GRPOCollator):
    """Turns samples into prompts, as training does, and adds their targets, each with an end token.

    A batch has, besides ``prompts``, ``target_ids`` and ``target_mask`` (bool), both N x T and padded on the right.
    G is the most targets that one of the P prompts has, N = P * G, and row n belongs to prompt n // G. A prompt with
    fewer targets has rows without tokens.

    With the tool ``look`` the solution of a record with ``evidence`` has a turn before it that looks there. The answers
    of tools, which are appended between turns, have tokens in ``target_ids`` and none in the mask. Then a batch also
    has ``pieces``, for each row the numbers of tokens of turn, answer, turn and so on, and ``appended``, a prompt batch
    of all answers.

    Args:
        processor, options: as for ``GRPOCollator``.
        targets: the targets of each record.
        flags: the flags of the run, which name the tools. None: no tools.
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        options: PromptOptions,
        targets: SolutionTargets | RolloutTargets,
        flags: Any = None,
    ) -> None:
        flags = flags or ToolOptions()
        super().__init__(processor, options, tools=schemas_of(flags))
        self.targets = targets
        self.toolbox = Toolbox.of(flags, self)
        turn_end = turn_end_id(processor, options.template_arguments)
        # The end of a turn in the chat template comes before that of a text: the model has to say it behind an answer.
        self.end_id = processor.tokenizer.eos_token_id if turn_end is None else turn_end

    def __call__(self, samples: list[Sample | BadSample | None]) -> dict[str, Any]:
        inputs: dict[str, Any] = super().__call__(samples)
        batch = inputs["prompts"]
        targets = [
            self._turns(record, opened) for record, opened in zip(batch.records, batch.opened_think, strict=True)
        ]
        size = max(map(len, targets), default=0)  # G
        rows: list[_Pieces] = []
        appended: list[ProcessedSample] = []
        conversations = None
        if self.toolbox is not None:
            record_of_row: list[Record] = []
            for record in batch.records:
                record_of_row += [record] * size
            conversations = self.toolbox.begin(record_of_row)
        for own in targets:
            for turns in own:
                rows.append(self._pieces(turns, conversations, len(rows), appended))
            # A prompt with fewer targets than another one has rows without tokens.
            rows += [[[]] for _ in range(size - len(own))]
        whole_rows = [list(chain.from_iterable(row)) for row in rows]
        inputs["target_ids"] = _padded(whole_rows, self.processor.tokenizer.pad_token_id)
        inputs["target_mask"] = _padded([_taught(row) for row in rows], 0).bool()
        if self.toolbox is not None:
            inputs["pieces"] = [[len(piece) for piece in row] for row in rows]
            inputs["appended"] = self.join(appended)
        return inputs

    def _pieces(
        self, turns: _Turns, conversations: Conversations | None, n: int, appended: list[ProcessedSample]
    ) -> _Pieces:
        """The tokens of row ``n``: those of a turn, of the answer that tools append to it, of the next turn, and so on.

        Args:
            conversations: of all rows with their tools. None: no tools.
            appended: answers are added to it.
        """
        tokenizer = self.processor.tokenizer
        pieces: _Pieces = []
        for turn in turns:
            if pieces and conversations is not None:
                answer = self._answer(conversations, n, pieces[-1])
                appended.append(answer)
                pieces.append(answer.input_ids.tolist())
            pieces.append([*tokenizer(turn, add_special_tokens=False)["input_ids"], self.end_id])
        return pieces

    def _answer(self, conversations: Conversations, n: int, ids: list[int]) -> ProcessedSample:
        """The answer to a turn of a target that another turn follows."""
        answer = conversations.processed(n, ids)
        own = conversations.each[n]
        turn = self.processor.tokenizer.decode(ids)
        calls = own.calls[-1] if own.calls else []
        errors = [call.error for call in calls if call.error]
        # A completion of a run may have had an error as its answer. A target from a solution is made without one.
        if answer is None or (errors and isinstance(self.targets, SolutionTargets)):
            raise RecordError(
                f"{own.record.where}: tools do not answer a turn of its target, {turn!r}: "
                f"{errors}; mend its `evidence`, or give the --tools, --max_turns and --look_tokens of --from_rollouts"
            )
        return answer

    def _turns(self, record: Record, opened_think: bool) -> list[tuple[str, ...]]:
        """The targets of a record, with the looks at its evidence."""
        targets = self.targets.of(record, opened_think)
        spans = evidence_of(record.fields) if isinstance(self.targets, SolutionTargets) else None
        if spans and self.toolbox is not None and "look" in self.toolbox.tools:
            looks = [("look", {"start": start, "end": end}) for start, end in spans]
            calls = render_calls(self.processor, looks)
            # Calls stand behind the think block, which the prompt may have opened.
            before = "\n</think>\n\n" if opened_think else ""
            targets = [(before + calls, *turns) for turns in targets]
        return targets


def _taught(pieces: _Pieces) -> list[int]:
    """1 for each token of a turn and 0 for each token that a tool appends: the two alternate."""
    mask: list[int] = []
    for number, piece in enumerate(pieces):
        is_turn = number % 2 == 0
        mask += [int(is_turn)] * len(piece)
    return mask


def _padded(rows: list[list[int]], pad: int) -> Tensor:
    """Rows x T, padded on the right. Without rows they are 0 x 0."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long)
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=pad)


def shown_targets(dataset: Any, collator: Any, most: int) -> Iterator[str]:
    """A line for each target of the first ``most`` records, as the model reads it, and one for each record left out.

    Args:
        collator: a ``TargetCollator``.

    Raises:
        RecordError, BadMediaError: as in training.
    """
    tokenizer = collator.processor.tokenizer
    for index in range(min(most, len(dataset))):
        inputs = collator([dataset[index]])
        batch = inputs["prompts"]
        ids = inputs["target_ids"]
        mask = inputs["target_mask"]
        yield from (f"left out: {bad.error}" for bad in batch.bad)
        for record in batch.records:
            for row, own in zip(ids, mask, strict=True):
                yield f"{place_of(record)}: {int(own.sum())} tokens: {tokenizer.decode(row[own])!r}"
