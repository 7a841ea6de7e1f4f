"""What reward functions are called with: completions, columns of records, and the signatures of TRL and verl."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qwenvl.types import Record

# Names of arguments that do not come from a record's own fields; a field of that name would hide them.
RESERVED = (
    *("completions", "prompts", "completion_ids", "finish_reasons"),
    *("image_paths", "video_paths", "opened_think", "turns", "trainer_state", "log_metric"),
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
            no prompt does. A completion then continues that block, without a ``<think>`` of its own.
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


class Completion(str):
    """A string that can also be read as a conversation of one message.

    TRL gives reward functions either strings or, for chat prompts, lists of one message, and functions written for the
    latter say ``completion[0]["content"]``. Both ways of reading work here, so that such functions run unchanged:

        >>> Completion("four")[0]["content"], Completion("four")[0], Completion("four")[1:]
        ('four', 'f', 'our')
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        if key == 0 or key == -1:
            return _End(self, str(self)[key : key + 1 or None])
        return super().__getitem__(key)


class _End(str):
    """The first or last character of a completion, which also answers ``["content"]`` and ``["role"]``."""

    __slots__ = ("message",)
    message: dict[str, str]

    def __new__(cls, text: str, character: str) -> _End:
        end = super().__new__(cls, character)
        end.message = {"role": "assistant", "content": str(text)}
        return end

    def __getitem__(self, key: Any) -> str:
        return self.message[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.message.get(key, default)

    def __reduce__(self):
        return str, (str(self),)


def adapt_verl(compute_score: Callable[..., Any]) -> Callable[..., list[float | None]]:
    """Make verl's ``compute_score(data_source, solution_str, ground_truth, extra_info)`` a reward function.

    It is called once for each completion: ``data_source`` and ``extra_info`` are the record's fields of these names
    (None and {} without), ``solution_str`` is the completion, ``ground_truth`` is the field ``ground_truth``, else the
    one inside the field ``reward_model`` as verl's data has it, else the solution. It returns a number or a dict with
    ``score``. The dict's other numbers become metrics.

    Example:
        >>> def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        ...     return {"score": float(solution_str == ground_truth), "length": len(solution_str)}
        >>> adapt_verl(compute_score)(["4", "five"], solution=["4", "4"])
        [1.0, 0.0]
    """

    def reward(
        completions: list[str],
        solution: list[str],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        scores: list[float | None] = []
        for row, (text, truth) in enumerate(zip(completions, solution, strict=True)):
            fields = {name: values[row] for name, values in columns.items() if isinstance(values, list)}
            result = compute_score(
                data_source=fields.get("data_source"),
                solution_str=str(text),
                ground_truth=_ground_truth(fields, truth),
                extra_info=fields.get("extra_info") or {},
            )
            if isinstance(result, Mapping):
                for name, value in result.items():
                    if log_metric and name != "score" and hasattr(value, "__float__"):
                        log_metric(name, float(value))
                result = result["score"]
            scores.append(result)
        return scores

    reward.__name__ = getattr(compute_score, "__name__", "compute_score")
    return reward


def _ground_truth(fields: Mapping[str, Any], solution: str) -> Any:
    if fields.get("ground_truth") is not None:
        return fields["ground_truth"]
    nested = fields.get("reward_model")
    return nested["ground_truth"] if isinstance(nested, Mapping) and "ground_truth" in nested else solution
