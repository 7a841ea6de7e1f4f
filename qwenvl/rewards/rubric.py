"""The rubric: reward functions with weights, run on completions and summed."""

from __future__ import annotations

import logging
import math
import sysconfig
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qwenvl.rewards.columns import Completion, field_problem, is_routed, record_name, route_problem
from qwenvl.rewards.function import RewardError, RewardFunction, Unfinished
from qwenvl.rewards.guard import Call, Runner
from qwenvl.rewards.options import Aggregation, OnError
from qwenvl.types import Record, RewardBatch

logger = logging.getLogger(__name__)

Values = list[float | None]

# With on_error "skip": the share of failed rows at which a run stops, over how many rows it is taken, and over how many
# at least, so that one failure on the first step is not all of them.
SKIP_LIMIT, SKIP_WINDOW, SKIP_LEAST = 0.05, 1000, 100
LARGEST = 1e30  # a weighted sum of several such values is finite in float32

_NOT_OF_USERS = ("<", str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib")))

OWN = frozenset(
    {"step", "epoch", "loss", "grad_norm", "learning_rate", "kl", "entropy", "total_flos", "num_input_tokens_seen"}
)
"""Columns of ``metrics.jsonl`` that the run writes."""
OWN_FAMILIES = (
    *("group/", "completion/", "prompt/", "time/", "memory/", "data/", "dataset/", "loss/", "ratio/"),
    *("parity/", "filter/", "difficulty/"),
    *("nonfinite/", "eval_", "train_"),
)
"""Beginnings of the names of its other columns. Of ``reward/`` only some names are taken."""
OWN_REWARDS = ("total", "std", "max", "temporal_contrast")
"""What the run logs as ``reward/NAME`` beside the reward functions, none of which can have one of these names."""


class Logged:
    """The numbers that functions log by ``log_metric``, averaged by name.

    Args:
        functions: names of the reward functions, whose values the run logs itself.
    """

    def __init__(self, functions: Iterable[str]) -> None:
        ends = ("", "/skipped", "/unfinished")
        self._rewards = {f"reward/{name}{end}" for name in (*OWN_REWARDS, *functions) for end in ends}
        self._values: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, value: float) -> None:
        """Log one number.

        Raises:
            ValueError: the run writes a column of this name itself.
        """
        name = str(name)
        if name in OWN or name in self._rewards or name.startswith(OWN_FAMILIES):
            raise ValueError(f"log_metric({name!r}, ...): the run logs a column of that name itself; log another name")
        self._values[name].append(float(value))

    def __deepcopy__(self, memo: dict) -> Logged:
        """Functions get copies of their arguments, but all log here."""
        return self

    def means(self) -> dict[str, float]:
        """The mean of the values logged under each name."""
        return {name: math.fsum(values) / len(values) for name, values in self._values.items()}


class Rubric:
    """Scores completions with K functions and weighs them.

    Args:
        functions: K, with names that differ.
        weights: K finite numbers.
        aggregation: ``sum`` adds weight * value. ``normalize_then_sum`` first centres each function's values on the
            group's mean and divides them by its standard deviation (n-1) + 1e-4, so that a function with a wide range
            does not drown the others.
        on_error: ``error`` stops at the first row that a function fails on. ``skip`` makes the value None, counts it,
            and stops when a function fails on more than 5 % of its last 1,000 rows (of 100 early on). A row that is
            left without any value has no reward: its total is NaN.
        timeout: seconds for one call of a function. None sets no limit.
        workers: processes in which functions that say ``cpu_heavy`` run, one completion at a time. With 0 they run in
            this process.

    Example:
        >>> def short(completions, **columns):
        ...     return [1.0 if len(text) < 10 else 0.0 for text in completions]
        >>> rubric = Rubric([RewardFunction("short", short)], [0.5])
        >>> rubric.score(["yes", "as I have said before"], {}).total.tolist()
        [0.5, 0.0]
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        weights: Sequence[float],
        *,
        aggregation: Aggregation = "sum",
        on_error: OnError = "error",
        timeout: float | None = None,
        workers: int = 0,
    ) -> None:
        self.functions = tuple(functions)
        self.names = tuple(function.name for function in functions)
        self.weights = tuple(float(weight) for weight in weights)
        if not functions:
            raise RewardError("no reward function: name at least one")
        if len(weights) != len(functions):
            raise RewardError(f"{len(weights)} reward weights for {len(functions)} functions: {', '.join(self.names)}")
        if repeated := [name for name in self.names if self.names.count(name) > 1]:
            raise RewardError(f'two reward functions are named "{repeated[0]}": rename one')
        if taken := [name for name in self.names if name in OWN_REWARDS]:
            raise RewardError(
                f'a reward function is named "{taken[0]}", and the run\'s own metric reward/{taken[0]} has this name: '
                'rename it, or name it in a plugin by @reward("another_name")'
            )
        if not all(math.isfinite(weight) for weight in self.weights):
            raise RewardError(f"reward weights must be finite numbers, got {self.weights}")
        self._aggregation, self._on_error = aggregation, on_error
        self._runner = Runner(timeout, workers)
        self._skipped: Counter[str] = Counter()
        self._unfinished: Counter[str] = Counter()
        self._recent_failures: dict[str, deque[bool]] = {name: deque(maxlen=SKIP_WINDOW) for name in self.names}

    def score(
        self,
        completions: Sequence[str],
        columns: Mapping[str, list[Any]],
        *,
        group_size: int | None = None,
        trainer_state: Any = None,
    ) -> RewardBatch:
        """Score N completions.

        Args:
            completions: N texts.
            columns: lists of N values, from ``reward_columns``. Column ``reward``, where a record has it, names the
                functions that score the row.
            group_size: completions per prompt. None where rows are no groups (evaluation): values are then summed as
                they are, whatever the aggregation.
            trainer_state: an argument of functions that name it.

        Raises:
            RewardError: naming the function, the record and the completion. See the class.
        """
        import torch

        for row, route in enumerate(columns.get("reward", ())):
            if problem := route_problem(route, self.names):
                raise RewardError(f"{record_name(columns, row)}: {problem}")
        components, metrics, unfinished = self._run(completions, columns, trainer_state)
        if self._on_error == "skip":
            metrics |= {f"reward/{name}/skipped": float(self._skipped[name]) for name in self.names}
        metrics |= {f"reward/{name}/unfinished": float(count) for name, count in self._unfinished.items()}

        weighted = components
        if self._aggregation == "normalize_then_sum" and group_size is not None:
            weighted = [normalized(values, group_size) for values in components]
        totals = weighted_sums(weighted, self.weights)
        for row, total in enumerate(totals):
            if total is None and self._on_error == "error" and row not in unfinished:
                raise RewardError(
                    f"{record_name(columns, row)}: no reward function scored it; each record needs at least one of "
                    f"{', '.join(self.names)}{_shown(completions[row])}"
                )
        total = torch.tensor([math.nan if total is None else total for total in totals], dtype=torch.float32)
        return RewardBatch(self.names, self.weights, components, total, metrics)

    def values(
        self, completions: Sequence[str], columns: Mapping[str, list[Any]], *, trainer_state: Any = None
    ) -> list[Values]:
        """K lists of N values as the functions give them, None where one does not apply.

        Unlike ``score`` it accepts rows that no function applies to, and the column ``reward`` may name functions of
        another rubric.

        Raises:
            RewardError: see the class.
        """
        return self._run(completions, columns, trainer_state)[0]

    def check_solution(self, solution: str, fields: Mapping[str, Any] | None = None) -> str | None:
        """Why a record with this solution and these fields cannot be scored, or None if it can."""
        fields = fields or {}
        route = fields.get("reward")
        if problem := field_problem(solution, fields) or route_problem(route, self.names):
            return problem
        for function in self.functions:
            if function.check and is_routed(route, function.name) and (problem := function.check(solution, fields)):
                return f'{problem} (reward "{function.name}")'
        return None

    def check_record(self, record: Record) -> str | None:
        """``check_solution`` of a record and its fields."""
        return self.check_solution(record.solution, record.fields)

    def close(self) -> None:
        """Give back threads and processes."""
        self._runner.close()
        for function in self.functions:
            if close := getattr(function.call, "close", None):
                close()

    def _run(
        self, completions: Sequence[str], columns: Mapping[str, list[Any]], trainer_state: Any
    ) -> tuple[list[Values], dict[str, float], set[int]]:
        """K lists of N values, the means of logged numbers, and the rows that a function could not finish.

        Each function is called once, on the rows that are its own.
        """
        n = len(completions)
        for name, values in columns.items():
            if len(values) != n:
                raise RewardError(f"column {name!r} has {len(values)} values for {n} completions")
        logged = Logged(self.names)
        shared = {"trainer_state": trainer_state, "log_metric": logged}
        routes = columns.get("reward", [None] * n)
        texts = [Completion(text) for text in completions]
        calls: list[tuple[list[int], Call]] = []
        for function in self.functions:
            if rows := [row for row in range(n) if is_routed(routes[row], function.name)]:
                own = {name: [values[row] for row in rows] for name, values in columns.items()}
                calls.append((rows, Call(function, [texts[row] for row in rows], own, shared)))
        components: dict[str, Values] = {name: [None] * n for name in self.names}
        unfinished = set()
        for (rows, call), values in zip(calls, self._runner.run([call for _, call in calls]), strict=True):
            name = call.function.name
            for row, value in zip(rows, values, strict=True):
                if isinstance(value, Unfinished):
                    unfinished.add(row)
                    self._unfinished[name] += 1
                    place = f"{record_name(columns, row)}: {value}{_shown(texts[row])}"
                    logger.warning(f'reward "{name}" has no value for {place}')
                    continue
                components[name][row], problem = _as_number(value)
                self._recent_failures[name].append(problem is not None)
                if problem:
                    self._fail(name, f"{record_name(columns, row)}: {problem}{_shown(texts[row])}", value)
        return list(components.values()), logged.means(), unfinished

    def _fail(self, name: str, place: str, value: Any) -> None:
        """Stop, or count the row as skipped and stop after too many of them."""
        cause = value if isinstance(value, BaseException) else None
        if self._on_error == "error":
            hint = "--on_reward_error skip leaves such rows without this reward"
            raise RewardError(f'reward "{name}" failed on {place}\n  ({hint})') from cause
        self._skipped[name] += 1
        recent = self._recent_failures[name]
        if sum(recent) > SKIP_LIMIT * max(len(recent), SKIP_LEAST):
            raise RewardError(
                f'reward "{name}" failed on {sum(recent)} of its last {len(recent)} rows, the latest: {place}'
            ) from cause


def _shown(completion: str) -> str:
    return f"\n  completion: {completion[:2000]!r}"


def _as_number(value: Any) -> tuple[float | None, str | None]:
    """A reward as a float or None, and what is wrong with it."""
    if value is None:
        return None, None
    if isinstance(value, BaseException):
        return None, f"{type(value).__name__}: {value}{_raised_at(value)}"
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return None, f"expected a number or None, got {value!r:.200}"
    try:
        number = float(value)
    except OverflowError:  # an integer, which may have too many digits to be written out
        return None, f"expected a finite number, got one of type {type(value).__name__} beyond 1.8e308"
    except Exception as error:  # arrays and tensors of several numbers
        return None, f"expected a number or None, got a value of type {type(value).__name__}: {error}"
    if not abs(number) <= LARGEST:  # NaN neither
        return None, f"expected a number between -{LARGEST:g} and {LARGEST:g}, got {number:g}"
    return number, None


def _raised_at(error: BaseException) -> str:
    """`` (my_rewards.py, line 8)``: the last line of a user's own code that an error went through. Or nothing."""
    places = traceback.extract_tb(error.__traceback__)
    own = [place for place in places if not place.filename.startswith(_NOT_OF_USERS)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def weighted_sums(components: Sequence[Values], weights: Sequence[float]) -> Values:
    """For each of N rows the sum of weight * value over the functions that apply, or None where none does.

    Example:
        >>> weighted_sums([[1.0, None, None], [0.5, 0.5, None]], [2.0, 1.0])
        [2.5, 0.5, None]
    """
    totals: Values = []
    for row in zip(*components, strict=True):
        own = [weight * value for weight, value in zip(weights, row, strict=True) if value is not None]
        totals.append(math.fsum(own) if own else None)
    return totals


def normalized(values: Values, group_size: int) -> Values:
    """Each value minus its group's mean, divided by the group's standard deviation (n-1) + 1e-4.

    None stays None and counts in neither.

    Example:
        >>> [round(value, 2) for value in normalized([1.0, 2.0, 3.0, 5.0, 5.0, 5.0], group_size=3)]
        [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    """
    result: Values = []
    for start in range(0, len(values), group_size):
        group = values[start : start + group_size]
        known = [value for value in group if value is not None]
        mean = math.fsum(known) / max(len(known), 1)
        variance = math.fsum((value - mean) ** 2 for value in known) / max(len(known) - 1, 1)
        spread = math.sqrt(variance) + 1e-4
        result += [None if value is None else (value - mean) / spread for value in group]
    return result
