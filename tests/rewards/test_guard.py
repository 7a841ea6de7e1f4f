import asyncio
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

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


def leaves(completions, **columns):
    sys.exit(0)


def leaves_at_once(completions, **columns):
    os._exit(0)


async def leaves_later(completions, **columns):
    await asyncio.sleep(0)
    sys.exit(0)


async def leaves_at_once_later(completions, **columns):
    os._exit(0)


async def task_leaves(completions, **columns):
    return await asyncio.gather(leaves_later(completions))


@pytest.mark.parametrize("timeout", [None, 600])
@pytest.mark.parametrize("function", [leaves, leaves_at_once, leaves_later, leaves_at_once_later, task_leaves])
def test_a_function_cannot_end_the_run(function, timeout):
    called = "os._exit" if "at_once" in function.__name__ else "sys.exit"
    made = rubric(function, timeout=timeout)
    message = rf"\"{function.__name__}\" failed on record 'r1': RewardExit: it called {called}\(0\)"
    with pytest.raises(RewardError, match=message):
        made.score(["a"], {"id": ["r1"]})
    made.close()


def test_a_function_in_a_worker_process_cannot_either(tmp_path):
    (tmp_path / "ends.py").write_text(
        "import os, sys\ndef leaves(completions):\n    sys.exit(0)\ndef leaves_at_once(completions):\n    os._exit(0)\n"
    )
    for name, message in (("leaves", "SystemExit: 0"), ("leaves_at_once", r"exit code 0\)")):
        function = RewardFunction(name, print, spec=f"{tmp_path / 'ends.py'}:{name}", cpu_heavy=True)
        made = Rubric([function], [1.0], workers=1)
        with pytest.raises(RewardError, match=rf"(?s)\"{name}\" failed on row 0: .*{message}"):
            made.score(["a"], {})
        made.close()


def test_others_may_end_their_process():
    """A process that a function forks, and the main thread outside of calls."""
    code = """
import os, sys
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.rubric import Rubric

def leaves():
    os._exit(7)

def raises():
    raise ValueError

def forks(completions):
    statuses = []
    for end in (leaves, lambda: sys.exit(8), raises, int):
        if not (child := os.fork()):
            return end()
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return [float("".join(map(str, statuses)))]

async def forks_later(completions):
    return forks(completions)

for each in (forks, forks_later):
    values = Rubric([RewardFunction("forks", each)], [1.0]).score(["a"], {}).components
    if values != [[7810.0]]:
        os._exit(6)
os._exit(5)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 5


def test_what_a_function_changes_is_its_own():
    def vandal(completions, **columns):
        completions.clear()
        columns["meta"][0]["steps"].append("extra")
        columns["id"][0] = "other"
        columns["meta"][1]["span"][0].clear()
        columns["trainer_state"].log_history[0]["loss"] = 0
        columns["trainer_state"].global_step = 99
        return [0.0, 0.0]

    seen = []

    def witness(completions, **columns):
        state = columns["trainer_state"]
        seen.append([completions, columns["meta"], columns["id"], state.log_history, state.global_step])
        return [0.0, 0.0]

    lock = threading.Lock()  # what is no list, dict or set is not copied
    state = SimpleNamespace(log_history=[{"loss": 1.0}], global_step=3, lock=lock)
    columns = {"meta": [{"steps": ["one"]}, {"span": ([1], {2})}], "id": ["a", "b"]}
    for made in (rubric(vandal, witness), rubric(vandal, witness, timeout=600)):
        made.score(["x", "y"], columns, trainer_state=state)
    untouched = [["x", "y"], [{"steps": ["one"]}, {"span": ([1], {2})}], ["a", "b"], [{"loss": 1.0}], 3]
    assert seen == [untouched, untouched]
    assert columns == {"meta": untouched[1], "id": ["a", "b"]}
    assert (state.log_history, state.global_step) == ([{"loss": 1.0}], 3)


def test_a_row_that_is_tried_alone_is_as_it_was():
    def changes_and_fails(completions, steps):
        steps[0].append("mine")
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [float(len(steps[0]))]

    values = rubric(changes_and_fails, on_error="skip").values(["a", "b"], {"steps": [[], []]})
    assert values == [[None, None]]  # it fails on no row alone, so in company on both
