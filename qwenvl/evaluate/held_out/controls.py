"""Does the model look? The same questions with the evidence taken away. Pure functions of records and samples.

A model that answers as well without the evidence has not used it. What is taken away:

    blank         what is to be seen: every frame and image is grey
    shuffled      the order of the frames, whose times stay
    single_frame  all frames but the middle one, which takes the place of all
    other_clip    the record's own clips and images: those of another record take their place
    text_only     all media: the prompt is text alone

The first three keep the tokens, positions and times of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from qwenvl.data.seeds import stable_random
from qwenvl.rewards.functions.text import normalized, solution_of
from qwenvl.train.collect.contrast import random_order
from qwenvl.types import Message, Record, Sample, VideoClip

GREY = 128
OTHER = "other_clip"
_TAG = re.compile(r"<(?:video|image)>\n?")
_TRIES = 200  # records that are looked at for one with another solution


def has_media(record: Record) -> bool:
    """Whether there is anything to see."""
    return bool(record.videos or record.images)


def has_video(record: Record) -> bool:
    """Whether there is a clip."""
    return bool(record.videos)


def same_sample(sample: Sample, seed: int) -> Sample:
    """The sample as it is."""
    return sample


@dataclass(frozen=True)
class Control:
    """One way to take evidence away.

    Attributes:
        applies: whether a record has what is taken away. Other records are not asked about again.
        sample: changes a record's sample once its media are decoded, given the seed of the run.
    """

    applies: Callable[[Record], bool]
    sample: Callable[[Sample, int], Sample] = same_sample


def blank(sample: Sample, seed: int) -> Sample:
    """The sample with grey frames and images of the same sizes."""
    clips = tuple(replace(clip, frames=torch.full_like(clip.frames, GREY)) for clip in sample.videos)
    return replace(sample, videos=clips, images=tuple(torch.full_like(image, GREY) for image in sample.images))


def shuffled(sample: Sample, seed: int) -> Sample:
    """The sample with the frames of each clip in random order, as ``temporal_contrast`` shuffles them in training."""

    def order(clip: VideoClip, number: int) -> list[int]:
        return random_order(len(clip.frames), seed, sample.epoch, sample.record.id, number)

    clips = tuple(replace(clip, frames=clip.frames[order(clip, k)]) for k, clip in enumerate(sample.videos))
    return replace(sample, videos=clips)


def single_frame(sample: Sample, seed: int) -> Sample:
    """The sample with the middle frame of each clip in the place of all of its frames."""
    clips = tuple(
        replace(clip, frames=clip.frames[[len(clip.frames) // 2] * len(clip.frames)]) for clip in sample.videos
    )
    return replace(sample, videos=clips)


CONTROLS: Mapping[str, Control] = {
    "blank": Control(has_media, blank),
    "shuffled": Control(has_video, shuffled),
    "single_frame": Control(has_video, single_frame),
    OTHER: Control(has_media),
    "text_only": Control(has_media),
}
"""The controls by name. Those that change the record are applied before its media are read."""


def with_media_of(record: Record, other: Record) -> Record:
    """The record with the clips and images of another, which has as many of each."""
    return replace(record, videos=other.videos, images=other.images, clip_meta=other.clip_meta)


def without_media(record: Record) -> Record:
    """The record as text alone. Tags of media go with the new line after them."""
    messages = tuple(Message(message.role, _TAG.sub("", message.text)) for message in record.messages)
    return replace(record, messages=messages, videos=(), images=(), clip_meta=())


def partners(records: Mapping[int, Record], seed: int) -> dict[int, int]:
    """For each record another one that has as many clips and images, and none of them in common.

    One with another solution is preferred. A record without such a partner is left out.

    Args:
        records: by number.
        seed: the records are put in random order by it, and each takes the next that fits.

    Example:
        >>> from qwenvl.types import Record
        >>> of = lambda clip: Record(clip, (), "<answer>" + clip + "</answer>", (clip,), (), (None,), {}, clip)
        >>> partners({0: of("a"), 1: of("b")}, seed=0)
        {0: 1, 1: 0}
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for number, record in records.items():
        if has_media(record):
            alike.setdefault((len(record.videos), len(record.images)), []).append(number)
    found: dict[int, int] = {}
    for numbers in alike.values():
        stable_random(seed, OTHER).shuffle(numbers)
        for place, number in enumerate(numbers):
            if (partner := _partner(records, numbers, place)) is not None:
                found[number] = partner
    return dict(sorted(found.items()))


def _partner(records: Mapping[int, Record], numbers: Sequence[int], place: int) -> int | None:
    own = records[numbers[place]]
    media, answer, fallback = {*own.videos, *own.images}, _answer(own), None
    for step in range(1, len(numbers)):
        other = numbers[(place + step) % len(numbers)]
        if media & {*records[other].videos, *records[other].images}:
            continue
        if _answer(records[other]) != answer:
            return other
        fallback = other if fallback is None else fallback
        if step >= _TRIES:
            break
    return fallback


def _answer(record: Record) -> str:
    return normalized(solution_of(record.solution))
