"""The preset of Label Studio's full export: tasks with their annotations."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from qwenvl.data.errors import kind_of
from qwenvl.data.records.presets.asking import LABELS, NUMBER, WORDS
from qwenvl.data.records.presets.preset import Preset, Row
from qwenvl.data.records.presets.questions import question_row

QUESTION = "What does the video show?"
_PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def _label_studio(row: Row) -> Row:
    """The first annotation that counts, one marked as ground truth before others, and the clip of ``data``."""
    data = row.get("data")
    if not isinstance(data, dict):
        raise ValueError(f"data: expected an object with the clip of the task, got {kind_of(data)}")
    answer, kind = _answer(row)
    question = data.get("question") or data.get("text")
    return question_row(
        row,
        question=question if isinstance(question, str) else QUESTION,
        answer=answer,
        kind=kind,
        media=_medium(data),
        used=("data", "annotations", "predictions", "drafts"),
    )


def _answer(row: Row) -> tuple[str, str]:
    counted = [one for one in row.get("annotations") or [] if isinstance(one, dict) and not one.get("was_cancelled")]
    counted.sort(key=lambda one: not one.get("ground_truth"))  # the order stays otherwise
    for annotation in counted:
        if found := _said(annotation.get("result")):
            return found
    raise ValueError("annotations: expected one that is not cancelled and has choices, labels, text or a number")


def _said(result: Any) -> tuple[str, str] | None:
    """What the regions of an annotation say, in order of their times, and which kind of answer that is."""
    labels: list[tuple[float, str]] = []
    for region in result if isinstance(result, list) else []:
        value, kind = region.get("value") or {}, region.get("type")
        if kind in ("number", "rating") and value.get(kind) is not None:
            return str(value[kind]), NUMBER
        if kind == "textarea" and value.get("text"):
            return " ".join([value["text"]] if isinstance(value["text"], str) else value["text"]), WORDS
        named = value.get(kind) if kind in ("choices", "timelinelabels", "labels") else None
        if kind == "taxonomy":
            named = [path[-1] for path in value.get("taxonomy") or () if path]
        ranges = value.get("ranges") or [{"start": value.get("start") or 0}]
        labels += [(float(ranges[0].get("start") or 0), str(label)) for label in named or ()]
    if not labels:
        return None
    labels.sort(key=lambda label: label[0])
    return ", ".join(text for _, text in labels), LABELS


def _medium(data: Row) -> Row:
    texts = {key: value for key, value in data.items() if isinstance(value, str) and key not in ("question", "text")}
    name = next((key for key in ("video", "image", *texts) if key in texts), None)
    if name is None:
        raise ValueError(f"data: expected a clip or a picture, got {kind_of(data)}")
    path = _path(texts[name])
    is_picture = PurePosixPath(path).suffix.lower() in _PICTURES
    return {"images" if is_picture else "videos": [path]}


def _path(address: str) -> str:
    """The path of an upload (``/data/upload/1/clip.mp4``) or of local storage (``/data/local-files/?d=clip.mp4``)."""
    parts = urlsplit(address)
    if parts.path.rstrip("/").endswith("/local-files") and (local := parse_qs(parts.query).get("d")):
        return local[0].lstrip("/")
    return address.removeprefix("/data/") if address.startswith("/data/upload/") else address


LABEL_STUDIO: dict[str, Preset] = {
    "label-studio": Preset(
        "the full export of Label Studio, JSON",
        fits=lambda row: isinstance(row.get("annotations"), list) and isinstance(row.get("data"), dict),
        row=_label_studio,
    ),
}
