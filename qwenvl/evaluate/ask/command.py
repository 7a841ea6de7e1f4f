"""``qwenvl try MODEL CLIP "question"``: what a model sees of a clip, and what it answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from qwenvl.evaluate.ask.settings import USAGE, asked_of, help_text

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from qwenvl.evaluate.ask.settings import Asked
    from qwenvl.evaluate.ask.told import Answer, Seen, Told
    from qwenvl.evaluate.trained import Trained
    from qwenvl.types import PromptBatch, RolloutBatch, Sample

COMMAND = "qwenvl try"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print what was seen and answered. Ends with status 1 for a bad clip, 2 for a bad command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text())
        return 0
    print(f"{COMMAND}: loading PyTorch and transformers", file=sys.stderr, flush=True)  # which takes seconds
    from qwenvl.data.errors import DATA_ERRORS, told_to_the_user
    from qwenvl.evaluate.ask.told import as_json
    from qwenvl.rewards import RewardError
    from qwenvl.train.display.console import ends_at_ctrl_c
    from qwenvl.train.run.failures import told_in_one_line

    with redirect_stdout(sys.stderr), told_in_one_line(COMMAND, None), ends_at_ctrl_c(COMMAND):
        with told_to_the_user(COMMAND, DATA_ERRORS):
            try:
                asked = asked_of(argv)
            except DATA_ERRORS:
                raise
            except (ValueError, FileNotFoundError) as error:
                print(f"usage: {USAGE}\nerror: {error}", file=sys.stderr)
                return 2
        with told_to_the_user(COMMAND, (*DATA_ERRORS, RewardError, ValueError, OSError, ImportError)):
            told = answered(asked)
    print(json.dumps(as_json(told), indent=1, ensure_ascii=False) if asked.options.json else "\n".join(told.lines()))
    return 0


def answered(asked: Asked) -> Told:
    """Ask the model.

    Raises:
        BadMediaError, RecordError: the media or the prompt can't be used.
        RewardError, ValueError: the rewards can't score an answer by this solution.
    """
    from qwenvl.data.dataset import GRPODataset
    from qwenvl.data.options import SampleOptions
    from qwenvl.doctor.preview import folded_prompt
    from qwenvl.evaluate.answers import build_respondent, collator_of
    from qwenvl.evaluate.ask.strip import save_strip
    from qwenvl.evaluate.ask.told import Told
    from qwenvl.model.loading import base_of_adapter
    from qwenvl.rewards import build_rubric
    from qwenvl.train.assemble import build_rewards
    from qwenvl.train.display.console import settle_output

    settle_output()
    config, options, record = asked.config, asked.options, asked.record
    rubric = build_rubric() if options.solution is None else build_rewards(config, None, None)
    if options.solution is not None and (problem := rubric.check_record(record)):
        raise ValueError(f"--solution: {problem}")
    base = base_of_adapter(asked.model.model)
    collator = collator_of(config)
    processor = collator.processor
    frames = SampleOptions.of(config)
    dataset = GRPODataset([record], frames, training=False, limit=collator.limit, ruler=collator.ruler)
    sample = dataset.load(record)  # an unreadable clip is told before the weights are loaded
    batch = collator([sample])["prompts"]
    media = seen_media(sample, batch, processor)
    if media:
        save_strip(options.picture, sample, [each.size for each in media], processor)
    respondent = build_respondent(config, collator, rubric)
    if options.solution is None:
        [rollout], rewards = respondent.collector.complete(respondent.model, [batch], options.n), {}
    else:
        [(rollout, scored)] = respondent.collector.answer(respondent.model, [batch], options.n)
        rewards = scored.columns()
    rubric.close()
    ids = batch.input_ids[0].tolist()
    return Told(
        model=asked.model.model,
        base=base,
        settings=origin_of(asked.model),
        media=media,
        picture=options.picture if media else None,
        prompt=folded_prompt(ids, batch, processor),
        prompt_tokens=(len(ids), sum(each.tokens for each in media)),
        sampling="greedy" if options.n == 1 else f"sampled at temperature {config.generation_temperature:g}",
        solution=None if options.solution is None else record.solution,
        answers=answers_of(rollout, rewards),
    )


def origin_of(model: Trained) -> str:
    """Where settings come from that no flag sets."""
    if model.prompts is None:
        return "the defaults of training; no settings of a run lie beside the model"
    if not model.settings:
        return "frames, sizes and prompt as in its training, sampling by the defaults of training"
    return "those of its run"


def seen_media(sample: Sample, batch: PromptBatch, processor: ProcessorMixin) -> tuple[Seen, ...]:
    """Each clip and then each image of a prompt, as the model saw it."""
    from qwenvl.evaluate.ask.told import Seen

    patch, merged = processor.image_processor.patch_size, processor.image_processor.merge_size**2
    grids = [
        grid for each in (batch.video_grid_thw, batch.image_grid_thw) if each is not None for grid in each.tolist()
    ]
    files = [
        (clip.info.path, clip.info.times, clip.info.indices, clip.decoded_size or clip.frames.shape[-2:])
        for clip in sample.videos
    ]
    files += [(path, (), (), image.shape[-2:]) for path, image in zip(sample.record.images, sample.images, strict=True)]
    return tuple(
        Seen(path, tuple(times), tuple(indices), tuple(size), (h * patch, w * patch), t * h * w // merged)
        for (path, times, indices, size), (t, h, w) in zip(files, grids, strict=True)
    )


def answers_of(rollout: RolloutBatch, rewards: dict[str, list[float | None]]) -> tuple[Answer, ...]:
    """The completions of one prompt. ``rewards`` has a value for each, by function."""
    from qwenvl.evaluate.ask.told import Answer

    lengths = rollout.completion_mask.sum(1).tolist()
    return tuple(
        Answer(text, length, reason, {name: values[n] for name, values in rewards.items()})
        for n, (text, length, reason) in enumerate(zip(rollout.texts, lengths, rollout.finish_reasons, strict=True))
    )
