"""The questions of an evaluation: the records, which of them are correlated, and the controls.

A control asks the same question with evidence taken away, or shows what a teacher sees beyond the prompt: the table in
docs/evaluation.md has them all. Those that change pixels keep the tokens, positions and times of the prompt, and change
what looks show too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from qwenvl.console import say
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.data.seeds import stable_random
from qwenvl.data.views import View, reads_completions, seen_by, view_named
from qwenvl.evaluate.options import LOOK_CONTROLS, EvaluateOptions
from qwenvl.model.vision_tower import GREY
from qwenvl.rewards.functions.text import normalized, solution_of
from qwenvl.run_log.intervals import clusters_by
from qwenvl.run_log.log import AS_IT_IS
from qwenvl.step.contrast import random_order
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import BadSample, Message, Record, Sample

BLOCK = 16
"""Records that are sampled and written together. Fixed, so that results do not depend on the number of processes or on
resuming."""
OTHER = "other_clip"
TEXT_ONLY = "text_only"
EVIDENCE = "evidence"
_TAG = re.compile(r"<(?:video|image)>\n?")
_TRIES = 200  # candidates for a partner with another solution


def blank(sample: Sample, seed: int) -> Sample:
    """The sample with grey frames and images of the same sizes."""
    clips = tuple(replace(clip, frames=torch.full_like(clip.frames, GREY)) for clip in sample.videos)
    return replace(sample, videos=clips, images=tuple(torch.full_like(image, GREY) for image in sample.images))


def shuffled(sample: Sample, seed: int) -> Sample:
    """The sample with the frames of each clip in random order, as ``temporal_contrast`` shuffles them in training."""
    clips = []
    for number, clip in enumerate(sample.videos):
        order = random_order(clip.info.indices, seed, sample.epoch, sample.record.id, number)
        clips.append(replace(clip, frames=clip.frames[order]))
    return replace(sample, videos=tuple(clips))


def single_frame(sample: Sample, seed: int) -> Sample:
    """The sample with the middle frame of each clip in place of all of its frames."""
    clips = []
    for clip in sample.videos:
        length = len(clip.frames)
        # As often as there were frames, so that tokens and times stay.
        middle_frames = [length // 2] * length
        clips.append(replace(clip, frames=clip.frames[middle_frames]))
    return replace(sample, videos=tuple(clips))


PIXEL_CONTROLS: Mapping[str, Callable[[Sample, int], Sample]] = {
    each.__name__: each for each in (blank, shuffled, single_frame)
}
"""The controls that change decoded samples, given the seed of the run. The others change the record."""


class Question(NamedTuple):
    """A record under a control: what a model is asked.

    Attributes:
        number: of the record in the data.
    """

    control: str
    number: int


@dataclass(frozen=True)
class Questions:
    """The records and controls of an evaluation.

    Attributes:
        records: by their number in the data.
        clusters: a key (e.g. the clip) by which records are correlated, for the bootstrap.
        controls: ``none`` first.
        partners: the record whose media ``other_clip`` shows in place of a record's own.
        tools: the models can look at clips again.
    """

    records: Mapping[int, Record]
    clusters: Mapping[int, str]
    controls: tuple[str, ...]
    partners: Mapping[int, int] = field(default_factory=dict)
    tools: bool = False

    @classmethod
    def of(cls, dataset: GRPODataset, options: EvaluateOptions, seed: int, *, tools: bool = False) -> Questions:
        """The questions that the options request.

        Args:
            tools: the models can look at clips again.

        Raises:
            RecordError, ValueError: a record lacks the field of ``cluster_by``, or a control applies to no record.
        """
        numbers = list(range(len(dataset)))
        if options.limit is not None and options.limit < len(numbers):
            numbers = sorted(stable_random(seed, "evaluate").sample(numbers, options.limit))
        records = {number: dataset.record(number) for number in numbers}
        questions = cls(
            records=records,
            clusters=clusters_of(records, options.cluster_by),
            controls=(AS_IT_IS, *options.control_names),
            partners=partners(records, seed) if OTHER in options.control_names else {},
            tools=tools,
        )
        idle = []
        for control in questions.controls:
            if not any(questions.applies(control, number) for number in numbers):
                idle.append(control)
        if idle and options.controls == "all":  # nobody named one of them
            say(f"--controls all: without {', '.join(idle)}, as no record has what it changes")
            return replace(questions, controls=tuple(each for each in questions.controls if each not in idle))
        for control in idle:
            lacks = "a look, which --tools allow" if control in LOOK_CONTROLS else "what it changes"
            raise ValueError(f"--controls {control} has no effect: no record has {lacks}; leave it out")
        return questions

    def applies(self, control: str, number: int) -> bool:
        """True if a control changes what is shown of a record.

        Raises:
            RecordError: its field ``evidence``, which a control shows, cannot be read.
        """
        record = self.records[number]
        if control in LOOK_CONTROLS:
            return self.tools and bool(record.videos)
        if control in PIXEL_CONTROLS:
            return bool(record.videos or (control == "blank" and record.images))
        if control == OTHER:
            return number in self.partners
        return control == AS_IT_IS or self.record(control, number) != record

    def record(self, control: str, number: int) -> Record:
        """The record under a control, before its media are decoded."""
        record = self.records[number]
        if control == OTHER:
            other = self.records[self.partners[number]]
            return replace(
                record,
                videos=other.videos,
                images=other.images,
                clip_meta=other.clip_meta,
                image_sizes=other.image_sizes,
            )
        if control == TEXT_ONLY:
            messages = tuple(Message(message.role, _TAG.sub("", message.text)) for message in record.messages)
            return replace(record, messages=messages, videos=(), images=(), clip_meta=(), image_sizes=())
        if control in (AS_IT_IS, *PIXEL_CONTROLS, *LOOK_CONTROLS):
            return record
        return seen_by(_view_of(control), record, flag="--controls")

    def blocks(self) -> list[list[Question]]:
        """The questions that are sampled and written together, control by control."""
        numbers = list(self.records)
        blocks = []
        for start in range(0, len(numbers), BLOCK):
            block = []
            for control in self.controls:
                for number in numbers[start : start + BLOCK]:
                    if self.applies(control, number):
                        block.append(Question(control, number))
            blocks.append(block)
        return blocks


def _view_of(control: str) -> View:
    """The view of records that a control names.

    Raises:
        ValueError: there is no such view, or it makes a sentence for a completion, which a control has none of.
    """
    try:
        view = view_named(control)
    except ValueError as error:
        raise ValueError(str(error).replace("--teacher_sees", "--controls")) from None
    if reads_completions(view):
        raise ValueError(f"--controls {control}: it needs more than a record; name a function of a record alone")
    return view


def toolbox_under(control: str, toolbox: Toolbox, seed: int) -> Toolbox:
    """The toolbox that answers calls under a control."""
    change = PIXEL_CONTROLS.get(control)
    alter = None if change is None else lambda sample: change(sample, seed)
    looks = {"no_look": "refused", "other_span": "elsewhere"}.get(control, "as asked")
    return replace(toolbox, alter=alter, looks=looks)


@dataclass(frozen=True)
class QuestionSamples(Dataset):
    """Decoded samples by their questions."""

    dataset: GRPODataset
    questions: Questions
    seed: int

    def __len__(self) -> int:
        return len(self.questions.records)

    def __getitem__(self, question: Question) -> Sample | BadSample:
        sample = self.dataset.sample(self.questions.record(question.control, question.number))
        if question.control in PIXEL_CONTROLS and not isinstance(sample, BadSample):
            return PIXEL_CONTROLS[question.control](sample, self.seed)
        return sample


def partners(records: Mapping[int, Record], seed: int) -> dict[int, int]:
    """The partner of each record: another one with as many clips and images, none of them in common.

    A partner with another solution is preferred. A record without a partner is left out.

    Args:
        records: by number.
        seed: of the random order in which each record takes the next that fits.

    Example:
        >>> from qwenvl.types import Record
        >>> of = lambda clip: Record(clip, (), "<answer>" + clip + "</answer>", (clip,), (), (None,), {}, clip)
        >>> partners({0: of("a"), 1: of("b")}, seed=0)
        {0: 1, 1: 0}
    """
    media = {number: {*record.videos, *record.images} for number, record in records.items()}
    answers = {number: normalized(solution_of(record.solution)) for number, record in records.items()}
    alike: dict[tuple[int, int], list[int]] = {}
    for number, record in records.items():
        if media[number]:
            alike.setdefault((len(record.videos), len(record.images)), []).append(number)
    found: dict[int, int] = {}
    for numbers in alike.values():
        stable_random(seed, OTHER).shuffle(numbers)
        for place, number in enumerate(numbers):
            first = None  # the first that fits, should all have the same solution
            tried = 0
            for step in range(1, len(numbers)):
                other = numbers[(place + step) % len(numbers)]
                if media[number] & media[other]:
                    continue
                if first is None:
                    first = other
                if answers[other] != answers[number]:
                    found[number] = other
                    break
                tried += 1
                if tried == _TRIES:
                    break
            if first is not None:
                found.setdefault(number, first)
    return dict(sorted(found.items()))


def clusters_of(records: Mapping[int, Record], by: str | None = None) -> dict[int, str]:
    """The cluster of each record: records that share a clip or image, also through others, are in one cluster.

    A record without media is a cluster of its own.

    Args:
        by: a field of the records in place of clips and images.

    Raises:
        RecordError: a record does not have it.
    """
    if by is not None:
        for record in records.values():
            if record.fields.get(by) is None and not record.problem:
                raise RecordError(
                    f"{record.where}: no field {by!r}, or null in it, which --cluster_by names; it has "
                    f"{', '.join(record.fields)}"
                )
        return {number: str(record.fields.get(by)) for number, record in records.items()}
    media = {}
    for number, record in records.items():
        media[number] = [*record.videos, *record.images] or [record.where]
    return clusters_by(media)
