"""Reads tasks of Label Studio's "JSON" export: their clip or picture, the annotations that count, and their answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote

from qwenvl.data.errors import kind_of
from qwenvl.data.media.source import FRAME_SUFFIXES
from qwenvl.data.records.keys import CLIP_ENDINGS

Values = Mapping[str, Any]

_MEDIA_KEYS = ("video", "image")
_QUESTION_KEYS = ("question", "text")
_PICTURES = {*FRAME_SUFFIXES, ".gif"}
_MEDIA_ENDINGS = {*CLIP_ENDINGS, *_PICTURES}
_LABELLING = ("choices", "timelinelabels", "labels", "taxonomy")
_NUMBERS = ("number", "rating")
_COMMENT = "textarea"
_NO_LABELS = {"relation", "None"}  # arrows between regions, and regions that are damaged


@dataclass(frozen=True)
class TaskAnswer:
    """What an annotation says: labels in the order of their times, a number, or text."""

    kind: Literal["labels", "number", "text"]
    text: str


def counting_annotations(task: Values) -> list[Values]:
    """The annotations of a task that are not cancelled; only those marked as ground truth, if there are any.

    Raises:
        ValueError: for a task without a list of annotations.
    """
    annotations = task.get("annotations")
    if not isinstance(annotations, list) or not all(isinstance(each, dict) for each in annotations):
        raise ValueError(f"annotations: expected the list of annotations of the task, got {kind_of(annotations)}")
    finished: list[Values] = [each for each in annotations if not each.get("was_cancelled")]
    return [each for each in finished if each.get("ground_truth")] or finished


def answer_of_task(task: Values) -> tuple[TaskAnswer, bool]:
    """The answer of a task, and whether more stands beside its labels, such as a comment or a box.

    Raises:
        ValueError: for no answer, for annotations that differ in it, and for answers of several controls.
    """
    counting = counting_annotations(task)
    try:
        answers = [_answer_in(each.get("result")) for each in counting]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError(f"annotations: expected them as Label Studio exports them, got {kind_of(counting)}") from None
    said = {answer for answer, _ in answers}
    if not said - {None}:
        raise ValueError("annotations: expected one that is not cancelled and has choices, labels, text or a number")
    if len(said) > 1:
        raise ValueError(
            f"annotations: has {len(answers)} with different answers; keep one, or mark one as ground truth"
        )
    [answer] = said
    assert answer is not None
    return answer, any(has_more for _, has_more in answers)


def _answer_in(result: Any) -> tuple[TaskAnswer | None, bool]:
    """The answer in the regions of an annotation, and whether other regions stand beside its labels."""
    regions = [each for each in result if isinstance(each, dict)] if isinstance(result, list) else []
    answering = [each for each in regions if each.get("type") in (*_LABELLING, *_NUMBERS, _COMMENT)]
    labelling = [each for each in answering if each["type"] != _COMMENT]
    others = sorted({str(each.get("type")) for each in regions if each not in answering} - _NO_LABELS)
    has_more = bool(labelling) and (len(labelling) < len(answering) or bool(others))
    if others and not labelling:  # a comment on them is not the answer
        raise ValueError(
            f"annotations: has regions of a kind that is not read ({', '.join(others)}); expected choices, labels, "
            "text or a number"
        )
    of_control: dict[str, list[Values]] = {}
    for region in labelling or answering:
        of_control.setdefault(str(region.get("from_name") or region["type"]), []).append(region)
    if len(of_control) > 1:
        raise ValueError(
            f"annotations: has answers to several questions ({', '.join(of_control)}); expected a task for each"
        )
    if not of_control:
        return None, False
    [regions_of_one] = of_control.values()
    return _answer_to_one(regions_of_one), has_more


def _answer_to_one(regions: Sequence[Values]) -> TaskAnswer | None:
    """The answer in the regions of one control of the page, in the order of their times."""
    ordered = sorted(regions, key=lambda region: _starts_of(region)[0])  # the order stays where there are no times
    kind = ordered[0]["type"]
    if kind in _NUMBERS:
        numbers = {str(each["value"][kind]) for each in ordered if _value_of(each).get(kind) is not None}
        if len(numbers) > 1:
            raise ValueError(f"annotations: expected one {kind}, got {', '.join(sorted(numbers))}")
        return TaskAnswer("number", *numbers) if numbers else None
    if kind == _COMMENT:
        text = " ".join(part for each in ordered for part in _texts(_value_of(each).get("text")))
        return TaskAnswer("text", text) if text else None
    labels = []
    for region in ordered:
        named = _labels_of(region)
        if not named and len(ordered) > 1:
            raise ValueError("annotations: a region has no label; label it or delete it")
        labels += [(start, label) for start in _starts_of(region) for label in named]
    labels.sort(key=lambda each: each[0])
    if any(re.search(r"[,;\n]", label) for _, label in labels):
        raise ValueError("annotations: a label has a comma or a semicolon, which stand between labels; rename it")
    return TaskAnswer("labels", ", ".join(label for _, label in labels)) if labels else None


def _value_of(region: Values) -> Values:
    value = region.get("value")
    return value if isinstance(value, dict) else {}


def _starts_of(region: Values) -> list[float]:
    """The times or frames at which the spans of a region start, 0 for one of the whole task."""
    value = _value_of(region)
    ranges = value.get("ranges") or [{"start": value.get("start") or 0}]
    return [float(each.get("start") or 0) for each in ranges]


def _labels_of(region: Values) -> list[str]:
    named = _value_of(region).get(region["type"]) or ()
    if region["type"] == "taxonomy":
        named = [" / ".join(map(str, path)) for path in named if path]
    return [str(label) for label in named]


def _texts(text: Any) -> list[str]:
    return [text] if isinstance(text, str) else list(text or ())


def medium_of(data: Values) -> tuple[Literal["videos", "images"], str]:
    """The key of our rows and the path of the one clip or picture of a task.

    Raises:
        ValueError: for none, and for several.
    """
    media = _media_of(data)
    if not media:
        raise ValueError(f"data: expected a clip or a picture, got {kind_of(data)}")
    if len(set(media.values())) > 1:
        raise ValueError(f"data: has several media ({', '.join(media)}); expected one clip or picture in a task")
    path = next(iter(media.values()))
    return "images" if _ending(path) in _PICTURES else "videos", path


def other_values(data: Values) -> dict[str, Any]:
    """What the data of a task has beside its clip or picture and its question."""
    media = _media_of(data)
    return {key: value for key, value in data.items() if key not in media and key not in _QUESTION_KEYS}


def _media_of(data: Values) -> dict[str, str]:
    """The paths of the clips and pictures of a task, by their keys."""
    texts = {key: value for key, value in data.items() if isinstance(value, str) and key not in _QUESTION_KEYS}
    paths = {key: _stored_path(text) for key, text in texts.items() if text}
    media = {key: path for key, path in paths.items() if key in _MEDIA_KEYS or _ending(path) in _MEDIA_ENDINGS}
    if not media and len(paths) == 1:  # its ending is not there
        return paths
    return media


def _ending(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _stored_path(address: str) -> str:
    """The path of an upload (``/data/upload/1/clip.mp4``) or of local storage (``/data/local-files/?d=clip.mp4``)."""
    local = local_file(address)
    if local is not None:
        return local.lstrip("/")
    return unquote(address.removeprefix("/data/")) if address.startswith("/data/upload/") else address


def local_file(address: str) -> str | None:
    """The path in an address of local storage, ``/data/local-files/?d=station/clip.mp4``. None for other addresses.

    Names may hold ``#``, ``&`` and ``+``, which Label Studio writes as they are or quoted.

    Example:
        >>> local_file("http://box/data/local-files/?d=a%20b/c+%231#2.mp4")
        'a b/c+#1#2.mp4'
    """
    _, is_local, path = address.partition("/local-files/?d=")
    return unquote(path) if is_local else None
