"""Presets of conversations: what a question is, and what its solution, is written out in them already."""

from __future__ import annotations

from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.presets.preset import Preset, Row, list_at, media_of, rest_of, tags_of, text_at

_SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_SPEAKERS |= {"bot": "assistant", "model": "assistant"}
_TAGS = ("<video>", "<image>")


def _llava_video(row: Row) -> Row:
    """Our conversations, but that ``<image>`` stands for the clip."""
    turns = list_at(row, "conversations")
    if row.get("video") and not row.get("image"):
        turns = [_renamed_tag(turn) for turn in turns]
    return rest_of(row) | {key: row[key] for key in ("video", "image") if row.get(key)} | {"conversations": turns}


def _renamed_tag(turn: Any) -> Any:
    if isinstance(turn, dict) and isinstance(turn.get("value"), str):
        return turn | {"value": turn["value"].replace("<image>", "<video>")}
    return turn


def _videochat(row: Row) -> Row:
    """``QA`` with an instruction ``i``, a question ``q`` and an answer ``a``. The last answer is the solution."""
    turns: list[Row] = []
    for i, one in enumerate(list_at(row, "QA")):
        if not isinstance(one, dict):
            raise ValueError(f"QA[{i}]: expected an object with q and a, got {kind_of(one)}")
        said = [one.get("i"), one.get("q")]
        asked = "\n".join(text.strip() for text in said if isinstance(text, str) and text.strip())
        if not asked:
            raise ValueError(f"QA[{i}].q: expected text, got {kind_of(one.get('q'))}")
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": text_at(one, "a")}]
    media = media_of(row)
    span = {ours: row[theirs] for theirs, ours in (("start", "video_start"), ("end", "video_end")) if row.get(theirs)}
    return rest_of(row, ("QA", "start", "end")) | media | span | {"messages": _with_tags(turns, media)}


def _sharegpt(row: Row) -> Row:
    """Conversations of ``user`` and ``assistant``, under ``from`` or ``role``, with ``videos`` and ``images``."""
    turns = [_sharegpt_turn(turn, i) for i, turn in enumerate(list_at(row, "conversations"))]
    if isinstance(system := row.get("system"), str) and system.strip():
        turns.insert(0, {"role": "system", "content": system})
    media = media_of(row)
    solution = {"solution": row["solution"]} if row.get("solution") is not None else {}
    return rest_of(row, ("system",)) | media | solution | {"messages": _with_tags(turns, media)}


def _sharegpt_turn(turn: Any, i: int) -> Row:
    if not isinstance(turn, dict):
        raise ValueError(f"conversations[{i}]: expected an object with from and value, got {kind_of(turn)}")
    speaker = turn.get("from", turn.get("role"))
    if speaker not in _SPEAKERS:
        raise ValueError(f"conversations[{i}].from: expected one of {', '.join(_SPEAKERS)}, got {kind_of(speaker)}")
    return {"role": _SPEAKERS[speaker], "content": turn.get("value", turn.get("content"))}


def _trl(row: Row) -> Row:
    """Messages of plain text, with their media in columns beside and no tags for them."""
    key = "prompt" if isinstance(row.get("prompt"), list) else "messages"
    turns, media = list_at(row, key), media_of(row)
    solution = row.get("solution", row.get("answer"))
    if solution is None and isinstance(completion := row.get("completion"), list):
        turns = [*turns, *completion]
    made = {"messages": _with_tags(turns, media)} | ({} if solution is None else {"solution": solution})
    return rest_of(row, ("answer", "completion")) | media | made


def _with_tags(turns: list[Any], media: Row) -> list[Any]:
    """The turns, with the tags of the media in front of the first user turn where no turn has any."""
    texts = [turn.get("content") if isinstance(turn, dict) else None for turn in turns]
    if any(not isinstance(text, str) or any(tag in text for tag in _TAGS) for text in texts):
        return turns
    first = next((i for i, turn in enumerate(turns) if turn.get("role") == "user"), None)
    if first is None or not media:
        return turns
    return [*turns[:first], turns[first] | {"content": tags_of(media) + texts[first]}, *turns[first + 1 :]]


def _is_llava_video(row: Row) -> bool:
    return bool(row.get("video")) and not row.get("image") and "<image>" in _said(row) and "<video>" not in _said(row)


def _is_sharegpt(row: Row) -> bool:
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return False
    speakers = [turn.get("from", turn.get("role")) for turn in turns]
    ours = all("from" in turn for turn in turns) and set(speakers) <= {"human", "gpt", "system"}
    known = all(speaker in _SPEAKERS for speaker in speakers)
    return known and (not ours or bool({"videos", "images", "system"} & set(row)))


def _is_trl(row: Row) -> bool:
    turns = row.get("prompt", row.get("messages"))
    plain = isinstance(turns, list) and all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in turns)
    return plain and bool(media_of(row)) and not any(tag in turn["content"] for turn in turns for tag in _TAGS)


def _said(row: Row) -> str:
    turns = row.get("conversations")
    values = [turn.get("value") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return "\n".join(value for value in values if isinstance(value, str))


CHATS: dict[str, Preset] = {
    "llava-video": Preset(
        "LLaVA-Video-178K and files like it",
        fits=_is_llava_video,
        row=_llava_video,
        rewards=("rouge", "multiple_choice"),
    ),
    "videochat": Preset(
        "VideoChat2-IT", fits=lambda row: isinstance(row.get("QA"), list), row=_videochat, rewards=("rouge",)
    ),
    "sharegpt": Preset("LLaMA-Factory, ms-swift", fits=_is_sharegpt, row=_sharegpt, rewards=("accuracy",)),
    "trl": Preset("TRL", fits=_is_trl, row=_trl, rewards=("accuracy",)),
}
