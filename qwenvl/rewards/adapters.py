"""Adapters for reward functions that were written for other libraries: TRL (and ms-swift) and verl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


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
                        log_metric(f"{reward.__name__}/{name}", float(value))
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
