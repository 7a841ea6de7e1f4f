"""``qwenvl preview``: an offline HTML page of what the model will see of a data set."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image
from torch import Tensor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.data.frames import uniform_indices
from qwenvl.data.hints import clip_lengths, few_frames
from qwenvl.data.media.resize import resize
from qwenvl.data.options import PromptOptions, SampleOptions
from qwenvl.data.prompt_length import MediaSizes, Ruler, image_sizes_of
from qwenvl.data.records.clip_settings import in_words, settings_read
from qwenvl.data.records.record_file import RecordFile
from qwenvl.data.timeline_hints import (
    TimelineTimes,
    fineness,
    record_timeline,
    short_spans,
    span_problems,
    timeline_times,
)
from qwenvl.data.tool_options import ToolOptions
from qwenvl.failure import counted
from qwenvl.inspection.flags import hints_by, make_collator, record_files
from qwenvl.rewards.function import reward_columns
from qwenvl.rewards.functions.actions import action_numbers, action_phrases, list_in, numbers_to_compare
from qwenvl.rewards.functions.looking import readable_evidence
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.resolve import build_rubric
from qwenvl.rewards.rubric import Rubric
from qwenvl.rewards.table import SHAPING
from qwenvl.run_log.report.write import data_url, render
from qwenvl.timeline import written_timeline
from qwenvl.tools.functions import ToolError, resolve_tools, schemas_of
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import BadSample, PromptBatch, Record, Sample, VideoClip


@dataclass(frozen=True)
class Picture:
    """A picture for the macro ``frames``.

    Attributes:
        source: a data URL.
        width: in pixels.
        segment: of the clip, from 0. None where it has none.
    """

    source: str
    width: int
    title: str
    caption: str
    segment: int | None


@dataclass(frozen=True)
class ShownClip:
    """A clip as the model sees it: its file name, a line about its frames, and the frames."""

    name: str
    notes: str
    frames: Sequence[Picture]


@dataclass(frozen=True)
class ShownLook(ShownClip):
    """A look at a clip.

    Attributes:
        answer: to the call, as the model reads it. Empty where the look was refused.
        tokens: of the answer.
    """

    answer: str = ""
    tokens: int = 0


@dataclass
class Section:
    """A record on the page, or a row that cannot be read.

    Attributes:
        problem: why the record can't be trained on, or the row can't be read. Empty: it can.
        turns: the prompt as the row has it.
        scores: how the default reward reads the solution.
        prompt: as the model reads it, vision tokens folded. Empty without a processor.
        budget: its tokens, in a sentence.
        tokens: how many. None without a processor.
        look: one look at the clip. None without tools.
        hints: that are worth a look.
    """

    record: Record | None
    problem: str = ""
    turns: str = ""
    scores: str = ""
    prompt: str = ""
    budget: str = ""
    tokens: int | None = None
    clips: list[ShownClip] = field(default_factory=list)
    images: list[Picture] = field(default_factory=list)
    look: ShownLook | None = None
    hints: list[str] = field(default_factory=list)


def page_of(args: argparse.Namespace) -> str:
    """The page of ``args.n`` records as HTML."""
    files = record_files(args)
    total = sum(map(len, files))
    rows = list(_evenly_spread(files, args.n))
    offered = ToolOptions.of(args, max_turns=ToolOptions.max_turns, look_tokens=ToolOptions.look_tokens)
    collator = make_collator(args, schemas_of(offered))
    ruler = collator.ruler if collator else Ruler.without_model(PromptOptions.of(args, on_long_prompt="error"))
    dataset = GRPODataset(
        [row for row in rows if isinstance(row, Record)],
        SampleOptions.of(args, on_bad_sample="skip"),
        seed=args.seed,
        ruler=ruler,
        fit_to=collator.options.fit_to if collator else None,
    )
    toolbox = Toolbox(resolve_tools(args.tools), offered, collator, dataset) if args.tools and collator else None
    rubric = build_rubric()
    look_for = hints_by(args, collator)
    shown: list[Section] = []
    lengths: list[tuple[float, int]] = []
    timelines: list[TimelineTimes] = []
    good = 0
    for row in rows:
        if isinstance(row, RecordError):
            shown.append(Section(record=None, problem=str(row)))
            continue
        sample = dataset[args.epoch, good]
        assert sample is not None  # only the padding at the end of an epoch is None
        good += 1
        section = _section(row, sample, collator, rubric, ruler)
        if isinstance(sample, Sample):
            infos = [clip.info for clip in sample.videos]
            hints = [*look_for(row, MediaSizes.of(sample)), *span_problems(row, infos)]
            section.hints = [hint.message for hint in hints]
            lengths += clip_lengths(infos, row.clip_meta)
            times = timeline_times(row, infos)
            if times is not None:
                timelines.append(times)
        if toolbox is not None and "look" in toolbox.tools and isinstance(sample, Sample) and sample.videos:
            section.look = _look(sample, toolbox)
        shown.append(section)
    rubric.close()
    turns = Counter(each.turns for each in shown if each.record is not None)
    # The turns that several records have, such as a system turn and the same question, stand on the page once.
    shared = {text: count for text, count in turns.items() if count > 1}
    summary = [_summary(shown, collator), fineness(timelines)]
    hints_about_all = [*few_frames(lengths, dataset.options), *short_spans(timelines)]
    return render(
        Path(__file__).with_name("preview.html"),
        title=f"{args.dataset}: {len(shown)} of {counted(total, 'record')}, frames of epoch {args.epoch}",
        summary="; ".join(each for each in summary if each),
        hints=[hint.message for hint in hints_about_all],
        rows=shown,
        shared=shared,
    )


def _summary(shown: Sequence[Section], collator: GRPOCollator | None) -> str:
    """Counts, frames and tokens of the records shown, in a line."""
    bad = sum(bool(each.problem) for each in shown)
    records = counted(len(shown), "record")
    found = [f"{records}, {bad} of them bad" if bad else records]
    frames: list[int] = []
    tokens: list[int] = []
    for each in shown:
        frames += [len(clip.frames) for clip in each.clips]
        if each.tokens is not None:
            tokens.append(each.tokens)
    for name, numbers in (("frames of a clip", frames), ("tokens of a prompt", tokens)):
        if numbers:
            middle = int(median(numbers))
            found.append(f"{name}: min {min(numbers):,}, median {middle:,}, max {max(numbers):,}")
    if collator is None:
        found.append("pictures are as large as Qwen2.5-VL sees them; --model NAME counts tokens")
    elif collator.ruler.effective_arguments:
        arguments = json.dumps(collator.ruler.effective_arguments)
        found.append(f"arguments that the chat template reads (null: not set): {arguments}")
    return "; ".join(found)


def _evenly_spread(files: list[RecordFile], n: int) -> Iterator[Record | RecordError]:
    """``n`` rows, evenly spread over all files."""
    indices = uniform_indices(sum(map(len, files)), n)
    first = 0  # index of the first row of the file
    for file in files:
        own = [i - first for i in indices if first <= i < first + len(file)]
        yield from file.subset(own).iterate()
        first += len(file)


def _section(
    record: Record, sample: Sample | BadSample, collator: GRPOCollator | None, rubric: Rubric, ruler: Ruler
) -> Section:
    """A record as the page shows it, without its hints and its look."""
    section = Section(
        record=record,
        turns="\n\n".join(f"[{message.role}] {message.text}" for message in record.messages),
        scores=own_scores(record, rubric),
    )
    if isinstance(sample, BadSample):
        section.problem = sample.error
        return section
    if collator is not None:
        batch = collator([sample])["prompts"]
        if batch.bad:
            section.problem = batch.bad[0].error
        else:
            section.budget = _budget(batch, sample, collator)
            section.tokens = batch.input_ids.shape[1]
            section.prompt = folded_prompt(batch.input_ids[0].tolist(), collator.processor)
    for clip, meta in zip(sample.videos, record.clip_meta, strict=True):
        section.clips.append(_clip(clip, settings_read(meta)))
    for image, wanted in zip(sample.images, image_sizes_of(record, len(sample.images)), strict=True):
        size = ruler.image_size(tuple(image.shape[-2:]), wanted)
        picture = resize(image, size, ruler.processor.image_processor)
        caption = _sizes(image.shape[-2:], size)
        if wanted is not None:
            caption += f", by {in_words(settings_read(wanted))}"
        section.images.append(_picture(picture, "image", caption))
    return section


def _budget(batch: PromptBatch, sample: Sample, collator: GRPOCollator) -> str:
    """The tokens of a prompt in a sentence."""
    ids = batch.input_ids[0].tolist()
    processor = collator.processor
    vision = ids.count(processor.image_token_id) + ids.count(processor.video_token_id)
    budget = f"{len(ids):,} tokens: {vision:,} vision, {len(ids) - vision:,} text"
    if collator.options.max_prompt_length is not None:
        budget += f"; {collator.options.max_prompt_length - len(ids):,} below --max_prompt_length"
    if sample.fewer_frames:
        budget += f"; to fit, shown with {', '.join(sample.fewer_frames)}"
    return budget


def folded_prompt(ids: list[int], processor: Any) -> str:
    """The prompt as text, each run of vision tokens folded: ``<video: 96 tokens>``."""
    text = processor.tokenizer.decode(ids)
    return re.sub(r"(?P<token><\|(?P<kind>video|image)_pad\|>)(?P=token)*", _folded, text)


def _folded(run: re.Match[str]) -> str:
    """The short form of a run of one vision token: its text is that of the token, again and again."""
    tokens = len(run[0]) // len(run["token"])
    return f"<{run['kind']}: {tokens:,} tokens>"


def own_scores(record: Record, rubric: Rubric) -> str:
    """A line on how the accuracy reward reads the solution, and on the rewards of the solution as a completion."""
    problem = rubric.check_record(record)
    if problem:
        return f"can't be scored: {problem}"
    truth = solution_of(record.solution)
    spans = record_timeline(record)
    if spans:
        lines = written_timeline(spans).splitlines()
        return f"read as a timeline of {counted(len(spans), 'span')}: {'; '.join(lines)}"
    listed = list_in(record.messages[-1].text)
    numbers = numbers_to_compare(truth, truth, listed)
    read = f"phrases {action_phrases(truth)}"
    if numbers:
        read = f"actions {action_numbers(truth) or sorted(numbers)}"
    scored = rubric.score([record.solution], reward_columns([record], 1))
    # Without a thinking block a solution is no whole completion, and rewards of the form say nothing about it.
    is_whole = "<think>" in record.solution
    values: list[str] = []
    for name, components in zip(scored.names, scored.components, strict=True):
        if is_whole or name not in SHAPING:
            values.append(f"{name} {components[0]}")
    return f"read as {read}; as {'a completion' if is_whole else 'an answer'} it would score {', '.join(values)}"


def _clip(clip: VideoClip, settings: Mapping[str, Any] | None = None) -> ShownClip:
    """A clip as the page shows it.

    Args:
        settings: those that its row has for it.
    """
    info = clip.info
    pictures = []
    for i, frame in enumerate(clip.frames):
        place = f"frame {info.indices[i]}"
        if i > 0 and info.indices[i] == info.indices[i - 1]:
            place += " again"
        segment = None
        if info.segments is not None:
            segment = info.segments[i]
            place += f", segment {segment}"
        pictures.append(_picture(frame, f"{info.times[i]:.2f} s", place, segment))
    sizes = _sizes(clip.decoded_size or (), clip.frames.shape[-2:])
    notes = [f"{len(pictures)} frames", f"{info.seconds_per_frame:.2f} s between frames", sizes]
    if info.rescaled:
        notes.append("segments rescaled to the clip")
    if settings:
        notes.append(f"by {in_words(dict(settings))}")
    return ShownClip(name=Path(info.path).name, notes=", ".join(notes), frames=pictures)


def _look(sample: Sample, toolbox: Toolbox) -> ShownLook:
    """A look at the first span of the record's evidence, else at the middle of its frames, as the model reads it."""
    record = sample.record
    times = sample.videos[0].info.times
    spans = readable_evidence(record.fields)
    if spans:
        start, end = spans[0]
        origin = "the evidence of the record"
    else:  # a tenth of the time between the first frame and the last
        middle = (times[0] + times[-1]) / 2
        half = (times[-1] - times[0]) / 20
        start = middle - half
        end = middle + half
        origin = "as an example"
    name = f"look at {start:.4g} to {end:.4g} s, {origin}"
    try:
        given = toolbox.run(toolbox.tools["look"], {"start": start, "end": end}, record, {})
    except ToolError as error:
        return ShownLook(name=name, notes=f"refused: {error}", frames=[])
    ids = toolbox.appended(record, [given]).input_ids.tolist()
    answer = folded_prompt(ids, toolbox.collator.processor).strip()
    [clip] = [part for part in given if isinstance(part, VideoClip)]
    shown = _clip(clip)
    return ShownLook(name=name, notes=shown.notes, frames=shown.frames, answer=answer, tokens=len(ids))


def _sizes(decoded: Sequence[int], size: Sequence[int]) -> str:
    """A line on the height and width of a picture in its file and as the model sees it."""
    return f"{decoded[1]} x {decoded[0]} pixels, the model sees {size[1]} x {size[0]}"


def _picture(pixels: Tensor, title: str, caption: str, segment: int | None = None) -> Picture:
    """Pixels, 3 x H x W, as a picture of the page."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    return Picture(data_url(picture), picture.width, title, caption, segment)
