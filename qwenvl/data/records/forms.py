"""The forms of a row and of its ``meta``, and the draft of a record that each becomes.

The turns of a row are in its first of these keys:

    conversations   [{"from": "human", "value": "<video>..."}, {"from": "gpt", "value": ...}]
    messages        [{"role": "user", "content": text or typed parts}, ...]
    prompt          a text, or messages

Beside them are the media (``video``, ``videos``, ``image``, ``images``), and perhaps ``solution``,
``reward_model.ground_truth``, ``answer``, ``timeline``, ``completion``, ``system`` and ``meta``, which says which
frames of a clip are taken and how large they become, for example
``{"frame_cnts": [30, 45], "max_frames": 6, "dynamic_sample": true}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.types import ClipMeta, Message, Role

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
# Keys of a row that mean the same for all its videos as in ``meta``.
_SECONDS, _RATES = ("video_start", "video_end"), ("video_fps", "frames_fps")
_ROW_META = (*_SECONDS, *_RATES)
_FRAME_BOUNDS = ("min_frames", "max_frames")
_PIXEL_BOUNDS = ("min_pixels", "max_pixels")
# Keys of a typed video part, by the key of `meta` that means the same.
_PART_META = {"fps": "video_fps", "raw_fps": "frames_fps", "video_start": "video_start", "video_end": "video_end"}
_PART_META |= {key: key for key in (*_FRAME_BOUNDS, *_PIXEL_BOUNDS)}
META_KEYS = ("frame_cnts", *_FRAME_BOUNDS, "dynamic_sample", *_RATES, *_SECONDS, *_PIXEL_BOUNDS)
_NEAR = 0.85  # how like a known key another must be to be taken for a slip of the pen: frame_counts is 0.91
# Columns that may hold lists or objects; in files without types these are written as JSON.
_NESTED_COLUMNS = {"conversations", "messages", "image", "images", "video", "videos", "meta", "reward_model"}
_NESTED_COLUMNS |= {"options", "choices", "candidates", "timeline"}


@dataclass
class Draft:
    """A row in the one form that records are made of.

    Attributes:
        messages: the prompt, whose last turn is the user's.
        solution: the text that the rewards compare with.
        videos, images: (place in the row, medium as written) in the order of the tags.
        metas: for each video what the row says of it, as written.
        numbered: the row's id is that of its clip, which several rows share: the record is numbered.
    """

    messages: list[Message] = field(default_factory=list)
    solution: str = ""
    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[Any] = field(default_factory=list)
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
    videos, images = (_media(row, key, where) for key in ("video", "image"))
    if not draft.videos and not draft.images:
        draft.videos, draft.images = videos, images
    elif videos or images:
        raise RecordError(f"{where}: media are given in the parts of the messages and beside them; expected one")
    _place_tags(draft, where, in_front=key != "conversations")
    parts_meta, draft.metas = draft.metas, _metas(row, len(draft.videos), where)
    for i, own in enumerate(parts_meta):
        if isinstance(draft.metas[i], dict | None):  # anything else is an error, reported when it is parsed
            draft.metas[i] = (draft.metas[i] or {}) | own or None
    return draft


def with_types(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose values are all text, with numbers, lists and objects decoded in the columns that may hold them.

    Example:
        >>> with_types({"video": '["a.mp4", "b.mp4"]', "video_start": "1.5", "solution": "2"})
        {'video': ['a.mp4', 'b.mp4'], 'video_start': 1.5, 'solution': '2'}
    """
    return {name: _cell(name, text) for name, text in row.items()}


def _cell(name: str, text: str) -> Any:
    kinds = (int, float) if name in _ROW_META else (list, dict) if name in _NESTED_COLUMNS else ()
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
        if part.get("video") is not None:
            draft.videos.append((f"{place}.video", part["video"]))
            draft.metas.append({known: part[key] for key, known in _PART_META.items() if part.get(key) is not None})
        return "<video>"
    if kind in ("image", "image_url"):
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
    """What the row says of each video.

    ``meta`` describes the only video, or is a list with an entry for each. ``_ROW_META`` keys of the row describe all
    videos. Without videos ``meta`` is a key like others and may hold anything.
    """
    if not n_videos:
        return []
    meta = row.get("meta")
    shared = {name: row[name] for name in _ROW_META if row.get(name) is not None}
    if not isinstance(meta, list):
        if meta is not None and n_videos != 1:
            raise RecordError(
                f"{where}.meta: expected a list, one entry for each of {n_videos} videos, got {kind_of(meta)}"
            )
        meta = [meta] * n_videos
    if len(meta) != n_videos:
        raise RecordError(f"{where}.meta: expected one entry per video ({n_videos}), got {len(meta)}")
    return [(shared | (one or {})) or None if isinstance(one, dict | None) else one for one in meta]


def parse_meta(meta: Any, where: str) -> ClipMeta:
    """The ``meta`` of one clip. Keys that are not known here are left to the reward functions.

    Raises:
        RecordError: a value is not of its form, two of them contradict each other, or a key is nearly a known one.
    """
    if not isinstance(meta, dict):
        raise RecordError(f"{where}: expected an object with some of {', '.join(META_KEYS)}, got {kind_of(meta)}")
    for key in unknown_meta_keys(meta):
        if meant := _meant(str(key)):
            raise RecordError(
                f"{where}: the key {str(key)[:80]!r} is not known; did you mean {meant!r}? A key of your own needs a "
                "name that is less like it"
            )
    if not isinstance(dynamic := meta.get("dynamic_sample"), bool | None):
        raise RecordError(f"{where}.dynamic_sample: expected true or false, got {kind_of(dynamic)}")
    values: dict[str, Any] = {}
    for keys, form, allowed, kind in _NUMBERS:
        for key in keys:
            if (value := meta.get(key)) is not None:
                if not _is_number(value) or not allowed(value):
                    raise RecordError(f"{where}.{key}: expected {form}, got {kind_of(value)}")
                values[key] = kind(value)
    for low, high in (_FRAME_BOUNDS, _PIXEL_BOUNDS, _SECONDS):
        if low in values and high in values and values[low] > values[high]:
            raise RecordError(f"{where}: expected {low} <= {high}, got {values[low]} and {values[high]}")
    counts = meta.get("frame_cnts")
    if counts is not None:
        if not isinstance(counts, list) or not counts or not all(_is_number(n) and 0 < n < 1e9 for n in counts):
            raise RecordError(f"{where}.frame_cnts: expected a list of numbers above 0, got {kind_of(counts)}")
        if values.keys() & set(_SECONDS):
            message = "frame_cnts speak of the whole clip; expected no video_start and video_end beside"
            raise RecordError(f"{where}: {message}")
        counts = tuple(map(float, counts))
    return ClipMeta(counts, dynamic_sample=bool(dynamic), **values)


# Keys of ``meta`` that hold a number, what is expected there, whether a number is that, and its type in the record.
_NUMBERS: tuple[tuple[tuple[str, ...], str, Callable[[float], bool], type], ...] = (
    (_FRAME_BOUNDS, "a whole number of frames of at least 1", lambda n: 1 <= n < 1e12 and n == int(n), int),
    (_PIXEL_BOUNDS, "a whole number of pixels of at least 1", lambda n: 1 <= n < 1e12 and n == int(n), int),
    (_SECONDS, "a number of at least 0", lambda n: 0 <= n < 1e9, float),
    (_RATES, "a number above 0", lambda n: 0 < n < 1e9, float),
)


def unknown_meta_keys(meta: Mapping[str, Any]) -> list[str]:
    """The keys of a clip's ``meta`` that have no meaning here."""
    return [key for key in meta if key not in META_KEYS]


@lru_cache(maxsize=1000)
def _meant(key: str) -> str | None:
    """The known key that another is nearly, in any case and with any sign between the words."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", key).lower()
    return next(iter(get_close_matches(plain, META_KEYS, n=1, cutoff=_NEAR)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
