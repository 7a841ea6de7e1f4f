"""A reward function: its name, its check of records, its arguments, its columns, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any, get_args, get_type_hints

from qwenvl.option import Bounds, misfit, nearest
from qwenvl.types import Record

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


# Names of arguments that do not come from a record's own fields; a field of that name would hide them.
RESERVED = (
    "completions",
    "prompts",
    "completion_ids",
    "finish_reasons",
    "image_paths",
    "video_paths",
    "shown",
    "opened_think",
    "turns",
    "trainer_state",
    "log_metric",
)
STEP_COLUMNS = frozenset((*RESERVED, "id", "solution"))
"""The columns of every step, whatever the fields of its records."""


class RewardError(ValueError):
    """A reward function failed, or gave no reward. The message names the function, the record and the completion."""


class Unfinished(Exception):
    """In place of a row's value: a bound on computing or memory kept the function from finding it.

    The row has no value from this function. It is counted and named in the log, and the run continues.
    """


class Undecided(Exception):
    """In place of a row's value: a model was asked for it, and its reply holds none.

    A completion may bring this about, so it costs that completion alone: the row has no value from this function, and
    is counted and named in the log. Too many of them stop the run, as with ``--on_reward_error skip``.
    """


@dataclass(frozen=True)
class RewardFunction:
    """One column of a rubric.

    Attributes:
        name: under which its values are logged (``reward/<name>``).
        call: ``f(completions, **columns) -> list[float | None]``, plain or async.
        check: ``check(solution, fields)`` says why a record cannot be scored, or None. It is called when data is read.
        arguments: further keyword arguments of each call.
        value_range: the smallest and the largest value. None: not known.
    """

    name: str
    call: Callable[..., Any]
    check: Callable[[str, Mapping[str, Any]], str | None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    value_range: tuple[float, float] | None = None

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        return inspect.iscoroutinefunction(self.call if inspect.isroutine(self.call) else type(self.call).__call__)

    @property
    def reads_solution(self) -> bool:
        """Whether it needs a solution: it cannot be called without, unless the object says otherwise itself.

        One that takes all columns, or has a default for the solution, does without.
        """
        own = getattr(self.call, "reads_solution", None)
        return "solution" in required_columns(self) if own is None else bool(own)

    def close(self) -> None:
        """End the processes that it has, and those of the functions that it builds on."""
        for each in self.arguments.values():
            if isinstance(each, RewardFunction):
                each.close()
        if end := getattr(self.call, "close", None):
            end()


@dataclass(frozen=True)
class Argument(Bounds):
    """Help, unit and bounds of an argument, in its annotation.

    Attributes:
        help: its effect, in one sentence.
        unit: of a number, such as tokens.
        default_of: the setting of the run that is the default, such as ``generation_max_length``.

    Example:
        >>> from typing import Annotated
        >>> def brevity(completions, *, limit: Annotated[int, Argument("Longest text.", "characters", least=1)] = 200,
        ...             **columns):
        ...     return [float(len(text) <= limit) for text in completions]
        >>> bound_arguments("brevity", brevity, {"limit": 0})
        Traceback (most recent call last):
        ...
        qwenvl.rewards.function.RewardError: reward 'brevity': limit must be at least 1, got 0
    """

    help: str
    unit: str = ""
    default_of: str | None = field(default=None, kw_only=True)

    @property
    def text(self) -> str:
        """The help with unit and bounds in brackets."""
        limits = [self.unit] if self.unit else []
        for words, number in (("at least", self.least), ("above", self.above), ("at most", self.most)):
            if number is not None:
                limits.append(f"{words} {number:g}")
        if not limits:
            return self.help
        return f"{self.help.rstrip('.')} ({', '.join(limits)})."


@dataclass(frozen=True)
class KnownArgument:
    """An argument that a user may give a reward function.

    Attributes:
        hint: its type. None where the annotation says none that can be imported.
        declared: what its annotation declares, if anything.
    """

    parameter: inspect.Parameter
    hint: Any
    declared: Argument | None


def arguments_of(value: Any) -> dict[str, KnownArgument]:
    """The arguments that a user may give a reward function, by name.

    They are the keyword-only parameters with a default of a function, and the parameters of a class.
    """
    parameters = inspect.signature(value).parameters.values() if callable(value) else ()
    if inspect.isclass(value):
        own = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    elif inspect.isfunction(value):
        own = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    else:
        return {}
    try:
        hints = get_type_hints(value.__init__ if inspect.isclass(value) else value, include_extras=True)
    except Exception:  # annotations of a user's function need not be importable
        hints = {}
    found = {}
    for parameter in own:
        hint, *notes = get_args(hints.get(parameter.name)) or (None,)
        declared = next((note for note in notes if isinstance(note, Argument)), None)
        found[parameter.name] = KnownArgument(parameter, hint, declared)
    return found


def bound_arguments(
    name: str,
    value: Any,
    given: Mapping[str, Any],
    settings: Any = None,
    reward: Callable[[Any], RewardFunction] | None = None,
) -> dict[str, Any]:
    """The arguments of a reward function: ``given``, and for declared ones the settings of the run or the defaults.

    Args:
        name: of the reward, for messages.
        value: the function or class.
        settings: of the run, whose attributes are the defaults of some arguments.
        reward: resolves the name of a reward, for arguments that are reward functions.

    Raises:
        RewardError: an unknown argument, with the closest name, or a value of another type or out of bounds.
    """
    known = arguments_of(value)
    for each in given:
        if each not in known:
            raise RewardError(f"reward {name!r} has no argument {each!r}: {nearest(each, [*known])}")
    bound = dict(given)
    for each, argument in known.items():
        declared = argument.declared
        if declared is None:
            continue
        default = argument.parameter.default
        if declared.default_of is not None:
            default = getattr(settings, declared.default_of, default)
        chosen = default if given.get(each) is None else given[each]
        if argument.hint is RewardFunction:
            function = reward(chosen) if reward else chosen
            if reward and function.is_async:
                raise RewardError(f"reward {name!r}: {each} can't be {function.name}, which is asynchronous")
            bound[each] = function
            continue
        bound[each] = chosen
        problem = misfit(SimpleNamespace(**{each: chosen}), each, argument.hint) or declared.problem(each, chosen)
        if problem:
            raise RewardError(f"reward {name!r}: {problem.removeprefix('--')}")
    return bound


def arguments(function: RewardFunction, completions: list[str], columns: Mapping[str, Any]) -> tuple[list, dict]:
    """Positional and keyword arguments of one call: the completions and those columns that the function takes.

    Those of ``function.arguments`` are not among them.

    Raises:
        RewardError: see ``columns_problem``.
    """
    problem = columns_problem(function, columns)
    if problem:
        raise RewardError(problem)
    named = _named_parameters(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function.call).parameters.values())
    keywords = {}
    for name, value in {"completions": completions, **columns}.items():
        if name in named or (takes_all and name not in function.arguments):
            keywords[name] = value
    positional = []
    if _by_position(function) is not None:
        positional = [keywords.pop("completions", completions)]
    return positional, keywords


def columns_problem(function: RewardFunction, columns: Collection[str]) -> str | None:
    """Why a function cannot be called with columns of these names, or None."""
    first = _by_position(function)
    if first in _named_parameters(function) and first in columns:
        return (
            f'reward "{function.name}" has no parameter `completions`, and its first one, `{first}`, may mean them or '
            "the column of that name; name the parameter for the completions `completions`"
        )
    missing = sorted(required_columns(function) - {"completions", *columns})
    if missing:
        there = ", ".join(sorted({"completions", *columns}))
        return f'reward "{function.name}" needs the column {missing[0]!r}, which no record has; there are: {there}'
    return None


def required_columns(function: RewardFunction) -> frozenset[str]:
    """The columns without which a function cannot be called: its parameters without a default.

    Functions that it builds on are asked too.

    Example:
        >>> def near(texts, station, line=None, **columns):
        ...     return [float(place == line) for place in station]
        >>> sorted(required_columns(RewardFunction("near", near)))
        ['station']
    """
    required = {name for name, each in _named_parameters(function).items() if each.default is each.empty}
    required -= {_by_position(function)}
    for value in function.arguments.values():
        if isinstance(value, RewardFunction):
            required |= required_columns(value)
    return frozenset(required)


def _named_parameters(function: RewardFunction) -> dict[str, inspect.Parameter]:
    """The parameters of a function that are given by name, without ``function.arguments``."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function.call).parameters
    return {name: each for name, each in parameters.items() if each.kind in by_name and name not in function.arguments}


def _by_position(function: RewardFunction) -> str | None:
    """The first parameter of a function that gets the completions by position, such as ``texts``. None: it does not.

    It has them by name, as ``completions`` or as ``columns["completions"]``, or reads a column of every step in place
    of them, such as ``completion_ids``.
    """
    first = next(iter(inspect.signature(function.call).parameters.values()), None)
    if first is None or first.kind not in _POSITIONAL or first.name in STEP_COLUMNS:
        return None
    has_them_by_name = "completions" in _named_parameters(function) or "completions" in _texts_in(function.call)
    return None if has_them_by_name else first.name


def columns_named(function: RewardFunction) -> frozenset[str]:
    """The columns that a function names: its parameters, and the texts in its code where it takes all columns.

    Functions that it builds on are asked too.

    Example:
        >>> def near(completions, station, **columns):
        ...     return [float(line == 7) for line in columns["line"]]
        >>> sorted(columns_named(RewardFunction("near", near)) & {"station", "line", "shift"})
        ['line', 'station']
    """
    named = set(inspect.signature(function.call).parameters)
    named.update(_texts_in(function.call))
    if function.check is not None:
        named.update(_texts_in(function.check))
    for value in function.arguments.values():
        if isinstance(value, RewardFunction):
            named |= columns_named(value)
    return frozenset(named)


def _texts_in(call: Callable[..., Any]) -> Iterator[str]:
    """The texts that stand in the code of a function, and in that of functions within it."""
    while isinstance(call, partial):
        call = call.func
    plain = inspect.unwrap(call if inspect.isroutine(call) else type(call).__call__)
    codes = [getattr(plain, "__code__", None)]
    while codes:
        code = codes.pop()
        for constant in code.co_consts if code is not None else ():
            if isinstance(constant, str):
                yield constant
            elif isinstance(constant, CodeType):
                codes.append(constant)


# ---- what functions are called with: completions, columns of records, the signatures of TRL and verl


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
    names: dict[str, None] = {}
    for record in records:
        names |= dict.fromkeys(record.fields)
    columns: dict[str, list[Any]] = {}  # P values each
    for name in names:
        columns[name] = [record.fields.get(name) for record in records]
    columns["id"] = [record.id for record in records]
    columns["solution"] = [record.solution for record in records]
    columns["prompts"] = [_messages_of(record) for record in records]
    columns["image_paths"] = [list(record.images) for record in records]
    columns["video_paths"] = [list(record.videos) for record in records]
    columns["opened_think"] = list(opened_think) if opened_think is not None else [False] * len(records)
    repeated: dict[str, list[Any]] = {}  # N values each
    for name, values in columns.items():
        repeated[name] = []
        for value in values:
            repeated[name] += [value] * group_size
    return repeated | more


def _messages_of(record: Record) -> list[dict[str, str]]:
    """The messages of a record as TRL has them."""
    return [{"role": message.role, "content": message.text} for message in record.messages]


class Completion(str):
    """A string that can also be read as a conversation of one message.

    TRL gives reward functions either strings or, for chat prompts, lists of one message, and functions written for the
    latter say ``completion[0]["content"]``. Both ways of reading work here, so that such functions run unchanged:

        >>> Completion("four")[0]["content"], Completion("four")[0], Completion("four")[1:]
        ('four', 'f', 'our')

    Args:
        message: of the conversation, for its first and last character. None: the text itself.
    """

    message: dict[str, str]

    def __new__(cls, text: str, message: str | None = None) -> Completion:
        made = super().__new__(cls, text)
        made.message = {"role": "assistant", "content": str(text) if message is None else message}
        return made

    def __getitem__(self, key: Any) -> str:
        if isinstance(key, str):
            return self.message[key]
        if key == 0 or key == -1:
            # One character, which also stands for the one message. -1 + 1 is 0: the end of the slice is then None.
            return Completion(str(self)[key : key + 1 or None], self.message["content"])
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """A part of the message, as a dict has it."""
        return self.message.get(key, default)


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
        log_metric: Callable[[str, float], None] = lambda name, value: None,
        **columns: Any,
    ) -> list[float | None]:
        scores: list[float | None] = []
        for row, (text, truth) in enumerate(zip(completions, solution, strict=True)):
            fields = {name: values[row] for name, values in columns.items() if isinstance(values, list)}
            nested = fields.get("reward_model")
            if fields.get("ground_truth") is not None:
                truth = fields["ground_truth"]
            elif isinstance(nested, Mapping):
                truth = nested.get("ground_truth", truth)
            result = compute_score(
                data_source=fields.get("data_source"),
                solution_str=str(text),
                ground_truth=truth,
                extra_info=fields.get("extra_info") or {},
            )
            if isinstance(result, Mapping):
                for name, value in result.items():
                    if name != "score" and hasattr(value, "__float__"):
                        log_metric(name, float(value))
                result = result["score"]
            scores.append(result)
        return scores

    reward.__name__ = getattr(compute_score, "__name__", "compute_score")
    return reward
