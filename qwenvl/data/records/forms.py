"""The forms of a row and of its ``meta``, and the draft of a record that each becomes.

The turns of a row are in its first of these keys:

    conversations   [{"from": "human", "value": "<video>..."}, {"from": "gpt", "value": ...}]
    messages        [{"role": "user", "content": text or typed parts}, ...]
    prompt          a text, or messages

Beside them are the media (``video``, ``videos``, ``image``, ``images``), and perhaps ``solution``,
``reward_model.ground_truth``, ``answer``, ``timeline``, ``completion``, ``system`` and ``meta``, which says which
frames of a clip are taken and how large they become, for example
``{"frame_cnts": [30, 45], "max_frames": 6, "dynamic_sample": true}``. Rows of ``instruction`` and ``output``, or
``query`` and ``response``, are read as two turns. ``keys`` lists all keys.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.media.source import FRAME_SUFFIXES
from qwenvl.data.records.choices import OPTION_KEYS, written_list
from qwenvl.data.records.frame_settings import (
    MediumSettings,
    Settings,
    keys_read,
    part_settings,
    row_notes,
    row_settings,
)
from qwenvl.data.records.keys import (
    ANSWERING_KEYS,
    ASKING_KEYS,
    OLDEST_FORMS,
    SYSTEM_KEYS,
    TIME_KEYS,
    TURN_KEYS,
    TURN_MEDIA_KEYS,
    Medium,
    found_medium,
    is_empty,
    is_named_like_a_medium,
    media_key,
    medium_in,
    unread_keys,
)
from qwenvl.rewards.functions.text import solution_of
from qwenvl.types import Hint, Message, Role

MAIN_KEYS = "`conversations`, `messages` or `prompt`"
MEDIA_TAG = re.compile(r"<(video|image)>")
# Tags of media as others spell them: <image1>, <image 2>, <IMAGE>, <video_1>, <img>, <|image|>, <ImageHere>.
NEARLY_A_TAG = re.compile(
    r"<(?!(?-i:video|image)>)\|?(?:video|image|img|vid)[\s_-]?(?:\d+|here|placeholder|token|pad)?\|?>", re.IGNORECASE
)
# Other libraries replace these with the content of other columns. A model here would see them as text.
PLACEHOLDERS = ("<ref-object>", "<bbox>", "<audio>")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Text that spells these out would be tokenized as media or as the end of a turn.
CONTROL_TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
)
# The roles by the names of the speakers, in the words of all trainers.
_ROLES: dict[str, Role] = {"system": "system", "human": "user", "user": "user", "gpt": "assistant"}
_ROLES |= {"assistant": "assistant", "bot": "assistant", "model": "assistant"}
# The beginning of turns that a cell holds as text, as JSON or as Python prints them: [{"role": "user", ...
_WRITTEN_TURNS = re.compile(r"[\"\s]*\[\s*\{\s*\\?[\"'](?:role|from|content|value)\\?[\"']\s*:")


@dataclass
class Draft:
    """A row in the one form that records are made of.

    Attributes:
        messages: the prompt, whose last turn is the user's.
        solution: the text that the rewards compare with.
        videos, images: (place in the row, medium as written) in the order of the tags.
        metas: for each video its ``meta``, as written.
        clip_settings, image_settings: for each video and image its settings outside of ``meta``.
        tag_settings: for each tag of the prompt, by its kind, the settings in the typed part that it stands for.
        object_settings: for each medium beside the turns, by its kind, the settings in the object that holds it.
        notes: hints from reading the row.
        numbered: the row's id is that of its clip, which several rows share: the record is numbered.
        unread: keys of the row that hold something and that nothing here reads.
    """

    messages: list[Message] = field(default_factory=list)
    solution: str = ""
    videos: list[tuple[str, Any]] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    metas: list[Any] = field(default_factory=list)
    clip_settings: list[MediumSettings] = field(default_factory=list)
    image_settings: list[MediumSettings] = field(default_factory=list)
    tag_settings: dict[str, list[Settings]] = field(default_factory=lambda: {"video": [], "image": []})
    object_settings: dict[str, list[Settings]] = field(default_factory=lambda: {"video": [], "image": []})
    notes: list[Hint] = field(default_factory=list)
    numbered: bool = False
    unread: tuple[str, ...] = ()


def draft_of(row: dict[str, Any], where: str) -> Draft:
    """The draft of a row of any of the forms.

    Raises:
        RecordError: the row has none of the main keys, a value in it is not of its form, or a key that is not read
            seems to name its medium.
    """
    read: set[str] = set()
    key = next((key for key in TURN_KEYS if key in row), None)
    if key is None:
        form, turns = _oldest_turns(row, where)
        key = form[0]
        read.update((*form, "input" if key == "instruction" else "", "history"))
    else:
        turns = row[key]
    place = f"{where}.{key}"
    if isinstance(turns, str) and _WRITTEN_TURNS.match(turns):
        turns = _read_turns(turns, place)
    # A prompt, or a message list, may be one text: the user's turn.
    if isinstance(turns, str) and key != "conversations":
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        wanted = "{'from': ..., 'value': ...} or {'role': ..., 'content': ...}"
        raise RecordError(f"{place}: expected a list of turns {wanted}, got {kind_of(turns)}")
    turns = [*turns, *_completion(row, where)]
    draft = Draft()
    draft.messages = [_message(turn, f"{place}[{i}]", draft) for i, turn in enumerate(turns)]
    draft.solution = _solution(row, where, draft.messages, place)
    _check_prompt(draft.messages, place)
    _check_placeholders(draft, place)
    system = system_turn(row, where)
    if system is not None:
        if draft.messages[0].role == "system" and draft.messages[0].text != system.text:
            raise RecordError(f"{where}: a system turn stands in `{key}` and beside it; expected one, leave one out")
        if draft.messages[0].role != "system":
            draft.messages.insert(0, system)
    _add_media(draft, row, read, where)
    _place_tags(draft, where, in_front=key != "conversations")
    draft.metas = _metas(row, len(draft.videos), where)
    draft.clip_settings = _settings_of(draft, row, "video", len(draft.videos), where)
    draft.image_settings = _settings_of(draft, row, "image", len(draft.images), where)
    if draft.videos:
        draft.notes += row_notes(row)
    draft.unread = unread_keys(row, read | keys_read(clips=bool(draft.videos), images=bool(draft.images)))
    return draft


def _read_turns(text: str, place: str) -> Any:
    """The turns that a text holds, as cells of tables do. RecordError: it is neither JSON nor as Python prints them."""
    try:
        return written_list(text, place)
    except ValueError:
        raise RecordError(f"{place}: expected turns as JSON, got {kind_of(text)}") from None


def _settings_of(draft: Draft, row: dict[str, Any], kind: str, count: int, where: str) -> list[MediumSettings]:
    """The settings of each clip or image of a row, outside of ``meta``."""
    settings_of_each = [MediumSettings(row=settings) for settings in row_settings(row, kind, count, where)]
    # Not strict: there are no objects where parts hold the media, and no tags in a prompt that gets its media in front.
    for places in (draft.object_settings[kind], draft.tag_settings[kind]):
        for each, settings in zip(settings_of_each, places, strict=False):
            each.part |= settings
    return settings_of_each


def _oldest_turns(row: dict[str, Any], where: str) -> tuple[tuple[str, str], list[Any]]:
    """The keys of question and answer, and the turns, of a row of LLaMA-Factory's or ms-swift's oldest form.

    Raises:
        RecordError: the row has no such form, nor any other.
    """
    form = next((form for form in OLDEST_FORMS if row.keys() >= set(form)), None)
    if form is None:
        raise RecordError(f"{where}: expected an object with {MAIN_KEYS}, got {_without_turns(row)}")
    question, answer = form
    text = row[question]
    if question == "instruction" and isinstance(text, str) and not is_empty(row.get("input")):
        text = f"{text}\n{row['input']}"
    history = row.get("history") or []
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        raise RecordError(f"{where}.history: expected pairs of a question and its answer, got {kind_of(history)}")
    turns = []
    for asked, answered in (*history, (text, row[answer])):
        turns.append({"role": "user", "content": asked})
        turns.append({"role": "assistant", "content": answered})
    return form, turns


def _without_turns(row: dict[str, Any]) -> str:
    """A row without turns as an error shows it, with advice."""
    if not row:
        return kind_of(row)
    found = f"the keys {', '.join(str(key)[:40] for key in row)}"
    question = next((key for key in ASKING_KEYS if key in row), None)
    times = next((key for key in TIME_KEYS if key in row), None)
    if question is not None and times is not None:
        clip = next((key for key in row if is_named_like_a_medium(key)), "NAME")
        columns = _columns({clip: "video_id", question: "sentence", times: "timestamp"})
        return f"{found}; for spans of time: --columns {columns}"
    answer = next((key for key in ANSWERING_KEYS if key in row and key != question), None)
    if question is None:
        return (
            f"{found}; the row has no question: give each row one in a column `question`, and its answer in `answer` "
            "(docs/public_sets.md has the lines of Python)"
        )
    # A question with options goes through a preset, which writes them into the prompt.
    with_options = any(key in row for key in OPTION_KEYS)
    asked, answered = ("question", "answer") if with_options else ("prompt", "solution")
    lacks = "" if answer else "the row has no answer: "
    return f"{found}; {lacks}--columns {_columns({question: asked, answer or 'NAME': answered})} renames keys"


def _columns(renamed: dict[str, str]) -> str:
    """The value of ``--columns`` that renames these keys."""
    return ",".join(f"{name}={meant}" for name, meant in renamed.items() if name != meant)


def _completion(row: dict[str, Any], where: str) -> list[Any]:
    """The turns of ``completion``, which continue the prompt."""
    completion = row.get("completion")
    if isinstance(completion, str) and _WRITTEN_TURNS.match(completion):
        completion = _read_turns(completion, f"{where}.completion")
    if isinstance(completion, str) and completion:
        return [{"role": "assistant", "content": completion}]
    if not isinstance(completion, list | str | None):
        raise RecordError(f"{where}.completion: expected a text or a list of turns, got {kind_of(completion)}")
    return list(completion or ())


def system_turn(row: dict[str, Any], where: str) -> Message | None:
    """The system turn that stands beside the turns of a row."""
    keys = [key for key in SYSTEM_KEYS if not is_empty(row.get(key))]
    if not keys:
        return None
    if len(keys) > 1:
        raise RecordError(f"{where}: the system turn is given as {' and as '.join(keys)}; expected one of them")
    place = f"{where}.{keys[0]}"
    value = row[keys[0]]
    if isinstance(value, list) and len(value) == 1:  # a text, or a typed part, in a list
        value = value[0]
    if isinstance(value, dict) and value.keys() == {"type", "text"}:
        value = value["text"]
    text = checked_text(value, place)
    return Message("system", text) if text.strip() else None


def _add_media(draft: Draft, row: dict[str, Any], read: set[str], where: str) -> None:
    """Add the media that stand beside the turns. A key of another name that certainly names them is added to ``read``.

    Raises:
        RecordError: media are in the turns too, or a key that is not read seems to name one.
    """
    beside = Draft()
    beside.videos = _media(row, "video", where, beside)
    beside.images = _media(row, "image", where, beside)
    has_none = not (beside.videos or beside.images or draft.videos or draft.images)
    found = found_medium(row, unread_keys(row, read), where) if has_none else None
    if found is not None:
        key, medium = found
        read.add(key)
        listed = _listed(row[key], key, where, medium, beside)
        if medium == "video":
            beside.videos = listed
        else:
            beside.images = listed
    if not draft.videos and not draft.images:
        draft.videos = beside.videos
        draft.images = beside.images
        draft.object_settings = beside.object_settings
        draft.notes += beside.notes
    elif beside.videos or beside.images:
        raise RecordError(f"{where}: media are given in the parts of the messages and beside them; expected one")


def _message(turn: Any, place: str, draft: Draft) -> Message:
    """A turn. Media that its typed parts hold are added to the draft."""
    if not isinstance(turn, dict):
        raise RecordError(f"{place}: expected {{'from': ..., 'value': ...}} or the like, got {kind_of(turn)}")
    speaker_key, text_key = ("from", "value") if "from" in turn else ("role", "content")
    speaker = turn.get(speaker_key)
    content = turn.get(text_key)
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise RecordError(f"{place}.{speaker_key}: expected one of {', '.join(_ROLES)}, got {kind_of(speaker)}")
    medium = _key_of_medium(turn)
    if medium is not None:  # it would be lost, and the model would be asked about nothing
        raise RecordError(
            f"{place}.{medium}: media beside the content of a turn are not read; write them as parts of the content, "
            f'such as {{"type": "video", "video": "a.mp4"}}, or beside the turns'
        )
    if _ROLES[speaker] == "assistant" and _is_data(content):
        content = json.dumps(content)  # boxes and numbers, as a `solution` of numbers is
    if isinstance(content, list) and len(content) > 1 and all(isinstance(each, str) for each in content):
        raise RecordError(
            f"{place}.{text_key}: expected one text or typed parts, got {kind_of(content)}; join the texts as they "
            "should be read"
        )
    if isinstance(content, str):
        for tag in MEDIA_TAG.findall(content):
            draft.tag_settings[tag].append({})
    if isinstance(content, list):
        texts = [_part(part, f"{place}.{text_key}[{i}]", draft) for i, part in enumerate(content)]
        content = "".join(texts)
    return Message(_ROLES[speaker], checked_text(content, f"{place}.{text_key}"))


def _is_data(content: Any) -> bool:
    """Whether the content of a turn is a number, or lists of numbers."""
    if isinstance(content, list):
        return bool(content) and all(_is_data(each) for each in content)
    return _is_number(content)


def _part(part: Any, place: str, draft: Draft) -> str:
    """The text of a typed part, or the tag of a medium. A medium within the part is added to the draft."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind is None and isinstance(part, dict):  # the older form of Qwen's own tools names no type
        kind = next((key for key in ("text", "video", "image") if part.get(key) is not None), None)
    _check_one_content(part, kind, place)
    if kind in ("text", "input_text"):
        text = checked_text(part.get("text"), f"{place}.text")
        if MEDIA_TAG.search(text):
            raise RecordError(f"{place}.text: typed parts name media by {{'type': 'video'}}, not by a tag in the text")
        return text
    if kind in ("video", "video_url", "image", "image_url"):
        medium: Medium = "video" if kind.startswith("video") else "image"
        value = _medium_of({"type": kind} | part, medium)
        if value is None:
            _check_no_other_medium(part, medium, place)
        else:
            key = next(key for key in _medium_keys(medium) if part.get(key) is not None)
            media = draft.videos if medium == "video" else draft.images
            media.append((f"{place}.{key}", value))
        draft.tag_settings[medium].append(_holder_settings(part, medium, place, draft.notes))
        return f"<{medium}>"
    raise RecordError(f"{place}: expected a part of type text, image or video, got {kind_of(part)}")


def _check_one_content(part: Any, kind: Any, place: str) -> None:
    """Check that a part is a text or a medium. RecordError: it has both, of which one would be lost."""
    if not isinstance(part, dict) or kind is None:
        return
    medium = _key_of_medium(part)
    if medium is not None and not is_empty(part.get("text")):
        raise RecordError(f"{place}: has a text and {medium}; write a part for each of them")


def _key_of_medium(turn_or_part: dict[str, Any]) -> str | None:
    """The first key that holds a medium. None: none does."""
    return next((key for key in TURN_MEDIA_KEYS if not is_empty(turn_or_part.get(key))), None)


def _check_no_other_medium(part: dict[str, Any], medium: Medium, place: str) -> None:
    """Check that a part that leaves its medium to the columns names none under a key that is not read."""
    for key, value in part.items():
        if medium_in(value) or (key != "type" and is_named_like_a_medium(key) and isinstance(value, str)):
            raise RecordError(f"{place}.{key}: the medium of a part is named by `{medium}`, `path` or `url`; rename it")


def text_problem(text: str) -> str | None:
    """Return why a text from another program cannot be part of a prompt, or None where it can.

    Example:
        >>> text_problem("So be it.<|im_end|>")
        "it holds '<|im_end|>', which the chat template alone writes"
    """
    for token in CONTROL_TOKENS:
        if token in text:
            return f"it holds {token!r}, which the chat template alone writes"
    # JSON can spell one half of a surrogate pair, which has no UTF-8: the tokenizer would fail on it.
    half = _SURROGATE.search(text)
    return half and f"it holds {half[0]!r}, which is half a character"


def checked_text(text: Any, place: str) -> str:
    """The text of a turn or part. RecordError: it is none, or ``text_problem`` names a reason."""
    if not isinstance(text, str):
        raise RecordError(f"{place}: expected a string, got {kind_of(text)}")
    problem = text_problem(text)
    if problem:
        advice = ", and write <video> or <image> where media belongs" if "<|" in problem else ""
        raise RecordError(f"{place}: {problem}; leave it out{advice}")
    return text


def _solution(row: dict[str, Any], where: str, messages: list[Message], place: str) -> str:
    """The solution as text, "" where there is none. A last assistant turn is taken off the messages.

    In ``conversations`` that turn is the solution, verbatim. Elsewhere other keys come before it.
    """
    last = messages.pop().text if messages[-1].role == "assistant" else None
    value = row.get("solution")
    model = row.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    if value in (None, []):
        value = truth
    elif isinstance(value, str) and isinstance(truth, str) and solution_of(value) != solution_of(truth):
        raise RecordError(
            f"{where}: `solution` and `ground_truth` are other ones, {kind_of(value)} and {kind_of(truth)}; keep one "
            "of the two",
            "solution",
        )
    if value == []:  # nothing, as columns of lists have it
        value = None
    if last is not None and (value is None or "conversations" in row):
        where = f"{place}[{len(messages)}]"
        own = row.get("solution")  # of two that differ, one would be lost without a word
        written = json.dumps(own) if _is_number(own) else own
        if isinstance(written, str) and solution_of(written) != solution_of(last):
            raise RecordError(
                f"{where}: the last turn is another solution than `solution`, {kind_of(last)} and {kind_of(own)}; "
                "keep one of the two",
                "solution",
            )
        value = last
    if value is None:
        value = row.get("answer")
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        if len(value) > 1:
            raise RecordError(
                f"{where}.solution: expected one text, got {kind_of(value)}; join them as an answer should have them"
            )
        value = value[0]
    if isinstance(value, float) and value.is_integer():  # of whole numbers in a column with gaps
        value = int(value)
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


def _check_placeholders(draft: Draft, place: str) -> None:
    """Refuse placeholders that other libraries replace by names, boxes or sound: here they would stay text."""
    texts = [message.text for message in draft.messages]
    for text in (*texts, draft.solution):
        for placeholder in PLACEHOLDERS:
            if placeholder in text:
                advice = "write the names and boxes themselves (docs/public_sets.md has the lines of Python)"
                if placeholder == "<audio>":
                    advice = "these models hear nothing; leave it out"
                raise RecordError(f"{place}: {placeholder} is not filled in here; {advice}", "placeholder")


def _place_tags(draft: Draft, where: str, in_front: bool) -> None:
    """Bring the tags of the prompt in line with its media.

    In a row with clips alone ``<image>`` stands for a clip, as in LLaVA-Video-178K.

    Args:
        in_front: a prompt without tags gets its media in front of the first user turn, as the models' authors have it.

    Raises:
        RecordError: the prompt has more or fewer tags than media.
    """
    tags: list[str] = []
    for message in draft.messages:
        tags += MEDIA_TAG.findall(message.text)
    counts = {"video": len(draft.videos), "image": len(draft.images)}
    if in_front and not tags and any(counts.values()):
        first = next(i for i, message in enumerate(draft.messages) if message.role == "user")
        front = "<video>" * counts["video"] + "<image>" * counts["image"]
        draft.messages[first] = Message("user", front + draft.messages[first].text)
        return
    if draft.videos and not draft.images and "video" not in tags:
        draft.messages = [Message(each.role, each.text.replace("<image>", "<video>")) for each in draft.messages]
        draft.numbered = bool(tags)
        tags = ["video"] * len(tags)
    for name, count in counts.items():
        if tags.count(name) != count:
            listed = draft.videos if name == "video" else draft.images
            key = name
            if listed:  # the key of the row, from a place such as steps.json[3].videos[0]
                place, _ = listed[0]
                key = re.split(r"[\[.]", place.removeprefix(f"{where}."))[0]
            raise RecordError(
                f"{where}: the prompt has {tags.count(name)} <{name}> tags but `{key}` names {count} files; "
                "expected one tag for each",
                "tags",
            )


def _media(row: dict[str, Any], key: Literal["video", "image"], where: str, draft: Draft) -> list[tuple[str, Any]]:
    """Each medium that a row names under a key or its plural, with its place."""
    try:
        name = media_key(row, key)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from None
    return [] if name is None else _listed(row[name], name, where, key, draft)


def _listed(value: Any, key: str, where: str, medium: Medium, draft: Draft) -> list[tuple[str, Any]]:
    """Each medium of a value, with its place. A list names several media. A clip of frames is a list within it.

    A list of pictures as the value of clips is one clip: no picture is a clip of its own. Settings that an object
    holds beside its medium, as verl's do, are added to the draft.
    """
    if medium == "video" and _is_list_of_pictures(value):
        value = [value]
    if isinstance(value, list):
        named = [(f"{where}.{key}[{i}]", each) for i, each in enumerate(value)]
    else:
        named = [(f"{where}.{key}", value)]
    for place, each in named:
        draft.object_settings[medium].append(_holder_settings(each, medium, place, draft.notes))
    return [(place, _medium_of(each, medium)) for place, each in named]


def _is_list_of_pictures(value: Any) -> bool:
    """Whether a value is a list of paths that end like pictures."""
    names = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return names and bool(value) and all(each.lower().endswith(FRAME_SUFFIXES) for each in value)


def _medium_of(part: Any, medium: Medium) -> Any:
    """The medium within an object: of a typed part, or of verl's ``{"video": "a.mp4", "fps": 2}``. Else the value."""
    if not isinstance(part, dict) or "bytes" in part:
        return part
    for key in _medium_keys(medium):
        value = part.get(key)
        if value is not None:
            return value["url"] if isinstance(value, dict) and "url" in value else value
    return None if part.get("type") else part


def _medium_keys(medium: Medium) -> tuple[str, ...]:
    """The keys that may hold the medium of an object, the first one that has a value counts."""
    return (medium, f"{medium}_url", "path", "url")


def _holder_settings(holder: Any, medium: Medium, place: str, notes: list[Hint]) -> Settings:
    """The frame settings in a typed part, or in an object in the place of a medium. A path has none."""
    if not isinstance(holder, dict):
        return {}
    settings = part_settings(holder, medium, place, notes)
    # The medium may be an object itself: {"type": "video_url", "video_url": {"url": "a.mp4", "fps": 2}}.
    key = next((key for key in _medium_keys(medium) if holder.get(key) is not None), medium)
    return _holder_settings(holder.get(key), medium, f"{place}.{key}", notes) | settings


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
