"""The forms of a row and of its ``meta``, and the draft of a record that each becomes.

There are three forms. Each has a main key:

    conversations   {"conversations": [{"from": "human", "value": "<video>..."}, {"from": "gpt", "value": ...}],
                     "video": path or list, "image": path or list, "meta": {...}}
    messages        {"messages": [{"role": "user", "content": text or typed parts}, ...], "images": [...],
                     "videos": [...], "solution": ...}
    prompt          {"prompt": text or messages, "solution" | "reward_model": {"ground_truth": ...}, "images": [...],
                     "videos": [...]}

``meta`` says which frames of a clip are taken and how large they become, for example
``{"frame_cnts": [30, 45], "max_frames": 6, "dynamic_sample": true}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
# The keys of a turn's speaker and text, and the roles by the names of the speakers.
_TURNS: tuple[str, str, dict[str, Role]] = ("from", "value", {"system": "system", "human": "user", "gpt": "assistant"})
_MESSAGES: tuple[str, str, dict[str, Role]] = (
    "role",
    "content",
    {"system": "system", "user": "user", "assistant": "assistant"},
)
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
_NESTED_COLUMNS |= {"options", "choices", "candidates"}


@dataclass
class Draft:
    """A row in the one form that records are made of.

    Attributes:
        messages: the prompt, whose last turn is the user's.
        solution: the text that the rewards compare with.
        videos, images: (place in the row, medium as written) in the order of the tags.
        metas: for each video what the row says of it, as written.
    """

    messages: list[Message] = field(default_factory=list)
    solution: str = ""
    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[Any] = field(default_factory=list)


def draft_of(row: dict[str, Any], where: str) -> Draft:
    """The draft of a row of any of the three forms.

    Raises:
        RecordError: the row has none of the main keys, or a value in it is not of its form.
    """
    key = next((key for key in ("conversations", "messages", "prompt") if key in row), None)
    if key is None:
        advice = "; --columns question=prompt,answer=solution renames keys" if row else ""
        raise RecordError(f"{where}: expected an object with {MAIN_KEYS}, got {kind_of(row)}{advice}")
    place, turns, is_text = f"{where}.{key}", row[key], False
    names = _TURNS if key == "conversations" else _MESSAGES
    if names is _MESSAGES and isinstance(turns, str):
        turns, is_text = [{"role": "user", "content": turns}], True
    if not isinstance(turns, list) or not turns:
        form = f"{{'{names[0]}': ..., '{names[1]}': ...}}"
        raise RecordError(f"{place}: expected a list of turns {form}, got {kind_of(turns)}")
    draft = Draft()
    draft.messages = [_message(turn, f"{place}[{i}]", names, draft) for i, turn in enumerate(turns)]
    draft.solution = _solution(row, where, draft.messages, place, names)
    keys = [key if names is _TURNS or f"{key}s" not in row else f"{key}s" for key in ("video", "image")]
    videos, images = (_media(row, key, where) for key in keys)
    if is_text and not MEDIA_TAG.search(draft.messages[0].text):
        # A plain question beside its media: they come first, as the model's authors have it.
        tags = "<video>" * len(videos) + "<image>" * len(images)
        draft.messages[0] = Message("user", tags + draft.messages[0].text)
    parts_meta = draft.metas
    if not draft.videos and not draft.images:
        draft.videos, draft.images = videos, images
    elif videos or images:
        raise RecordError(f"{where}: media are given in the parts of the messages and beside them; expected one")
    _check_prompt(draft.messages, place)
    _check_tags(draft, where, row)
    draft.metas = _metas(row, len(draft.videos), where)
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


def _message(turn: Any, place: str, names: tuple[str, str, dict[str, Role]], draft: Draft) -> Message:
    """A turn. Media that its typed parts hold are added to the draft."""
    speaker_key, text_key, roles = names
    if not isinstance(turn, dict):
        raise RecordError(f"{place}: expected {{'{speaker_key}': ..., '{text_key}': ...}}, got {kind_of(turn)}")
    speaker, content = turn.get(speaker_key), turn.get(text_key)
    if not isinstance(speaker, str) or speaker not in roles:
        expected = ", ".join(map(json.dumps, roles))
        raise RecordError(f"{place}.{speaker_key}: expected {expected}, got {kind_of(speaker)}")
    if isinstance(content, list) and names is _MESSAGES:
        content = "".join(_part(part, f"{place}.content[{i}]", draft) for i, part in enumerate(content))
    return Message(roles[speaker], _checked_text(content, f"{place}.{text_key}"))


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


def _solution(row: dict[str, Any], where: str, messages: list[Message], place: str, names: tuple) -> str:
    """The solution as text, "" where there is none. A last assistant turn is taken off the messages: it holds the
    solution where no key does.
    """
    trailing = messages.pop() if messages[-1].role == "assistant" else None
    value = None if names is _TURNS else row.get("solution")
    if value is None and names is not _TURNS and isinstance(row.get("reward_model"), dict):
        value = row["reward_model"].get("ground_truth")
    if value is None and trailing is not None:
        where, value = f"{place}[{len(messages)}]", trailing.text
    if value is None:
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


def _check_tags(draft: Draft, where: str, row: dict[str, Any]) -> None:
    """Check that the prompt has as many tags as there are media."""
    tags = [tag for message in draft.messages for tag in MEDIA_TAG.findall(message.text)]
    for name, media in (("video", draft.videos), ("image", draft.images)):
        if tags.count(name) != len(media):
            plural = f"; the row has `{name}s`, did you mean `{name}`?" if f"{name}s" in row and not media else ""
            raise RecordError(
                f"{where}: the prompt has {tags.count(name)} <{name}> tags but `{name}` names {len(media)} files; "
                f"expected one tag for each{plural}",
                "tags",
            )


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

    ``meta`` describes the only video, or is a list with an entry for each. ``_ROW_META`` keys of the row describe all
    videos. Without videos ``meta`` is a key like others and may hold anything.
    """
    if not n_videos:
        return []
    meta = row.get("meta")
    shared = {name: row[name] for name in _ROW_META if row.get(name) is not None}
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


def parse_meta(meta: Any, where: str) -> ClipMeta:
    """The ``meta`` of one clip. Keys that are not known here are left to the reward functions.

    Raises:
        RecordError: a value is not of its form, two of them contradict each other, or a key is nearly a known one.
    """
    if not isinstance(meta, dict):
        raise RecordError(f"{where}: expected an object with some of {', '.join(META_KEYS)}, got {kind_of(meta)}")
    if "spans" in meta:
        raise RecordError(
            f"{where}: spans are no longer read; expected video_start and video_end (one stretch), or clips cut to the "
            "seconds that matter"
        )
    for key in unknown_meta_keys(meta):
        if meant := _meant(str(key)):
            raise RecordError(
                f"{where}: the key {str(key)[:80]!r} is not known; did you mean {meant!r}? A key of your own needs a "
                "name that is less like it"
            )
    if not isinstance(dynamic := meta.get("dynamic_sample"), bool | None):
        raise RecordError(f"{where}.dynamic_sample: expected true or false, got {kind_of(dynamic)}")
    bounds: dict[str, Any] = {}
    for pair, unit in ((_FRAME_BOUNDS, "frames"), (_PIXEL_BOUNDS, "pixels")):
        whole = lambda value: 1 <= value < 1e12 and value == int(value)
        form = f"a whole number of {unit} of at least 1"
        bounds |= {key: None if (v := _number(meta, key, where, whole, form)) is None else int(v) for key in pair}
    positive, at_least_0 = lambda value: 0 < value < 1e9, lambda value: 0 <= value < 1e9
    seconds = {key: _number(meta, key, where, at_least_0, "a number of at least 0") for key in _SECONDS}
    rates: dict[str, Any] = {key: _number(meta, key, where, positive, "a number above 0") for key in _RATES}
    bounds |= seconds
    for low, high in (_FRAME_BOUNDS, _PIXEL_BOUNDS, _SECONDS):
        if bounds[low] is not None and bounds[high] is not None and bounds[low] > bounds[high]:
            raise RecordError(f"{where}: expected {low} <= {high}, got {bounds[low]} and {bounds[high]}")
    counts = _frame_counts(meta.get("frame_cnts"), where)
    if counts is not None and any(value is not None for value in seconds.values()):
        raise RecordError(f"{where}: frame_cnts speak of the whole clip; expected no video_start and video_end beside")
    return ClipMeta(counts, dynamic_sample=bool(dynamic), **bounds, **rates)


def unknown_meta_keys(meta: Mapping[str, Any]) -> list[str]:
    """The keys of a clip's ``meta`` that have no meaning here."""
    return [key for key in meta if key not in META_KEYS]


@lru_cache(maxsize=1000)
def _meant(key: str) -> str | None:
    """The known key that another is nearly, in any case and with any sign between the words."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s.-]+", "_", key).lower()
    return next(iter(get_close_matches(plain, META_KEYS, n=1, cutoff=_NEAR)), None)


def _number(meta: dict[str, Any], key: str, where: str, allowed: Any, form: str) -> float | None:
    value = meta.get(key)
    if value is None:
        return None
    if not _is_number(value) or not allowed(value):
        raise RecordError(f"{where}.{key}: expected {form}, got {kind_of(value)}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _frame_counts(counts: Any, where: str) -> tuple[float, ...] | None:
    if counts is None:
        return None
    if not isinstance(counts, list) or not counts:
        raise RecordError(f"{where}.frame_cnts: expected a list of frame counts, got {kind_of(counts)}")
    for i, count in enumerate(counts):
        if not _is_number(count) or not 0 < count < 1e9:
            raise RecordError(f"{where}.frame_cnts[{i}]: expected a number of frames above 0, got {kind_of(count)}")
    return tuple(float(count) for count in counts)
