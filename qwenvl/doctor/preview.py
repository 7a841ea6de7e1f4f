"""``qwenvl preview``: an offline HTML page of what the model will see of a data set."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError, told_to_the_user
from qwenvl.data.fit import what_was_lowered
from qwenvl.data.frames.places import uniform_indices
from qwenvl.data.media.resize import Size, Thumbnails
from qwenvl.data.options import SampleOptions
from qwenvl.data.prompt_length import MediaSizes
from qwenvl.data.records.record_file import RecordFile
from qwenvl.doctor.flags import add_dataset_flags, add_frame_flags, hints_by, make_collator, opened
from qwenvl.page.render import data_url, render
from qwenvl.rewards.columns import reward_columns
from qwenvl.rewards.functions.actions import action_numbers, action_phrases
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.named import build_rubric
from qwenvl.rewards.rubric import Rubric
from qwenvl.types import BadSample, PromptBatch, Record, Sample, VideoClip

THUMBNAIL_PIXELS = 240  # of the longer side, where it is not known in which size the model sees a picture


@dataclass(frozen=True)
class Picture:
    """A frame or an image on the page.

    Attributes:
        source: the picture as a data URL.
        width: in pixels.
        segment: the segment of the clip that the frame is from, which the page shows as a colour. None: no segment.
    """

    source: str
    width: int
    title: str
    caption: str
    segment: int | None = None


@dataclass(frozen=True)
class ShownClip:
    """A clip on the page: its file name, a line about its frames, and the frames."""

    name: str
    notes: str
    frames: list[Picture]


@dataclass
class Shown:
    """One row as the page shows it.

    Attributes:
        record: None where the row could not be read.
        problem: why the row can't be trained on. Empty for a good one.
        clips, images: what was decoded.
        turns: the turns of the record as plain text.
        prompt: the text the model reads, vision tokens folded. Empty without a processor.
        budget: the tokens of the prompt, in a sentence. Empty without a processor.
        scores: what the rewards give the solution itself.
        hints: what is worth a look, a sentence each.
    """

    record: Record | None
    problem: str = ""
    clips: list[ShownClip] = field(default_factory=list)
    images: list[Picture] = field(default_factory=list)
    turns: str = ""
    prompt: str = ""
    budget: str = ""
    scores: str = ""
    hints: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and say where it is. Ends with status 1 when the data are bad, 2 when the command is."""
    parser = argparse.ArgumentParser(prog="qwenvl preview", description=__doc__)
    add_dataset_flags(parser)
    add_frame_flags(parser)
    parser.add_argument("--n", type=int, default=8, help="records to show, spread over the data set (8)")
    parser.add_argument("--epoch", type=int, default=0, help="whose frames to draw where sampling is dynamic (0)")
    parser.add_argument("--seed", type=int, default=42, help="run seed of the draw (42, as in training)")
    parser.add_argument("--out", default="preview.html", help="the page to write (preview.html)")
    args = parser.parse_args(argv)
    with told_to_the_user("qwenvl preview"):
        page = preview(args)
        Path(args.out).write_text(page, encoding="utf-8")
    print(f"wrote {args.out} ({len(page) / 1e6:.1f} MB); open it in a browser")
    return 0


def preview(args: argparse.Namespace) -> str:
    """Return the page that the flags ask for."""
    if args.n < 1:
        raise ValueError(f"--n: expected at least 1, got {args.n}")
    files = opened(args)
    rows = list(_spread(files, args.n))
    collator = make_collator(args)
    limit = collator.limit if args.fit_frames else None
    records = [row for row in rows if isinstance(row, Record)]
    options = SampleOptions.of(args, on_bad_sample="skip")
    ruler = Thumbnails(THUMBNAIL_PIXELS) if collator is None else collator.ruler
    dataset = GRPODataset(records, options, seed=args.seed, limit=limit, ruler=ruler)
    rubric = build_rubric()
    look_for = hints_by(args, collator, rubric.names)
    shown: list[Shown] = []
    for row in rows:
        if isinstance(row, Record):
            sample = dataset[args.epoch, sum(one.record is not None for one in shown)]
            assert sample is not None  # that is for empty places, and no index of ours is one
            shown.append(show(sample, collator, rubric))
            if isinstance(sample, Sample):
                shown[-1].hints = [hint.message for hint in look_for(row, MediaSizes.of(sample))]
        else:
            shown.append(Shown(None, problem=str(row)))
    rubric.close()
    total = sum(map(len, files))
    title = f"{args.dataset}: {len(shown)} of {total:,} records, frames of epoch {args.epoch}"
    shared = {turns: n for turns, n in Counter(each.turns for each in shown if each.record).items() if n > 1}
    return render(Path(__file__).with_name("preview.html"), title=title, rows=shown, shared=shared)


def _spread(files: list[RecordFile], n: int) -> Iterator[Record | RecordError]:
    """``n`` rows, evenly spread over all files."""
    indices, first = uniform_indices(sum(map(len, files)), n), 0
    for file in files:
        yield from file.subset([i - first for i in indices if first <= i < first + len(file)]).iterate()
        first += len(file)


def show(sample: Sample | BadSample, collator: GRPOCollator | None, rubric: Rubric) -> Shown:
    """Return what the page says of one sample."""
    record = sample.record
    plain = "\n\n".join(f"[{message.role}] {message.text}" for message in record.messages)
    shown = Shown(record, turns=plain, scores=own_scores(record, rubric))
    if isinstance(sample, BadSample):
        shown.problem = sample.error
        return shown
    sizes = iter([] if collator is None else _show_prompt(shown, sample, collator))
    shown.clips = [_clip(clip, next(sizes, None)) for clip in sample.videos]
    shown.images = [_still(image, next(sizes, None)) for image in sample.images]
    return shown


def _show_prompt(shown: Shown, sample: Sample, collator: GRPOCollator) -> list[tuple[int, int]]:
    """Add what the processor makes of a sample.

    Returns:
        Height and width in pixels at which the model sees each clip and each image. None of a prompt that is too long.
    """
    batch = collator([sample])["prompts"]
    if batch.bad:
        shown.problem = batch.bad[0].error
        return []
    ids = batch.input_ids[0].tolist()
    processor = collator.processor
    n_vision = sum(i in (processor.image_token_id, processor.video_token_id) for i in ids)
    shown.budget = f"{len(ids):,} tokens: {n_vision:,} vision, {len(ids) - n_vision:,} text"
    if collator.options.max_prompt_length is not None:
        shown.budget += f"; {collator.options.max_prompt_length - len(ids):,} below --max_prompt_length"
    if sample.fitted:
        shown.budget += f"; to fit, shown with {what_was_lowered(sample.fitted)}"
    shown.prompt = folded_prompt(ids, batch, processor)
    patch = processor.image_processor.patch_size
    grids = [grid for grid in (batch.video_grid_thw, batch.image_grid_thw) if grid is not None]
    return [(height * patch, width * patch) for grid in grids for _, height, width in grid.tolist()]


def folded_prompt(ids: list[int], batch: PromptBatch, processor: Any) -> str:
    """Return the prompt as text, each run of vision tokens folded: ``<video: 8 frames, 4x6 patches, 96 tokens>``.

    Patches are those of one frame, before the vision tower merges them.
    """
    grids = {
        processor.video_token_id: iter([] if batch.video_grid_thw is None else batch.video_grid_thw.tolist()),
        processor.image_token_id: iter([] if batch.image_grid_thw is None else batch.image_grid_thw.tolist()),
    }
    vision = processor.video_processor
    open_clip = [0, 0, 0]  # temporal patches still to come, height, width
    pieces = []
    for token, run in groupby(ids, key=lambda i: i if i in grids else None):
        tokens = list(run)
        if token is None:
            pieces.append(processor.tokenizer.decode(tokens))
            continue
        if token == processor.image_token_id:
            pieces += _folded_images(len(tokens), grids[token], vision.merge_size)
            continue
        if open_clip[0] == 0:
            open_clip = list(next(grids[token]))
        patches = len(tokens) * vision.merge_size**2 // (open_clip[1] * open_clip[2])
        open_clip[0] -= patches
        frames = patches * vision.temporal_patch_size
        pieces.append(f"<video: {frames} frames, {open_clip[1]}x{open_clip[2]} patches, {len(tokens)} tokens>")
    return "".join(pieces)


def _folded_images(n_tokens: int, grids: Any, merge_size: int) -> list[str]:
    pieces = []
    while n_tokens > 0:
        _, height, width = next(grids)
        own = height * width // merge_size**2
        pieces.append(f"<image: {height}x{width} patches, {own} tokens>")
        n_tokens -= own
    return pieces


def own_scores(record: Record, rubric: Rubric) -> str:
    """Say how the accuracy reward reads the solution, and what the rewards give it as a completion."""
    truth = solution_of(record.solution)
    numbers = action_numbers(truth)
    read = f"actions {numbers}" if numbers else f"phrases {action_phrases(truth)}"
    if problem := rubric.check_record(record):
        return f"can't be scored: {problem}"
    scored = rubric.score([record.solution], reward_columns([record], 1))
    values = ", ".join(f"{name} {values[0]}" for name, values in zip(scored.names, scored.components, strict=True))
    return f"read as {read}; as a completion it would score {values}"


def _clip(clip: VideoClip, size: Size | None) -> ShownClip:
    frames, info, pictures = clip.frames, clip.info, []
    for i, frame in enumerate(frames):
        segment = None if info.segments is None else info.segments[i]
        again = " again" if i and info.indices[i] == info.indices[i - 1] else ""
        place = f"frame {info.indices[i]}{again}" + ("" if segment is None else f", segment {segment}")
        pictures.append(_picture(frame, size, f"{info.times[i]:.2f} s", place, segment))
    decoded = clip.decoded_size or frames.shape[-2:]
    notes = [f"{len(frames)} frames", f"{info.seconds_per_frame:.2f} s between frames", _sizes(decoded, size)]
    notes += ["segments rescaled to the clip"] * info.rescaled
    return ShownClip(Path(info.path).name, ", ".join(notes), pictures)


def _still(image: Tensor, size: Size | None) -> Picture:
    return _picture(image, size, "image", _sizes(image.shape[-2:], size))


def _sizes(decoded: Sequence[int], size: Size | None) -> str:
    own = f"{decoded[1]} x {decoded[0]} pixels"
    return own if size is None else f"{own}, the model sees {size[1]} x {size[0]}"


def _picture(pixels: Tensor, size: Size | None, title: str, caption: str, segment: int | None = None) -> Picture:
    """A picture in the pixels that the model sees, where these are known, else a thumbnail of it."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    else:
        picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    return Picture(data_url(picture), picture.width, title, caption, segment)
