"""``qwenvl try MODEL CLIP "question"``: what a model sees of a clip, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwenvl.evaluate.command import MODEL, About, run_command
from qwenvl.evaluate.options import TryOptions
from qwenvl.evaluate.requests import TryRequest, try_request
from qwenvl.evaluate.settings import TRY_GROUPS
from qwenvl.failure import harmless

ABOUT = About(
    usage='qwenvl try MODEL [CLIP or IMAGE ...] "question" [-n 4] [--solution TEXT] [--flag of training value ...]',
    own=TryOptions,
    groups=TRY_GROUPS,
    description="Answer a question about clips and images: the times of the frames, the prompt as the model reads it, "
    "the answers, and with --solution their rewards. "
    f"{MODEL}. The question is a text or a file that holds it; each clip and image "
    "comes before it unless it has <video> or <image> tags. Settings are those of the run that trained the model, if "
    "that is known.",
)

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from qwenvl.types import PromptBatch, Record


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print what the model saw and answered. Status 1 for a bad clip, 2 for a bad command line."""
    return run_command("try", argv, try_request, _run, ABOUT)


def _run(request: TryRequest) -> str:
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.run_log.log import plain

    with told_to_the_user("qwenvl try", (ValueError, OSError, ImportError)):
        answers = ask(request)
    if request.options.json:
        return json.dumps(plain(answers), indent=1, ensure_ascii=False)  # calls may hold NaN
    return harmless("\n".join(as_text(answers)))


def ask(request: TryRequest) -> dict[str, Any]:
    """The answers of the model and the description of its prompt, as ``--json`` prints them.

    Raises:
        BadMediaError, RecordError: the media or the prompt can't be used.
        RewardError, ValueError: the rewards can't score an answer by this solution.
    """
    from qwenvl.evaluate.respondent import build_respondent, collator_of, dataset_of
    from qwenvl.inspection.preview import folded_prompt
    from qwenvl.model.weight_files import base_of_adapter
    from qwenvl.rewards import build_rubric
    from qwenvl.rewards.table import FOR_KINDS
    from qwenvl.step.assemble import build_rewards

    config = request.config
    options = request.options
    record = request.record
    of_options = ["format", *FOR_KINDS] if options.choices and config.reward_funcs is None else None
    rubric = build_rubric() if options.solution is None else build_rewards(config, of_options, None)
    problem = None if options.solution is None else rubric.check_record(record)
    if problem:
        raise ValueError(f"--solution: {problem}")
    base = base_of_adapter(request.model.path)
    collator = collator_of(config)
    # An unreadable clip is an error before the weights are loaded.
    sample = dataset_of([record], config, collator).load(record)
    batch = collator([sample])["prompts"]
    media = media_of(record, batch, collator.processor)
    respondent = build_respondent(config, collator, rubric)
    rewards: dict[str, Any] = {}
    if options.solution is None:
        [rollout] = respondent.complete([batch], options.n)
    else:
        [(rollout, scored)] = respondent.scored_answers([batch], options.n)
        rewards = scored.columns()
    rubric.close()
    ids = batch.input_ids[0].tolist()
    lengths = rollout.completion_mask.sum(1).tolist()
    return {
        "model": request.model.path,
        "base": base,
        "settings": request.settings_of,
        "media": media,
        "prompt": folded_prompt(ids, collator.processor),
        "prompt_tokens": (len(ids), sum(each["tokens"] for each in media)),  # all, and those of vision
        "sampling": "greedy" if options.n == 1 else f"sampled at temperature {config.generation_temperature:g}",
        "solution": None if options.solution is None else record.solution,
        "answers": [
            {
                "text": text,
                "tokens": lengths[n],  # the end token included
                "finish_reason": rollout.finish_reasons[n],
                "ended_by": "" if rollout.ended_by is None else rollout.ended_by[n],
                "turns": [] if rollout.turns is None else [asdict(turn) for turn in rollout.turns[n]],
                "rewards": {name: values[n] for name, values in rewards.items()},  # None: does not apply
            }
            for n, text in enumerate(rollout.texts)
        ],
    }


def media_of(record: Record, batch: PromptBatch, processor: ProcessorMixin) -> list[dict[str, Any]]:
    """Each clip and then each image of a prompt as the model sees it.

    ``size`` is height and width in pixels, ``times`` are in seconds, empty for an image, ``tokens`` are of vision.
    """
    patch = processor.image_processor.patch_size
    merged = processor.image_processor.merge_size**2
    # Patches of each medium: temporal, high, wide. A clip has a grid of its own, and so has an image.
    grids: list[list[int]] = []
    for each in (batch.video_grid_thw, batch.image_grid_thw):
        if each is not None:
            grids += each.tolist()
    files: list[tuple[str, tuple[float, ...]]] = []
    files += [(clip.path, tuple(clip.times)) for clip in batch.frames[0]]
    files += [(path, ()) for path in record.images]
    seen = []
    for (path, times), (t, h, w) in zip(files, grids, strict=True):
        tokens = t * h * w // merged
        seen.append({"path": path, "times": times, "size": (h * patch, w * patch), "tokens": tokens})
    return seen


def as_text(answers: dict[str, Any]) -> Iterator[str]:
    """The lines for a terminal, of what ``ask`` returns."""
    yield answers["model"] + (f", an adapter on {answers['base']}" if answers["base"] else "")
    yield f"settings: {answers['settings']}\n"
    for seen in answers["media"]:
        kind = f"{len(seen['times'])} frames" if seen["times"] else "an image"
        height, width = seen["size"]
        yield f"{Path(seen['path']).name}: {kind} of {width} x {height} pixels, {seen['tokens']:,} tokens"
        if seen["times"]:
            yield f"  at {' '.join(f'{time:.2f}' for time in seen['times'])} s"
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
        for turn in answer["turns"] or [{"text": answer["text"], "calls": ()}]:
            yield from _indented(turn["text"])
            yield from map(_answered, turn["calls"])
        if answer["rewards"]:
            values = {name: "does not apply" if v is None else f"{v:.3f}" for name, v in answer["rewards"].items()}
            yield "  rewards: " + ", ".join(f"{name} {value}" for name, value in values.items())


def _answered(call: dict[str, Any]) -> str:
    """The answer to a call of a tool in a line."""
    if call["error"] is not None:
        return f"  -> refused: {call['error']}"
    times: list[str] = []
    for clip in call["clips"]:
        times += [f"{time:.2f}" for time in clip["times"]]
    shown = []
    if times:
        shown.append(f"{len(times)} frames at {' '.join(times)} s")
    if call["pictures"]:
        shown.append(f"{call['pictures']} pictures")
    shown.append(f"{call['tokens']:,} tokens")
    return f"  -> {call['text']} {', '.join(shown)}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip("\n").splitlines() or [""]]
