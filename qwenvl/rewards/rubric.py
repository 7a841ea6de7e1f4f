"""The rubric: reward functions with weights, called on completions and summed."""

from __future__ import annotations

import copy
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qwenvl.own_code import ends_forks
from qwenvl.rewards.calls import AsyncCalls, Settings
from qwenvl.rewards.function import (
    RESERVED,
    STEP_COLUMNS,
    Completion,
    RewardError,
    RewardFunction,
    Undecided,
    Unfinished,
    arguments,
    columns_named,
    columns_problem,
    required_columns,
)
from qwenvl.rewards.options import OnError
from qwenvl.rewards.values import as_number, one_per_row
from qwenvl.types import Record, RewardBatch

logger = logging.getLogger(__name__)

Values = list[float | None]

# Where failed rows are left out: their share at which a run stops, over how many rows it is taken, and over how many at
# least, so that one failure on the first step is not all of them.
SKIP_LIMIT = 0.05
SKIP_WINDOW = 1000
SKIP_LEAST = 100
_PLAIN = frozenset((str, bytes, int, float, complex, bool, type(None)))

NO_SOLUTION = "expected a `solution`, `reward_model.ground_truth`, or a last assistant turn that holds it"
TAKEN = ("total", "std", "max", "temporal_contrast", "passes")
"""What runs and evaluations have beside the values of reward functions, none of which can have one of these names."""


@dataclass(frozen=True)
class _Given:
    """The inputs of the functions of a rubric in one scoring, and the numbers that they log.

    Attributes:
        texts: N completions.
        columns: lists of N values.
        trainer_state: a copy of the run's.
        settings: of the process before the first call, restored after each.
        logged: the values of each metric that a function has logged.
    """

    texts: list[Completion]
    columns: Mapping[str, list[Any]]
    trainer_state: Any
    settings: Settings
    logged: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class _Call:
    """One call of a function.

    Attributes:
        rows: that it scores.
        result: waits for its values, or makes the call.
        logged: what it has logged so far: name and value.
    """

    function: RewardFunction
    rows: Sequence[int]
    result: Callable[[], Any]
    logged: list[tuple[str, float]]


class Rubric:
    """Scores completions with K functions and weighs them.

    The functions get copies of their columns, and cannot exit the run.

    Args:
        functions: K, with names that differ.
        weights: K finite numbers.
        on_error: ``error`` stops at the first row that a function fails on. ``skip`` makes the value None, marks the
            row in ``RewardBatch.failed``, and stops when a function fails on more than 5 % of its last 1,000 rows (of
            100 early on). A row that is left without any value has no reward: its total is NaN.

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
        on_error: OnError = "error",
    ) -> None:
        self.functions = tuple(functions)
        self.names = tuple(function.name for function in functions)
        self.weights = tuple(float(weight) for weight in weights)
        if not functions:
            raise RewardError("no reward function: name at least one")
        if len(weights) != len(functions):
            raise RewardError(f"{len(weights)} reward weights for {len(functions)} functions: {', '.join(self.names)}")
        taken = set(TAKEN)
        for name in self.names:
            if name in taken:
                raise RewardError(
                    f"there is another metric reward/{name}, of another function or of the run itself: rename this "
                    'function, or name it in a plugin by @reward("another_name")'
                )
            taken.add(name)
        if not all(math.isfinite(weight) for weight in self.weights):
            raise RewardError(f"reward weights must be finite numbers, got {self.weights}")
        self._on_error = on_error
        self._async_calls: AsyncCalls | None = None  # None: no async function has been called yet
        self._recent_failures: dict[str, deque[bool]] = {name: deque(maxlen=SKIP_WINDOW) for name in self.names}

    def score(
        self,
        completions: Sequence[str],
        columns: Mapping[str, list[Any]],
        *,
        trainer_state: Any = None,
    ) -> RewardBatch:
        """Score N completions.

        Args:
            completions: N texts.
            columns: lists of N values, from ``reward_columns``. Column ``reward``, where a record has it, names the
                functions that score the row.
            trainer_state: an argument of functions that name it. Each call gets a copy.

        Raises:
            RewardError: naming the function, the record and the completion. See the class.
        """
        import torch

        for row, route in enumerate(columns.get("reward", ())):
            if problem := route_problem(route, self.names):
                raise RewardError(f"{record_name(columns, row)}: {problem}")
        components, metrics, failed = self._run(completions, columns, trainer_state)
        totals = []
        for row, values in enumerate(zip(*components, strict=True)):
            own = [weight * value for weight, value in zip(self.weights, values, strict=True) if value is not None]
            has_failed = any(flags[row] for flags in failed.values())
            if not own and self._on_error == "error" and not has_failed:
                raise RewardError(
                    f"{record_name(columns, row)}: no reward function scored it; each record needs at least one of "
                    f"{', '.join(self.names)}{_shown(completions[row])}"
                )
            totals.append(math.fsum(own) if own else math.nan)
        return RewardBatch(
            names=self.names,
            weights=self.weights,
            components=components,
            total=torch.tensor(totals, dtype=torch.float32),
            metrics={name: [mean] * len(completions) for name, mean in metrics.items()},
            failed=failed,
        )

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
        """The reason why a record with this solution and these fields cannot be scored. None: it can."""
        fields = fields or {}
        route = fields.get("reward")
        if problem := field_problem(solution, fields) or route_problem(route, self.names):
            return problem
        for function in self.functions:
            if not is_routed(route, function.name):
                continue
            if not solution.strip() and function.reads_solution:
                return f'{NO_SOLUTION} (reward "{function.name}")'
            if function.check and (problem := function.check(solution, fields)):
                return f'{problem} (reward "{function.name}")'
        return None

    @property
    def columns(self) -> frozenset[str]:
        """The fields of records that the functions name."""
        named: set[str] = set()
        for function in self.functions:
            named |= columns_named(function)
        return frozenset(named)

    @property
    def required_fields(self) -> frozenset[str]:
        """The fields of records without which the functions cannot be called."""
        return frozenset().union(*map(required_columns, self.functions)).difference(RESERVED)

    def check_records(self, records: Collection[Record]) -> str | None:
        """The reason why a function cannot score any of the records that go to it, or None: all of them can.

        It requires a field that no record has, or its first parameter is called like one.
        """
        columns = set(STEP_COLUMNS)
        for record in records:
            columns |= record.fields.keys()
        for function in self.functions:
            is_used = any(is_routed(record.fields.get("reward"), function.name) for record in records)
            problem = columns_problem(function, columns) if is_used else None
            if problem:
                return problem
        return None

    def check_record(self, record: Record) -> str | None:
        """``check_solution`` of a record and its fields."""
        return self.check_solution(record.solution, record.fields)

    def close(self) -> None:
        """Stop the event loop, and close the functions that have processes."""
        if self._async_calls is not None:
            self._async_calls.close()
            self._async_calls = None
        for function in self.functions:
            function.close()

    def _run(
        self, completions: Sequence[str], columns: Mapping[str, list[Any]], trainer_state: Any
    ) -> tuple[list[Values], dict[str, float], dict[str, list[bool]]]:
        """K lists of N values, the means of logged numbers, and for each function N times whether it failed on the row.

        Each function is called once, on the rows that are its own.
        """
        n = len(completions)
        for name, values in columns.items():
            if len(values) != n:
                raise RewardError(f"column {name!r} has {len(values)} values for {n} completions")
        routes = columns.get("reward", [None] * n)
        given = _Given(
            texts=[Completion(text) for text in completions],
            columns=columns,
            trainer_state=_copied_state(trainer_state, with_rows=True),
            settings=Settings.now(),
        )
        # All calls are started before the first is waited for: async functions run side by side.
        calls = []
        for function in self.functions:
            rows = [row for row in range(n) if is_routed(routes[row], function.name)]
            if rows:
                calls.append(self._start(function, rows, given))
        components: dict[str, Values] = {name: [None] * n for name in self.names}
        failed = {name: [False] * n for name in self.names}
        for call in calls:
            name = call.function.name
            for row, value in zip(call.rows, self._values_of(call, given), strict=True):
                components[name][row], problem = as_number(value)
                if problem:
                    failed[name][row] = True
                    self._leave_out(name, f"{record_name(columns, row)}: {problem}{_shown(given.texts[row])}", value)
                else:
                    self._recent_failures[name].append(False)
        means = {name: math.fsum(values) / len(values) for name, values in given.logged.items()}
        return list(components.values()), means, failed

    def _start(self, function: RewardFunction, rows: Sequence[int], given: _Given) -> _Call:
        """The call of a function on some rows. An async one runs from now on, another when its result is asked for.

        The function gets copies, so that it changes nothing that others see.
        """

        logged: list[tuple[str, float]] = []

        def log(name: str, value: Any) -> None:
            # The log has the count of failed rows as `skipped`.
            shown = "own_skipped" if name == "skipped" else name
            logged.append((f"reward/{function.name}/{shown}", float(value)))

        shared = {"trainer_state": _copied_state(given.trainer_state, with_rows=False), "log_metric": log}
        own_texts: list[str] = [given.texts[row] for row in rows]
        own_columns: dict[str, Any] = {}
        for name, values in given.columns.items():
            own_columns[name] = [values[row] for row in rows]
        positional, keywords = arguments(function, own_texts, own_columns | shared)
        keywords = {name: each if name in shared else private_copy(each) for name, each in keywords.items()}
        bound = partial(function.call, *private_copy(positional), **keywords, **function.arguments)
        if not function.is_async:
            return _Call(function, rows, bound, logged)
        if self._async_calls is None:
            self._async_calls = AsyncCalls()
        return _Call(function, rows, self._async_calls.start(function.name, bound), logged)

    def _values_of(self, call: _Call, given: _Given) -> list[Any]:
        """The values of a call, one for each of its rows.

        A call that raises is made again row by row, to learn which rows it fails on: these have the exception as their
        value.
        """
        try:
            with ends_forks():
                returned = call.result()
            values = one_per_row(call.function.name, len(call.rows), returned)
            # Only now: a call that fails is made again, row by row, and logs again.
            for name, value in call.logged:
                given.logged[name].append(value)
            return values
        except (RewardError, KeyboardInterrupt):  # in this thread the latter is Ctrl-C
            raise
        except BaseException as error:
            failure = error  # further calls are outside of the handler: the traceback shows one error, not two
        finally:
            given.settings.restore()
        if len(call.rows) == 1:
            return [failure]
        calls = [self._start(call.function, [row], given) for row in call.rows]
        alone = [self._values_of(each, given)[0] for each in calls]
        if any(isinstance(value, BaseException) for value in alone):
            return alone
        # A function that fails on no single row fails on several together: all of them are affected.
        return [failure] * len(call.rows)

    def _leave_out(self, name: str, place: str, value: Any) -> None:
        """Warn of a row without a value, or stop. Where failed rows are left out, stop after too many of them."""
        cause = value if isinstance(value, BaseException) else None
        if isinstance(value, (Unfinished, Undecided)):
            logger.warning(f'reward "{name}" has no value for {place}')
        elif self._on_error == "error":
            hint = "--on_reward_error skip leaves such rows without this reward"
            raise RewardError(f'reward "{name}" failed on {place}\n  ({hint})') from cause
        if isinstance(value, Unfinished):  # it says nothing of the function, however many there are
            return
        recent = self._recent_failures[name]
        recent.append(True)
        if sum(recent) > SKIP_LIMIT * max(len(recent), SKIP_LEAST):
            raise RewardError(
                f'reward "{name}" failed on {sum(recent)} of its last {len(recent)} rows, the latest: {place}'
            ) from cause


def _shown(completion: str) -> str:
    return f"\n  completion: {completion[:2000]!r}"


def private_copy(value: Any) -> Any:
    """A copy of lists, dicts and all that they hold. Numbers, texts and None stay as they are."""
    if type(value) in _PLAIN or isinstance(value, str):
        return value
    if type(value) is list:
        return value.copy() if _PLAIN.issuperset(map(type, value)) else [private_copy(each) for each in value]
    if type(value) is dict:
        return {name: private_copy(each) for name, each in value.items()}
    return copy.deepcopy(value)


def _copied_state(state: Any, *, with_rows: bool) -> Any:
    """A copy of the Trainer's state, so that no function changes the run's.

    Args:
        with_rows: copy the rows of its history too, and not only their list. A long run has thousands of them.
    """
    if state is None:
        return None
    copied = copy.copy(state)
    for name, value in getattr(state, "__dict__", {}).items():
        if name == "log_history":
            rows = value or []
            setattr(copied, name, [row.copy() for row in rows] if with_rows else list(rows))
        elif isinstance(value, (list, dict)):
            setattr(copied, name, private_copy(value))
    return copied


# ---- the records: their fields, and which functions score them


def field_problem(solution: str, fields: Mapping[str, Any]) -> str | None:
    """The reason why a record's fields cannot become columns: one hides a column of another meaning. Else None."""
    for name in RESERVED:
        if name in fields:
            return f"the field {name!r} would hide what reward functions get under that name: rename it"
    if fields.get("solution", solution) != solution:
        return "the field 'solution' differs from the last gpt turn, which is the solution: rename it"
    return None


def route_problem(route: Any, names: Sequence[str]) -> str | None:
    """The reason why a field ``reward`` does not route its record: it must name functions of the run. Else None."""
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
    """The name of a row's record in errors."""
    return f"record {columns['id'][row]!r}" if "id" in columns else f"row {row}"
