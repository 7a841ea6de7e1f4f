"""The forms of a row and of its ``meta``, and the draft of a record that each becomes.

The turns of a row are in its first of these keys:

    conversations   [{"from": "human", "value": "<video>..."}, {"from": "gpt", "value": ...}]
    messages        [{"role": "user", "content": text or typed parts}, ...]
    prompt          a text, or messages

Beside them are the media (``video``, ``videos``, ``image``, ``images``), and perhaps ``solution``,
``reward_model.ground_truth``, ``answer``, ``completion``, ``system`` and ``meta``, which says which frames of a clip
are taken and how large they become, for example ``{"frame_cnts": [30, 45], "max_frames": 6, "dynamic_sample": true}``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.records.frame_settings import (
    ROW_KEYS,
    ClipSettings,
    Settings,
    part_settings,
    row_notes,
    row_settings,
)
from qwenvl.types import Hint, Message, Role

_KINDS = ("video", "image")
MAIN_KEYS = "`conversations`, `messages` or `prompt`"
MEDIA_TAG = re.compile(r"<(video|image)>")
# Text that spells these out would be tokenized as media or as the end of a turn.
CONTROL_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
)
# The roles by the names of the speakers, in the words of all trainers.
_ROLES: dict[str, Role] = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
_ROLES |= {"assistant": "assistant", "bot": "assistant", "model": "assistant"}
# Columns that may hold lists or objects; in files without types these are written as JSON.
_NESTED_COLUMNS = {"conversations", "messages", "image", "images", "video", "videos", "meta", "reward_model"}
_NESTED_COLUMNS |= {"options", "choices", "candidates"}
_NUMBER_COLUMNS = ROW_KEYS - {"frame_cnts", "frame_times", "dynamic_sample"}


@dataclass
class Draft:
    """A row in the one form that records are made of.

    Attributes:
        messages: the prompt, whose last turn is the user's.
        solution: the text that the rewards compare with.
        videos, images: (place in the row, medium as written) in the order of the tags.
        metas: for each video its ``meta``, as written.
        clip_settings, image_settings: for each video and image what is said of it elsewhere.
        tag_settings: for each tag of the prompt, by its kind, what the typed part says that it stands for.
        notes: what was noticed while the row was read.
        numbered: the row's id is that of its clip, which several rows share: the record is numbered.
    """

    messages: list[Message] = field(default_factory=list)
    solution: str = ""
    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[Any] = field(default_factory=list)
    clip_settings: list[ClipSettings] = field(default_factory=list)
    image_settings: list[ClipSettings] = field(default_factory=list)
    tag_settings: dict[str, list[Settings]] = field(default_factory=lambda: {"video": [], "image": []})
    notes: list[Hint] = field(default_factory=list)
    numbered: bool = False


def draft_of(row: dict[str, Any], where: str) -> Draft:
    """The draft of a row of any of the three forms.

    Raises:
        RecordError: the row has none of the main keys, or a value in it is not of its form.
    """
    key = next((key for key in ("conversations", "messages", "prompt") if key in row), None)
    if key is None:
        advice = "; --columns question=prompt,answer=solution renames keys" if row else ""
        raise RecordError(f"{where}: expected an object with {MAIN_KEYS}, got {kind_of(row)}{advice}")
    place, turns = f"{where}.{key}", row[key]
    if isinstance(turns, str) and key != "conversations":
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        form = "{'from': ..., 'value': ...} or {'role': ..., 'content': ...}"
        raise RecordError(f"{place}: expected a list of turns {form}, got {kind_of(turns)}")
    if isinstance(row.get("completion"), list):
        turns = [*turns, *row["completion"]]
    draft = Draft()
    draft.messages = [_message(turn, f"{place}[{i}]", draft) for i, turn in enumerate(turns)]
    draft.solution = _solution(row, where, draft.messages, place)
    _check_prompt(draft.messages, place)
    if isinstance(system := row.get("system"), str) and system.strip() and draft.messages[0].role != "system":
        draft.messages.insert(0, Message("system", _checked_text(system, f"{where}.system")))
    beside = {kind: [_unpacked(*each, kind, draft.notes) for each in _media(row, kind, where)] for kind in _KINDS}
    videos = [medium.placed for medium in beside["video"]]
    images = [medium.placed for medium in beside["image"]]
    if not draft.videos and not draft.images:
        draft.videos, draft.images = videos, images
    elif videos or images:
        raise RecordError(f"{where}: media are given in the parts of the messages and beside them; expected one")
    _place_tags(draft, where, in_front=key != "conversations")
    draft.metas = _metas(row, len(draft.videos), where)
    draft.clip_settings = _settings_of(row, "video", len(draft.videos), beside["video"], draft, where)
    draft.image_settings = _settings_of(row, "image", len(draft.images), beside["image"], draft, where)
    if draft.videos:
        draft.notes += row_notes(row)
    return draft


class _Medium(NamedTuple):
    """A medium beside the turns: its place and what is written there, and the settings of an object that holds it."""

    placed: tuple[str, Any]
    settings: Settings


def _unpacked(place: str, medium: Any, kind: str, notes: list[Hint]) -> _Medium:
    """A medium, taken out of an object such as verl's ``{"video": "a.mp4", "fps": 2}``."""
    if not isinstance(medium, dict):
        return _Medium((place, medium), {})
    settings = part_settings(medium, kind, place, notes)
    if medium.get(kind) is None:  # bytes or a path, which the media are read from as they are
        return _Medium((place, medium), settings)
    return _Medium((f"{place}.{kind}", medium[kind]), settings)


def _settings_of(
    row: dict[str, Any], kind: str, count: int, beside: list[_Medium], draft: Draft, where: str
) -> list[ClipSettings]:
    """What a row says of each of its clips or images, outside of ``meta``."""
    of_row = row_settings(row, kind, count, where)
    said = [ClipSettings(row=settings) for settings in of_row]
    for each, medium in zip(said, beside, strict=False):  # no media stand beside the turns where parts hold them
        each.part |= medium.settings
    for each, settings in zip(said, draft.tag_settings[kind], strict=False):  # a prompt may be without tags
        each.part |= settings
    return said


def with_types(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose values are all text, with numbers, lists and objects decoded in the columns that may hold them.

    Example:
        >>> with_types({"video": '["a.mp4", "b.mp4"]', "video_start": "1.5", "solution": "2"})
        {'video': ['a.mp4', 'b.mp4'], 'video_start': 1.5, 'solution': '2'}
    """
    return {name: _cell(name, text) for name, text in row.items()}


def _cell(name: str, text: str) -> Any:
    kinds = (int, float) if name in _NUMBER_COLUMNS else (list, dict) if name in _NESTED_COLUMNS else ()
    try:
        value = json.loads(text) if kinds else text
    except ValueError:  # a path, most often
        return text
    return value if isinstance(value, kinds) else text


def _message(turn: Any, place: str, draft: Draft) -> Message:
    """A turn. Media that its typed parts hold are added to the draft."""
    if not isinstance(turn, dict):
        raise RecordError(f"{place}: expected {{'from': ..., 'value': ...}} or the like, got {kind_of(turn)}")
    speaker_key, text_key = ("from", "value") if "from" in turn else ("role", "content")
    speaker, content = turn.get(speaker_key), turn.get(text_key)
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise RecordError(f"{place}.{speaker_key}: expected one of {', '.join(_ROLES)}, got {kind_of(speaker)}")
    if isinstance(content, str):
        for tag in MEDIA_TAG.findall(content):
            draft.tag_settings[tag].append({})
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.{text_key}[{i}]", draft) for i, part in enumerate(content))
    return Message(_ROLES[speaker], _checked_text(content, f"{place}.{text_key}"))


def _part(part: Any, place: str, draft: Draft) -> str:
    """The text of a typed part, or the tag of a medium. A medium within the part is added to the draft."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        text = _checked_text(part.get("text"), f"{place}.text")
        if MEDIA_TAG.search(text):
            raise RecordError(f"{place}.text: typed parts name media by {{'type': 'video'}}, not by a tag in the text")
        return text
    if kind == "video":
        settings = part_settings(part, "video", place, draft.notes)
        if part.get("video") is not None:
            inner = _unpacked(f"{place}.video", part["video"], "video", draft.notes)
            draft.videos.append(inner.placed)
            settings = inner.settings | settings
        draft.tag_settings["video"].append(settings)
        return "<video>"
    if kind in ("image", "image_url"):
        draft.tag_settings["image"].append(part_settings(part, "image", place, draft.notes))
        medium = part.get(kind)
        if isinstance(medium, dict) and "url" in medium:
            medium = medium["url"]
        if medium is not None:
            draft.images.append((f"{place}.{kind}", medium))
        return "<image>"
    raise RecordError(f"{place}: expected a part of type text, image or video, got {kind_of(part)}")


def _checked_text(text: Any, place: str) -> str:
    if not isinstance(text, str):
        raise RecordError(f"{place}: expected a string, got {kind_of(text)}")
    for token in CONTROL_TOKENS:
        if token in text:
            raise RecordError(
                f"{place}: contains the model's own token {token}, which the chat template writes; leave it out, and "
                "write <video> or <image> where media belongs"
            )
    return text


def _solution(row: dict[str, Any], where: str, messages: list[Message], place: str) -> str:
    """The solution as text, "" where there is none. A last assistant turn is taken off the messages.

    In ``conversations`` that turn is the solution, verbatim. Elsewhere other keys come before it.
    """
    last = messages.pop().text if messages[-1].role == "assistant" else None
    value = row.get("solution")
    if value is None and isinstance(row.get("reward_model"), dict):
        value = row["reward_model"].get("ground_truth")
    if last is not None and (value is None or "conversations" in row):
        where, value = f"{place}[{len(messages)}]", last
    if value is None and (value := row.get("answer")) is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            message = f"{where}.solution: expected text or what JSON can hold, got {kind_of(value)}"
            raise RecordError(message) from None
    if not value.strip():
        raise RecordError(f"{where}: the solution is empty; leave it out where no reward reads one")
    return value


def _check_prompt(messages: list[Message], place: str) -> None:
    """Check that only the first turn is a system turn, and that the last one is the user's."""
    for i, message in enumerate(messages[1:], start=1):
        if message.role == "system":
            raise RecordError(f"{place}[{i}]: a system turn must be the first, this is turn {i + 1}")
    if not messages or messages[-1].role != "user":
        raise RecordError(f"{place}: expected a user turn right before the solution")


def _place_tags(draft: Draft, where: str, in_front: bool) -> None:
    """Bring the tags of the prompt in line with its media.

    In a row with clips alone ``<image>`` stands for a clip, as in LLaVA-Video-178K.

    Args:
        in_front: a prompt without tags gets its media in front of the first user turn, as the models' authors have it.

    Raises:
        RecordError: the prompt has more or fewer tags than media.
    """
    tags = [tag for message in draft.messages for tag in MEDIA_TAG.findall(message.text)]
    counts = {"video": len(draft.videos), "image": len(draft.images)}
    if in_front and not tags and any(counts.values()):
        first = next(i for i, message in enumerate(draft.messages) if message.role == "user")
        text = "".join(f"<{name}>" * count for name, count in counts.items()) + draft.messages[first].text
        draft.messages[first] = Message("user", text)
        return
    if draft.videos and not draft.images and "video" not in tags:
        draft.messages = [Message(each.role, each.text.replace("<image>", "<video>")) for each in draft.messages]
        draft.numbered, tags = bool(tags), ["video"] * len(tags)
    for name, count in counts.items():
        if tags.count(name) != count:
            raise RecordError(
                f"{where}: the prompt has {tags.count(name)} <{name}> tags but `{name}` names {count} files; "
                "expected one tag for each",
                "tags",
            )


def _media(row: dict[str, Any], key: str, where: str) -> list[tuple[str, Any]]:
    """Each medium with its place. A list names several media. A clip that is a list of frames is a list within it."""
    key = key if row.get(f"{key}s") is None else f"{key}s"
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        return [(f"{where}.{key}", value)]
    return [(f"{where}.{key}[{i}]", medium) for i, medium in enumerate(value)]


def _metas(row: dict[str, Any], n_videos: int, where: str) -> list[Any]:
    """The ``meta`` of each video, None where it has none.

    ``meta`` describes the only video, or is a list with an entry for each. Without videos it is a key like others and
    may hold anything.
    """
    if not n_videos:
        return []
    meta = row.get("meta")
    if not isinstance(meta, list):
        if meta is not None and n_videos != 1:
            raise RecordError(
                f"{where}.meta: expected a list, one entry for each of {n_videos} videos, got {kind_of(meta)}"
            )
        meta = [meta] * n_videos
    if len(meta) != n_videos:
        raise RecordError(f"{where}.meta: expected one entry per video ({n_videos}), got {len(meta)}")
    return [None if one == {} else one for one in meta]
