"""Labels of clips: completions of a frozen model, the answer that most of them give, the table and the page."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accelerate.utils import wait_for_everyone

from qwenvl.config.command_line import changed_flags
from qwenvl.console import say
from qwenvl.data.errors import RecordError
from qwenvl.data.media.source import frame_list, version_of
from qwenvl.data.options import FrameOptions, PromptOptions, ReadingOptions
from qwenvl.data.records.framing import unframed
from qwenvl.data.records.keys import SOLUTION_KEYS
from qwenvl.data.records.option_columns import options_in
from qwenvl.data.records.timelines import numbers_of
from qwenvl.data.tool_options import ToolOptions
from qwenvl.evaluate.protocol import differing, model_facts
from qwenvl.evaluate.questions import BLOCK
from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of, in_blocks
from qwenvl.evaluate.settings import OF_A_RUN
from qwenvl.failure import counted
from qwenvl.inspection.convert import written_row
from qwenvl.inspection.playable import FOLDER, make_playable
from qwenvl.inspection.run_report import add_pictures
from qwenvl.model.weight_files import base_of_adapter
from qwenvl.option import parse_row
from qwenvl.rewards import build_rubric
from qwenvl.rewards.functions.actions import action_numbers, names_in
from qwenvl.rewards.functions.text import answer_of, normalized
from qwenvl.rewards.kinds import CHOICE, AnswerKind, kind_called
from qwenvl.rewards.options import RewardOptions
from qwenvl.rewards.resolve import DEFAULT_WEIGHTS
from qwenvl.rewards.table import FOR_KINDS, FOR_TIMELINES, SHAPING, TABLE, TIMELINES, reading
from qwenvl.run_log.log import append_lines, drop_cut_line, hash_of, plain, read_lines, write_json
from qwenvl.run_log.report.evaluation import write_labels
from qwenvl.run_log.report.timelines import axis_length, span_as_shown
from qwenvl.run_log.report.write import check_no_links
from qwenvl.timeline import TimedStep, entry_without_span, plain_name, seconds_of, spans_alone, timeline_in
from qwenvl.types import FrameInfo, PromptBatch, Record, RolloutBatch
from qwenvl.use.label_table import LabelTable
from qwenvl.use.options import UseRequest

PROTOCOL = "protocol.json"


class Labels:
    """The labels of one command in one process, with those that an earlier call has written.

    Args:
        questions: the records to answer, in the order of the table, or why one cannot be read.
        folder: of the completions.

    Attributes:
        rows: by the key of their question.

    Raises:
        FileExistsError: the folder holds labels by another model or other settings, or something else.
    """

    def __init__(self, request: UseRequest, questions: Sequence[Record | ValueError], folder: Path) -> None:
        self.request = request
        self.config = request.config
        self.questions = questions
        self.folder = folder
        # Once: a file that is replaced while the command runs belongs to the next call.
        self._keys = [key_of(each) if isinstance(each, Record) else None for each in questions]
        self.reward = deciding_reward(self.config.reward_funcs)
        self.collator = collator_of(self.config)
        self._path = folder / f"rows-{self.config.process_index}.jsonl"
        self._table = LabelTable(request.options.output, folder)
        protocol = {
            "model": model_facts(request.model, self.config, self.collator),
            "samples": request.options.samples,
            "settings": {name: getattr(self.config, name) for name in sorted(OF_A_RUN | {"seed"})},
        }
        self._check_folder(protocol)
        self.rows = self._read()
        wait_for_everyone()  # all have read before one of them writes
        if self.config.process_index == 0:
            write_json(folder / PROTOCOL, protocol)
        drop_cut_line(self._path)

    def _check_folder(self, protocol: Mapping[str, Any]) -> None:
        """Raise FileExistsError for a table of somebody else, or a folder with anything but these labels.

        Raises:
            ReportError: a folder of the page is a link to another place.
        """
        self._table.check()
        check_no_links(self.folder)
        there = self.folder / PROTOCOL
        if not there.is_file():
            if any(each.name != ".lock" for each in self.folder.glob("*")):
                # It may well be the folder of the clips: nobody is told to delete it.
                raise FileExistsError(f"{self.folder}: holds files that are no labels: give another --output")
            return
        try:
            earlier = json.loads(there.read_text("utf-8"))
        except ValueError as error:
            raise FileExistsError(
                f"{there}: expected the settings of earlier labels, but it is not JSON ({error}): give another "
                "--output, or delete the folder"
            ) from None
        problems = differing(earlier, protocol)
        if problems and self._has_rows():  # a call that failed before its first answer binds nobody
            lines = "".join(f"\n  {line}" for line in problems[:5])
            raise FileExistsError(f"{self.folder}: holds other labels: give another --output, or delete it:{lines}")

    def _has_rows(self) -> bool:
        """Whether an earlier call has written an answer."""
        return any(path.stat().st_size > 0 for path in self.folder.glob("rows-*.jsonl"))

    def ask(self) -> None:
        """Answer the questions that have no answer yet, each block written as it comes, and write the table.

        Clips that could not be read are rows with the reason, and are tried again by the next call.
        """
        config = self.config
        records = [each for each in self.questions if isinstance(each, Record)]
        keys = [key for key in self._keys if key is not None]
        labelled = {key for key, row in self.rows.items() if row["error"] is None}
        pending = [n for n, key in enumerate(keys) if key not in labelled]
        blocks = [pending[start : start + BLOCK] for start in range(0, len(pending), BLOCK)]
        if len(pending) < len(records):
            say(f"{self.folder}: continues, {len(records) - len(pending):,} of {len(records):,} are labelled")
        own = blocks[config.process_index :: config.world_size]
        try:
            if own:
                for rows in self._answered(records, own):
                    append_lines(self._path, ({"key": keys[n], **row} for n, row in rows.items()))
            wait_for_everyone()
        finally:
            if config.process_index == 0:
                self.rows = self._read()
                self._table.write(self._cells())

    def _answered(self, records: Sequence[Record], blocks: Sequence[list[int]]) -> Iterator[dict[int, dict[str, Any]]]:
        """The rows of each block, by the numbers of their records."""
        config = self.config
        size = self.request.options.samples
        dataset = dataset_of(records, config, self.collator)
        # Draws do not depend on the process: each of them takes process 0.
        respondent = build_respondent(config, self.collator, build_rubric(), process=0)
        started = time.perf_counter()
        for block, bad, batches in in_blocks(respondent, dataset, blocks, self.collator, size):
            rows = {each.record.index: {"error": each.error} for each in bad}
            for together in batches:
                for batch, rollout in zip(together, respondent.complete(together, size), strict=True):
                    rows[batch.records[0].index] = label_of(batch, rollout, self.reward)
            seconds = round((time.perf_counter() - started) / len(block), 3)
            yield {n: {**rows[n], "seconds": seconds} for n in block}
            started = time.perf_counter()

    def finish(self) -> str:
        """Write the page if it is requested, and return a summary: "" in all processes but the first.

        Raises:
            RecordError: no clip could be labelled.
        """
        if self.config.process_index != 0:
            return ""
        options = self.request.options
        found = list(self._rows_by_question())
        bad = [row["error"] for _, row in found if row["error"] is not None]
        if len(bad) == len(found):
            raise RecordError(f"none of {counted(len(found), 'clip')} could be labelled; the first: {bad[0]}")
        unread = sum(row["error"] is None and not row["answer"] for _, row in found)
        lines = [
            f"wrote {options.output}: {counted(len(found), 'clip')}, {len(bad):,} of them with an error, "
            f"{unread:,} without an <answer>"
        ]
        others = len(self.rows.keys() - set(self._keys))
        if others:
            of_others = f"{counted(others, 'label')} of other clips, or of earlier versions of these"
            lines.append(f"{self.folder}: has {of_others}, which are not in the table")
        if options.page:
            played = self._make_playable(found, options.pictures)
            shown = [self._as_shown(question, row, played) for question, row in found]
            written = write_labels(
                self.folder,
                model=self.request.model.name,
                rows=with_ids_of_their_own(shown),
                command=training_command(self.request, shown),
            )
            lines += [f"wrote {written.page}; open it in a browser", add_pictures(written, options.pictures)]
        return "\n".join(line for line in lines if line)

    def _make_playable(
        self, found: Sequence[tuple[Record | ValueError, Mapping[str, Any]]], most: int
    ) -> dict[str, Path]:
        """The file to play of each clip that is a file: itself, or a copy beside the page."""
        records = [question for question, row in found if isinstance(question, Record) and row["error"] is None]
        clips = {path for record in records for path in record.videos if os.path.isfile(path)}
        return make_playable(sorted(clips), self.folder / FOLDER, most)

    def _as_shown(
        self, question: Record | ValueError, row: Mapping[str, Any], played: Mapping[str, Path]
    ) -> dict[str, Any]:
        """A row with what the page needs beside it: its prompt, and the record to save it as, with paths in full.

        Args:
            played: the file to play by the path of a clip.
        """
        if not isinstance(question, Record):
            # The reason begins with the file and the place of the row.
            where = str(question).partition(": ")[0]
            return {**row, "id": where, "prompt": [], "record": None}
        record = written_row(unframed(question, self.request.asking.reading), lambda path: frame_list(path) or path)
        # The page saves a solution of its own, and the thoughts led to the old one.
        for name in (*SOLUTION_KEYS, "thinking"):
            record.pop(name, None)
        prompt = [{"role": message.role, "text": message.text} for message in question.messages]
        shown = {**row, "id": question.id, "prompt": prompt, "record": plain(record)}
        files = [self._address(played[path]) if path in played else None for path in question.videos]
        return shown | self._spans_as_shown(question, row) | {"files": files}

    def _spans_as_shown(self, question: Record, row: Mapping[str, Any]) -> dict[str, Any]:
        """The steps and options of a prompt and, of a question for a timeline, the spans of answer and votes."""
        listed = names_in(question.messages[-1].text)
        steps = [[number, name] for number, name in listed.items()]
        answer = row.get("answer") or ""
        asked = self.reward in TIMELINES or asks_for_timeline(question)
        if not asked and not is_timeline(answer, listed):
            return {"steps": steps, "options": self._options(question), "timeline": None, "vote_spans": []}
        spans = timeline_in(answer, numbers_of(listed))
        clips = [FrameInfo.of(clip) for clip in row.get("clips", ())]
        longest = seconds_of(question.fields.get("duration")) or math.inf  # spans beyond it are refused
        votes = [timeline_in(answer, numbers_of(listed)) for answer, _ in row.get("votes", ())]
        return {
            "steps": steps,
            "options": [],
            "timeline": {
                "length": min(longest, editor_length([spans, *votes], clips)),
                "spans": [span_as_shown(span) for span in spans],
                "unread": entry_without_span(answer),  # what the answer holds beside them
            },
            "vote_spans": [[span_as_shown(span) for span in vote] for vote in votes],
        }

    def _options(self, question: Record) -> list[list[str]]:
        """The options of a question that is answered by letters, each letter with its text. Empty: it is not."""
        kind = named_kind(question.fields)
        by_letter = self.reward == "multiple_choice" if kind is None else kind.name == CHOICE
        if not by_letter:
            return []
        options = options_in(question.messages[-1].text)
        return [] if options is None else [[letter, text] for letter, text in options.texts.items()]

    def _address(self, path: Path) -> str:
        """The address of a file for the page."""
        return quote(os.fsencode(os.path.relpath(path, self.folder)))

    def _rows_by_question(self) -> Iterator[tuple[Record | ValueError, dict[str, Any]]]:
        """Each question that has been asked, with its row."""
        for question, key in zip(self.questions, self._keys, strict=True):
            row = {"error": str(question)} if key is None else self.rows.get(key)
            if row is None:
                continue
            yield question, with_media_of(question, row) if isinstance(question, Record) else row

    def _read(self) -> dict[str, dict[str, Any]]:
        """The rows of all processes. Those with an error give way to others of the same question."""
        rows = []
        for path in sorted(self.folder.glob("rows-*.jsonl")):
            rows += [row for _, _, row in read_lines(path)]
        # Of one key the last row counts, so rows without an error come last.
        return {row["key"]: row for row in sorted(rows, key=lambda row: row["error"] is None)}

    def _cells(self) -> Iterator[dict[str, Any]]:
        """The rows of the table."""
        for question, row in self._rows_by_question():
            named = {}
            if isinstance(question, Record):
                named = {"id": question.id, "clip": " ".join((*question.videos, *question.images))}
            times: list[str] = []
            for clip in row.get("clips", ()):
                times += [f"{second:.2f}" for second in clip["times"]]
            yield {**named, **row, "times": " ".join(times)}


def with_media_of(question: Record, row: dict[str, Any]) -> dict[str, Any]:
    """A row with the paths of its question. Before a folder was moved, its media had others."""
    if row["error"] is not None:
        return row
    clips = [{**clip, "path": path} for clip, path in zip(row["clips"], question.videos, strict=True)]
    return {**row, "clips": clips, "images": list(question.images)}


def with_ids_of_their_own(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the page, whose records have different ids: several data sets may have the same ones."""
    taken: set[str] = set()
    different = []
    for row in rows:
        record = row["record"]
        if record is not None:
            own = str(record["id"])
            number = 1
            while own in taken:
                number += 1
                own = f"{record['id']} ({number})"
            taken.add(own)
            if number > 1:
                row = {**row, "record": {**record, "id": own}}
        different.append(row)
    return different


def is_timeline(answer: str, listed: Mapping[int, str]) -> bool:
    """Whether an answer is spans of the listed steps and nothing else, so that these are all that it says.

    Words may hold what looks like a span: "(2) insert the fan, turning it 3-4 times".
    """
    # Where the name of a step holds a range, as in "fasten screws 1-4", its answer would look like a span.
    if any(timeline_in(f"(1) {name}") for name in listed.values()):
        return False
    names = {number: plain_name(name) for number, name in listed.items()}
    spans = spans_alone(answer, numbers_of(listed))
    return bool(spans) and all(span.number in names and span.name in ("", names[span.number]) for span in spans)


def editor_length(answers: Sequence[Sequence[TimedStep]], clips: Sequence[FrameInfo]) -> float:
    """Seconds that the editor of a timeline has: of the only clip, else as far as clips and answers reach.

    Args:
        answers: the spans of each.
    """
    of_clips = [axis_length((), [clip]) for clip in clips]
    if len(clips) == 1 and of_clips[0] > 0:
        return of_clips[0]
    # The page cuts spans at this length: it must not cut what no clip bounds.
    of_answers = [axis_length(spans, ()) for spans in answers]
    return max([*of_clips, *of_answers], default=0.0)


def deciding_reward(names: Sequence[Any] | None) -> str | None:
    """The first reward of a run that tells right answers from wrong, and so says which answers are the same."""
    for each in names or DEFAULT_WEIGHTS:
        name = parse_row(str(each))[0]
        if name in TABLE and name not in SHAPING:
            return name
    return None


def training_command(request: UseRequest, rows: Sequence[Mapping[str, Any]]) -> str:
    """The command that trains the model again on the labels that its page saves, with its prompts and rewards.

    A model without rewards of a run gets those that fit its labels.

    Args:
        rows: of the page.
    """
    path = request.model.path
    base = base_of_adapter(path)
    model = ["--model_name_or_path", base or path]
    adapter = [] if base is None else ["--lora_enable", "--start_from_weights", path]
    groups = (ReadingOptions, FrameOptions, PromptOptions, ToolOptions, RewardOptions)
    # Records of the page have the library's own form and name their media in full, and labels leave out what training
    # would stop at.
    without = ("format", "columns", "allow_outside_media", "on_long_prompt")
    prompts = changed_flags(request.config, groups, without=without)
    if request.config.reward_funcs is None:
        prompts += rewards_of(rows)
    data = ["--dataset_use", "labels.json", "--allow_outside_media"]
    folder = ["--output_dir", f"runs/{request.model.name}-labels"]
    return shlex.join(["qwenvl", "train", *model, *adapter, *data, *folder, *prompts])


def rewards_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flag of the rewards that fit all labels: timelines, or answers of a kind that their records name.

    Empty: the default rewards do.

    Args:
        rows: of the page.
    """
    answered = [row for row in rows if row.get("answer")]
    if answered and all(row["timeline"] is not None for row in answered):
        return ["--reward_funcs", "format", *FOR_TIMELINES]
    kinds = [named_kind(row["record"]) for row in answered]
    if answered and None not in kinds:
        return ["--reward_funcs", "format", *FOR_KINDS]
    return []


def named_kind(fields: Mapping[str, Any]) -> AnswerKind | None:
    """The kind of answer that the fields of a record name. None: they name none that is known."""
    return kind_called(str(fields.get("problem_type") or ""))


def key_of(question: Record) -> str:
    """The identity of a question: a hash of its texts, its media as they are now, and what is shown of them.

    A folder of clips that is moved keeps its questions.
    """
    turns = [[message.role, message.text] for message in question.messages]
    metas = [None if meta is None else asdict(meta) for meta in question.clip_meta]
    sizes = [None if size is None else asdict(size) for size in question.image_sizes]
    videos = [[_last_names(path), version_of(path)] for path in question.videos]
    images = [[_last_names(path), version_of(path)] for path in question.images]
    return hash_of([turns, videos, images, metas, sizes])


def _last_names(path: str) -> list[str]:
    """The names of a medium and of the folder that it lies in, or those of each frame in a list."""
    return ["/".join(Path(each).parts[-2:]) for each in frame_list(path) or [path]]


def label_of(batch: PromptBatch, rollout: RolloutBatch, reward: str | None) -> dict[str, Any]:
    """The row of a batch of one prompt, without its key and its time.

    Args:
        reward: the name of the reward that says which answers are the same.
    """
    record = batch.records[0]
    clips = batch.frames[0]
    answers = [answer_of(text) for text in rollout.texts]
    readings = [None if answer is None else reading_of(answer, record, reward) for answer in answers]
    means = [math.nan] * len(answers)  # of the log-probs of each completion. NaN: the engine gives none
    if rollout.logprobs is not None:
        mask = rollout.completion_mask
        means = ((rollout.logprobs * mask).sum(1) / mask.sum(1)).tolist()
    ranks = ranks_of(readings, [in_written_order(answer or "") for answer in answers], means)
    best, share = elected(readings, ranks)
    votes: list[list[Any]] = []  # an answer and how many gave it
    for first in dict.fromkeys(map(readings.index, readings)):  # of each reading
        own = [n for n, each in enumerate(readings) if each == readings[first]]
        votes.append([answers[max(own, key=ranks.__getitem__)] or "", len(own)])
    votes.sort(key=lambda vote: -vote[1])
    return {
        "answer": answers[best] or "",
        "agreement": round(share, 4) if len(answers) > 1 else None,
        "logprob": None if math.isnan(means[best]) else round(means[best], 5),
        "text": rollout.texts[best],
        "finish_reason": rollout.finish_reasons[best],
        "frames": sum(len(clip.indices) for clip in clips),
        "clips": [vars(clip) for clip in clips],
        "images": list(record.images),
        "texts": rollout.texts,
        "votes": votes,
        "error": None,
    }


def reading_of(answer: str, record: Record, reward: str | None) -> Any:
    """What an answer to a question says. Equal readings are votes for the same answer.

    A timeline is read with its times, and an answer of a kind that the record names, such as a letter, by that kind.

    Args:
        reward: the name of the reward that reads all others, unless the record names rewards of its own.
    """
    prompt = [{"role": message.role, "content": message.text} for message in record.messages]
    kind = record.fields.get("problem_type")
    own = record.fields.get("reward")
    if isinstance(own, str | list) and own:
        reward = deciding_reward([own] if isinstance(own, str) else own)
    elif reward not in TIMELINES:
        if asks_for_timeline(record) or is_timeline(answer, names_in(record.messages[-1].text)):
            reward = "timeline_iou"
        elif named_kind(record.fields) is not None:
            reward = "by_problem_type"
    return reading(reward, answer, prompt, kind)


def asks_for_timeline(record: Record) -> bool:
    """Whether a record says that its answer is a timeline."""
    return record.fields.get("timeline") is not None


def in_written_order(answer: str) -> Any:
    """The ``(k)`` numbers of an answer in their order, which some rewards do not read, or else its text."""
    return action_numbers(answer) or normalized(answer)


def ranks_of(readings: Sequence[Any], wordings: Sequence[Any], means: Sequence[float]) -> list[tuple[int, float]]:
    """How well each completion stands for its reading: how many word it the same, and then its mean log-prob.

    Args:
        readings: what rewards tell apart.
        wordings: what they do not, such as the order of steps.
        means: mean log-probs. NaN: not known.
    """
    both = list(zip(readings, wordings, strict=True))
    return [(both.count(each), -math.inf if math.isnan(mean) else mean) for each, mean in zip(both, means, strict=True)]


def elected(readings: Sequence[Any], ranks: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The completion with the most frequent reading, of several the one of the highest rank, and the reading's share.

    One without an answer (None) is taken only where none has an answer, with the share 0.

    Example:
        >>> readings = ["a", "b", "a", "a", None]
        >>> elected(readings, ranks_of(readings, ["A", "b", "a", "a", ""], [-0.1, -0.1, -0.5, -0.2, -0.1]))
        (3, 0.6)
    """
    counts = [0 if each is None else readings.count(each) for each in readings]
    best = max(range(len(counts)), key=lambda n: (counts[n], ranks[n]))
    return best, counts[best] / len(counts)
