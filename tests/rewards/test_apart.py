import asyncio
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from qwenvl.rewards.apart import own, own_state
from qwenvl.rewards.function import RewardError, RewardFunction
from qwenvl.rewards.plugins import load_file
from qwenvl.rewards.rubric import Rubric


def rubric(*functions, **options):
    return Rubric([RewardFunction(f.__name__, f) for f in functions], [1.0] * len(functions), **options)


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
import os
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.rubric import Rubric

def forks(completions):
    if not (child := os.fork()):
        os._exit(7)
    return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))]

values = Rubric([RewardFunction("forks", forks)], [1.0]).score(["a"], {}).components
os._exit(5 if values == [[7.0]] else 6)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 5


def test_a_plugin_that_ends_the_process_while_it_is_loaded_is_named(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit()\n")
    with pytest.raises(RewardError, match=r"script.py: SystemExit while it was loaded"):
        load_file(str(tmp_path / "script.py"))


def test_what_a_function_changes_is_its_own():
    def vandal(completions, **columns):
        completions.clear()
        columns["meta"][0]["steps"].append("extra")
        columns["id"][0] = "other"
        columns["trainer_state"].log_history[0]["loss"] = 0
        columns["trainer_state"].global_step = 99
        return [0.0, 0.0]

    seen = []

    def witness(completions, **columns):
        state = columns["trainer_state"]
        seen.append([completions, columns["meta"], columns["id"], state.log_history, state.global_step])
        return [0.0, 0.0]

    state = SimpleNamespace(log_history=[{"loss": 1.0}], global_step=3)
    columns = {"meta": [{"steps": ["one"]}, {"steps": []}], "id": ["a", "b"]}
    for made in (rubric(vandal, witness), rubric(vandal, witness, timeout=600)):
        made.score(["x", "y"], columns, trainer_state=state)
    untouched = [["x", "y"], [{"steps": ["one"]}, {"steps": []}], ["a", "b"], [{"loss": 1.0}], 3]
    assert seen == [untouched, untouched]
    assert columns == {"meta": [{"steps": ["one"]}, {"steps": []}], "id": ["a", "b"]}
    assert (state.log_history, state.global_step) == ([{"loss": 1.0}], 3)


def test_a_row_that_is_tried_alone_is_as_it_was():
    def changes_and_fails(completions, steps):
        steps[0].append("mine")
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [float(len(steps[0]))]

    values = rubric(changes_and_fails, on_error="skip").values(["a", "b"], {"steps": [[], []]})
    assert values == [[None, None]]  # it fails on no row alone, so in company on both


def test_copies():
    value = {"a": [1, [2, {"b": "c"}], ("d", [3])], "e": {4, 5}}
    copied = own(value)
    assert copied == value
    copied["a"][1][1]["b"], copied["a"][2][1][0] = 0, 0
    copied["e"].clear()
    assert value == {"a": [1, [2, {"b": "c"}], ("d", [3])], "e": {4, 5}}
    assert own_state(None) is None and own_state("text") == "text"
    lock = threading.Lock()
    assert own_state(SimpleNamespace(lock=lock)).lock is lock, "what is no list, dict or set stays"
