import asyncio
import threading
import traceback

import pytest
import torch

from qwenvl.rewards.function import RewardError, RewardFunction
from qwenvl.rewards.rubric import Rubric


def rubric(*functions, **options):
    made = Rubric([RewardFunction(f.__name__, f) for f in functions], [1.0] * len(functions), **options)
    return made


def test_async_functions_run_together():
    meeting = []

    async def first(completions):
        meeting.append("first")
        while "second" not in meeting:
            await asyncio.sleep(0.001)
        return [1.0]

    async def second(completions):
        meeting.append("second")
        while "first" not in meeting:
            await asyncio.sleep(0.001)
        return [2.0]

    made = rubric(first, second, timeout=300)
    assert made.score(["a"], {}).components == [[1.0], [2.0]]
    made.close()


def test_async_callable_objects_keep_one_loop():
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
    made.close()


def test_async_rewards_work_inside_a_running_loop():
    async def later(completions):
        await asyncio.sleep(0)
        return [3.0]

    async def notebook():
        return rubric(later).score(["a"], {}).total.tolist()

    assert asyncio.run(notebook()) == [3.0]


def test_deadline_of_async_and_of_plain_functions():
    released = threading.Event()

    async def forever(completions, **columns):
        await asyncio.Event().wait()

    def sleeps(completions, **columns):
        released.wait()
        return [0.0]

    for slow in (forever, sleeps):
        with pytest.raises(RewardError, match=rf'(?s)"{slow.__name__}" failed on record .r1.: .*no result after 0.1 s'):
            rubric(slow, timeout=0.1).score(["a"], {"id": ["r1"]})
    released.set()


def test_an_error_in_an_async_function_names_its_row():
    async def fussy(completions, **columns):
        return [1 / len(text) for text in completions]

    with pytest.raises(RewardError, match="record 'r2': ZeroDivisionError"):
        rubric(fussy).score(["a", ""], {"id": ["r1", "r2"]})


def test_the_cause_of_an_error_is_told_once():
    def fussy(completions, **columns):
        if "" in completions:
            raise LookupError("an empty one")
        return [1.0] * len(completions)

    with pytest.raises(RewardError) as caught:  # the function is called with both rows, and with each
        rubric(fussy).score(["a", ""], {"id": ["r1", "r2"]})
    told = "".join(traceback.format_exception(caught.value))
    assert told.count('raise LookupError("an empty one")') == 1
    assert told.count("Traceback (most recent call last)") == 2  # where it failed, and what was asked for


def test_a_function_that_fails_only_in_company_affects_all_rows():
    def alone(completions, **columns):
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [1.0]

    batch = rubric(alone, on_error="skip").score(["a", "b"], {}, group_size=2)
    assert batch.components == [[None, None]]


def test_plain_functions_without_a_deadline_stay_in_this_thread():
    threads = []

    def where(completions):
        threads.append(threading.current_thread())
        return [0.0]

    rubric(where).score(["a"], {})
    assert threads == [threading.current_thread()]


def test_threads_compute_on_the_gpu_of_their_process(monkeypatch):
    current = threading.local()  # as CUDA has it: a device for each thread, at first 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "device", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "device", device))
    torch.cuda.set_device(3)

    def plain(completions):
        return [float(torch.cuda.current_device())]

    async def later(completions):
        return [float(torch.cuda.current_device())]

    made = rubric(plain, later, timeout=300)
    assert made.score(["a"], {}).components == [[3.0], [3.0]]
    made.close()
