"""From rows of any known form to one form, the draft.

There are three forms. Each has a main key:

    conversations   {"conversations": [{"from": "human", "value": "<video>..."}, {"from": "gpt", "value": ...}],
                     "video": path or list, "image": path or list, "meta": {...}}
    messages        {"messages": [{"role": "user", "content": text or typed parts}, ...], "images": [...],
                     "videos": [...], "solution": ...}
    prompt          {"prompt": text or messages, "solution" | "reward_model": {"ground_truth": ...}, "images": [...],
                     "videos": [...]}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.types import Message, Role

MAIN_KEYS = "`conversations`, `messages` or `prompt`"
ROLES: dict[str, Role] = {"system": "system", "human": "user", "gpt": "assistant"}
MESSAGE_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
MEDIA_TAG = re.compile(r"<(video|image)>")
# Text that spells these out would be tokenized as media or as the end of a turn.
CONTROL_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
)
# Keys of a typed video part, by the key of `meta` that means the same.
PART_META = {
    "fps": "video_fps",
    "raw_fps": "frames_fps",
    "min_frames": "min_frames",
    "max_frames": "max_frames",
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
    "video_start": "video_start",
    "video_end": "video_end",
}

# Keys that a row may carry itself, for all its videos.
ROW_META = ("video_start", "video_end", "video_fps", "frames_fps")
# Names that others give the columns of a question and its answer.
USUAL_NAMES = {
    "prompt": ("question", "query", "instruction", "problem", "Question", "Q"),
    "solution": ("answer", "response", "output", "ground_truth", "label", "Answer", "A"),
    "video": ("video_path", "video_file", "clip"),
    "image": ("image_path", "image_file"),
}
UNREAD_SOLUTION = '; where no reward reads one, write any text, such as "-"'
# Columns that may hold lists or objects; in files without types these are written as JSON.
NESTED_COLUMNS = {"conversations", "messages", "image", "images", "video", "videos", "meta", "reward_model"}
NESTED_COLUMNS |= {"options", "choices", "candidates"}


@dataclass
class Draft:
    """A row in the one form that records are made of.

    Attributes:
        messages: the prompt, whose last turn is the user's.
        solution: the text that the rewards compare with.
        videos, images: (place in the row, medium as written) in the order of the tags.
        metas: for each video what the row says of it, as written.
    """

    messages: list[Message]
    solution: str
    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[Any] = field(default_factory=list)


def draft_of(row: dict[str, Any], where: str) -> Draft:
    """The draft of a row of any known form.

    Raises:
        RecordError: the row has none of the main keys, or a value in it is not of its form.
    """
    if "conversations" in row:
        return _from_conversations(row, where)
    if "messages" in row:
        return _from_messages(row, where, "messages")
    if "prompt" in row:
        return _from_messages(row, where, "prompt")
    raise RecordError(f"{where}: expected an object with {MAIN_KEYS}, got {kind_of(row)}{_columns_meant(row)}")


def _columns_meant(row: dict[str, Any]) -> str:
    """The flag that gives columns of usual names the names that are known here, as the end of an error."""
    found = {known: next((name for name in names if name in row), None) for known, names in USUAL_NAMES.items()}
    if found["prompt"] is None or (found["solution"] is None and "solution" not in row):
        return ""
    pairs = [f"{name}={known}" for known, name in found.items() if name is not None and known not in row]
    return f"; pass --columns {','.join(pairs)}"


def with_types(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose values are all text, with numbers, lists and objects decoded in the columns that may hold them.

    Example:
        >>> with_types({"video": '["a.mp4", "b.mp4"]', "video_start": "1.5", "solution": "2"})
        {'video': ['a.mp4', 'b.mp4'], 'video_start': 1.5, 'solution': '2'}
    """
    return {name: _cell(name, text) for name, text in row.items()}


def _cell(name: str, text: str) -> Any:
    kinds = (int, float) if name in ROW_META else (list, dict) if name in NESTED_COLUMNS else ()
    try:
        value = json.loads(text) if kinds else text
    except ValueError:  # a path, most often
        return text
    return value if isinstance(value, kinds) else text


def _from_conversations(row: dict[str, Any], where: str) -> Draft:
    place = f"{where}.conversations"
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise RecordError(f"{place}: expected a list of turns {{'from': ..., 'value': ...}}, got {kind_of(turns)}")
    messages = [_turn(turn, f"{place}[{i}]") for i, turn in enumerate(turns)]
    if messages[-1].role != "assistant":
        raise RecordError(f'{place}[{len(messages) - 1}].from: expected the last turn to be "gpt", the solution')
    solution = messages.pop().text
    if not solution.strip():
        raise RecordError(f"{place}[{len(messages)}].value: the solution is empty{UNREAD_SOLUTION}")
    check_prompt(messages, place)
    videos, images = (_media(row, key, where) for key in ("video", "image"))
    _check_tags(messages, videos, images, where, row)
    return Draft(messages, solution, videos, images, _metas(row, len(videos), where))


def _from_messages(row: dict[str, Any], where: str, key: str) -> Draft:
    place = f"{where}.{key}"
    turns = row[key]
    as_text = isinstance(turns, str)
    if as_text:
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        raise RecordError(f"{place}: expected a list of messages {{'role': ..., 'content': ...}}, got {kind_of(turns)}")
    parts = _Parts()
    messages = [_message(turn, f"{place}[{i}]", parts) for i, turn in enumerate(turns)]
    solution = _solution(row, where)
    trailing = messages.pop() if messages[-1].role == "assistant" else None
    if solution is None and trailing is None:
        raise RecordError(
            f"{where}: expected a `solution`, `reward_model.ground_truth`, or a last assistant turn that holds it"
            f"{UNREAD_SOLUTION}"
        )
    videos = _media(row, "videos" if "videos" in row else "video", where)
    images = _media(row, "images" if "images" in row else "image", where)
    if as_text and not MEDIA_TAG.search(messages[0].text):
        # A plain question beside its media: they come first, as the model's authors have it.
        tags = "<video>" * len(videos) + "<image>" * len(images)
        messages[0] = Message("user", tags + messages[0].text)
    if parts.videos or parts.images:
        if videos or images:
            raise RecordError(f"{where}: media are given in the parts of the messages and beside them; expected one")
        videos, images = parts.videos, parts.images
    check_prompt(messages, place)
    _check_tags(messages, videos, images, where, row)
    metas = _metas(row, len(videos), where)
    for i, own in enumerate(parts.metas):
        if isinstance(metas[i], dict | None):  # anything else is an error, told when it is parsed
            metas[i] = (metas[i] or {}) | own or None
    text = solution if solution is not None else trailing.text
    if not text.strip():
        raise RecordError(f"{where}: the solution is empty{UNREAD_SOLUTION}")
    return Draft(messages, text, videos, images, metas)


def check_prompt(messages: list[Message], place: str) -> None:
    """Check the order of the turns of a prompt.

    Raises:
        RecordError: a system turn is not the first, or the last turn is not the user's.
    """
    for i, message in enumerate(messages[1:], start=1):
        if message.role == "system":
            raise RecordError(f"{place}[{i}]: a system turn must be the first, this is turn {i + 1}")
    if not messages or messages[-1].role != "user":
        raise RecordError(f"{place}: expected a user turn right before the solution")


def _turn(turn: Any, place: str) -> Message:
    if not isinstance(turn, dict):
        raise RecordError(f"{place}: expected {{'from': ..., 'value': ...}}, got {kind_of(turn)}")
    speaker, text = turn.get("from"), turn.get("value")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise RecordError(f'{place}.from: expected "human" or "gpt" (or a first "system"), got {json.dumps(speaker)}')
    return Message(ROLES[speaker], _checked_text(text, f"{place}.value"))


@dataclass
class _Parts:
    """Media that were given within typed parts, and what the parts say of each clip."""

    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[dict[str, Any]] = field(default_factory=list)


def _message(turn: Any, place: str, found: _Parts) -> Message:
    if not isinstance(turn, dict):
        raise RecordError(f"{place}: expected {{'role': ..., 'content': ...}}, got {kind_of(turn)}")
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in MESSAGE_ROLES:
        raise RecordError(f"{place}.role: expected {', '.join(map(json.dumps, MESSAGE_ROLES))}, got {kind_of(role)}")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{i}]", found) for i, part in enumerate(content))
    return Message(MESSAGE_ROLES[role], _checked_text(content, f"{place}.content"))


def _part(part: Any, place: str, found: _Parts) -> str:
    """The text of a typed part, or the tag of a medium. A medium given within the part is added to ``found``."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        text = _checked_text(part.get("text"), f"{place}.text")
        if MEDIA_TAG.search(text):
            raise RecordError(f"{place}.text: typed parts name media by {{'type': 'video'}}, not by a tag in the text")
        return text
    if kind == "video":
        if part.get("video") is not None:
            found.videos.append((f"{place}.video", part["video"]))
            found.metas.append({PART_META[key]: part[key] for key in PART_META if part.get(key) is not None})
        return "<video>"
    if kind in ("image", "image_url"):
        medium = part.get(kind)
        if isinstance(medium, dict) and "url" in medium:
            medium = medium["url"]
        if medium is not None:
            found.images.append((f"{place}.{kind}", medium))
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


def _solution(row: dict[str, Any], where: str) -> str | None:
    """The solution that the row gives beside its messages, as text. None if it gives none."""
    value = row.get("solution")
    if value is None and isinstance(row.get("reward_model"), dict):
        value = row["reward_model"].get("ground_truth")
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise RecordError(f"{where}.solution: expected text or what JSON can hold, got {kind_of(value)}") from None


def _media(row: dict[str, Any], key: str, where: str) -> list[tuple[str, Any]]:
    """Each medium with its place. A list names several media. A clip that is a list of frames is a list within it."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        return [(f"{where}.{key}", value)]
    return [(f"{where}.{key}[{i}]", medium) for i, medium in enumerate(value)]


def _metas(row: dict[str, Any], n_videos: int, where: str) -> list[Any]:
    """What the row says of each video.

    ``meta`` speaks of the only video, or is a list with an entry for each. Some keys of the row itself speak of all
    videos. Without videos ``meta`` is a key like others and may hold anything.
    """
    if not n_videos:
        return []
    meta = row.get("meta")
    shared = {name: row[name] for name in ROW_META if row.get(name) is not None}
    if meta is None:
        return [shared or None] * n_videos
    if not isinstance(meta, list):
        if n_videos != 1:
            raise RecordError(
                f"{where}.meta: expected a list, one entry for each of {n_videos} videos, got {kind_of(meta)}"
            )
        return [shared | meta if isinstance(meta, dict) else meta]
    if len(meta) != n_videos:
        raise RecordError(f"{where}.meta: expected one entry per video ({n_videos}), got {len(meta)}")
    return [(shared | (one or {})) or None if isinstance(one, dict | None) else one for one in meta]


def _check_tags(messages: list[Message], videos: list[Any], images: list[Any], where: str, row: dict[str, Any]) -> None:
    """Check that the prompt has as many tags as there are media."""
    tags = [tag for message in messages for tag in MEDIA_TAG.findall(message.text)]
    for name, media in (("video", videos), ("image", images)):
        if tags.count(name) != len(media):
            plural = f"; the row has `{name}s`, did you mean `{name}`?" if f"{name}s" in row and not media else ""
            raise RecordError(
                f"{where}: the prompt has {tags.count(name)} <{name}> tags but `{name}` names {len(media)} files; "
                f"expected one tag for each{plural}",
                "tags",
            )
