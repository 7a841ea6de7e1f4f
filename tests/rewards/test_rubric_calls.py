import asyncio
import sys

import pytest

from qwenvl.rewards.function import RewardError, RewardFunction
from qwenvl.rewards.rubric import Rubric


@pytest.fixture
def rubric():
    made = []

    def make(*functions, **options):
        named = [RewardFunction(function.__name__, function) for function in functions]
        made.append(Rubric(named, [1.0] * len(functions), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_async_functions_run_together(rubric):
    met = {"first": asyncio.Event(), "second": asyncio.Event()}

    async def first(completions):
        met["first"].set()
        await met["second"].wait()
        return [1.0]

    async def second(completions):
        met["second"].set()
        await met["first"].wait()
        return [2.0]

    assert rubric(first, second).score(["a"], {}).components == [[1.0], [2.0]]


def test_async_callable_objects_keep_one_loop(rubric):
    class Judge:
        __name__ = "judge"

        def __init__(self):
            self.lock, self.loops = asyncio.Lock(), []

        async def __call__(self, completions, **columns):
            async with self.lock:
                self.loops.append(asyncio.get_running_loop())
            return [1.0] * len(completions)

    judge = Judge()
    made = rubric(judge)
    for _ in range(2):
        made.score(["a"], {})
    assert judge.loops[0] is judge.loops[1]


def test_a_function_that_fails_only_in_company_affects_all_rows(rubric):
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
def test_sys_exit_in_a_function_is_a_failure(function, rubric):
    message = rf"\"{function.__name__}\" failed on record 'r1': .*(SystemExit: 0|called sys.exit\(0\))"
    with pytest.raises(RewardError, match=message):
        rubric(function).score(["a"], {"id": ["r1"]})


def test_what_a_function_changes_is_its_own(rubric):
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
