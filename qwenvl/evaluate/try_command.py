"""``qwenvl try MODEL CLIP "question"``: what a model sees of a clip, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.evaluate.command import run_command
from qwenvl.evaluate.settings import TryRequest, known_settings, try_request
from qwenvl.files import written_whole

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from transformers import ProcessorMixin

    from qwenvl.evaluate.models import ModelSource
    from qwenvl.types import PromptBatch, Sample

COLUMNS = 8  # frames side by side in the picture
_LEAST, _MOST = 120, 320  # width of a frame in the picture
_GAP, _LINE = 4, 14


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print what the model saw and answered. Status 1 for a bad clip, 2 for a bad command line."""
    return run_command("try", argv, try_request, _run)


def _run(request: TryRequest) -> str:
    from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
    from qwenvl.rewards import RewardError

    with told_to_the_user("qwenvl try", (*DATA_ERRORS, RewardError, ValueError, OSError, ImportError)):
        answers = ask(request)
    return json.dumps(answers, indent=1, ensure_ascii=False) if request.options.json else "\n".join(as_text(answers))


def ask(request: TryRequest) -> dict[str, Any]:
    """The answers of the model as JSON has them, and what it saw. Writes the picture of the frames.

    Raises:
        BadMediaError, RecordError: the media or the prompt can't be used.
        RewardError, ValueError: the rewards can't score an answer by this solution.
    """
    from qwenvl.data.dataset import GRPODataset
    from qwenvl.data.options import SampleOptions
    from qwenvl.doctor.preview import folded_prompt
    from qwenvl.evaluate.respondent import build_respondent, collator_of
    from qwenvl.model.loading import base_of_adapter
    from qwenvl.rewards import build_rubric
    from qwenvl.train.assemble import build_rewards
    from qwenvl.train.display.console import settle_output

    settle_output()
    config, options, record = request.config, request.options, request.record
    rubric = build_rubric() if options.solution is None else build_rewards(config, None, None)
    if options.solution is not None and (problem := rubric.check_record(record)):
        raise ValueError(f"--solution: {problem}")
    base = base_of_adapter(request.model.path)
    collator = collator_of(config)
    dataset = GRPODataset(
        [record], SampleOptions.of(config), training=False, ruler=collator.ruler, fit_to=collator.options.fit_to
    )
    sample = dataset.load(record)  # an unreadable clip is an error before the weights are loaded
    batch = collator([sample])["prompts"]
    media = media_of(sample, batch, collator.processor)
    if media:
        save_picture(options.picture, sample, [each["size"] for each in media], collator.processor)
    respondent = build_respondent(config, collator, rubric)
    if options.solution is None:
        [rollout], rewards = respondent.collector.complete(respondent.model, [batch], options.n), {}
    else:
        [(rollout, scored)] = respondent.collector.answer(respondent.model, [batch], options.n)
        rewards = scored.columns()
    rubric.close()
    ids = batch.input_ids[0].tolist()
    lengths = rollout.completion_mask.sum(1).tolist()
    return {
        "model": request.model.path,
        "base": base,
        "settings": origin_of(request.model),
        "media": media,
        "picture": options.picture if media else None,
        "prompt": folded_prompt(ids, collator.processor),
        "prompt_tokens": (len(ids), sum(each["tokens"] for each in media)),  # all, and those of vision
        "sampling": "greedy" if options.n == 1 else f"sampled at temperature {config.generation_temperature:g}",
        "solution": None if options.solution is None else record.solution,
        "answers": [
            {
                "text": text,
                "tokens": lengths[n],  # the end token included
                "finish_reason": rollout.finish_reasons[n],
                "rewards": {name: values[n] for name, values in rewards.items()},  # None: does not apply
            }
            for n, text in enumerate(rollout.texts)
        ],
    }


def origin_of(model: ModelSource) -> str:
    """The origin of the settings that no flag sets."""
    if model.prompt_settings() is None:
        return "the defaults of training; no settings of a run lie beside the model"
    if not known_settings(model):
        return "frames, sizes and prompt as in its training, sampling by the defaults of training"
    return "those of its run"


def media_of(sample: Sample, batch: PromptBatch, processor: ProcessorMixin) -> list[dict[str, Any]]:
    """Each clip and then each image of a prompt, with the size and the frames that the model sees.

    Sizes are height and width in pixels, times in seconds, indices the numbers of the frames in the file.
    """
    patch, merged = processor.image_processor.patch_size, processor.image_processor.merge_size**2
    grids = [
        grid for each in (batch.video_grid_thw, batch.image_grid_thw) if each is not None for grid in each.tolist()
    ]
    files: list[tuple[str, Sequence[float], Sequence[int], Sequence[int]]] = [
        (clip.info.path, clip.info.times, clip.info.indices, clip.decoded_size or clip.frames.shape[-2:])
        for clip in sample.videos
    ]
    files += [(path, (), (), image.shape[-2:]) for path, image in zip(sample.record.images, sample.images, strict=True)]
    return [
        {
            "path": path,
            "times": tuple(times),
            "indices": tuple(indices),
            "file_size": tuple(size),
            "size": (h * patch, w * patch),
            "tokens": t * h * w // merged,
        }
        for (path, times, indices, size), (t, h, w) in zip(files, grids, strict=True)
    ]


def as_text(answers: dict[str, Any]) -> Iterator[str]:
    """The lines for a terminal, of what ``ask`` returns."""
    yield answers["model"] + (f", an adapter on {answers['base']}" if answers["base"] else "")
    yield f"settings: {answers['settings']}\n"
    for seen in answers["media"]:
        (file_height, file_width), (height, width) = seen["file_size"], seen["size"]
        kind = f"{len(seen['times'])} frames" if seen["times"] else "an image"
        yield (
            f"{Path(seen['path']).name}: {kind}, {file_width} x {file_height} pixels, the model sees {width} x "
            f"{height}, {seen['tokens']:,} tokens"
        )
        if seen["times"]:
            yield f"  at {' '.join(f'{time:.2f}' for time in seen['times'])} s"
    if answers["picture"] is not None:
        yield f"what it saw: {answers['picture']}"
    total, vision = answers["prompt_tokens"]
    yield f"\nprompt: {total:,} tokens, {vision:,} of them vision"
    yield from _indented(answers["prompt"])
    if answers["solution"] is not None:
        yield "\nsolution:"
        yield from _indented(answers["solution"])
    for number, answer in enumerate(answers["answers"], 1):
        count = f" {number} of {len(answers['answers'])}" if len(answers["answers"]) > 1 else ""
        cut = ", cut there by --generation_max_length" if answer["finish_reason"] == "length" else ""
        tokens = f"{answer['tokens']:,} token{'' if answer['tokens'] == 1 else 's'}"
        yield f"\nanswer{count} ({answers['sampling']}): {tokens}{cut}"
        yield from _indented(answer["text"])
        if answer["rewards"]:
            values = {name: "does not apply" if v is None else f"{v:.3f}" for name, v in answer["rewards"].items()}
            yield "  rewards: " + ", ".join(f"{name} {value}" for name, value in values.items())


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip("\n").splitlines() or [""]]


def save_picture(path: str | Path, sample: Sample, sizes: Sequence[tuple[int, int]], processor: Any) -> None:
    """Write a PNG with a block for each clip and then each image, the time of each frame below it.

    Args:
        sizes: height and width at which the model sees each clip and then each image.
        processor: its interpolation resizes the frames, as for the model.
    """
    from PIL import Image

    from qwenvl.data.media.resize import resize

    clips, images = processor.video_processor, processor.image_processor
    shown = [(clip.frames, clips, [f"{t:.2f} s" for t in clip.info.times]) for clip in sample.videos]
    shown += [(image[None], images, ["image"]) for image in sample.images]
    blocks = [
        _block(resize(frames, size, own), captions) for (frames, own, captions), size in zip(shown, sizes, strict=True)
    ]
    sheet = Image.new("RGB", (max(b.width for b in blocks), sum(b.height for b in blocks)), "white")
    for n, block in enumerate(blocks):
        sheet.paste(block, (0, sum(b.height for b in blocks[:n])))
    with written_whole(path) as partial:
        sheet.save(partial, "PNG")


def _block(frames: Tensor, captions: Sequence[str]) -> Image.Image:
    """Frames, F x 3 x H x W, row by row. Small ones are enlarged by whole pixels, so that each pixel is visible."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = frames.shape[-2:]
    factor = max(1, -(-_LEAST // width))
    share = min(1.0, _MOST / width)
    shown = (round(width * factor * share), max(1, round(height * factor * share)))
    columns = min(COLUMNS, len(frames))
    cell = shown[0] + _GAP, shown[1] + _LINE + _GAP
    block = Image.new("RGB", (columns * cell[0] + _GAP, -(-len(frames) // columns) * cell[1] + _GAP), "white")
    draw, font = ImageDraw.Draw(block), ImageFont.load_default(size=11)
    for n, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC
        left, top = _GAP + n % columns * cell[0], _GAP + n // columns * cell[1]
        block.paste(Image.fromarray(frame.permute(1, 2, 0).numpy()).resize(shown, how), (left, top))
        draw.text((left, top + shown[1]), caption, fill="black", font=font)
    return block
