"""Lists the keys of a row that are read, and finds keys that name a clip or a picture though they are not read.

The tables here are the only place that lists keys. A key with a value that no table, preset or reward names is reported
with its count, by ``qwenvl data check`` and at the start of training.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.media.source import FRAME_SUFFIXES, VIDEO_SUFFIXES
from qwenvl.files import is_address

# Keys of our own forms. Of the turns, the first that a row has is read.
TURN_KEYS = ("conversations", "messages", "prompt")
MEDIA_KEYS = ("video", "videos", "image", "images")
# Keys that name a medium in a turn or in one of its typed parts.
TURN_MEDIA_KEYS = (*MEDIA_KEYS, "video_url", "image_url")
SOLUTION_KEYS = ("solution", "reward_model", "answer", "completion", "timeline")
SYSTEM_KEYS = ("system", "system_prompt", "system_message")
# Settings of the frames of all clips of a row, which mean the same as in ``meta``.
FRAME_KEYS = ("video_start", "video_end", "video_fps", "frames_fps")
READ_KEYS = frozenset(("id", "meta", *TURN_KEYS, *MEDIA_KEYS, *SOLUTION_KEYS, *SYSTEM_KEYS, *FRAME_KEYS))
# Fields that parts of a run read whatever its rewards are: the routing of rewards, a warm-up, looks.
FIELDS_OF_A_RUN = frozenset(("reward", "thinking", "evidence"))

# The key of the question and of the answer in the oldest forms of other trainers, beside a `history` of earlier turns.
OLDEST_FORMS = (("instruction", "output"), ("query", "response"))

# Keys that ask, answer or hold times in files of others, in the order in which the advice of an error looks for them.
ASKING_KEYS = ("question", "problem", "query", "instruction", "input", "text", "sentence", "caption")
ANSWERING_KEYS = (
    "answer",
    "solution",
    "label",
    "response",
    "output",
    "ground_truth",
    "target",
    "caption",
    "correct_answer",
    "correctAnswer",
    "correct",
    "gt",
    "gold",
    "answer_idx",
    "answer_id",
)
TIME_KEYS = ("timestamp", "timestamps", "relevant_windows", "windows", "span", "spans", "segment", "segments")

# Advice on unread keys that mean something in other libraries.
ADVICE = {
    "chat_template_kwargs": "--chat_template_kwargs sets it for all rows",
    "enable_thinking": "--chat_template_kwargs sets it for all rows",
    "tools": "--tools offers tools to all rows",
    "history": "write earlier turns into `messages`",
    "objects": "write names and boxes into the text: docs/public_sets.md has the lines of Python",
}

Medium = Literal["video", "image"]
MEDIA_KEY = "media key"
"""The kind of the error about a key that seems to name the row's clip or picture."""
CLIP_ENDINGS = (*VIDEO_SUFFIXES, ".gif")
_ENDINGS: dict[str, Medium] = {**dict.fromkeys(CLIP_ENDINGS, "video"), **dict.fromkeys(FRAME_SUFFIXES, "image")}

_OTHER_ENDINGS = {".txt", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".html", ".pdf", ".md", ".py", ".srt", ".vtt"}
_OTHER_ENDINGS |= {".wav", ".mp3", ".npy", ".npz", ".pt", ".pkl", ".h5", ".parquet"}

# A key is named like a medium if it is one of the nouns, or a noun with qualifiers: video_path, clip_uid, rel_img_file.
_NOUNS = {"video", "clip", "vid", "movie", "film", "youtube", "yt", "image", "img", "picture", "photo", "pic", "media"}
_NOUNS |= {"file", "filename", "filepath", "path", "visual", "frame", *(ending[1:] for ending in _ENDINGS)}
_QUALIFIERS = {"path", "file", "filename", "filepath", "name", "uid", "id", "url", "uri", "link", "dir", "folder"}
_QUALIFIERS |= {"src", "source", "local", "rel", "relative", "abs", "absolute", "full", "original", "input", "raw"}
_QUALIFIERS |= {"list", "idx"}


def unread_keys(row: Mapping[str, Any], read: Collection[str] = ()) -> tuple[str, ...]:
    """The keys of a row in one of our forms that hold a value and that its form does not read.

    Args:
        read: further keys that were read.

    Example:
        >>> unread_keys({"prompt": "Which?", "solution": "a", "answer": "b", "level": 3, "note": None})
        ('answer', 'level')
    """
    overruled = _overruled(row)
    unread: list[str] = []
    if "timeline" in row:
        read = {*read, "duration"}  # spans beyond it are refused
    for key, value in row.items():
        form_reads = key in READ_KEYS and key not in overruled
        if not form_reads and key not in read and not is_empty(value):
            unread.append(key)
    return tuple(unread)


def is_empty(value: Any) -> bool:
    """Whether a value holds nothing. Tables give every row every column."""
    return value is None or (isinstance(value, str | bytes | list | tuple | dict) and not value)


def media_key(row: Mapping[str, Any], one: Medium) -> str | None:
    """The key that holds the media of a row of a kind: its name or the plural. None: neither holds any.

    Raises:
        ValueError: both do, and not the same ones.
    """
    several = f"{one}s"
    filled = [key for key in (several, one) if not is_empty(row.get(key))]
    if len(filled) > 1 and _as_list(row[one]) != _as_list(row[several]):
        raise ValueError(f"`{one}` and `{several}` hold different media; keep one of the two")
    return filled[0] if filled else None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _overruled(row: Mapping[str, Any]) -> set[str]:
    """Known keys of a row that another of its keys stands in for, in the order of ``forms``."""
    turns = [key for key in TURN_KEYS if key in row]
    # The places of a solution, the first of which counts.
    golds: list[str] = []
    if not is_empty(row.get("solution")):
        golds.append("solution")
    reward_model = row.get("reward_model")
    if isinstance(reward_model, Mapping) and reward_model.get("ground_truth") is not None:
        golds.append("reward_model")
    if turns and _ends_with_an_answer(row[turns[0]], row.get("completion")):
        place = 0 if turns[0] == "conversations" else len(golds)  # of conversations the last turn counts first
        golds.insert(place, "the last turn")
    if not is_empty(row.get("answer")):
        golds.append("answer")
    return {*turns[1:], *golds[1:]}


def _ends_with_an_answer(turns: Any, completion: Any) -> bool:
    """Whether the last turn of a row is the model's, which then is its solution."""
    if isinstance(completion, list | str) and completion:
        return True
    last = turns[-1] if isinstance(turns, list) and turns else None
    speaker = last.get("from", last.get("role")) if isinstance(last, Mapping) else None
    return speaker in ("assistant", "gpt", "bot", "model")


# ---- keys that seem to name a medium


def is_named_like_a_medium(key: str) -> bool:
    """Whether a key is named like the clip or the picture of a row.

    Example:
        >>> [is_named_like_a_medium(key) for key in ("videoID", "rel_clip_paths", "vid", "video_length")]
        [True, True, True, False]
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.-]+", "_", key).lower().strip("_").split("_")
    singular = [word if word in _NOUNS | _QUALIFIERS else word.removesuffix("s") for word in words]
    return any(word in _NOUNS for word in singular) and all(word in _NOUNS | _QUALIFIERS for word in singular)


def medium_in(value: Any) -> Medium | None:
    """The kind of medium that a value names by its ending: a path, a list of paths, or an object that holds one.

    Example:
        >>> medium_in("a/b.MP4"), medium_in([["1.jpg", "2.jpg"]]), medium_in({"path": "a.mkv"}), medium_in("left")
        ('video', 'image', 'video', None)
    """
    if isinstance(value, Mapping):
        named = [medium_in(value.get(key)) for key in ("path", "url", "video", "image")]
        return next(filter(None, named), None)
    if isinstance(value, list | tuple):
        media = {medium_in(each) for each in value}
        return media.pop() if len(media) == 1 else None
    if not isinstance(value, str) or len(value) > 4096 or "\n" in value:
        return None
    if value.startswith(("data:video/", "data:image/")):
        return "video" if value.startswith("data:video/") else "image"
    return _ENDINGS.get(PurePosixPath(value.split("?")[0].strip()).suffix.lower())


def found_medium(row: Mapping[str, Any], unread: Collection[str], where: str) -> tuple[str, Medium] | None:
    """The key that names the medium of a row which has none under our own keys, and the kind of this medium.

    A key is read if it is named like a medium and its value ends like one, and no other such key has another value.

    Args:
        unread: the keys of the row that nothing else reads.

    Raises:
        RecordError: a key seems to name a medium, and its meaning is not certain.
    """
    named = [key for key in unread if is_named_like_a_medium(key) and _may_be_a_medium(row[key])]
    # The pictures of a key such as `frames` may be one clip or pictures of their own, and nothing tells.
    certain = [key for key in named if medium_in(row[key]) and "frame" not in key.lower()]
    if certain and all(row[key] == row[certain[0]] for key in certain):
        medium = medium_in(row[certain[0]])
        assert medium is not None
        return certain[0], medium
    if certain:
        keys = " and ".join(f"`{key}`" for key in certain)
        raise RecordError(
            f"{where}: {keys} each name a medium, and the row has no `video` or `image`; say which it is, such as "
            f"--columns {certain[0]}={medium_in(row[certain[0]])}",
            MEDIA_KEY,
        )
    if named:
        raise RecordError(f"{where}.{named[0]}: {_seems_a_medium(named[0], row[named[0]])}", MEDIA_KEY)
    for key in unread:
        for place, text in _texts_in(row[key], key):
            if medium_in(text):
                raise RecordError(f"{where}.{place}: {_seems_a_medium(place, text)}", MEDIA_KEY)
    return None


def _may_be_a_medium(value: Any) -> bool:
    """Whether the value of a key that is named like a medium may be one: notes.txt is none."""
    if not isinstance(value, str):
        return isinstance(value, bytes | list | dict)
    ending = PurePosixPath(value.strip()).suffix.lower()
    return ending not in _OTHER_ENDINGS


def _seems_a_medium(place: str, value: Any) -> str:
    """The message about a value that seems to name a medium, with advice."""
    medium = medium_in(value) or ("image" if re.search("im(age|g)|pic|photo", place) else "video")
    if isinstance(value, str) and is_address(value):
        advice = f"download it, and name the copy in `{medium}`"
    elif "frame" in place.lower():
        advice = f"--columns {place}=video reads a list of pictures as one clip, --columns {place}=images as pictures"
    elif re.fullmatch(r"\w+", place):
        advice = f"--columns {place}={medium} says so (an id without its ending is searched on the disk)"
    else:
        advice = f"copy it to a key `{medium}` of the row"
    return (
        f"seems to name a clip or picture, {kind_of(value)}, and the row has none: it would be a row of text alone. "
        f"{advice}; leave the key out of a row that is meant without media"
    )


def _texts_in(value: Any, place: str, depth: int = 3) -> Iterator[tuple[str, str]]:
    """The texts within a value, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif depth and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts_in(inner, f"{place}.{key}", depth - 1)
    elif depth and isinstance(value, list | tuple):
        for i, inner in enumerate(value[:8]):  # long lists hold more of the same
            yield from _texts_in(inner, f"{place}[{i}]", depth - 1)
