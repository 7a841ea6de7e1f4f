"""What ``--report_to`` shows beside the Trainer's own numbers: their sections, and a table at each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations import (
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
    integration_utils,
)

from qwenvl.option import was_set
from qwenvl.report.curves import AT_THE_END, shown
from qwenvl.runlog import Rollout
from qwenvl.train.journal import Journal
from qwenvl.types import PromptBatch

PROJECT = "qwenvl"
PROMPTS = 8  # of an evaluation, the first ones: the same each time
FRAMES = 8  # of a prompt, spread over all frames that it has
HEIGHT = 112  # pixels of a frame, at most
GAP = 2  # pixels between two frames


def require_trackers(names: Iterable[str]) -> None:
    """Refuse ``report_to`` a tracker whose package is missing, before a model is loaded.

    Raises:
        ImportError: naming them.
    """
    # Packages of azure_ml and flyte are not among those that transformers lists as available.
    checked = integration_utils.INTEGRATION_TO_CALLBACK.keys() - {"azure_ml", "flyte"}
    if missing := " ".join(sorted(checked & set(names) - set(get_available_reporting_integrations()))):
        raise ImportError(
            f"--report_to {missing}: its package is not installed; pip install {missing}, or leave the flag out: "
            "metrics.jsonl in the run folder has the same numbers"
        )


def install_trackers(trainer: Trainer, journal: Journal) -> None:
    """Make the trackers of ``report_to`` show numbers by section and answers as tables.

    A run without a name is named by its folder and the time, so that an evaluation after training finds it again. The
    default project of trackio is ``qwenvl``.
    """
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    trackers = [each for each in trainer.callback_handler.callbacks if kinds and isinstance(each, kinds)]
    if not trackers:
        return
    if not was_set(trainer.args, "project"):  # the Trainer's default is "huggingface"
        trainer.args.project = PROJECT
    if trainer.args.run_name is None:
        trainer.args.run_name = f"{Path(trainer.args.output_dir).resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"
    for tracker in trackers:
        setattr(tracker, "on_log", _by_section(tracker.on_log))  # noqa: B010
    tables = [(TABLES[type(each).__name__], each) for each in trackers if type(each).__name__ in TABLES]
    if tables and trainer.is_world_process_zero():
        answers = EvaluationTables(trainer.data_collator.processor.image_processor, tables)
        journal.on_evaluation = answers.add
        trainer.add_callback(answers)


def by_section(logs: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a log entry, with the sections of the report in front of their names.

    The Trainer's totals at the end of training keep their names.

    Example:
        >>> by_section({"reward/total": 0.5, "kl": 0.1, "time/sample_s": 8.0, "prompt/frames": 6.0})
        {'learning/reward/total': 0.5, 'stable/kl': 0.1, 'fast/time/sample_s': 8.0, 'data/prompt/frames': 6.0}
    """
    placed = {}
    for name, value in logs.items():
        section = shown(name).section
        placed[name if name.startswith((*AT_THE_END, f"{section}/")) else f"{section}/{name}"] = value
    return placed


def _by_section(on_log: Callable[..., None]) -> Callable[..., None]:
    def log(args, state, control, logs=None, **kwargs):
        with unchanged_names():
            on_log(args, state, control, logs=by_section(logs), **kwargs)

    return log


@contextmanager
def unchanged_names() -> Iterator[None]:
    """The Trainer's trackers write names as they are, without "train/" or "eval/" in front."""
    rewrite = integration_utils.rewrite_logs
    integration_utils.rewrite_logs = dict
    try:
        yield
    finally:
        integration_utils.rewrite_logs = rewrite


class Answer(NamedTuple):
    """One prompt of an evaluation with its first completion, and its frames side by side. None: it has no frames."""

    rollout: Rollout
    strip: Image.Image | None


class EvaluationTables(TrainerCallback):
    """Writes a table of the first answers of each evaluation to the trackers.

    Args:
        image_processor: how pictures are cut into patches.
        tables: of each tracker the function that writes a table, and the Trainer's callback.
    """

    def __init__(self, image_processor: Any, tables: Sequence[tuple[Callable[..., None], Any]]):
        self._image_processor, self._tables = image_processor, tables
        self._answers: dict[str, list[Answer]] = {}  # by the name of the evaluation

    def add(self, split: str, batch: PromptBatch, rows: Iterable[Rollout]) -> None:
        """Remember the prompts of a batch with their first completions, up to ``PROMPTS`` of an evaluation."""
        answers = self._answers.setdefault(split, [])
        firsts = [row for row in rows if row.sample == 0]
        for p, row in enumerate(firsts[: PROMPTS - len(answers)]):
            answers.append(Answer(row, strip_of(batch.select([p]), self._image_processor)))

    def on_evaluate(self, args, state, control, **kwargs):
        """The tables of the evaluation that has just ended."""
        for split, answers in self._answers.items():
            for write, tracker in self._tables if answers else ():
                write(tracker, f"{shown('completion/').section}/{split}_completions", state.global_step, answers)
        self._answers = {}


def frames_of(patches: Tensor, grid: Sequence[int], image_processor: Any) -> Tensor:
    """The frames of one clip: frames x height x width x 3, uint8. An image has as many equal ones as a patch.

    Args:
        patches: patches x values, uint8, as in ``PromptBatch``.
        grid: temporal patches, and patches of height and width.
        image_processor: of the model, with the sizes of its patches.
    """
    time, height, width = grid
    size, merge, temporal = image_processor.patch_size, image_processor.merge_size, image_processor.temporal_patch_size
    cut = patches.view(time, height // merge, width // merge, merge, merge, 3, temporal, size, size)
    whole = cut.permute(0, 6, 1, 3, 7, 2, 4, 8, 5)  # time in the front, colours at the end
    return whole.reshape(time * temporal, height * size, width * size, 3)


def strip_of(prompt: PromptBatch, image_processor: Any) -> Image.Image | None:
    """Images and frames of a batch of one prompt, side by side, as the model saw them but smaller."""
    pictures: list[Tensor] = []
    for values, grids, still in (
        (prompt.pixel_values, prompt.image_grid_thw, True),
        (prompt.pixel_values_videos, prompt.video_grid_thw, False),
    ):
        if values is not None and grids is not None:
            for patches, grid in zip(values.cpu().split(grids.prod(-1).tolist()), grids.tolist(), strict=True):
                pictures += list(frames_of(patches, grid, image_processor))[: 1 if still else None]
    if not pictures:
        return None
    spread = torch.linspace(0, len(pictures) - 1, min(FRAMES, len(pictures))).round().int().tolist()
    small = [Image.fromarray(pictures[n].numpy()) for n in spread]
    for picture in small:
        picture.thumbnail((10 * HEIGHT, HEIGHT))
    strip = Image.new("RGB", (sum(each.width + GAP for each in small) - GAP, max(each.height for each in small)))
    x = 0
    for picture in small:
        strip.paste(picture, (x, 0))
        x += picture.width + GAP
    return strip


def columns_of(answers: Sequence[Answer], picture: Callable[[Image.Image], Any] | None = None) -> dict[str, list[Any]]:
    """The table by columns, each of one type: a prompt without frames among others has a blank picture.

    Args:
        picture: makes the tracker's kind of picture. None: no column of frames, as for prompts that all have none.
    """
    columns: dict[str, list[Any]] = {"record": [row.record_id for row, _ in answers]}
    if picture is not None and any(answer.strip is not None for answer in answers):
        columns["frames"] = [picture(answer.strip or Image.new("RGB", (8, 8), "white")) for answer in answers]
    for row, _ in answers:
        questions = [each["text"] for each in row.prompt if each["role"] == "user"]
        rewards = {name: "none" if value is None else f"{value:.3g}" for name, value in row.rewards.items()}
        for name, value in {
            "question": _writable("".join(questions[-1:])),
            "solution": _writable(row.solution),
            "completion": _writable(row.completion),
            "reward": row.total,
            "rewards": ", ".join(f"{name} {value}" for name, value in rewards.items()),
            "tokens": row.tokens,
            "ended": row.finish_reason,
        }.items():
            columns.setdefault(name, []).append(value)
    return columns


def _writable(text: str) -> str:
    """A text that can be written as UTF-8: a tokenizer can decode to half of a surrogate pair."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def tensorboard_table(callback: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    """A table of text, and the frames of each record as a picture: TensorBoard has no pictures in tables."""
    columns = columns_of(answers)
    lines = [[*columns], ["---"] * len(columns)]
    lines += [[_markdown(value) for value in row] for row in zip(*columns.values(), strict=True)]
    callback.tb_writer.add_text(name, "\n".join(f"| {' | '.join(line)} |" for line in lines), step)
    for row, strip in answers:
        if strip is not None:
            callback.tb_writer.add_image(f"{name}/{row.record_id}", np.asarray(strip), step, dataformats="HWC")
    callback.tb_writer.flush()


def _markdown(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return escape(text, quote=False).replace("|", "&#124;").replace("\n", "<br>")


def _table_with_pictures(library: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    columns = columns_of(answers, library.Image)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    library.log({name: library.Table(columns=[*columns], data=rows), "train/global_step": step})


TABLES: dict[str, Callable[[Any, str, int, Sequence[Answer]], None]] = {
    "TensorBoardCallback": tensorboard_table,
    "WandbCallback": lambda callback, *table: _table_with_pictures(callback._wandb, *table),
    "TrackioCallback": lambda callback, *table: _table_with_pictures(callback._trackio, *table),
}
"""By the name of the Trainer's callback. Other trackers get the numbers alone."""
