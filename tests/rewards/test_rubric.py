import asyncio
import copy
import math
import os
import re
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import TrainerState

from qwenvl.rewards import RewardError, build_rubric
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.rubric import NO_SOLUTION, Rubric
from qwenvl.types import Message, Record


def rubric(*functions, weights=None, **options):
    named = [f if isinstance(f, RewardFunction) else RewardFunction(f.__name__, f) for f in functions]
    MADE.append(Rubric(named, weights or [1.0] * len(named), **options))
    return MADE[-1]


MADE: list[Rubric] = []


@pytest.fixture(autouse=True)
def _closed():
    """Closes the rubrics that a test has made."""
    yield
    while MADE:
        MADE.pop().close()


def length(completions, **columns):
    return [len(text) for text in completions]


def is_solution(completions, solution):
    return [text == truth for text, truth in zip(completions, solution, strict=True)]


def test_weighted_sum_with_components_kept():
    batch = rubric(length, is_solution, weights=[0.1, 2]).score(["ab", "c"], {"solution": ["ab", "ab"]})
    assert batch.names == ("length", "is_solution") and batch.weights == (0.1, 2.0)
    assert batch.components == [[2.0, 1.0], [1.0, 0.0]]
    torch.testing.assert_close(batch.total, torch.tensor([2.2, 0.1]))


def test_values_may_be_numpy_torch_tuples_and_none():
    def array(completions):
        return np.array([1.5, 2.5], dtype=np.float32)

    def tensor(completions):
        return torch.tensor([1, 0])

    def partly(completions):
        return (None, np.float64(4))

    batch = rubric(array, tensor, partly).score(["a", "b"], {})
    assert batch.components == [[1.5, 2.5], [1.0, 0.0], [None, 4.0]]
    assert batch.total.tolist() == [2.5, 6.5]


HUGE = [pytest.param(10**400, id="401 digits"), pytest.param(10**5000, id="5001 digits")]


@pytest.mark.parametrize(
    "bad",
    [math.nan, math.inf, "1", [1.0], object(), torch.zeros(2), 1e308, *HUGE],
    ids=lambda bad: None if isinstance(bad, float | str) else type(bad).__name__,
)
def test_a_value_that_is_no_reward_is_an_error_with_function_record_and_text(bad):
    def broken(completions, **columns):
        return [0.0, bad]

    with pytest.raises(RewardError, match=r"(?s)\"broken\".*record 'r2'.*'second text'"):
        rubric(broken).score(["first text", "second text"], {"id": ["r1", "r2"]})


def test_a_function_that_raises_names_the_row_it_raised_on():
    def fussy(completions, **columns):
        return [1 / len(text) for text in completions]

    said = r"\"fussy\" failed on record 'r2': ZeroDivisionError: .* \(test_rubric.py, line \d+\)\n *completion: ''"
    with pytest.raises(RewardError, match=said) as e:
        rubric(fussy).score(["a", "", "b"], {"id": ["r1", "r2", "r3"]})
    assert isinstance(e.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("values", [[1.0], [1.0] * 3, None, 1.0, {"a": 1}], ids=str)
def test_a_reward_that_returns_another_number_of_values_is_an_error(values):
    def wrong(completions):
        return values

    with pytest.raises(RewardError, match='"wrong": expected a list of 2 values'):
        rubric(wrong).score(["a", "b"], {})


def test_a_record_chooses_its_functions():
    seen = {}

    def first(completions, nums):
        seen["first"] = (list(completions), nums)
        return [1.0] * len(completions)

    def second(completions, **columns):
        seen["second"] = (list(completions), columns["nums"])
        return [10.0] * len(completions)

    columns = {"reward": ["first", None, ["first", "second"], "second"], "nums": [1, 2, 3, 4]}
    batch = rubric(first, second).score(list("abcd"), columns)
    assert batch.components == [[1.0, 1.0, 1.0, None], [None, 10.0, 10.0, 10.0]]
    assert batch.total.tolist() == [1.0, 11.0, 11.0, 10.0]
    assert seen == {"first": (["a", "b", "c"], [1, 2, 3]), "second": (["b", "c", "d"], [2, 3, 4])}
    with pytest.raises(RewardError, match="record 'r1': the field 'reward' names 'third'"):
        rubric(first).score(["a"], {"id": ["r1"], "reward": ["third"]})


def test_skip_makes_rows_none_counts_them_and_stops_above_five_percent():
    def fussy(completions, bad):
        if any(bad):
            raise RuntimeError("no")
        return [1.0] * len(completions)

    lenient = rubric(fussy, length, on_error="skip")
    batch = lenient.score(["aa", "bb"], {"bad": [False, True]})
    assert batch.components == [[1.0, None], [2.0, 2.0]] and batch.total.tolist() == [3.0, 2.0]
    assert batch.failed == {"fussy": [False, True], "length": [False, False]} and not batch.metrics
    for _ in range(4):
        lenient.score(["aa", "bb"], {"bad": [False, True]})
    with pytest.raises(RewardError, match=r'"fussy" failed on 6 of its last 12 rows'):
        lenient.score(["aa", "bb"], {"bad": [False, True], "id": ["r1", "r2"]})


def test_logged_metrics_are_averaged():
    def logs(completions, log_metric, **columns):
        for text in completions:
            log_metric("length", len(text))
        return [0.0] * len(completions)

    metrics = rubric(logs, RewardFunction("other", logs)).score(["a", "bbb"], {}).metrics
    assert metrics == {"reward/logs/length": [2.0, 2.0], "reward/other/length": [2.0, 2.0]}

    def counts(completions, log_metric):
        log_metric("skipped", 0.5)
        return [0.0] * len(completions)

    assert rubric(counts, on_error="skip").score(["a"], {}).metrics == {"reward/counts/own_skipped": [0.5]}


def test_rows_that_are_scored_again_one_by_one_are_logged_once():
    def logs(completions, log_metric):
        values = []
        for text in completions:
            log_metric("length", len(text))
            values.append(1 / (text != "bad"))
        return values

    metrics = rubric(logs, on_error="skip").score(["ten " * 2 + "to", "bad", "four"], {}).metrics
    assert metrics == {"reward/logs/length": [7.0] * 3}  # the mean of 10 and 4


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda texts, **_: [math.nan for _ in texts], 'the reward "inner" that it builds on: expected a number'),
        (lambda texts, **_: ["1" for _ in texts], 'the reward "inner" that it builds on: expected a number'),
        (lambda texts, **_: [1.0], 'reward "inner": expected a list of 2 values, one per completion'),
    ],
)
@pytest.mark.parametrize("outer", ["cosine", "length_window", "looked_and_right"])
def test_a_reward_within_another_must_give_numbers_too(outer, inner, message):
    """NaN is not at least 1: such an answer would count as wrong."""
    correctness = RewardFunction("inner", inner)
    function = replace(resolve(outer), arguments={**resolve(outer).arguments, "correctness_func": correctness})
    with pytest.raises(RewardError, match=re.escape(message)):
        rubric(function).score(["a", "b"], {"completion_ids": [[0], [0]]})


def test_processes_of_a_reward_within_another_are_ended_too():
    made = build_rubric("cosine(correctness_func='math_accuracy')")
    columns = {"solution": ["x + 1"], "completion_ids": [[0]]}
    made.score(["<answer>1 + x</answer>"], columns)
    child = made.functions[0].arguments["correctness_func"].call._child
    assert child.alive
    made.close()
    assert not child.alive


def test_data_is_checked_by_the_functions_a_record_goes_to():
    def numeric(solution, fields):
        return None if solution.isdigit() else f"{solution!r} is no number"

    functions = [RewardFunction("digits", length, numeric), RewardFunction("length", length)]
    both = Rubric(functions, [1, 1])
    assert both.check_solution("12") is None
    assert both.check_solution("x") == "'x' is no number (reward \"digits\")"
    assert both.check_solution("x", {"reward": "length"}) is None
    assert "names 'other'" in both.check_solution("1", {"reward": "other"})
    same = RewardFunction("same", lambda completions, solution: [1.0] * len(completions))
    compared = Rubric([same, functions[1]], [1, 1])
    assert compared.check_solution("") == f'{NO_SOLUTION} (reward "same")'
    assert compared.check_solution("", {"reward": "length"}) is None
    record = Record("r", (Message("user", "?"),), "x", (), (), (), {"id": "r", "reward": ["length"]}, "a.json[0]")
    assert both.check_record(record) is None


def test_a_solution_is_needed_where_a_function_cannot_be_called_without():
    def compares(completions, solution):
        return [1.0] * len(completions)

    def may_compare(completions, solution=None, **columns):
        return [1.0] * len(completions)

    within = build_rubric([compares]).functions[0]
    outer = replace(resolve("cosine"), arguments={**resolve("cosine").arguments, "correctness_func": within})
    assert rubric(compares).check_solution("").startswith(NO_SOLUTION)
    assert rubric(outer).check_solution("").startswith(NO_SOLUTION)
    assert rubric(may_compare).check_solution("") is None


def test_bad_weights_double_names_and_missing_columns_are_refused():
    there = "needs the column 'solution', which no record has; there are: completions, id"
    for wrong, message in (
        (lambda: rubric(), "no reward function"),
        (lambda: rubric(length, weights=[1.0, 2.0]), "2 reward weights for 1 functions"),
        (lambda: rubric(length, length), "there is another metric reward/length"),
        (lambda: rubric(RewardFunction("total", length)), "there is another metric reward/total"),
        (lambda: rubric(RewardFunction("passes", length)), "there is another metric reward/passes"),
        (lambda: rubric(length, weights=[math.nan]), "finite"),
        (lambda: rubric(is_solution).score(["a", "b"], {"solution": ["a"]}), "'solution' has 1 values for 2"),
        (lambda: rubric(is_solution).score(["a"], {"id": ["r1"]}), there),
        (lambda: rubric(lambda completions: [None]).score(["a"], {"id": ["r"]}), "record 'r': no reward function scor"),
    ):
        with pytest.raises(RewardError, match=message):
            wrong()


def test_async_functions_and_objects_run_together_on_one_loop_for_all_calls():
    met, loops = {"first": asyncio.Event(), "second": asyncio.Event()}, []

    async def first(completions):
        met["first"].set()
        await met["second"].wait()
        return [1.0]

    class Second:
        __name__ = "second"

        async def __call__(self, completions):
            loops.append(asyncio.get_running_loop())
            met["second"].set()
            await met["first"].wait()
            return [2.0]

    both = rubric(first, Second())
    assert [both.score(["a"], {}).components for _ in range(2)] == [[[1.0], [2.0]]] * 2
    assert loops[0] is loops[1]


def test_a_function_that_fails_only_in_company_affects_all_rows():
    def alone(completions, steps):
        steps[0].append("mine")  # in a copy: a row that is tried alone is as it was
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [float(len(steps[0]))]

    assert rubric(alone, on_error="skip").values(["a", "b"], {"steps": [[], []]}) == [[None, None]]


def leaves(completions, **columns):
    sys.exit(0)


async def leaves_later(completions, **columns):
    await asyncio.sleep(0)
    sys.exit(0)


@pytest.mark.parametrize("function", [leaves, leaves_later])
def test_sys_exit_in_a_function_is_a_failure(function):
    message = rf"\"{function.__name__}\" failed on record 'r1': .*(SystemExit: 0|called sys.exit\(0\))"
    with pytest.raises(RewardError, match=message):
        rubric(function).score(["a"], {"id": ["r1"]})


class OwnEnd(BaseException):
    """Neither an Exception nor known to asyncio."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, OwnEnd])
def test_whatever_a_coroutine_raises_is_a_failure_of_its_rows(kind):
    async def ends(completions, bad, **columns):
        await asyncio.sleep(0)
        if any(bad):
            raise kind
        return [1.0] * len(completions)

    both = rubric(ends, length, on_error="skip")
    assert both.score(["aa", "b"], {"bad": [False, True]}).components == [[1.0, None], [2.0, 1.0]]
    assert both.score(["aa", "b"], {"bad": [False, False]}).components[0] == [1.0, 1.0], "its loop goes on"
    with pytest.raises(RewardError, match=rf"\"ends\" failed on record 'r1': .*{kind.__name__}.*test_rubric.py, line"):
        rubric(ends).score(["a"], {"id": ["r1"], "bad": [True]})


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, OwnEnd])
def test_whatever_a_plain_function_raises_is_a_failure_of_its_rows(kind):
    def ends(completions, bad, **columns):
        if any(bad):
            raise kind
        return [1.0] * len(completions)

    assert rubric(ends, on_error="skip").values(["a", "b"], {"bad": [False, True]}) == [[1.0, None]]
    with pytest.raises(RewardError, match=rf"\"ends\" failed on record 'r1': {kind.__name__}.*test_rubric.py, line"):
        rubric(ends).score(["a"], {"id": ["r1"], "bad": [True]})


def test_ctrl_c_during_a_plain_function_ends_the_run():
    def slow(completions, **columns):
        os.kill(os.getpid(), signal.SIGINT)
        while True:  # Python takes the signal at one of the next instructions
            pass

    # A shell that started the tests in the background has them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            rubric(slow, on_error="skip").score(["a"], {})
    finally:
        signal.signal(signal.SIGINT, before)


class Wordless(RuntimeError):
    def __str__(self):
        raise KeyError("no words")


def test_an_error_without_a_text_is_named():
    def wordless(completions, **columns):
        raise Wordless

    said = r"\"wordless\" failed on record 'r1': Wordless: no text, its __str__ raised KeyError \(test_rubric.py"
    with pytest.raises(RewardError, match=said):
        rubric(wordless).score(["a"], {"id": ["r1"]})


def leaves_no_grad():
    torch.set_grad_enabled(False)


def leaves_float64():
    torch.set_default_dtype(torch.float64)


def leaves_meta():
    torch.set_default_device("meta")


def leaves_a_low_limit():
    sys.setrecursionlimit(sys.getrecursionlimit() - 100)


@pytest.fixture
def settings_now():
    def settings():
        where = torch.get_default_device()
        return torch.is_grad_enabled(), torch.get_default_dtype(), where, sys.getrecursionlimit()

    grad, dtype, _, limit = settings()
    yield settings
    sys.setrecursionlimit(limit)
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", [leaves_no_grad, leaves_float64, leaves_meta, leaves_a_low_limit])
def test_settings_of_the_process_are_as_before_a_call(settings_now, change, fails, is_async):
    seen = []

    def careless(completions, **columns):
        change()
        if fails:
            raise ValueError
        return [0.0] * len(completions)

    async def later(completions, **columns):
        return careless(completions)

    def witness(completions, **columns):
        seen.append(settings_now())
        return [0.0] * len(completions)

    before = settings_now()
    scored = rubric(later if is_async else careless, witness, on_error="skip").score(["a", "b"], {})
    assert seen == [before] and settings_now() == before
    assert scored.total.dtype == torch.float32 and scored.total.device.type == "cpu"


async def stops_the_loop(completions, **columns):
    asyncio.get_running_loop().stop()
    return [1.0]


async def interrupts_the_loop(completions, **columns):
    def interrupt():
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)
    return [1.0]


ENDS_OF_LOOPS = [(stops_the_loop, "stop()"), (interrupts_the_loop, "KeyboardInterrupt")]


@pytest.mark.parametrize(("function", "cause"), ENDS_OF_LOOPS)
def test_an_event_loop_that_ends_is_an_error_that_names_the_function(function, cause):
    ended = rubric(function)
    for _ in range(2):  # a second call would wait for the ended loop too
        with pytest.raises(RewardError, match=f'reward "{function.__name__}": the event loop') as e:
            ended.score(["a"], {})
        assert cause in str(e.value)


def test_a_reward_that_changes_its_arguments_changes_nothing_for_others():
    def vandal(completions, **columns):
        completions.clear()
        columns["meta"][0]["steps"].append("extra")
        columns["id"][0] = "other"
        columns["meta"][1]["span"][0].clear()
        return [0.0, 0.0]

    seen = []

    def witness(completions, **columns):
        seen.append([completions, columns["meta"], columns["id"]])
        return [0.0, 0.0]

    columns = {"meta": [{"steps": ["one"]}, {"span": ([1], {2})}], "id": ["a", "b"]}
    rubric(vandal, witness).score(["x", "y"], columns)
    untouched = [["x", "y"], [{"steps": ["one"]}, {"span": ([1], {2})}], ["a", "b"]]
    assert seen == [untouched]
    assert columns == {"meta": untouched[1], "id": ["a", "b"]}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_gets_a_copy_of_the_state_of_the_trainer(is_async):
    def state():
        made = TrainerState(global_step=7, max_steps=9, trial_params={"lr": 1.0})
        made.log_history = [{"loss": 0.5}, {"kl": 0.1}]
        made.stateful_callbacks = {"ExportableCallback": {"args": {"patience": 3}}}
        return made

    seen = []

    def vandal(completions, trainer_state):
        seen.append(copy.deepcopy(trainer_state))
        trainer_state.global_step = trainer_state.max_steps = 1000
        trainer_state.log_history[0]["loss"] = 0.0
        trainer_state.log_history.clear()
        trainer_state.trial_params["lr"] = 2.0
        trainer_state.stateful_callbacks["ExportableCallback"]["args"].clear()
        return [0.0]

    async def later(completions, trainer_state):
        return vandal(completions, trainer_state)

    real = state()
    scores = rubric(later if is_async else vandal)
    for _ in range(2):
        scores.score(["a"], {}, trainer_state=real)
    assert real == state()
    assert seen == [state(), state()]


def _left(end: str) -> list[float]:
    """A fork leaves its reward."""
    if end == "exits":
        sys.exit(3)
    if end == "raises":
        raise ValueError("of the fork")
    return [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("end", "status"), [("exits", 3), ("raises", 1), ("returns", 0)])
def test_a_fork_ends_where_it_leaves_its_reward(end, status, is_async, capfd):
    """It would score on, and wait for other processes, in the place of the run."""
    forks = []

    def reward(completions, **columns):
        child = os.fork()
        if child == 0:
            return _left(end)
        forks.append(child)
        _, ended = os.waitpid(child, 0)
        return [float(os.waitstatus_to_exitcode(ended))] * len(completions)

    async def later(completions, **columns):
        return reward(completions)

    assert rubric(later if is_async else reward).score(["a", "b"], {}).totals() == [status, status]
    assert len(forks) == 1, "and it is called once"
    assert ("ValueError: of the fork" in capfd.readouterr().err) == (end == "raises")
