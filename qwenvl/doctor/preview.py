"""``qwenvl preview``: an offline HTML page of what the model will see of a data set."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.data.frames import uniform_indices
from qwenvl.data.media.resize import Size, Thumbnails
from qwenvl.data.options import SampleOptions
from qwenvl.data.prompt_length import MediaSizes, what_was_lowered
from qwenvl.data.records.record_file import RecordFile
from qwenvl.doctor.flags import hints_by, make_collator, opened
from qwenvl.report.write import data_url, render
from qwenvl.rewards.columns import reward_columns
from qwenvl.rewards.functions.actions import action_numbers, action_phrases
from qwenvl.rewards.functions.text import solution_of
from qwenvl.rewards.resolve import build_rubric
from qwenvl.rewards.rubric import Rubric
from qwenvl.types import BadSample, PromptBatch, Record, Sample, VideoClip

THUMBNAIL_PIXELS = 240  # longer side of a picture whose size for the model is not known


def preview(args: argparse.Namespace) -> str:
    """The page as HTML."""
    if args.n < 1:
        raise ValueError(f"--n: expected at least 1, got {args.n}")
    files = opened(args)
    total = sum(map(len, files))
    rows = list(_evenly_spread(files, args.n))
    collator = make_collator(args)
    dataset = GRPODataset(
        [row for row in rows if isinstance(row, Record)],
        SampleOptions.of(args, on_bad_sample="skip"),
        seed=args.seed,
        limit=collator.limit if collator and args.fit_frames else None,
        ruler=collator.ruler if collator else Thumbnails(THUMBNAIL_PIXELS),
    )
    rubric = build_rubric()
    look_for = hints_by(args, collator, rubric.functions)
    shown: list[dict[str, Any]] = []
    good = 0
    for row in rows:
        if isinstance(row, RecordError):
            shown.append({"record": None, "problem": str(row)})
            continue
        sample = dataset[args.epoch, good]
        assert sample is not None  # only the padding at the end of an epoch is None
        good += 1
        hints = look_for(row, MediaSizes.of(sample)) if isinstance(sample, Sample) else []
        shown.append(_section(row, sample, collator, rubric) | {"hints": [hint.message for hint in hints]})
    rubric.close()
    turns = Counter(each["turns"] for each in shown if each["record"])
    return render(
        Path(__file__).with_name("preview.html"),
        title=f"{args.dataset}: {len(shown)} of {total:,} records, frames of epoch {args.epoch}",
        rows=shown,
        shared={text: n for text, n in turns.items() if n > 1},
    )


def _evenly_spread(files: list[RecordFile], n: int) -> Iterator[Record | RecordError]:
    """``n`` rows, evenly spread over all files."""
    indices, first = uniform_indices(sum(map(len, files)), n), 0
    for file in files:
        yield from file.subset([i - first for i in indices if first <= i < first + len(file)]).iterate()
        first += len(file)


def _section(
    record: Record, sample: Sample | BadSample, collator: GRPOCollator | None, rubric: Rubric
) -> dict[str, Any]:
    """The values of one record for ``preview.html``."""
    section: dict[str, Any] = {
        "record": record,
        "problem": "",  # why the record can't be trained on
        "turns": "\n\n".join(f"[{message.role}] {message.text}" for message in record.messages),
        "scores": own_scores(record, rubric),
        "prompt": "",  # as the model reads it, vision tokens folded. Empty without a processor
        "budget": "",  # its tokens, in a sentence
        "clips": [],
        "images": [],
    }
    if isinstance(sample, BadSample):
        return section | {"problem": sample.error}
    sizes: Iterator[Size] = iter(())  # at which the model sees each clip, then each image
    if collator is not None:
        batch = collator([sample])["prompts"]
        if batch.bad:
            section["problem"] = batch.bad[0].error
        else:
            section["budget"] = _budget(batch, sample, collator)
            section["prompt"] = folded_prompt(batch.input_ids[0].tolist(), batch, collator.processor)
            patch = collator.processor.image_processor.patch_size
            grids = [grid.tolist() for grid in (batch.video_grid_thw, batch.image_grid_thw) if grid is not None]
            sizes = ((height * patch, width * patch) for grid in grids for _, height, width in grid)
    section["clips"] = [_clip(clip, next(sizes, None)) for clip in sample.videos]
    for image in sample.images:
        size = next(sizes, None)
        section["images"].append(_picture(image, size, "image", _sizes(image.shape[-2:], size)))
    return section


def _budget(batch: PromptBatch, sample: Sample, collator: GRPOCollator) -> str:
    ids, processor = batch.input_ids[0].tolist(), collator.processor
    n_vision = sum(i in (processor.image_token_id, processor.video_token_id) for i in ids)
    budget = f"{len(ids):,} tokens: {n_vision:,} vision, {len(ids) - n_vision:,} text"
    if collator.options.max_prompt_length is not None:
        budget += f"; {collator.options.max_prompt_length - len(ids):,} below --max_prompt_length"
    return budget + (f"; to fit, shown with {what_was_lowered(sample.fitted)}" if sample.fitted else "")


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
    """How the accuracy reward reads the solution, and the rewards of the solution as a completion."""
    if problem := rubric.check_record(record):
        return f"can't be scored: {problem}"
    truth = solution_of(record.solution)
    numbers = action_numbers(truth)
    read = f"actions {numbers}" if numbers else f"phrases {action_phrases(truth)}"
    scored = rubric.score([record.solution], reward_columns([record], 1))
    values = ", ".join(f"{name} {values[0]}" for name, values in zip(scored.names, scored.components, strict=True))
    return f"read as {read}; as a completion it would score {values}"


def _clip(clip: VideoClip, size: Size | None) -> dict[str, Any]:
    """The file name of a clip, a line about its frames, and the frames."""
    info, pictures = clip.info, []
    for i, frame in enumerate(clip.frames):
        segment = None if info.segments is None else info.segments[i]
        again = " again" if i and info.indices[i] == info.indices[i - 1] else ""
        place = f"frame {info.indices[i]}{again}" + ("" if segment is None else f", segment {segment}")
        pictures.append(_picture(frame, size, f"{info.times[i]:.2f} s", place, segment))
    decoded = clip.decoded_size or clip.frames.shape[-2:]
    notes = [f"{len(pictures)} frames", f"{info.seconds_per_frame:.2f} s between frames", _sizes(decoded, size)]
    notes += ["segments rescaled to the clip"] * info.rescaled
    return {"name": Path(info.path).name, "notes": ", ".join(notes), "frames": pictures}


def _sizes(decoded: Sequence[int], size: Size | None) -> str:
    own = f"{decoded[1]} x {decoded[0]} pixels"
    return own if size is None else f"{own}, the model sees {size[1]} x {size[0]}"


def _picture(pixels: Tensor, size: Size | None, title: str, caption: str, segment: int | None = None) -> dict[str, Any]:
    """A picture for the macro ``frames``: in the size that the model sees, else a thumbnail."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    else:
        picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    source = data_url(picture)
    return {"source": source, "width": picture.width, "title": title, "caption": caption, "segment": segment}
