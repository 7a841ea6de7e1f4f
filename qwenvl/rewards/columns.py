"""What reward functions get beside the completions: columns made of records, and which rows are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwenvl.types import Record

# Names of arguments that do not come from a record's own fields; a field of that name would hide them.
RESERVED = (
    *("completions", "prompts", "completion_ids", "finish_reasons"),
    *("image_paths", "video_paths", "opened_think", "trainer_state", "log_metric"),
)


def reward_columns(
    records: Sequence[Record], group_size: int, opened_think: Sequence[bool] | None = None, **more: list[Any]
) -> dict[str, list[Any]]:
    """The columns of N = P * G completions: each record's fields G times, with ``id``, ``solution`` and ``prompts``.

    A field that only some of the records have is None for the others. ``prompts`` are messages,
    ``[{"role": ..., "content": ...}, ...]``. ``image_paths`` and ``video_paths`` list the media in the order of their
    tags.

    Args:
        records: P.
        group_size: completions per record.
        opened_think: P, whether the prompt ends inside a think block, as those of thinking checkpoints do. None where
            no prompt does. A completion then goes on inside that block, without a ``<think>`` of its own.
        more: lists of N values besides, such as ``completion_ids`` (lists without padding) and ``finish_reasons``.
    """
    names = dict.fromkeys(name for record in records for name in record.fields)
    columns = {name: [record.fields.get(name) for record in records] for name in names}
    columns["id"] = [record.id for record in records]
    columns["solution"] = [record.solution for record in records]
    columns["prompts"] = [[{"role": m.role, "content": m.text} for m in record.messages] for record in records]
    columns["image_paths"] = [list(record.images) for record in records]
    columns["video_paths"] = [list(record.videos) for record in records]
    columns["opened_think"] = list(opened_think) if opened_think is not None else [False] * len(records)
    repeated = {name: [value for value in values for _ in range(group_size)] for name, values in columns.items()}
    return repeated | more


def field_problem(solution: str, fields: Mapping[str, Any]) -> str | None:
    """Why a record's fields cannot become columns: one hides a column of another meaning."""
    for name in RESERVED:
        if name in fields:
            return f"the field {name!r} would hide what reward functions get under that name: rename it"
    if fields.get("solution", solution) != solution:
        return "the field 'solution' differs from the last gpt turn, which is the solution: rename it"
    return None


def route_problem(route: Any, names: Sequence[str]) -> str | None:
    """Why a record's field ``reward`` does not route it: it must name functions of the run, or be missing."""
    wanted = [route] if isinstance(route, str) else route
    if wanted is None:
        return None
    if not isinstance(wanted, list) or not wanted or not all(isinstance(name, str) for name in wanted):
        return f"the field 'reward' must be the name of a reward function or a list of names, got {route!r}"
    if unknown := [name for name in wanted if name not in names]:
        return f"the field 'reward' names {unknown[0]!r}, but the run scores with {', '.join(names)}"
    return None


def is_routed(route: Any, name: str) -> bool:
    """Whether a record whose field ``reward`` is ``route`` is scored by the function ``name``."""
    return route is None or route == name or (isinstance(route, list) and name in route)


def record_name(columns: Mapping[str, list[Any]], row: int) -> str:
    """How an error names the record of a row."""
    return f"record {columns['id'][row]!r}" if "id" in columns else f"row {row}"
