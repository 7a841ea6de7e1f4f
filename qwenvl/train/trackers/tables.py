"""Answers of an evaluation as a table of a tracker, by what each of them has for tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from qwenvl.train.trackers.seen import Answer

Log = Callable[[Any, str, int, Sequence[Answer]], None]
"""Takes the tracker's callback, the name of the table, the step and the answers."""


def columns_of(answers: Sequence[Answer], picture: Callable[[Image.Image], Any] | None = None) -> dict[str, list[Any]]:
    """The table, column by column, each of one type: a prompt without frames among others has a blank picture.

    Args:
        picture: what the tracker makes of one. None leaves the frames out, as for prompts that all have none.
    """
    rows = [answer.rollout for answer in answers]
    questions = [[each["text"] for each in row.prompt if each["role"] == "user"][-1:] for row in rows]
    columns: dict[str, list[Any]] = {"record": [row.record_id for row in rows]}
    if picture is not None and any(answer.strip is not None for answer in answers):
        columns["frames"] = [picture(answer.strip or Image.new("RGB", (8, 8), "white")) for answer in answers]
    columns["question"] = [_writable("".join(question)) for question in questions]
    columns["solution"] = [_writable(row.solution) for row in rows]
    columns["completion"] = [_writable(row.completion) for row in rows]
    columns["reward"] = [row.total for row in rows]
    columns["rewards"] = [", ".join(f"{name} {_short(value)}" for name, value in row.rewards.items()) for row in rows]
    columns["tokens"] = [row.tokens for row in rows]
    columns["ended"] = [row.finish_reason for row in rows]
    return columns


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _writable(text: str) -> str:
    """A text that can be written as UTF-8: a tokenizer can decode to half of a surrogate pair."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def tensorboard_table(callback: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    """A table of text, and the frames of each record as a picture. TensorBoard has no pictures in tables."""
    columns = columns_of(answers)
    lines = [[*columns], ["---"] * len(columns)]
    lines += [[_markdown(value) for value in row] for row in zip(*columns.values(), strict=True)]
    callback.tb_writer.add_text(name, "\n".join(f"| {' | '.join(line)} |" for line in lines), step)
    for answer in answers:
        if answer.strip is not None:
            tag = f"{name}/{answer.rollout.record_id}"
            callback.tb_writer.add_image(tag, np.asarray(answer.strip), step, dataformats="HWC")
    callback.tb_writer.flush()


def _markdown(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return escape(text, quote=False).replace("|", "&#124;").replace("\n", "<br>")


def wandb_table(callback: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    """A table with the frames in it."""
    wandb = callback._wandb
    columns = columns_of(answers, wandb.Image)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    wandb.log({name: wandb.Table(columns=[*columns], data=rows), "train/global_step": step})


def trackio_table(callback: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    """A table with the frames in it."""
    trackio = callback._trackio
    columns = columns_of(answers, trackio.Image)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    trackio.log({name: trackio.Table(columns=[*columns], data=rows), "train/global_step": step})


def mlflow_table(callback: Any, name: str, step: int, answers: Sequence[Answer]) -> None:
    """A table with the frames in it: one artifact, to which each evaluation adds its rows."""
    mlflow = callback._ml_flow
    columns = columns_of(answers, lambda strip: mlflow.Image(np.asarray(strip)))
    mlflow.log_table({"step": [step] * len(answers), **columns}, artifact_file=f"{name}.json")


TABLES: dict[str, Log] = {
    "TensorBoardCallback": tensorboard_table,
    "WandbCallback": wandb_table,
    "TrackioCallback": trackio_table,
    "MLflowCallback": mlflow_table,
}
"""By the name of the Trainer's callback. Other trackers get the numbers alone."""
